#include <algorithm>
#include <set>

#include "parallel/pipeline/schedule_csv.h"
#include "support/error_text.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shoal/parallel/pipeline/generate.h"
#include "shoal/parallel/pipeline/validate.h"
#include "shoal/runtime/base/error.h"

namespace shoal::parallel {
namespace {

using testing::HasSubstr;

using test::error_text;

TEST(Action, IsWrittenAndReadInPyTorchsLanguage) {
  EXPECT_EQ(to_string({ActionKind::forward, 2, 0}), "2F0");
  EXPECT_EQ(to_string({ActionKind::send_backward, 10, 31}), "10SEND_B31");
  for (std::size_t kind = 0; kind < kActionKinds; ++kind) {
    const Action action{static_cast<ActionKind>(kind), 12, 7};
    EXPECT_EQ(parse_action(to_string(action)), action) << to_string(action);
  }
}

TEST(Action, UnreadableTextGivesTheReason) {
  EXPECT_THAT(error_text([] { parse_action("F0"); }), HasSubstr("does not begin with a stage"));
  EXPECT_THAT(error_text([] { parse_action("2X0"); }), HasSubstr("there is no kind \"X\""));
  EXPECT_THAT(error_text([] { parse_action("2F"); }), HasSubstr("does not end with a microbatch"));
  EXPECT_THAT(error_text([] { parse_action("2F-1"); }), HasSubstr("there is no kind \"F-\""));
  EXPECT_THAT(error_text([] { parse_action("99999999999F1"); }), HasSubstr("stage"));
}

TEST(Schedule, CsvGivesTheSameScheduleBack) {
  for (const ScheduleKind kind : {ScheduleKind::one_f_one_b, ScheduleKind::zero_bubble_v}) {
    const Schedule schedule =
        make_schedule({.kind = kind,
                       .ranks = 3,
                       .microbatches = 5,
                       .chunks = kind == ScheduleKind::zero_bubble_v ? 2 : 1});
    EXPECT_EQ(parse_csv(to_csv(schedule)), schedule) << to_csv(schedule);
  }
}

// PyTorch's files have no comments, and empty cells mark idle time.
TEST(Schedule, CsvOfPyTorchIsRead) {
  const Schedule schedule = parse_csv("0F0,0F1,,,0B0,,0B1\r\n,1F0,1F1,1B0,,1B1,\r\n");
  EXPECT_EQ(schedule.rank_of_stage, (std::vector<int>{0, 1}));
  EXPECT_EQ(schedule.microbatches, 2);
  ASSERT_EQ(schedule.ranks(), 2);
  EXPECT_EQ(schedule.actions[0].size(), 4u);
  EXPECT_TRUE(find_faults(with_communication(schedule), {}).empty());
}

TEST(Schedule, CsvThatCannotBeReadNamesLineAndCell) {
  EXPECT_THAT(error_text([] { parse_csv("0F0,0F1\n1F0,,1Q1\n"); }),
              AllOf(HasSubstr("line 2, cell 3"), HasSubstr("1Q1")));
  // A table of these sizes would not fit into memory.
  for (const char* text : {"2147483646F0\n", "0F2147483647\n", "# microbatches: 2147483647\n0F0\n"})
    EXPECT_THAT(error_text([text] { parse_csv(text); }), HasSubstr("in a schedule of 1 actions"));
  EXPECT_THAT(error_text([] { parse_csv("0F0\n0B0\n"); }),
              HasSubstr("stage 0 stands in the lines of rank 0 and of rank 1"));
  EXPECT_THAT(error_text([] { parse_csv("0F0\n2F0\n"); }), HasSubstr("no rank runs stage 1"));
  EXPECT_THAT(error_text([] { parse_csv("# stages: 0 x\n0F0\n"); }),
              HasSubstr("\"x\" is no number"));
}

// Megatron-LM's grid of ranks and stages.
struct Place {
  int ranks, group;
};
constexpr Place kPlaces[] = {{1, 1}, {2, 2}, {2, 4}, {4, 4}, {4, 5}, {8, 9}, {8, 11}};

TEST(Generate, MegatronsGridIsValid) {
  for (const auto [ranks, group] : kPlaces)
    for (const int microbatches : {8, 32})
      for (const int chunks : {1, 2, 4, 8})
        for (const bool forward_only : {false, true}) {
          const ScheduleOptions options{
              .kind = chunks == 1 ? ScheduleKind::one_f_one_b : ScheduleKind::virtual_interleaved,
              .ranks = ranks,
              .microbatches = microbatches,
              .chunks = chunks,
              .group = chunks == 1 ? 0 : group,
              .forward_only = forward_only};
          const Schedule schedule = make_schedule(options);  // validates
          EXPECT_EQ(schedule.stages(), ranks * chunks);
          std::size_t computed = 0;
          for (const auto& list : schedule.actions)
            computed += static_cast<std::size_t>(std::count_if(
                list.begin(), list.end(), [](const Action& a) { return computes(a.kind); }));
          EXPECT_EQ(computed, static_cast<std::size_t>(ranks * chunks * microbatches *
                                                       (forward_only ? 1 : 2)));
        }
}

TEST(Generate, EveryKindIsValidForEveryLength) {
  for (const ScheduleKind kind :
       {ScheduleKind::simple, ScheduleKind::interleaved, ScheduleKind::one_f_one_b,
        ScheduleKind::virtual_interleaved, ScheduleKind::zero_bubble, ScheduleKind::zero_bubble_v})
    for (int ranks = 1; ranks <= 17; ++ranks)
      for (const int microbatches : {1, 2, 3, ranks, ranks + 1, 2 * ranks + 1})
        for (const bool forward_only : {false, true}) {
          ScheduleOptions options{.kind = kind, .ranks = ranks, .microbatches = microbatches};
          options.forward_only = forward_only;
          if (kind == ScheduleKind::virtual_interleaved) options.chunks = 3;
          if (kind == ScheduleKind::zero_bubble_v) options.chunks = 2;
          ASSERT_NO_THROW(make_schedule(options))
              << name(kind) << " of " << ranks << " ranks, " << microbatches << " microbatches";
        }
}

TEST(Generate, RefusesContradictoryOptions) {
  EXPECT_THAT(error_text([] {
                make_schedule({.kind = ScheduleKind::one_f_one_b, .ranks = 2, .chunks = 2});
              }),
              HasSubstr("use virtual_interleaved"));
  EXPECT_THAT(
      error_text([] {
        make_schedule(
            {.kind = ScheduleKind::virtual_interleaved, .ranks = 4, .chunks = 2, .group = 3});
      }),
      HasSubstr("use groups of at least 4"));
  EXPECT_THAT(error_text([] { make_schedule({.kind = ScheduleKind::zero_bubble_v, .ranks = 4}); }),
              HasSubstr("2 stages a rank, not 1"));
  EXPECT_THAT(error_text([] { make_schedule({.ranks = 2, .microbatches = 0}); }),
              HasSubstr("0 microbatches"));
  EXPECT_THAT(error_text([] { parse_schedule_kind("interleave"); }),
              HasSubstr("did you mean interleaved?"));
}

// Megatron's published numbers of warmup forwards.
TEST(Generate, WarmupIsMegatrons) {
  const auto warmup = [](const Schedule& schedule, int rank) {
    int forwards = 0;
    for (const Action& action : schedule.actions[static_cast<std::size_t>(rank)]) {
      if (action.kind == ActionKind::backward) return forwards - 1;  // steady begins with a forward
      if (action.kind == ActionKind::forward) ++forwards;
    }
    return -1;
  };
  const Schedule plain =
      make_schedule({.kind = ScheduleKind::one_f_one_b, .ranks = 4, .microbatches = 8});
  for (int rank = 0; rank < 4; ++rank) EXPECT_EQ(warmup(plain, rank), 4 - rank - 1);
  const Schedule chunks = make_schedule(
      {.kind = ScheduleKind::virtual_interleaved, .ranks = 4, .microbatches = 8, .chunks = 2});
  for (int rank = 0; rank < 4; ++rank) EXPECT_EQ(warmup(chunks, rank), 2 * (4 - rank - 1) + 4);
}

// --- planted faults --------------------------------------------------------------------------

Schedule sound() {
  return make_schedule({.kind = ScheduleKind::one_f_one_b, .ranks = 3, .microbatches = 4});
}

std::vector<Action>::iterator find(Schedule& schedule, std::string_view text) {
  const Action wanted = parse_action(text);
  auto& list = schedule.actions[static_cast<std::size_t>(
      schedule.rank_of_stage[static_cast<std::size_t>(wanted.stage)])];
  return std::find(list.begin(), list.end(), wanted);
}

// The text of the first fault, with its position: "rank 1, row 3: ...".
std::string first_fault(const Schedule& schedule, const ValidationOptions& options = {}) {
  const auto faults = find_faults(schedule, options);
  if (faults.empty()) return "valid";
  return fmt::format("rank {}, row {}: {}", faults[0].rank, faults[0].index, faults[0].message);
}

TEST(Validate, AMissingActionIsNamed) {
  for (const std::string_view text :
       {"0F3", "1B2", "2F0", "1SEND_F1", "1RECV_F2", "1SEND_B3", "0RECV_B1"}) {
    Schedule schedule = sound();
    const Action gone = parse_action(text);
    schedule.actions[static_cast<std::size_t>(gone.stage)].erase(find(schedule, text));
    const std::string fault = first_fault(schedule);
    EXPECT_THAT(fault, HasSubstr(fmt::format("rank {}", gone.stage))) << text;
    EXPECT_THAT(fault, HasSubstr(text)) << text;
  }
}

TEST(Validate, ABackwardBeforeItsForwardIsNamed) {
  Schedule schedule = sound();
  std::iter_swap(find(schedule, "2F1"), find(schedule, "2B1"));
  EXPECT_THAT(first_fault(schedule), AllOf(HasSubstr("rank 2"), HasSubstr("2B1 comes before 2F1")));
}

TEST(Validate, MessagesThatOvertakeAreNamed) {
  Schedule schedule = sound();
  std::iter_swap(find(schedule, "1RECV_F0"), find(schedule, "1RECV_F1"));
  EXPECT_THAT(first_fault(schedule), HasSubstr("1"));
  schedule = sound();
  // Both are received in time, but in the wrong order.
  auto first = find(schedule, "1RECV_F1"), second = find(schedule, "1RECV_F2");
  const Action moved = *second;
  schedule.actions[1].erase(second);
  first = find(schedule, "1RECV_F1");
  schedule.actions[1].insert(first, moved);
  EXPECT_THAT(first_fault(schedule), HasSubstr("1RECV_F2 meets the send of 1RECV_F1 from rank 0"));
}

TEST(Validate, AnActionOnAnotherRankOrTwiceIsNamed) {
  Schedule schedule = sound();
  schedule.actions[2].push_back({ActionKind::forward, 0, 1});
  EXPECT_THAT(first_fault(schedule), HasSubstr("0F1: stage 0 lies on rank 0"));
  schedule = sound();
  schedule.actions[1].push_back({ActionKind::backward, 1, 2});
  EXPECT_THAT(first_fault(schedule), HasSubstr("1B2 was done before, at"));
  schedule = sound();
  schedule.actions[1].push_back({ActionKind::backward, 1, 4});
  EXPECT_THAT(first_fault(schedule), HasSubstr("1B4: there are 4 microbatches"));
}

TEST(Validate, ASplitBackwardNeedsBothHalves) {
  Schedule schedule =
      make_schedule({.kind = ScheduleKind::zero_bubble, .ranks = 2, .microbatches = 3});
  schedule.actions[0].erase(find(schedule, "0W1"));
  EXPECT_THAT(first_fault(schedule), HasSubstr("0I1 has no 0W1"));
  schedule = make_schedule({.kind = ScheduleKind::zero_bubble, .ranks = 2, .microbatches = 3});
  find(schedule, "1I1")->kind = ActionKind::backward;
  EXPECT_THAT(first_fault(schedule), HasSubstr("1"));
  EXPECT_NE(first_fault(schedule), "valid");
}

TEST(Validate, DeadlockNamesEachRankAndWhatItWaitsFor) {
  // Two ranks wait for each other: rank 0 waits for the gradient of microbatch 1 before it sends
  // that microbatch's forward.
  Schedule schedule = parse_csv("0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n");
  schedule = with_communication(schedule, 0);
  const auto faults = find_faults(schedule, {});
  ASSERT_EQ(faults.size(), 2u);
  EXPECT_THAT(faults[0].message, HasSubstr("deadlock: rank 0 stands before 0B0, which waits for "
                                           "1SEND_B0 of rank 1"));
  EXPECT_THAT(faults[1].message, HasSubstr("1F1, which waits for 0SEND_F1 of rank 0"));
  EXPECT_THAT(grid(schedule, faults), AllOf(HasSubstr(">0B0<"), HasSubstr(">1F1<")));
}

TEST(Validate, MoreInFlightThanAllowedIsNamed) {
  const Schedule schedule =
      make_schedule({.kind = ScheduleKind::simple, .ranks = 2, .microbatches = 6});
  EXPECT_EQ(first_fault(schedule, {.max_in_flight = 6}), "valid");
  EXPECT_THAT(first_fault(schedule, {.max_in_flight = 5}), HasSubstr("0F5 is the 6th microbatch"));
}

TEST(Validate, ThrowsWithTheGridAroundTheFault) {
  Schedule schedule = sound();
  schedule.actions[1].erase(find(schedule, "1SEND_F1"));
  EXPECT_THAT(error_text([&] { validate(schedule, {}); }),
              AllOf(HasSubstr("schedule 1f1b cannot run: rank 1"), HasSubstr("rank 2")));
}

}  // namespace
}  // namespace shoal::parallel
