// Checks which of Shoal's graphs cuDNN accepts, without a GPU: cuDNN chooses an engine and compiles
// for devices that are only described to it. docs/internals/gpu.md states the expected result. No
// kernel runs.
#include <string>
#include <tuple>

#include "support/cudnn.h"
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shoal/kernels/cuda/attention_cudnn.h"

extern "C" int shoal_described_gpus_loads();  // from described_gpus/driver.cc

namespace shoal::kernels {
namespace {

// Describes a device with the fields that cuDNN 9.19 reads.
std::string described(int capability, int multiprocessors, int shared_memory, int cache) {
  return fmt::format(
      R"({{"maxGridSize":[2147483647,65535,65535],"maxBlockSize":[1024,1024,64],)"
      R"("regsPerBlock":65536,"multiProcessorCount":{},"warpSize":32,)"
      R"("maxSharedMemoryPerBlock":49152,"maxSharedMemoryPerBlockOptin":{},)"
      R"("reservedSharedMemoryPerBlock":1024,"maxRegistersPerSM":65536,"maxCtasPerSM":32,)"
      R"("maxThreadsPerBlock":1024,"maxThreadsPerSM":2048,"pciDeviceId":0,"isTccDriver":0,)"
      R"("supportCoopLaunch":1,"totalGlobalMem":85000000000,"smClockRateKHz":1755000,)"
      R"("memClockRateKHz":2619000,"l2CacheSize":{},"cudaDeviceId":0,"deviceVer":{},)"
      R"("driverVer":13000,"deviceName":"described"}})",
      multiprocessors, shared_memory, cache, 10 * capability);
}

enum class Rows { whole, lengths, packed };

constexpr std::int64_t kBatch = 4, kHeads = 8, kTokens = 512;

CudnnAttentionKey key_of(Rows rows, std::int64_t head_dim, bool causal, bool backward) {
  CudnnAttentionKey key;
  key.batch = kBatch, key.heads = kHeads, key.queries = key.keys = kTokens;
  key.head_dim = head_dim;
  key.causal = causal, key.backward = backward;
  key.lengths = rows != Rows::whole, key.packed = rows == Rows::packed;
  key.q = key.k = key.v = key.out = {kTokens * kHeads * head_dim, kHeads * head_dim};
  if (backward) key.dout = key.dq = key.dk = key.dv = key.q;
  return key;
}

struct Gpu {
  const char* name;
  int capability, multiprocessors, shared_memory, cache;
};
class DescribedGpu : public ::testing::TestWithParam<std::tuple<Gpu, std::int64_t>> {};

TEST_P(DescribedGpu, HasPlansForTheGraphs) {
  const auto& [gpu, head_dim] = GetParam();
  if (shoal::testing::cudnn_version_of(cudnn_version()) < 91501)
    GTEST_SKIP() << "needs cuDNN 9.15.1; this is " << cudnn_version();
  CudnnAttention attention(
      described(gpu.capability, gpu.multiprocessors, gpu.shared_memory, gpu.cache));
  const int before = shoal_described_gpus_loads();
  int made = 0;
  for (const Rows rows : {Rows::whole, Rows::lengths, Rows::packed})
    for (const bool causal : {false, true})
      for (const bool backward : {false, true}) {
        const auto& plan = attention.plan(key_of(rows, head_dim, causal, backward));
        const std::string& why = CudnnAttention::refusal(plan);
        const std::string what =
            fmt::format("{}, head_dim {}, rows {}, causal {}, backward {}", cudnn_version(),
                        head_dim, static_cast<int>(rows), causal, backward);
        if (gpu.capability < 90 && rows == Rows::packed && backward) {
          EXPECT_EQ(why, "cuDNN has no engine for it") << what;
          continue;
        }
        EXPECT_EQ(why, "") << what;
        ++made;
        // A deterministic gradient keeps 16 bits a score. Calls are split into pieces by this
        // amount.
        constexpr std::size_t scores = 2 * kBatch * kHeads * kTokens * kTokens;
        const std::size_t workspace = CudnnAttention::workspace_bytes(plan);
        EXPECT_GE(workspace, backward ? scores : 0) << what;
        EXPECT_LT(workspace, (backward ? scores : 0) + (1 << 20)) << what;
      }
  EXPECT_GE(shoal_described_gpus_loads() - before, made) << "the plans were compiled";
}

// Sizes from NVIDIA's architecture white papers and programming guide.
constexpr Gpu kGpus[] = {{"H100", 90, 132, 232448, 50 << 20}, {"A100", 80, 108, 166912, 40 << 20}};
INSTANTIATE_TEST_SUITE_P(Gpus, DescribedGpu,
                         ::testing::Combine(::testing::ValuesIn(kGpus), ::testing::Values(64, 128)),
                         [](const auto& test) {
                           return fmt::format("{}HeadsOf{}", std::get<0>(test.param).name,
                                              std::get<1>(test.param));
                         });

}  // namespace
}  // namespace shoal::kernels
