// A rank ends, aborts or is late in each phase of an operation by levels; the emulated GPU's copies
// identify the phases. All other ranks must learn which rank it was, long before their deadline.
#include <atomic>
#include <chrono>
#include <csignal>
#include <string>
#include <vector>

#include "gpu/on_gpu.h"
#include "support/calls.h"
#include "support/error_text.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shoal/collectives/backend/device/device_communicator.h"
#include "shoal/runtime/base/clock.h"

// The argument is a cudaMemcpyKind. Defined only where the GPU is emulated
// (support/emulated_gpu/copies.cc).
extern "C" void shoal_emulated_gpu_before_copies(void (*told)(int)) __attribute__((weak));

namespace shoal::collectives {
namespace {

using ::testing::HasSubstr;

// Eight slices of a rank's share of an all_reduce. Ranks 0 and 1 are on one host, 2 and 3 on the
// other, so the rails are 0, 2 and 1, 3. With so many slices, the three in flight
// (LevelPass::kSlots) are not the last ones when a rank dies midway. Otherwise the others might or
// might not have their whole sum, depending on timing.
constexpr std::int64_t kCount = 199'680, kSlices = 8, kSliceBytes = kCount * 4 / 2 / kSlices;
constexpr double kDeadline = 60, kStall = 3;

enum Copy : std::uint8_t { to_device = 1, to_host = 2, in_device = 3 };  // cudaMemcpyKind

// The moment before the `number`th copy of this kind in one operation, counted from 1.
struct At {
  int rank = -1;
  Copy copy = to_host;
  std::int64_t number = 0;  // 0: before the operation is called
};

// The dying rank ends itself there. If another rank stalls, the dying rank is killed while it waits
// for that rank.
struct Phase {
  const char* name;
  At dies = {}, stalls = {};
  bool gave_all = false;  // it died after sending all data, so the others may have their sum
};

std::ostream& operator<<(std::ostream& out, const Phase& phase) { return out << phase.name; }

double seconds_now() {
  return std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
}

// State of this process.
struct Plan {
  At dies = {}, stalls = {};
  Store* store = nullptr;
  std::atomic<int> copies[4] = {};
};
Plan* plan = nullptr;

void on_copy(int kind) {
  const std::int64_t number = ++plan->copies[kind];
  if (plan->dies.copy == kind && plan->dies.number == number) ::raise(SIGKILL);
  if (plan->stalls.copy == kind && plan->stalls.number == number) {
    shoal::test::ProcessRanks::say_ready(*plan->store);
    shoal::test::sleep_seconds(kStall);
  }
}

// Ranks 0 and 1 are on one host, 2 and 3 on the other.
std::unique_ptr<Communicator> by_levels(World world, Store& store, Stream stream) {
  world.host = world.rank < 2 ? "a" : "b";
  return std::make_unique<device::DeviceCommunicator>(
      make_communicator(world, store, shoal::test::with_deadline(kDeadline)),
      device::DeviceCommunicator::Options{.stream = stream,
                                          .host = world.host,
                                          .deadline_seconds = kDeadline,
                                          .slice_bytes = kSliceBytes,
                                          .levels_from = 1});
}

// A rank with its buffers. All ranks have completed one sum and are about to start another.
struct Rank {
  Rank(const World& world, Store& store)
      : stream(shoal::test::device_of(world)),
        communicator(by_levels(world, store, stream.view())),
        send(communicator->memory_resource(), kCount * 4, MemoryTag::gradients),
        recv(communicator->memory_resource(), kCount * 4, MemoryTag::gradients) {
    own.store = &store;
    plan = &own;
    shoal_emulated_gpu_before_copies(on_copy);
    sum()->wait();
    // Each slice is copied in, out, and to the neighbour once.
    for (const Copy copy : {to_host, to_device, in_device})
      if (own.copies[copy] != kSlices)
        throw_error(ErrorCode::internal, "{} copies of kind {}", own.copies[copy].load(),
                    int{copy});
    communicator->host().barrier()->wait();
    for (std::atomic<int>& copies : own.copies) copies = 0;
  }
  WorkPtr sum() {
    return communicator->all_reduce(send.data(), recv.data(), kCount, DType::f32, ReduceOp::max);
  }

  OwnedStream stream;
  std::unique_ptr<Communicator> communicator;
  Buffer send, recv;
  Plan own;
};

void run_rank(const Phase& phase, const World& world, Store& store) {
  Rank rank(world, store);
  if (phase.dies.rank == world.rank) rank.own.dies = phase.dies;
  if (phase.stalls.rank == world.rank) rank.own.stalls = phase.stalls;
  if (phase.dies.rank == world.rank && phase.dies.number == 0 && phase.stalls.rank < 0)
    ::raise(SIGKILL);
  rank.sum()->wait();
  if (!phase.gave_all) throw_error(ErrorCode::internal, "a sum that cannot be whole was returned");
  rank.sum()->wait();
}

class LevelDeath : public ::testing::TestWithParam<Phase> {};

TEST_P(LevelDeath, IsNamedOnAllOtherRanks) {
  SHOAL_NEEDS_A_NETWORK();
  if (!shoal_emulated_gpu_before_copies) GTEST_SKIP() << "needs an emulated GPU";
  const Phase& phase = GetParam();
  shoal::test::ProcessRanks ranks(
      4, [&](const World& world, Store& store) { run_rank(phase, world, store); });
  if (phase.stalls.rank >= 0) {
    ASSERT_TRUE(ranks.wait_until_ready(60, 1));
    shoal::test::sleep_seconds(0.5);  // time for the other ranks to reach their waits
    ranks.send_signal(phase.dies.rank, SIGKILL);
  }
  const auto outcomes = ranks.wait(60);
  for (int rank = 0; rank < 4; ++rank) {
    const auto& outcome = outcomes[static_cast<std::size_t>(rank)];
    EXPECT_FALSE(outcome.running) << "rank " << rank << " did not end";
    if (rank == phase.dies.rank) {
      EXPECT_EQ(outcome.signal, SIGKILL)
          << "the rank should have died in this phase: " << outcome.error;
      continue;
    }
    EXPECT_EQ(outcome.signal, 0) << "rank " << rank << " must not crash";
    EXPECT_THAT(outcome.error, HasSubstr("rank " + std::to_string(phase.dies.rank)))
        << "on rank " << rank;
    EXPECT_LT(outcome.seconds, kDeadline / 2) << "rank " << rank << " waited for its deadline";
  }
}

constexpr Phase kPhases[] = {
    {"before_the_first_meeting", {.rank = 0}, {}},
    {"in_the_first_fold", {.rank = 0, .copy = to_host, .number = 1}, {}},
    {"in_a_later_fold", {.rank = 3, .copy = to_host, .number = 3}, {}},
    {"in_the_sum_between_hosts", {.rank = 0}, {.rank = 2, .copy = to_host, .number = 2}},
    {"in_the_last_sum_between_hosts", {.rank = 3}, {.rank = 1, .copy = to_host, .number = kSlices}},
    {"in_the_first_write_back", {.rank = 1, .copy = to_device, .number = 1}, {}},
    {"in_a_later_write_back", {.rank = 2, .copy = to_device, .number = 3}, {}},
    {"in_the_neighbours_memory", {.rank = 0, .copy = in_device, .number = 2}, {}},
    {"at_the_last_meeting", {.rank = 0}, {.rank = 1, .copy = to_device, .number = kSlices}, true},
    {"at_the_last_meeting_of_the_other_host",
     {.rank = 3},
     {.rank = 2, .copy = in_device, .number = kSlices},
     true},
};
INSTANTIATE_TEST_SUITE_P(Phases, LevelDeath, ::testing::ValuesIn(kPhases),
                         [](const auto& phase) { return std::string(phase.param.name); });

// Rank 1's device is slow with the last slice, and rank 0 waits for it at the last meeting. Rank 0
// must learn of rank 1's abort at once.
TEST(LevelAborts, AreNoticedAtTheLastMeeting) {
  SHOAL_NEEDS_A_NETWORK();
  if (!shoal_emulated_gpu_before_copies) GTEST_SKIP() << "needs an emulated GPU";
  const auto outcomes = shoal::test::on_gpu(4, 60, [](const World& world, Store& store) {
    Rank rank(world, store);
    if (world.rank == 1) rank.own.stalls = {.rank = 1, .copy = to_device, .number = kSlices};
    const double began = seconds_now();
    const WorkPtr work = rank.sum();
    if (world.rank == 1) {
      shoal::test::sleep_seconds(1);
      rank.communicator->abort("enough");
    }
    EXPECT_THAT(shoal::test::error_text([&] {
                  work->wait();
                  rank.sum()->wait();
                }),
                HasSubstr("rank 1 aborted: enough"));
    if (world.rank == 0) {
      EXPECT_LT(seconds_now() - began, kStall - 0.5) << "rank 0 waited for rank 1's device";
    }
    // No rank may learn of it from the end of another process.
    store.set("told" + std::to_string(world.rank), "yes");
    for (int peer = 0; peer < 4; ++peer)
      (void)store.get("told" + std::to_string(peer), Deadline::in_seconds(20));
    if (::testing::Test::HasFailure()) throw_error(ErrorCode::internal, "see above");
  });
  if (outcomes.empty()) GTEST_SKIP() << "no GPU";
  for (const auto& outcome : outcomes) EXPECT_EQ(outcome.exit_status, 0) << outcome.error;
}

// A rank whose deadline passes names the late rank: its neighbour on another host or on this one.
class LevelDeadline : public ::testing::TestWithParam<At> {};

TEST_P(LevelDeadline, NamesTheLateRank) {
  SHOAL_NEEDS_A_NETWORK();
  if (!shoal_emulated_gpu_before_copies) GTEST_SKIP() << "needs an emulated GPU";
  const At late = GetParam();
  const auto outcomes = shoal::test::on_gpu(4, 60, [&](const World& world, Store& store) {
    Rank rank(world, store);
    if (world.rank == late.rank) rank.own.stalls = late;
    const std::string text = shoal::test::error_text([&] {
      rank.sum()->wait(world.rank == 0 ? Deadline::in_seconds(1) : Deadline::in_seconds(kDeadline));
      rank.sum()->wait();
    });
    if (world.rank == 0) {
      EXPECT_THAT(text, HasSubstr("did not finish"));
      EXPECT_THAT(text, HasSubstr(std::to_string(late.rank)));
      EXPECT_THAT(text, ::testing::Not(HasSubstr("the work of cuda:0")));
    } else {
      EXPECT_THAT(text, HasSubstr("rank 0"));
    }
    if (::testing::Test::HasFailure()) throw_error(ErrorCode::internal, "{}", text);
  });
  if (outcomes.empty()) GTEST_SKIP() << "no GPU";
  for (const auto& outcome : outcomes) EXPECT_EQ(outcome.exit_status, 0) << outcome.error;
}
INSTANTIATE_TEST_SUITE_P(Neighbours, LevelDeadline,
                         ::testing::Values(At{.rank = 2, .copy = to_host, .number = 2},
                                           At{.rank = 1, .copy = to_device, .number = kSlices}),
                         [](const auto& at) { return "rank" + std::to_string(at.param.rank); });

}  // namespace
}  // namespace shoal::collectives
