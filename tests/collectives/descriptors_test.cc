// Memory is shared by file descriptors. A process, and a user, can have only a limited number.
#include <cstdint>
#include <filesystem>
#include <vector>

#include "support/calls.h"
#include "support/ranks.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/capability.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "shoal/collectives/backend/native/symmetric_memory.h"
#include "shoal/collectives/communicator.h"
#include "shoal/collectives/communicator_options.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/memory/memory_resource.h"

namespace shoal::collectives {
namespace {

using shoal::test::sum;
using shoal::test::with_deadline;
using test::ProcessRanks;
using ::testing::AllOf;
using ::testing::HasSubstr;

// Lowers this process's limit permanently. Root could have exceeded it in flight; this prevents
// that.
void allow_descriptors(rlim_t number) {
  const rlimit limit{number, number};
  if (setrlimit(RLIMIT_NOFILE, &limit) != 0) throw_error(ErrorCode::io, "setrlimit");
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct none[2] = {};
  if (syscall(SYS_capset, &header, none) != 0) throw_error(ErrorCode::io, "capset");
}

std::ptrdiff_t open_descriptors() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/fd"),
                       std::filesystem::directory_iterator());
}

// Before any rank waits, all ranks announce more descriptors than the user may have in flight.
TEST(SymmetricMemory, WithManySegmentsNeedsFewDescriptors) {
  constexpr int kSegments = 100;
  constexpr std::int64_t kCount = 100000;
  ProcessRanks ranks(4, [](const World& world, Store& store) {
    allow_descriptors(64);
    const auto communicator = make_communicator(world, store, with_deadline(20));
    communicator->barrier()->wait();
    const auto before = open_descriptors();
    std::vector<Buffer> buffers;
    for (int i = 0; i < kSegments; ++i)
      buffers.emplace_back(communicator->memory_resource(), native::SymmetricMemory::kSegmentBytes,
                           MemoryTag::communication);
    for (const int i : {0, kSegments / 2, kSegments - 1}) {
      auto* const values = static_cast<float*>(buffers[static_cast<std::size_t>(i)].data());
      std::fill(values, values + kCount, static_cast<float>(world.rank + i));
      sum(*communicator, values, kCount);
      EXPECT_EQ(values[0], static_cast<float>(6 + 4 * i));
      EXPECT_EQ(values[kCount - 1], static_cast<float>(6 + 4 * i));
    }
    EXPECT_EQ(communicator->statistics().zero_copy, 3);
    communicator->barrier()->wait();
    EXPECT_LE(open_descriptors(), before);
  });
  const auto outcomes = ranks.wait(60);
  for (const auto& outcome : outcomes) EXPECT_EQ(outcome.exit_status, 0) << outcome.error;
}

TEST(SymmetricMemory, TimesOutAndNamesTheRankThatDoesNotMapIt) {
  ProcessRanks ranks(2, [](const World& world, Store& store) {
    allow_descriptors(64);
    const auto communicator = make_communicator(world, store, with_deadline(1));
    communicator->barrier()->wait();
    if (world.rank == 1) {  // computes, and makes no progress
      store.get("given up", Deadline::in_seconds(20));
      return;
    }
    std::vector<Buffer> buffers;
    try {
      for (int i = 0; i < 500; ++i)
        buffers.emplace_back(communicator->memory_resource(),
                             native::SymmetricMemory::kSegmentBytes, MemoryTag::communication);
    } catch (const Error& error) {
      store.set("given up", "");
      EXPECT_EQ(error.code(), ErrorCode::timeout);
      EXPECT_EQ(error.peer(), 1);
      throw;
    }
  });
  const auto outcomes = ranks.wait(30);
  EXPECT_THAT(outcomes[0].error, AllOf(HasSubstr("symmetric memory wait to be mapped by rank(s) 1"),
                                       HasSubstr("ulimit -n")));
  EXPECT_EQ(outcomes[1].exit_status, 0) << outcomes[1].error;
}

// The kernel drops a descriptor if the receiving process has no free number for it.
TEST(SymmetricMemory, WithoutAFreeDescriptorIsNamedOnAllRanks) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "UBSan needs a pipe to check whether an object can be read, and reports an error"
                  " without descriptors";
#endif
  ProcessRanks ranks(2, [](const World& world, Store& store) {
    allow_descriptors(64);
    const auto communicator = make_communicator(world, store, with_deadline(20));
    communicator->barrier()->wait();
    if (world.rank == 1)
      while (dup(STDERR_FILENO) >= 0) {
      }
    communicator->barrier()->wait();
    const auto start = Clock::now();
    constexpr std::int64_t kCount = 100000;
    try {
      if (world.rank == 0) {
        const Buffer values(communicator->memory_resource(), kCount * sizeof(float),
                            MemoryTag::communication);
        sum(*communicator, static_cast<float*>(values.data()), kCount);
      } else {
        std::vector<float> values(kCount);
        sum(*communicator, values.data(), kCount);
      }
    } catch (const Error&) {
      EXPECT_LT(seconds_since(start), 5);
      throw;
    }
  });
  const auto outcomes = ranks.wait(30);
  const std::string cause = "memory that rank 0 shares did not arrive";
  EXPECT_THAT(outcomes[1].error, AllOf(HasSubstr(cause), HasSubstr("ulimit -n"),
                                       HasSubstr("all_reduce of 100000 f32, sum (#3)")));
  EXPECT_THAT(outcomes[0].error, AllOf(HasSubstr("rank 1"), HasSubstr(cause)));
}

}  // namespace
}  // namespace shoal::collectives
