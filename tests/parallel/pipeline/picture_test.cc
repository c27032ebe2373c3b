// docs/pictures/schedules.txt, the source of a picture, must equal the simulator's output.
#include <fstream>
#include <iterator>

#include "support/source_tree.h"
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "shoal/parallel/pipeline/generate.h"
#include "shoal/parallel/pipeline/simulate.h"

namespace shoal::parallel {
namespace {

// A line for each of 4 ranks: its compute actions for 8 microbatches, each with begin and end. If a
// rank has two stages, each stage costs half.
std::string timeline(ScheduleKind kind, int chunks) {
  const Schedule schedule =
      make_schedule({.kind = kind, .ranks = 4, .microbatches = 8, .chunks = chunks});
  const double unit = 1.0 / chunks;
  const Simulation simulation = simulate(
      schedule, {.stages = {{.forward = unit, .input_backward = unit, .weight_backward = unit}}});
  std::string text;
  for (std::size_t rank = 0; rank < schedule.actions.size(); ++rank) {
    text += fmt::format("{} {}:", name(kind), rank);
    for (std::size_t i = 0; i < schedule.actions[rank].size(); ++i) {
      const Action& action = schedule.actions[rank][i];
      const auto [begin, end] = simulation.actions[rank][i];
      if (computes(action.kind))
        text += fmt::format(" {}@{:g}-{:g}", to_string(action), begin, end);
    }
    text += '\n';
  }
  return text;
}

TEST(SchedulePicture, ShowsTheSimulation) {
  const std::string wanted =
      timeline(ScheduleKind::simple, 1) + timeline(ScheduleKind::interleaved, 1) +
      timeline(ScheduleKind::one_f_one_b, 1) + timeline(ScheduleKind::virtual_interleaved, 2) +
      timeline(ScheduleKind::zero_bubble, 1) + timeline(ScheduleKind::zero_bubble_v, 2);
  std::ifstream file(testing::source_path("docs/pictures/schedules.txt"));
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  EXPECT_EQ(text, wanted) << "docs/pictures/schedules.txt differs; replace it by this and run "
                             "tools/pictures.py:\n"
                          << wanted;
}

}  // namespace
}  // namespace shoal::parallel
