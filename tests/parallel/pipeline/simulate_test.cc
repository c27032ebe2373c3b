#include "shoal/parallel/pipeline/simulate.h"

#include "parallel/pipeline/schedule_csv.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shoal/parallel/pipeline/generate.h"

namespace shoal::parallel {
namespace {

// A forward costs 1, a backward 2.
Simulation run(const ScheduleOptions& options, const PipelineCosts& costs = {}) {
  return simulate(make_schedule(options), costs);
}

TEST(Simulate, GPipeAnd1F1BHaveABubbleOfPMinus1OverM) {
  for (const ScheduleKind kind : {ScheduleKind::simple, ScheduleKind::one_f_one_b})
    for (int p = 1; p <= 9; ++p)
      for (const int m : {p, p + 1, 4 * p, 32}) {
        if (m < p) continue;
        const Simulation s = run({.kind = kind, .ranks = p, .microbatches = m});
        EXPECT_NEAR(s.bubble(), (p - 1.0) / m, 1e-12) << name(kind) << p << ' ' << m;
        for (const double busy : s.busy) EXPECT_NEAR(busy, 3.0 * m, 1e-12);
      }
}

TEST(Simulate, InterleavingDividesTheBubbleByTheChunks) {
  for (const int p : {2, 3, 4, 8})
    for (const int v : {2, 3, 4})
      for (const int m : {p, 2 * p, 4 * p}) {
        const Simulation s = run({.kind = ScheduleKind::virtual_interleaved,
                                  .ranks = p,
                                  .microbatches = m,
                                  .chunks = v});
        EXPECT_NEAR(s.bubble(), (p - 1.0) / (v * m), 1e-12) << p << ' ' << v << ' ' << m;
      }
}

TEST(Simulate, ZeroBubbleH1IsAThirdOf1F1BInItsMemory) {
  for (const int p : {2, 4, 8})
    for (const int m : {2 * p, 4 * p}) {
      const Simulation plain =
          run({.kind = ScheduleKind::one_f_one_b, .ranks = p, .microbatches = m});
      const Simulation split =
          run({.kind = ScheduleKind::zero_bubble, .ranks = p, .microbatches = m});
      EXPECT_NEAR(split.bubble(), plain.bubble() / 3, 1e-12) << p << ' ' << m;
      for (const double peak : split.peak_activation) EXPECT_LE(peak, p);
    }
}

TEST(Simulate, ZeroBubbleVHasNoneButFillingAndDraining) {
  for (const int p : {2, 3, 4, 8})
    for (const int m : {2 * p, 4 * p}) {
      const Simulation s =
          run({.kind = ScheduleKind::zero_bubble_v, .ranks = p, .microbatches = m, .chunks = 2});
      // Rank r begins r forwards late. No rank is idle otherwise.
      EXPECT_NEAR(s.time, 6.0 * m + p - 1, 1e-12) << p << ' ' << m;
      for (const double peak : s.peak_activation) EXPECT_LE(peak, 2.0 * p);
    }
}

TEST(Simulate, ActivationsInFlight) {
  const int p = 4, m = 12;
  const auto peaks = [&](ScheduleKind kind, int chunks = 1) {
    return run({.kind = kind, .ranks = p, .microbatches = m, .chunks = chunks}).peak_microbatches;
  };
  EXPECT_THAT(peaks(ScheduleKind::simple), testing::Each(m));
  EXPECT_THAT(peaks(ScheduleKind::one_f_one_b), testing::ElementsAre(4, 3, 2, 1));
  // p·(1 + (p-1)/(p·v)) microbatches of v chunks: here 4·(1 + 3/8)·2 = 11.
  EXPECT_EQ(peaks(ScheduleKind::virtual_interleaved, 2)[0], 11);
  EXPECT_EQ(
      run({.kind = ScheduleKind::one_f_one_b, .ranks = 4, .microbatches = 2}).peak_microbatches[0],
      2);
}

// The numbers of all stages of a rank, added up, are its peak.
TEST(Simulate, MicrobatchesKeptAreThoseOfARanksPeak) {
  const auto schedule = [](ScheduleKind kind, int chunks = 1) {
    return make_schedule({.kind = kind, .ranks = 4, .microbatches = 12, .chunks = chunks});
  };
  EXPECT_THAT(microbatches_kept(schedule(ScheduleKind::simple)), testing::Each(12));
  EXPECT_THAT(microbatches_kept(schedule(ScheduleKind::one_f_one_b)),
              testing::ElementsAre(4, 3, 2, 1));
  for (const ScheduleKind kind : {ScheduleKind::virtual_interleaved, ScheduleKind::zero_bubble_v}) {
    const Schedule two = schedule(kind, 2);
    std::vector<int> by_rank(4, 0);
    const std::vector<int> kept = microbatches_kept(two);
    for (std::size_t stage = 0; stage < kept.size(); ++stage)
      by_rank[static_cast<std::size_t>(two.rank_of_stage[stage])] += kept[stage];
    EXPECT_EQ(by_rank, simulate(two).peak_microbatches) << name(kind);
  }
}

TEST(Simulate, ActiveMicrobatchesBoundWhatIsInFlight) {
  for (const int active : {1, 2, 4, 6, 100}) {
    const Simulation s = run({.kind = ScheduleKind::interleaved,
                              .ranks = 4,
                              .microbatches = 16,
                              .active_microbatches = active});
    // Without a bound, the first gradient returns after 4 forwards and 3 backwards of 2.
    EXPECT_EQ(s.peak_microbatches[0], std::min(active, 4 + 3 * 2)) << active;
    for (const int peak : s.peak_microbatches) EXPECT_LE(peak, active);
  }
  // One microbatch at a time is not a pipeline. SMP's default is at least as good as 1F1B.
  const auto time = [](int active) {
    return run({.kind = ScheduleKind::interleaved,
                .ranks = 4,
                .microbatches = 16,
                .active_microbatches = active})
        .time;
  };
  EXPECT_DOUBLE_EQ(time(1), 16 * 12.0);
  EXPECT_LE(time(0), run({.kind = ScheduleKind::one_f_one_b, .ranks = 4, .microbatches = 16}).time);
}

TEST(Simulate, MessagesOverheadAndUnevenStagesCost) {
  // One microbatch through three stages: no work overlaps.
  const PipelineCosts costs{.stages = {{.forward = 1}, {.forward = 2}, {.forward = 3}},
                            .message = 0.5};
  const Schedule one =
      make_schedule({.kind = ScheduleKind::one_f_one_b, .ranks = 3, .microbatches = 1});
  EXPECT_DOUBLE_EQ(simulate(one, costs).time, (1 + 2 + 3) + 3 * 2 + 4 * 0.5);
  PipelineCosts with_overhead = costs;
  with_overhead.overhead = 0.125;
  EXPECT_GT(simulate(one, with_overhead).time, simulate(one, costs).time + 6 * 0.125 - 1e-9);
  // The slowest stage sets the pace.
  const Schedule many =
      make_schedule({.kind = ScheduleKind::one_f_one_b, .ranks = 3, .microbatches = 30});
  EXPECT_GT(simulate(many, costs).time, 30 * 5.0);
}

// A message that waits for its receiver delays the next one.
TEST(Simulate, AMessageWaitsForTheOneBeforeIt) {
  const Schedule compute = parse_csv("0F0,0F1,0F2,0B0,0B1,0B2\n1F0,1B0,1F1,1B1,1F2,1B2\n");
  const Simulation late = simulate(with_communication(compute, 0), {.message = 2});
  const Simulation early = simulate(with_communication(compute, 2), {.message = 2});
  EXPECT_LT(early.time, late.time);
}

TEST(Simulate, DrawsALineForEachRank) {
  const Schedule schedule =
      make_schedule({.kind = ScheduleKind::simple, .ranks = 2, .microbatches = 2});
  EXPECT_EQ(draw(schedule, simulate(schedule), 9),
            "rank  0  01...aabb\n"
            "rank  1  .01aabb..\n");
}

// The microbatches that a rank keeps are divided among its stages.
TEST(Simulate, SaysHowManyMicrobatchesAStageKeeps) {
  EXPECT_EQ(microbatches_kept(
                make_schedule({.kind = ScheduleKind::one_f_one_b, .ranks = 4, .microbatches = 8})),
            (std::vector<int>{4, 3, 2, 1}));
  EXPECT_EQ(microbatches_kept(
                make_schedule({.kind = ScheduleKind::simple, .ranks = 2, .microbatches = 5})),
            (std::vector<int>{5, 5}));
  const Schedule schedule = make_schedule(
      {.kind = ScheduleKind::virtual_interleaved, .ranks = 4, .microbatches = 8, .chunks = 2});
  const std::vector<int> peaks = simulate(schedule).peak_microbatches,
                         kept = microbatches_kept(schedule);
  for (std::size_t rank = 0; rank < peaks.size(); ++rank)
    EXPECT_EQ(kept[rank] + kept[rank + 4], peaks[rank]) << rank;
}

}  // namespace
}  // namespace shoal::parallel
