// Memory that ranks' GPUs share, on emulated GPUs: which stream may reuse it after it was freed,
// and the error when memory runs out. Tested with CUDA's memory and with NCCL's, whose calls a shim
// implements (nccl_shim/).
#include <cstdlib>
#include <vector>

#include "predictable.h"
#include "support/calls.h"
#include "support/error_text.h"
#include "support/ranks.h"
#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shoal/collectives/communicator.h"
#include "shoal/collectives/communicator_options.h"
#include "shoal/runtime/base/error.h"

namespace shoal::collectives {
namespace {

using shoal::test::error_text;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr std::size_t kMiB = std::size_t{1} << 20;
// Two GPUs with 96 MiB each, unless the environment says otherwise.
[[maybe_unused]] const int kChosen =
    setenv("SHOAL_EMULATED_GPUS", "2", 0) + setenv("SHOAL_EMULATED_GPU_MEMORY", "100663296", 0);

// A rank with its own GPU. `memory` counts the rank's allocations and the communicator's.
struct Rank {
  Rank(const World& world, Store& store, const std::string& backend)
      : device(Device::cuda(world.rank)), stream(device) {
    CommunicatorOptions options = shoal::test::with_deadline(60);
    options.backend = backend;
    options.stream = stream.view();
    options.counted_by = &memory;
    communicator = make_communicator(world, store, options);
  }
  Buffer symmetric(std::size_t bytes, Stream on) {
    return {communicator->memory_resource(), bytes, MemoryTag::gradients, on};
  }
  Device device;
  OwnedStream stream;
  DeviceBackend& cuda = device_backend(DeviceType::cuda);
  std::unique_ptr<MemoryResource> upstream = make_device_memory(device);
  CountingMemory memory{*upstream};
  std::unique_ptr<Communicator> communicator;
};

class DeviceMemory : public ::testing::TestWithParam<const char*> {
 protected:
  static void on_two_gpus(const std::function<void(Rank&)>& body) {
    shoal::test::run_thread_ranks(2, [&](const World& world, Store& store) {
      Rank rank(world, store, GetParam());
      body(rank);
      rank.communicator->host().barrier()->wait();
    });
  }
};

TEST_P(DeviceMemory, StaysWithTheStreamThatFreedIt) {
  on_two_gpus([](Rank& rank) {
    const OwnedStream other(rank.device);
    const auto pinned = make_pinned_memory();
    const Buffer seen(*pinned, 1, MemoryTag::data);
    Buffer first = rank.symmetric(kMiB, rank.stream.view());
    const void* const where = first.data();
    rank.cuda.fill(first.data(), 1, kMiB, rank.stream.view());
    rank.cuda.copy(seen.data(), first.data(), 1, rank.stream.view());  // has not run yet
    first.reset();
    const Buffer second = rank.symmetric(kMiB, other.view());
    EXPECT_NE(second.data(), where) << "the first stream's work may still use the memory";
    rank.cuda.fill(second.data(), 2, kMiB, other.view());
    rank.cuda.synchronize(other.view());
    rank.cuda.synchronize(rank.stream.view());
    EXPECT_EQ(*static_cast<const char*>(seen.data()), 1);
    EXPECT_EQ(rank.symmetric(kMiB, rank.stream.view()).data(), where);
  });
}

TEST_P(DeviceMemory, GoesToAnotherStreamAfterItsWorkIfNoOtherIsFree) {
  on_two_gpus([](Rank& rank) {
    const OwnedStream other(rank.device);
    const auto pinned = make_pinned_memory();
    const Buffer seen(*pinned, 1, MemoryTag::data);
    Buffer first = rank.symmetric(60 * kMiB, rank.stream.view());
    const void* const where = first.data();
    rank.cuda.fill(first.data(), 1, kMiB, rank.stream.view());
    rank.cuda.copy(seen.data(), first.data(), 1, rank.stream.view());
    first.reset();
    const Buffer second = rank.symmetric(60 * kMiB, other.view());
    EXPECT_EQ(second.data(), where);
    rank.cuda.fill(second.data(), 2, kMiB, other.view());
    rank.cuda.synchronize(other.view());
    EXPECT_EQ(*static_cast<const char*>(seen.data()), 1);
  });
}

// Tests of steady-state steps rely on these counters.
TEST_P(DeviceMemory, DriverCallsAreCounted) {
  on_two_gpus([](Rank& rank) {
    const auto asked = [&] {
      rank.communicator->host().barrier()->wait();
      const DeviceStatistics now = rank.cuda.statistics();
      rank.communicator->host().barrier()->wait();
      return now;
    };
    const DeviceStatistics before = asked();
    rank.symmetric(20 * kMiB, rank.stream.view()).reset();
    const DeviceStatistics grown = asked();
    EXPECT_EQ(grown.allocations - before.allocations, 2) << "each rank maps one segment";
    rank.symmetric(20 * kMiB, rank.stream.view()).reset();
    EXPECT_EQ(asked(), grown);
  });
}

// The calls that free memory when communicators end are also counted. The last owner makes them.
TEST_P(DeviceMemory, FreeingIsCounted) {
  const auto ends = [](bool has_segment) {
    DeviceStatistics asked;
    shoal::test::run_thread_ranks(2, [&](const World& world, Store& store) {
      const auto all_are = [&](const std::string& where) {
        barrier(store, where, world.size, Deadline::in_seconds(60));
      };
      Rank rank(world, store, GetParam());
      if (has_segment) rank.symmetric(20 * kMiB, rank.stream.view()).reset();
      all_are("made");
      const DeviceStatistics before = rank.cuda.statistics();
      all_are("counted");
      rank.communicator.reset();
      all_are("ended");
      const DeviceStatistics after = rank.cuda.statistics();
      if (world.rank == 0)
        asked = {.synchronizations = after.synchronizations - before.synchronizations,
                 .deallocations = after.deallocations - before.deallocations};
      all_are("read");
    });
    return asked;
  };
  const DeviceStatistics without = ends(false), with = ends(true);
  EXPECT_EQ(with.deallocations - without.deallocations, 2) << "one segment for each rank";
  EXPECT_EQ(with.synchronizations - without.synchronizations, 2)
      << "each waits for its device's work first";
}

TEST_P(DeviceMemory, ExhaustionReportsTheRequestTheUsersAndTheRemedy) {
  on_two_gpus([](Rank& rank) {
    const Stream stream = rank.stream.view();
    const Buffer parameters(rank.memory, 20 * kMiB, MemoryTag::parameters, stream);
    const Buffer gradients = rank.symmetric(12 * kMiB, stream);
    const auto held =
        HasSubstr("; held are parameters 20.0 MiB, gradients 12.0 MiB; use a smaller");
    const std::string call =
        std::string(GetParam()) == "nccl" ? "(ncclMemAlloc of 73400320 bytes" : "(cudaMalloc";
    EXPECT_THAT(error_text([&] { rank.symmetric(70 * kMiB, stream); }),
                AllOf(HasSubstr("no room for 70.0 MiB of gradients"), HasSubstr(call), held));
    // An allocation that is not the communicator's also reports the communicator's memory.
    EXPECT_THAT(error_text([&] { Buffer(rank.memory, 70 * kMiB, MemoryTag::activations, stream); }),
                AllOf(HasSubstr("no room for 70.0 MiB of activations"), held));
    EXPECT_EQ(rank.memory.total().current, static_cast<std::int64_t>(32 * kMiB));
    EXPECT_TRUE(rank.symmetric(kMiB, stream)) << "smaller allocations still succeed";
  });
}

INSTANTIATE_TEST_SUITE_P(Backends, DeviceMemory, ::testing::Values("native", "nccl"),
                         [](const auto& test) { return test.param; });

// Emulated streams run late and host and device memory are separate, so this is stricter than the
// shim over host memory.
TEST(NcclOnGpus, EveryOperationIsExactAndAutoChoosesNccl) {
  shoal::test::run_thread_ranks(2, [](const World& world, Store& store) {
    Rank rank(world, store, "auto");
    EXPECT_EQ(rank.communicator->backend(), "nccl");
    EXPECT_THAT(test::check_everything(*rank.communicator, {7, 1031}), IsEmpty());
  });
}

// CUDA copies a rank's own part and refuses host memory that is not pinned. CUDA then keeps this
// error until a later call reads it.
TEST(NcclOnGpus, AFailedCopyIsNotReportedByTheNextCall) {
  shoal::test::run_thread_ranks(1, [](const World& world, Store& store) {
    Rank rank(world, store, "nccl");
    const Buffer received(*rank.upstream, 4, MemoryTag::data, rank.stream.view());
    const std::int32_t sent = 1;
    EXPECT_THAT(error_text([&] {
                  rank.communicator->gather(&sent, received.data(), 1, DType::i32, 0)->wait();
                }),
                HasSubstr("nccl: gather"));
    EXPECT_STREQ(cudaGetErrorName(cudaGetLastError()), "cudaSuccess");
  });
}

}  // namespace
}  // namespace shoal::collectives
