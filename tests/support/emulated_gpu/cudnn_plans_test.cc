// Tests attention with the emulated cuDNN: how it reports missing memory, and which plans it keeps.
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "cudnn_faults.h"
#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shoal/kernels/cuda/attention_cudnn.h"
#include "shoal/kernels/kernels.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/log.h"
#include "shoal/runtime/memory/memory_resource.h"
#include "shoal/runtime/tensor/tensor.h"

namespace shoal::emulated_gpu {
namespace {

using kernels::CudnnAttention;
using kernels::CudnnAttentionKey;
using ::testing::HasSubstr;

[[maybe_unused]] const int kChosen = setenv("SHOAL_EMULATED_GPU_CUDNN", "91900", 0);

constexpr cudnnStatus_t kNoRoom[] = {CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED,
                                     CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED};

CudnnAttentionKey key_of(std::int64_t rows, bool backward = false) {
  CudnnAttentionKey key;
  key.batch = rows, key.heads = 2, key.queries = key.keys = 16, key.head_dim = 8;
  key.backward = backward;
  key.q = key.k = key.v = key.out = {16 * 2 * 8, 2 * 8};
  if (backward) key.dout = key.dq = key.dk = key.dv = key.q;
  return key;
}

std::optional<Error> error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return error;
  }
  return {};
}

// Also checks that cuDNN's failure does not become CUDA's last error.
void expect_no_room(const std::optional<Error>& error, const char* what) {
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::out_of_memory) << error->what();
  EXPECT_THAT(error->message(), HasSubstr(what));
  EXPECT_THAT(error->remedy(), HasSubstr("smaller batch"));
  EXPECT_STREQ(cudaGetErrorName(cudaGetLastError()), "cudaSuccess");
}

TEST(CudnnMemory, APlanWithoutMemoryIsRetried) {
  CudnnAttention attention;
  for (const cudnnStatus_t status : kNoRoom)
    for (const bool backward : {false, true}) {
      const CudnnAttentionKey key = key_of(status == kNoRoom[0] ? 1 : 2, backward);
      for (int i = 0; i < 2; ++i) {
        fail_next(CudnnCall::plan, status);
        expect_no_room(error_of([&] { attention.plan(key); }), "ALLOCATION_FAILED");
      }
      EXPECT_EQ(CudnnAttention::refusal(attention.plan(key)), "");
    }
}

TEST(CudnnMemory, AnUnsupportedPlanIsNotRetried) {
  CudnnAttention attention;
  fail_next(CudnnCall::plan, CUDNN_STATUS_NOT_SUPPORTED);
  for (int i = 0; i < 2; ++i)
    EXPECT_THAT(CudnnAttention::refusal(attention.plan(key_of(1))), HasSubstr("NOT_SUPPORTED"));
}

TEST(CudnnMemory, ACallWithoutMemoryReportsIt) {
  CudnnAttention attention;
  const auto run = [&] { attention.run(attention.plan(key_of(1)), {}, 1, nullptr, nullptr); };
  for (const cudnnStatus_t status : kNoRoom) {
    fail_next(CudnnCall::execute, status);
    expect_no_room(error_of(run), "running a plan");
  }
  fail_next(CudnnCall::execute, CUDNN_STATUS_EXECUTION_FAILED);
  const auto error = error_of(run);
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::internal) << error->what();
}

// Otherwise every later call would use Shoal's own kernels.
TEST(CudnnMemory, AHandleWithoutMemoryIsRetried) {
  ::setenv("SHOAL_CUDA_ATTENTION", "cudnn", 1);
  const auto memory = make_device_memory(Device::cuda(0));
  const auto kernels = kernels::make_cuda_kernels(
      {.device = Device::cuda(0), .memory = memory.get(), .cache_directory = {}});
  ::unsetenv("SHOAL_CUDA_ATTENTION");
  const Tensor all = Tensor::empty({4, 16, 8}, DType::bf16, *memory, MemoryTag::workspace);
  auto* const at = static_cast<char*>(all.view().data);
  kernels::AttentionShape shape;
  shape.batch = shape.heads = 1, shape.query_length = shape.key_length = 16, shape.head_dim = 8;
  shape.dtype = DType::bf16;
  const auto tensor = [&](int i) { return kernels::MutableHeadsView{at + i * 256, 128, 8}; };
  const auto run = [&] {
    const auto view = [&](int i) { return kernels::HeadsView{at + i * 256, 128, 8}; };
    kernels->attention().attention(shape, view(0), view(1), view(2), tensor(3), {},
                                   kernels->stream());
    device_backend(DeviceType::cuda).synchronize(kernels->stream());
  };
  fail_next(CudnnCall::create, kNoRoom[1]);
  expect_no_room(error_of(run), "starting cuDNN");
  EXPECT_FALSE(error_of(run));
}

// The 1024 latest plans, and those that a graph runs.
TEST(CudnnPlansKept, AreTheMostRecentlyUsed) {
  constexpr std::int64_t kMost = 1024;
  const std::int64_t before = cudnn_plans().alive;
  const auto alive = [&] { return cudnn_plans().alive - before; };
  const auto makes = [](const std::function<void()>& body) {
    const std::int64_t made = cudnn_plans().made;
    body();
    return cudnn_plans().made - made;
  };
  CudnnAttention attention;
  cudaStream_t stream = nullptr;
  void* memory = nullptr;
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, 0), cudaSuccess);
  ASSERT_EQ(cudaMalloc(&memory, 1 << 16), cudaSuccess);
  const auto& captured = attention.plan(key_of(1));
  kernels::CudnnAttentionPointers p;
  p.q = p.k = p.v = p.out = p.log_sum_exp = memory;
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  attention.run(captured, p, 1, static_cast<char*>(memory) + (1 << 15), stream);
  ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);

  for (std::int64_t rows = 2; rows <= kMost; ++rows) attention.plan(key_of(rows));
  EXPECT_EQ(alive(), kMost);
  EXPECT_EQ(makes([&] { attention.plan(key_of(2)); }), 0);
  const std::size_t notices = log::notices().size();
  EXPECT_EQ(makes([&] {
              attention.plan(key_of(kMost + 1));
              attention.plan(key_of(kMost + 2));
            }),
            2);
  EXPECT_EQ(alive(), kMost);
  ASSERT_EQ(log::notices().size(), notices + 1) << "the notice is logged once";
  EXPECT_THAT(log::notices().back().text, HasSubstr("attention has met 1025 shapes"));
  EXPECT_EQ(makes([&] { attention.plan(key_of(1)); }), 0) << "a graph may still run the plan";
  EXPECT_EQ(makes([&] { attention.plan(key_of(2)); }), 0) << "the plan was used since";
  EXPECT_EQ(makes([&] { attention.plan(key_of(3)); }), 1);
  EXPECT_EQ(makes([&] { attention.plan(key_of(4)); }), 1);
  EXPECT_EQ(makes([&] { attention.plan(key_of(kMost + 2)); }), 0);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  EXPECT_EQ(cudaFree(memory), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

TEST(CudnnPlansKept, AreLoggedWithTheirTime) {
  log::set_level(log::Level::debug);
  ::testing::internal::CaptureStderr();
  CudnnAttention attention;
  CudnnAttentionKey key = key_of(3, true);
  key.causal = true;
  attention.plan(key);
  attention.plan(key);
  const std::string said = ::testing::internal::GetCapturedStderr();
  log::set_level(log::Level::info);
  const std::string line =
      "cuDNN's plan of attention's gradient of bf16 (3 rows, 2 heads, 16 queries, 16 keys, "
      "head_dim 8, causal): ";
  const std::size_t at = said.find(line);
  ASSERT_NE(at, std::string::npos) << said;
  EXPECT_THAT(said.substr(at), ::testing::MatchesRegex("[^\n]*: [0-9]+ ms\n"))
      << "the plan is logged once";
}

}  // namespace
}  // namespace shoal::emulated_gpu
