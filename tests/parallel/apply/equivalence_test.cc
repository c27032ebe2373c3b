// Every layout and sharding of a model against one rank: the same losses, step after step, and
// gradients.
#include <cstdio>
#include <cstdlib>

#include "rig.h"

#include "shoal/parallel/apply/legality.h"

namespace shoal::parallel {
namespace {

class Layouts : public ::testing::TestWithParam<Layout> {};

TEST_P(Layouts, TrainAsOneRankDoes) {
  const Trained &want = one_rank(), got = trained(GetParam());
  ASSERT_EQ(got.losses.size(), want.losses.size());
  EXPECT_LT(want.losses.back(), want.losses.front() - 0.3) << "it learns";
  const Difference found = difference(got, want);
  EXPECT_LT(found.loss, 2e-5);
  EXPECT_LT(found.norm, 2e-4);
  EXPECT_LT(found.gradient, 1e-5);
  EXPECT_NEAR(got.evaluated, want.evaluated, 2e-5 * want.evaluated);
  expect_one_writer(got.first, want.first);
  expect_one_writer(got.state, want.state);
  RecordProperty("loss_error", fmt::format("{:.2e}", found.loss));
  RecordProperty("gradient_error", fmt::format("{:.2e}", found.gradient));
}

// Each level with each kind of parallelism, in one shard group and in several.
std::vector<Layout> sharded_layouts() {
  using enum ScheduleKind;
  return {
      {.rdp = 8, .sharding = 1, .degree = 4},
      {.rdp = 8, .sharding = 3},
      {.rdp = 4,
       .microbatches = 4,
       .checkpoint_group = 1,
       .offload = true,
       .sharding = 3,
       .degree = 2},
      // Pipelines, whose first and last stage share a table.
      {.rdp = 2, .pp = 2, .schedule = interleaved, .microbatches = 4, .sharding = 1},
      {.rdp = 2, .pp = 4, .schedule = zero_bubble, .microbatches = 8, .sharding = 2},
      {.rdp = 2,
       .pp = 4,
       .schedule = zero_bubble,
       .microbatches = 8,
       .checkpoint_group = 1,
       .sharding = 3},
      {.rdp = 4, .pp = 2, .microbatches = 4, .placement = "spread", .sharding = 3, .degree = 2},
      {.rdp = 2,
       .pp = 2,
       .schedule = virtual_interleaved,
       .chunks = 2,
       .microbatches = 4,
       .checkpoint_group = 1,
       .offload = true,
       .sharding = 3},
      {.rdp = 2, .pp = 4, .schedule = zero_bubble_v, .chunks = 2, .microbatches = 4, .sharding = 2},
      {.rdp = 2,
       .pp = 4,
       .schedule = zero_bubble_v,
       .chunks = 2,
       .microbatches = 4,
       .checkpoint_group = 2,
       .sharding = 3},
      // Tensor parallelism, whose parts of the table differ in size.
      {.rdp = 4, .tp = 2, .microbatches = 2, .sharding = 2, .degree = 2},
      {.rdp = 2, .tp = 2, .prescaled = true, .checkpoint_group = 1, .sharding = 3},
      {.rdp = 2, .tp = 4, .prescaled = true, .speed = true, .sharding = 2},
      // All three.
      {.rdp = 2, .pp = 2, .tp = 2, .microbatches = 4, .prescaled = true, .sharding = 1},
      {.rdp = 2,
       .pp = 2,
       .tp = 2,
       .schedule = zero_bubble,
       .microbatches = 4,
       .placement = "TDP",
       .sharding = 2},
      {.rdp = 2,
       .pp = 2,
       .tp = 2,
       .schedule = interleaved,
       .microbatches = 4,
       .checkpoint_group = 1,
       .offload = true,
       .sharding = 3},
      {.rdp = 2,
       .pp = 2,
       .tp = 2,
       .schedule = zero_bubble,
       .microbatches = 4,
       .prescaled = true,
       .placement = "spread",
       .sharding = 3},
  };
}

std::vector<Layout> layouts() {
  std::vector<Layout> all;
  for (const auto kind : {ScheduleKind::simple, ScheduleKind::interleaved,
                          ScheduleKind::one_f_one_b, ScheduleKind::zero_bubble})
    for (const auto& [rdp, pp] : {std::pair{1, 2}, {2, 2}, {1, 4}, {2, 4}, {1, 8}})
      all.push_back({.rdp = rdp, .pp = pp, .schedule = kind, .microbatches = rdp == 2 ? 8 : 4});
  all.push_back({.rdp = 2});
  all.push_back({.rdp = 8});
  all.push_back({.rdp = 2, .microbatches = 4, .checkpoint_group = 1});
  all.push_back(
      {.pp = 2, .schedule = ScheduleKind::virtual_interleaved, .chunks = 4, .microbatches = 4});
  all.push_back(
      {.pp = 4, .schedule = ScheduleKind::virtual_interleaved, .chunks = 2, .microbatches = 8});
  all.push_back({.rdp = 2,
                 .pp = 4,
                 .schedule = ScheduleKind::zero_bubble_v,
                 .chunks = 2,
                 .microbatches = 4,
                 .checkpoint_group = 2,
                 .placement = "spread"});
  // Tensor parallelism: each way to hold activations, alone, with pipelines and with replicas.
  struct Held {
    bool prescaled, speed;
  };
  for (const Held held : {Held{true, true}, Held{true, false}, Held{false, false}})
    for (const auto& [rdp, pp, tp] :
         {std::tuple{1, 1, 2}, {1, 1, 4}, {1, 1, 8}, {2, 1, 2}, {1, 2, 2}, {2, 2, 2}, {1, 2, 4}})
      all.push_back({.rdp = rdp,
                     .pp = pp,
                     .tp = tp,
                     .schedule = tp == 4 ? ScheduleKind::zero_bubble : ScheduleKind::interleaved,
                     .microbatches = tp == 8 ? 2 : 4,
                     .prescaled = held.prescaled,
                     .speed = held.speed,
                     .checkpoint_group = rdp - 1,
                     .offload = rdp == 2 && pp == 2,
                     .placement = rdp == 2 ? "TDP" : "cluster"});
  for (const Layout& layout : sharded_layouts()) all.push_back(layout);
  return all;
}

INSTANTIATE_TEST_SUITE_P(Of, Layouts, ::testing::ValuesIn(layouts()),
                         [](const auto& test) { return test.param.text(); });

// Every mesh of up to 8 ranks with every schedule, way to hold activations and level of sharding
// that is legal; checkpoints, offloading and smaller shard groups in turn.
std::vector<Layout> every_legal_layout() {
  std::vector<Layout> all;
  const auto legal = [](const Layout& layout) {
    LayoutRequest request;
    request.ranks = layout.ranks();
    request.pipeline = layout.pp;
    request.tensor = layout.tp;
    request.schedule = layout.schedule;
    request.chunks = layout.chunks;
    request.microbatches = layout.microbatches;
    request.batch = kRows / layout.rdp;
    request.length = kLength;
    request.prescaled_batch = layout.prescaled;
    request.speed = layout.speed;
    request.checkpointing = layout.checkpoint_group > 0;
    request.offloading = layout.offload;
    request.sharding = layout.sharding;
    request.sharded_degree = layout.degree;
    const int rows = kRows / layout.rdp / layout.microbatches;
    return kRows % layout.rdp == 0 && rows > 0 && (layout.prescaled || rows % layout.tp == 0) &&
           find_problems(request, {8, tiny().n_head, tiny().inner()}).empty();
  };
  for (int rdp = 1; rdp <= 8; ++rdp)
    for (int pp = 1; rdp * pp <= 8; ++pp)
      for (int tp = 1; rdp * pp * tp <= 8; ++tp)
        for (const auto kind : {ScheduleKind::simple, ScheduleKind::interleaved,
                                ScheduleKind::one_f_one_b, ScheduleKind::virtual_interleaved,
                                ScheduleKind::zero_bubble, ScheduleKind::zero_bubble_v})
          for (const int microbatches : {2, 8})
            for (const int held : {0, 1, 2})
              for (int level = 0; level <= (rdp > 1 ? 3 : 0); ++level) {
                const bool two = kind == ScheduleKind::virtual_interleaved ||
                                 kind == ScheduleKind::zero_bubble_v;
                // Nothing, each block's input, or that of two blocks, in the file: in turn.
                const int kept = static_cast<int>(all.size() % 3);
                const bool groups = rdp > 2 && all.size() % 2 == 0;
                const Layout layout{.rdp = rdp,
                                    .pp = pp,
                                    .tp = tp,
                                    .schedule = kind,
                                    .chunks = two ? 2 : 1,
                                    .microbatches = microbatches,
                                    .prescaled = held > 0,
                                    .speed = held == 1,
                                    .checkpoint_group = kept,
                                    .offload = kept == 2,
                                    .sharding = level,
                                    .degree = level > 0 && groups ? 2 : 0};
                if ((tp > 1 || held == 0) && legal(layout)) all.push_back(layout);
              }
  return all;
}

// In pieces: a process for each where ctest or GTEST_TOTAL_SHARDS runs them.
constexpr int kPieces = 16;
class EveryLayout : public ::testing::TestWithParam<int> {};

TEST_P(EveryLayout, TrainsAsOneRankDoes) {
  if (std::getenv("SHOAL_TEST_FULL") == nullptr)  // NOLINT(concurrency-mt-unsafe)
    GTEST_SKIP() << "every legal layout, in " << kPieces << " pieces: ./dev test --full";
  const std::vector<Layout> every = every_legal_layout();
  Difference worst;
  int layouts = 0;
  for (std::size_t i = static_cast<std::size_t>(GetParam()); i < every.size(); i += kPieces) {
    SCOPED_TRACE(every[i].text());
    const Trained got = trained(every[i]);
    const Difference found = difference(got, one_rank());
    EXPECT_LT(found.loss, 2e-5);
    EXPECT_LT(found.norm, 2e-4);
    EXPECT_LT(found.gradient, 1e-5);
    expect_one_writer(got.state, one_rank().state);
    worst.loss = std::max(worst.loss, found.loss);
    worst.gradient = std::max(worst.gradient, found.gradient);
    ++layouts;
  }
  std::printf("%d layouts: losses within %.1e, first gradients within %.1e\n", layouts, worst.loss,
              worst.gradient);
}

INSTANTIATE_TEST_SUITE_P(Piece, EveryLayout, ::testing::Range(0, kPieces));

}  // namespace
}  // namespace shoal::parallel
