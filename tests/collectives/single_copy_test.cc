// Collectives on ordinary buffers of different processes, which the kernel copies between them
// (process_memory.h): results, the fallback if such copies are forbidden, and cleanup.
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <fstream>
#include <initializer_list>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "predictable.h"
#include "support/calls.h"
#include "support/ranks.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "shoal/collectives/backend/native/group.h"
#include "shoal/collectives/backend/native/thresholds.h"
#include "shoal/collectives/communicator_options.h"
#include "shoal/collectives/transport/process_memory.h"
#include "shoal/runtime/base/error.h"

namespace shoal::collectives {
namespace {

using shoal::test::ProcessRanks;
using shoal::test::with_deadline;
using ::testing::HasSubstr;

void require(bool condition, const std::string& text) {
  if (!condition) throw Error(ErrorCode::internal, text);
}

// Makes these system calls fail in this process, as a container's filter does.
void forbid(std::initializer_list<long> calls) {
  std::vector<sock_filter> program{BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr))};
  for (const long call : calls) {
    program.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<std::uint32_t>(call), 0, 1));
    program.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM));
  }
  program.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  const sock_fprog filter{static_cast<unsigned short>(program.size()), program.data()};
  require(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0, "no_new_privs");
  require(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0, "seccomp");
}

// Whether this machine allows copies between processes. Otherwise there is nothing to test.
bool permitted() {
  std::uint64_t from = 7, to = 0;
  return transport::read_process(getpid(), reinterpret_cast<std::uintptr_t>(&from), &to,
                                 sizeof to) == 0;
}

void expect_success(ProcessRanks& ranks, double seconds) {
  for (const auto& outcome : ranks.wait(seconds))
    EXPECT_EQ(outcome.exit_status, 0) << outcome.error;
}

// Runs in f32, from plain and mixed memory, in place and out of place, sometimes unaligned.
void check_operation(Communicator& communicator, Operation operation, std::int64_t count) {
  int variant = static_cast<int>(operation);
  for (const test::Memory memory : {test::Memory::plain, test::Memory::mixed})
    for (const bool in_place : {false, true}) {
      test::Case c{operation, DType::f32, ReduceOp::sum, count};
      c.in_place = in_place;
      c.memory = memory;
      c.misalignment = ++variant % 3 == 0 ? 4 : 0;
      c.root = variant % communicator.size();
      if (!test::is_possible(c)) continue;
      const std::string wrong = test::check(communicator, c);
      require(wrong.empty(), wrong);
    }
}

// Several blocks and a remainder.
constexpr std::int64_t kLarge = 400003;
// The count if the kernel may not copy. Bounce slots are then used, and ThreadSanitizer checks each
// of their bytes, which is many times slower.
#if defined(__SANITIZE_THREAD__)
constexpr std::int64_t kBounced = 40003;
#else
constexpr std::int64_t kBounced = kLarge;
#endif

void check_large(Communicator& communicator, std::int64_t count) {
  for (const Operation operation : test::kOperations)
    check_operation(communicator, operation, count);
}

// Checks all_reduce and broadcast, for which the kernel copies only much larger buffers.
void check_largest(Communicator& communicator) {
  for (const Operation operation : {Operation::all_reduce, Operation::broadcast})
    check_operation(communicator, operation,
                    native::single_copy_from(operation, communicator.size()) / 4 + 3);
}

class SingleCopy : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!permitted()) GTEST_SKIP() << "process_vm_readv is forbidden on this machine";
  }
};

class SingleCopyResults : public SingleCopy, public ::testing::WithParamInterface<int> {};

TEST_P(SingleCopyResults, AreExact) {
  ProcessRanks ranks(GetParam(), [](const World& world, Store& store) {
    const auto communicator = make_communicator(world, store, with_deadline(60));
    const auto wrong = test::check_everything(*communicator, {70001});
    require(wrong.empty(), wrong.empty() ? "" : wrong.front());
    check_large(*communicator, kLarge);
    check_largest(*communicator);
    const std::int64_t bounced = communicator->statistics().bounced;
    check_operation(*communicator, Operation::all_to_all, kLarge);
    require(communicator->statistics().bounced == bounced, "nothing was copied between processes");
  });
  expect_success(ranks, 200);
}

INSTANTIATE_TEST_SUITE_P(Ranks, SingleCopyResults, ::testing::Values(2, 3, 4));

TEST_F(SingleCopy, TakesNoBounceSlots) {
  ProcessRanks ranks(2, [](const World& world, Store& store) {
    const auto communicator = make_communicator(world, store, with_deadline(60));
    const std::int64_t count = native::single_copy_from(Operation::all_reduce, 2) / 4;
    std::vector<float> values(static_cast<std::size_t>(count), 1.0f);
    communicator->all_reduce(values.data(), values.data(), count, DType::f32, ReduceOp::sum)
        ->wait();
    require(values.front() == 2 && values.back() == 2, "wrong sum");
    const CommunicatorStatistics s = communicator->statistics();
    require(s.zero_copy == 1 && s.bounced == 0 && s.bounced_bytes == 0,
            fmt::format("{} by the kernel, {} bounced", s.zero_copy, s.bounced));
  });
  expect_success(ranks, 60);
}

// Ordinary memory that spans whole huge pages, but is still in small pages.
class SmallPages {
 public:
  static constexpr std::size_t kBytes = 8 << 20, kHugePage = 2 << 20;
  SmallPages() {
    mapped_ = mmap(nullptr, kBytes + kHugePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                   -1, 0);
    require(mapped_ != MAP_FAILED, "no memory");
    const auto begin = reinterpret_cast<std::uintptr_t>(mapped_);
    values_ = reinterpret_cast<float*>((begin + kHugePage - 1) / kHugePage * kHugePage);  // NOLINT
    prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);  // the system may use huge pages by default
    std::fill_n(values_, size(), 1.0f);
    prctl(PR_SET_THP_DISABLE, 0, 0, 0, 0);
  }
  ~SmallPages() { munmap(mapped_, kBytes + kHugePage); }
  SmallPages(const SmallPages&) = delete;
  SmallPages& operator=(const SmallPages&) = delete;
  float* values() const { return values_; }
  static constexpr std::int64_t size() { return kBytes / sizeof(float); }
  // The bytes of this process's memory between the two ends that are in huge pages.
  std::int64_t huge_bytes() const {
    const auto own = reinterpret_cast<std::uintptr_t>(values_);
    std::ifstream file("/proc/self/smaps");
    std::int64_t kilobytes = 0;
    bool inside = false;
    for (std::string line; std::getline(file, line);) {
      std::istringstream words(line);
      std::uintptr_t begin = 0, end = 0;
      char dash = 0;
      if (words >> std::hex >> begin >> dash >> end && dash == '-')
        inside = begin < own + kBytes && end > own;
      else if (inside && line.starts_with("AnonHugePages:"))
        kilobytes += std::stoll(line.substr(line.find(':') + 1));
    }
    return kilobytes << 10;
  }

 private:
  void* mapped_;
  float* values_;
};

// Whether this machine moves memory into huge pages on request.
bool has_huge_pages() {
  constexpr int kCollapse = 25;  // MADV_COLLAPSE
  const SmallPages memory;
  return madvise(memory.values(), SmallPages::kBytes, kCollapse) == 0 && memory.huge_bytes() > 0;
}

TEST_F(SingleCopy, ABufferThatIsUsedOftenMovesIntoHugePages) {
  if (!has_huge_pages()) GTEST_SKIP() << "this machine has no transparent huge pages";
  ProcessRanks ranks(2, [](const World& world, Store& store) {
    const auto communicator = make_communicator(world, store, with_deadline(60));
    const SmallPages memory;
    float* values = memory.values();
    float sum = 1;
    const auto calls = [&](int number) {
      for (int i = 0; i < number; ++i, sum *= 2)
        communicator->all_reduce(values, values, memory.size(), DType::f32, ReduceOp::sum)->wait();
    };
    calls(7);
    const std::int64_t before = memory.huge_bytes();
    require(before == 0, fmt::format("{} bytes moved too early", before));
    calls(30);  // a peer that copies during a move delays it
    const std::int64_t after = memory.huge_bytes();
    require(after == SmallPages::kBytes, fmt::format("{} bytes moved", after));
    for (std::int64_t i = 0; i < memory.size(); ++i)
      require(values[i] == sum, fmt::format("element {} is {}, not {}", i, values[i], sum));
  });
  expect_success(ranks, 60);
}

// One rank without permission is enough, because all ranks decide alike.
TEST(SingleCopyForbidden, GoesThroughBounceSlotsOnAllRanks) {
  for (const long call : {SYS_process_vm_readv, SYS_process_vm_writev}) {
    ProcessRanks ranks(3, [call](const World& world, Store& store) {
      if (world.rank == 1) forbid({call});
      const auto communicator = make_communicator(world, store, with_deadline(60));
      check_large(*communicator, kBounced);
#if !defined(__SANITIZE_THREAD__)
      check_largest(*communicator);
#endif
      const std::int64_t bounced = communicator->statistics().bounced;
      check_operation(*communicator, Operation::all_to_all, kBounced);
      require(communicator->statistics().bounced > bounced, "nothing went through bounce slots");
    });
    expect_success(ranks, 100);
  }
}

TEST_F(SingleCopy, NothingIsWrittenIntoARankThatHasGivenUp) {
  shoal::test::run_thread_ranks(2, [](const World& world, Store& store) {
    const auto deadline = Deadline::in_seconds(20);
    native::Group group(world.rank, world.size, store, "closed", deadline);
    ASSERT_TRUE(group.single_copy());
    std::array<std::uint64_t, 4> mine{};
    mine[0] = 1;
    const auto address = reinterpret_cast<std::uintptr_t>(mine.data());
    store.set(fmt::format("address/{}", world.rank), fmt::format("{}", address));
    const auto theirs = std::stoull(store.get(fmt::format("address/{}", 1 - world.rank), deadline));
    const std::uint64_t value = 5;
    group.write_memory(1 - world.rank, theirs + 8, &value, sizeof value);
    store.set(fmt::format("wrote/{}", world.rank), "");
    store.get(fmt::format("wrote/{}", 1 - world.rank), deadline);
    EXPECT_EQ(mine[1], 5U);
    if (world.rank == 1) {
      group.say_last_words("enough");
      group.close_memory();
    }
    store.set(fmt::format("closed/{}", world.rank), "");
    store.get(fmt::format("closed/{}", 1 - world.rank), deadline);
    if (world.rank == 0) {
      try {
        group.write_memory(1, theirs + 16, &value, sizeof value);
        ADD_FAILURE() << "memory of a rank that had given up was written";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::peer_lost);
        EXPECT_EQ(error.peer(), 1);
        EXPECT_THAT(error.what(), HasSubstr("rank 1 gave up (its last words: enough)"));
      }
      std::uint64_t found = 0;
      group.read_memory(1, theirs, &found, sizeof found);  // reading is still allowed
      EXPECT_EQ(found, 1U);
    }
    store.set(fmt::format("done/{}", world.rank), "");
    store.get(fmt::format("done/{}", 1 - world.rank), deadline);
    EXPECT_EQ(mine[2], 0U);
  });
}

// A rank that gives up returns its buffers to the caller, but not during a peer's write.
TEST_F(SingleCopy, WritesInProgressAreWaitedFor) {
  shoal::test::run_thread_ranks(2, [](const World& world, Store& store) {
    native::Group group(world.rank, world.size, store, "begun", Deadline::in_seconds(20));
    auto& writing = group.page(0).memory.writing;
    auto& closed = group.page(1).memory.closed;
    if (world.rank == 0) {
      writing.store(1);
      store.set("begun", "");
      while (closed.load() == 0) std::this_thread::yield();
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      writing.store(0);
      store.get("over", Deadline::in_seconds(20));
    } else {
      store.get("begun", Deadline::in_seconds(20));
      const auto start = Clock::now();
      group.close_memory();
      EXPECT_TRUE(writing.load() == 0 || seconds_since(start) >= 1);  // the longest wait
      store.set("over", "");
    }
  });
}

TEST_F(SingleCopy, UnmappedMemoryIsReported) {
  shoal::test::run_thread_ranks(2, [](const World& world, Store& store) {
    const auto deadline = Deadline::in_seconds(20);
    native::Group group(world.rank, world.size, store, "nowhere", deadline);
    if (world.rank == 0) {
      std::uint64_t found = 0;
      try {
        group.read_memory(1, 8, &found, sizeof found);
        ADD_FAILURE() << "unmapped memory was read";
      } catch (const Error& error) {
        EXPECT_THAT(error.what(), HasSubstr("cannot reach the memory of rank 1: Bad address"));
      }
    }
    store.set(fmt::format("done/{}", world.rank), "");
    store.get(fmt::format("done/{}", 1 - world.rank), deadline);
  });
}

}  // namespace
}  // namespace shoal::collectives
