// Runs on spot instances: replay() equals a simulation second by second, which this file implements
// independently from the rules in replay.h.
#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <numeric>
#include <random>

#include "support/error_text.h"
#include "support/golden.h"
#include "support/temporary_directory.h"
#include <fmt/format.h>
#include <gmock/gmock.h>

#include "shoal/parallel/predict/spot/outcome.h"

namespace shoal::parallel {
namespace {

using test::error_text;
using ::testing::HasSubstr;

SpotTrace trace_of(std::vector<int> instances, double gap = 10) {
  SpotTrace trace;
  trace.name = "test";
  trace.gap = gap;
  trace.instances = std::move(instances);
  return trace;
}

// All times are whole seconds.
struct Simulation {
  using Seconds = std::int64_t;
  Seconds work, deadline, checkpoint, interval, restart;
  Seconds saved = 0, now = 0;

  explicit Simulation(const SpotJob& job)
      : work(std::llround(job.work)),
        deadline(std::llround(job.deadline)),
        checkpoint(std::llround(job.checkpoint)),
        interval(std::llround(job.interval)),
        restart(std::llround(job.restart)) {}

  Seconds time_for(Seconds work_left) const {
    if (interval == 0) return work_left;
    return work_left + checkpoint * ((work_left + interval - 1) / interval);
  }
  Seconds risk() const {
    const Seconds lost = interval == 0 ? 0 : std::min(interval, work - saved) + checkpoint;
    return 2 * restart + lost;
  }
  Seconds slack() const { return deadline - now - time_for(work - saved) - risk(); }
  bool progress_is_due(Seconds at) const {
    return (time_for(work) - time_for(work - saved)) * deadline < at * time_for(work);
  }

  SpotRun run(const SpotTrace& trace, const SpotJob& job, SpotPolicy policy, std::size_t start) {
    const auto gap = std::llround(trace.gap);
    const auto samples = static_cast<Seconds>(trace.instances.size());
    SpotRun result;
    enum { none, spot, owned } on = none;
    Seconds booting = 0, unsaved = 0, saving = 0, since_progress = 0;
    bool just_saved = false, final = false;
    while (saved < work) {
      const auto sample =
          static_cast<std::size_t>((static_cast<Seconds>(start) + now / gap) % samples);
      const bool there = trace.instances[sample] >= job.nodes, poll = now % gap == 0;
      if (on == spot && !there) {
        result.lost += static_cast<double>(unsaved + (saving > 0 ? checkpoint - saving : 0));
        result.interruptions += 1;
        on = none;
      }
      const auto before = on;
      if (policy == SpotPolicy::on_demand) on = owned;
      if (policy == SpotPolicy::spot && there) on = spot;
      if (keeps_deadline(policy) && !final && on != spot) {
        const bool may_leave = on == owned && (interval == 0 ? poll : just_saved);
        if (on == none && there && slack() >= 0) {
          on = spot;
        } else if (on == none && slack() <= 0) {
          on = owned;
          final = true;
        } else if (on == none && poll && policy != SpotPolicy::greedy && progress_is_due(now)) {
          on = owned;
        } else if (may_leave && !progress_is_due(now + risk())) {
          if (there && slack() >= 0)
            on = spot;
          else if (slack() > 0 && policy == SpotPolicy::uniform_progress)
            on = none;
        }
      }
      if (on != before) booting = restart, unsaved = saving = 0;
      just_saved = false;

      ++now;
      ++since_progress;
      if (on == none) result.waiting += 1;
      if (on == owned) result.on_demand += 1;
      const double spot_price = job.spot_price >= 0 ? job.spot_price : trace.prices.at(sample);
      if (on != none) result.cost += job.nodes * (on == spot ? spot_price : job.price) / 3600;
      if (on != none && booting > 0) {
        --booting;
        result.starting += 1;
      } else if (on != none && saving > 0) {
        --saving;
        just_saved = saving == 0;
      } else if (on != none) {
        ++unsaved;
        const bool due = interval == 0 || unsaved == interval || saved + unsaved == work;
        if (due && checkpoint > 0) saving = checkpoint;
        just_saved = due && checkpoint == 0;
      }
      if (just_saved) {
        result.checkpoints += static_cast<double>(checkpoint);
        saved += unsaved;
        unsaved = since_progress = 0;
      }
      if (since_progress > 2 * gap * samples + deadline) {
        result.finish = result.cost = std::numeric_limits<double>::infinity();
        return result;
      }
    }
    result.finish = static_cast<double>(now);
    return result;
  }
};

void expect_equal(const SpotTrace& trace, const SpotJob& job, SpotPolicy policy,
                  std::size_t start) {
  SCOPED_TRACE(
      fmt::format("{} from sample {} of {}: work {}, deadline {}, checkpoint {} after {}, "
                  "restart {}",
                  name(policy), start, trace.name, job.work, job.deadline, job.checkpoint,
                  job.interval, job.restart));
  check_job(trace, job, policy);
  const SpotRun run = replay(trace, job, policy, start);
  const SpotRun wanted = Simulation(job).run(trace, job, policy, start);
  ASSERT_EQ(run.finish, wanted.finish);
  if (std::isinf(wanted.finish)) return;
  ASSERT_NEAR(run.cost, wanted.cost, 1e-9 * wanted.cost);
  ASSERT_EQ(run.waiting, wanted.waiting);
  ASSERT_EQ(run.starting, wanted.starting);
  ASSERT_EQ(run.checkpoints, wanted.checkpoints);
  ASSERT_EQ(run.lost, wanted.lost);
  ASSERT_EQ(run.on_demand, wanted.on_demand);
  ASSERT_EQ(run.interruptions, wanted.interruptions);
  ASSERT_EQ(run.finish, job.work + run.waiting + run.starting + run.checkpoints + run.lost);
  if (keeps_deadline(policy)) {
    ASSERT_LE(run.finish, job.deadline);
  }
}

TEST(SpotReplay, CountsASmallRunByHand) {
  // Two samples of 10 s with an instance, two without. A start takes 2 s, a checkpoint interval 4 s
  // of work and a save 1 s.
  const SpotTrace trace = trace_of({1, 1, 0, 0});
  SpotJob job{
      .work = 20, .checkpoint = 1, .interval = 4, .restart = 2, .price = 3600, .spot_price = 360};
  // 0-2 start; 2-7, 7-12 and 12-17 do and save 12 s of work; 3 s are lost at 20; 40-42 start; 42-52
  // work.
  const SpotRun run = replay(trace, job, SpotPolicy::spot, 0);
  EXPECT_EQ(run.finish, 52);
  EXPECT_EQ(run.lost, 3);
  EXPECT_EQ(run.waiting, 20);
  EXPECT_EQ(run.starting, 4);
  EXPECT_EQ(run.checkpoints, 5);
  EXPECT_EQ(run.interruptions, 1);
  EXPECT_NEAR(run.cost, 32 * 0.1, 1e-12);
  // At 20, the remaining 8 s of work take 10 s, and the reserve is 4 + 4 + 1. With a deadline at 45
  // the wait ends at 26. On-demand instances take 2 + 10 s.
  job.deadline = 45;
  const SpotRun greedy = replay(trace, job, SpotPolicy::greedy, 0);
  EXPECT_EQ(greedy.finish, 38);
  EXPECT_EQ(greedy.on_demand, 12);
  EXPECT_NEAR(greedy.cost, 20 * 0.1 + 12 * 1, 1e-12);
  // With on-demand instances only, the run takes 2 + 25 s.
  EXPECT_NEAR(replay(trace, job, SpotPolicy::on_demand, 0).cost, 27, 1e-12);
}

TEST(SpotReplay, UniformProgressWorksWhileGreedyWaits) {
  // Spot instances appear after 1000 s. Greedy waits for them. Uniform progress has used on-demand
  // instances before, so it finishes earlier and costs more.
  SpotTrace trace = trace_of(std::vector<int>(250, 0));
  std::fill(trace.instances.begin() + 100, trace.instances.end(), 1);
  const SpotJob job{.work = 1000, .deadline = 2200, .restart = 20, .price = 4, .spot_price = 1};
  const SpotRun greedy = replay(trace, job, SpotPolicy::greedy, 0);
  const SpotRun uniform = replay(trace, job, SpotPolicy::uniform_progress, 0);
  EXPECT_EQ(greedy.on_demand, 0);
  EXPECT_EQ(greedy.finish, 2020);
  EXPECT_GT(uniform.on_demand, 400);
  EXPECT_LT(uniform.finish, greedy.finish);
  EXPECT_GT(uniform.cost, greedy.cost);
  // If kept, on-demand instances work until spot instances appear, which do the last 30 s of work.
  const SpotRun kept = replay(trace, job, SpotPolicy::uniform_kept, 0);
  EXPECT_EQ(kept.waiting, 10);
  EXPECT_EQ(kept.on_demand, 990);
  EXPECT_EQ(kept.finish, 1000 + 20 + 30);
  EXPECT_GT(kept.on_demand, uniform.on_demand);
}

TEST(SpotReplay, EndsARunThatNeverReachesACheckpoint) {
  const SpotJob job{
      .work = 100, .checkpoint = 5, .interval = 20, .restart = 4, .price = 4, .spot_price = 1};
  EXPECT_TRUE(std::isinf(replay(trace_of({1, 1, 0}), job, SpotPolicy::spot, 1).finish));
  EXPECT_TRUE(std::isinf(replay(trace_of({0}), job, SpotPolicy::spot, 0).cost));
  EXPECT_EQ(replay(trace_of({1, 1, 1, 0}), job, SpotPolicy::spot, 0).finish, 4 * 40 + 29);
}

// Random traces and jobs: lives and waits from a few samples to hundreds, deadlines from the
// tightest to loose ones, with and without checkpoints.
TEST(SpotReplay, EqualsTheSimulationOnMadeTraces) {
  std::mt19937 random(7);
  const auto pick = [&random](int low, int high) {
    return low + static_cast<int>(random() % static_cast<unsigned>(high - low + 1));
  };
  for (int round = 0; round < 400; ++round) {
    SpotTrace trace = trace_of({}, pick(1, 60));
    trace.name = fmt::format("round {}", round);
    const int life = pick(1, 60), wait = pick(0, 60), nodes = pick(1, 3);
    while (trace.instances.size() < 300) {
      trace.instances.insert(trace.instances.end(), static_cast<std::size_t>(pick(1, life)),
                             pick(nodes, nodes + 2));
      trace.instances.insert(trace.instances.end(), static_cast<std::size_t>(pick(0, wait)),
                             pick(0, nodes - 1));
    }
    for (std::size_t i = 0; i < trace.instances.size(); ++i)
      trace.prices.push_back(0.5 + 0.125 * pick(0, 4));
    SpotJob job{.work = static_cast<double>(pick(1, 4000)),
                .nodes = nodes,
                .checkpoint = round % 3 == 0 ? 0.0 : pick(0, 40),
                .interval = static_cast<double>(pick(1, 600)),
                .restart = static_cast<double>(pick(0, 200)),
                .price = 2};
    if (round % 3 == 0) job.interval = 0;
    job.spot_price = round % 2 == 0 ? 0.25 : -1;
    const double cycles = job.interval > 0 ? std::ceil(job.work / job.interval) : 0;
    job.deadline =
        job.restart + job.work + cycles * job.checkpoint + (round % 5 == 0 ? 0 : pick(0, 3000));
    for (const SpotPolicy policy : kSpotPolicies)
      for (const std::size_t start : {0U, 17U, 123U, 299U}) {
        expect_equal(trace, job, policy, start);
        if (HasFatalFailure()) return;
      }
  }
}

// The published traces, if present: an hour's and ten hours' work, as in the paper's model
// and with checkpoints.
class SharedTrace : public ::testing::TestWithParam<const char*> {};
TEST_P(SharedTrace, EqualsTheSimulation) {
  SHOAL_SHARED_DATA_OR_SKIP(path, fmt::format("spot/{}.json", GetParam()));
  const SpotTrace trace = read_spot_trace(path);
  const std::size_t step = trace.instances.size() / 60;
  for (const double hours : {1.0, 10.0})
    for (const double checkpoint : {0.0, 45.0}) {
      SpotJob job{.work = hours * 3600,
                  .deadline = hours * 4680,
                  .checkpoint = checkpoint,
                  .restart = 540,
                  .price = 3.06,
                  .spot_price = trace.prices.empty() ? 0.918 : -1};
      job.interval = checkpoint_interval(checkpoint, availability(trace, 1).between_interruptions);
      if (hours == 1) job.deadline = 5400;
      for (const SpotPolicy policy : kSpotPolicies)
        for (std::size_t start = 0; start < trace.instances.size(); start += step) {
          expect_equal(trace, job, policy, start);
          if (HasFatalFailure()) return;
        }
    }
}
INSTANTIATE_TEST_SUITE_P(Spot, SharedTrace,
                         ::testing::Values("availability_1-node_aws-02-15-2023_us-east-1a_v100_1",
                                           "availability_1-node_aws-10-26-2022_us-west-2a_v100_8",
                                           "availability_16-node_aws-08-27-2023_us-east-2b_v100_1",
                                           "preemption_1-node_aws-04-22-2023_us-west-2b_v100_1"));

TEST(SpotOutcome, IsTheMeanAndThePercentileOverAllStarts) {
  const SpotTrace trace = trace_of({1, 0, 0, 1, 1, 1, 0, 1, 1, 0, 1});
  const SpotJob job{.work = 35,
                    .deadline = 60,
                    .checkpoint = 1,
                    .interval = 6,
                    .restart = 3,
                    .price = 7200,
                    .spot_price = 3600};
  std::vector<double> finishes, costs;
  std::size_t late = 0;
  for (std::size_t start = 0; start < 11; ++start) {
    const SpotRun run = replay(trace, job, SpotPolicy::spot, start);
    finishes.push_back(run.finish);
    costs.push_back(run.cost);
    late += run.finish > 60 ? 1 : 0;
  }
  std::size_t told = 0;
  const SpotOutcome all = outcome(trace, job, SpotPolicy::spot, [&](std::size_t n) { told = n; });
  EXPECT_EQ(told, 11U);
  EXPECT_EQ(all.starts, 11U);
  EXPECT_EQ(all.late, late);
  EXPECT_GT(late, 0U);
  EXPECT_NEAR(all.mean.finish, std::accumulate(finishes.begin(), finishes.end(), 0.0) / 11, 1e-9);
  EXPECT_NEAR(all.mean.cost, std::accumulate(costs.begin(), costs.end(), 0.0) / 11, 1e-9);
  EXPECT_EQ(all.p95_finish, std::ranges::max(finishes));  // the eleventh of 11 runs
  EXPECT_EQ(all.p95_cost, std::ranges::max(costs));
  EXPECT_EQ(outcome(trace, job, SpotPolicy::uniform_progress).late, 0U);
}

// A spot instance appears once in 20 samples, so the runs finish after 1, 2, ... 20 samples.
TEST(SpotOutcome, PercentilesAreByNearestRank) {
  std::vector<int> instances(20, 0);
  instances.back() = 1;
  const SpotJob job{.work = 10, .price = 1, .spot_price = 1};
  const SpotOutcome all = outcome(trace_of(instances), job, SpotPolicy::spot);
  EXPECT_DOUBLE_EQ(all.mean.finish, 105);
  EXPECT_DOUBLE_EQ(all.p95_finish, 190);
  EXPECT_DOUBLE_EQ(all.last_finish, 200);
}

TEST(CheckpointInterval, IsDalys) {
  // Daly (2006): sqrt(2 d M) (1 + sqrt(d/2M)/3 + d/18M) - d.
  EXPECT_EQ(checkpoint_interval(0, 7200), 0);
  EXPECT_EQ(checkpoint_interval(60, 7200), 890);     // 929.5 · 1.02198 - 60
  EXPECT_EQ(checkpoint_interval(60, 720000), 9255);  // Young: 9295
  EXPECT_EQ(checkpoint_interval(7200, 600), 600);    // longer than two lives: one life
  EXPECT_EQ(checkpoint_interval(1e-6, 1e-6), 1);
}

// Half and double the interval cost more if interruptions are frequent and checkpoints long.
TEST(CheckpointInterval, LosesTheLeastTime) {
  std::mt19937 random(3);
  std::exponential_distribution<double> life(1.0 / 120);  // samples of 30 s: a mean life of an hour
  SpotTrace trace = trace_of({}, 30);
  while (trace.instances.size() < 4000) {
    trace.instances.insert(trace.instances.end(), static_cast<std::size_t>(life(random)) + 1, 1);
    trace.instances.push_back(0);
  }
  SpotJob job{.work = 12 * 3600, .checkpoint = 120, .restart = 60, .price = 3, .spot_price = 1};
  const double best = checkpoint_interval(120, availability(trace, 1).between_interruptions);
  const auto overhead = [&](double interval) {
    job.interval = std::round(interval);
    const SpotRun mean = outcome(trace, job, SpotPolicy::spot).mean;
    return mean.lost + mean.checkpoints;
  };
  const double least = overhead(best);
  EXPECT_LT(least, overhead(best / 2.5));
  EXPECT_LT(least, overhead(best * 2.5));
}

TEST(SpotTrace, ReadsSharesAndInterruptions) {
  const SpotTrace trace = trace_of({2, 2, 0, 0, 1, 2, 2, 2, 1, 0});
  const SpotAvailability two = availability(trace, 2), one = availability(trace, 1);
  EXPECT_DOUBLE_EQ(two.share, 0.5);
  EXPECT_EQ(two.interruptions, 2U);
  EXPECT_DOUBLE_EQ(two.between_interruptions, 25);
  EXPECT_DOUBLE_EQ(one.share, 0.7);
  EXPECT_EQ(one.interruptions, 2U);
  EXPECT_EQ(availability(trace, 3).between_interruptions, 0);
}

TEST(SpotTrace, RefusesOtherFiles) {
  const testing::TemporaryDirectory folder;
  const std::string path = folder / "trace.json";
  const auto error_of = [&path](const std::string& text) {
    std::ofstream(path) << text;
    return error_text([&path] { read_spot_trace(path); });
  };
  const std::string head = R"({"metadata": {"gap_seconds": 60}, "data": )";
  EXPECT_EQ(error_of(head + "[1, 0]}"), "nothing was thrown");
  EXPECT_THAT(error_of(head + "[]}"), HasSubstr("0 samples"));
  EXPECT_THAT(error_of(head + "[1, -2]}"), HasSubstr("sample 1 has -2 instances"));
  EXPECT_THAT(error_of(head + "[1, 0.5]}"), HasSubstr("0.5, where an integer"));
  EXPECT_THAT(error_of(head + "[1, 0"), HasSubstr("trace.json"));
  EXPECT_THAT(error_of(head + R"([1, 0], "prices": [1]})"), HasSubstr("1 prices for 2 samples"));
  EXPECT_THAT(error_of(head + R"([1], "prices": [-1]})"), HasSubstr("the price -1"));
  EXPECT_THAT(error_of(R"({"metadata": {"gap_seconds": 0}, "data": [1]})"),
              HasSubstr("gap_seconds 0"));
  EXPECT_THAT(error_of(R"({"metadata": {}, "data": [1]})"), HasSubstr("lacks gap_seconds"));
  EXPECT_THAT(error_of(R"({"data": [1]})"), HasSubstr("lacks metadata"));
  EXPECT_THAT(error_of("[1, 0]"), HasSubstr("not a JSON object"));
  EXPECT_THAT(error_text([] { read_spot_trace("nowhere.json"); }), HasSubstr("nowhere.json"));
}

TEST(SpotJob, RefusesImpossibleJobs) {
  const SpotTrace trace = trace_of({1, 0});
  const SpotJob good{.work = 7200,
                     .deadline = 9000,
                     .checkpoint = 60,
                     .interval = 600,
                     .restart = 300,
                     .price = 3,
                     .spot_price = 1};
  const auto error_of = [&](auto change, SpotPolicy policy = SpotPolicy::uniform_progress) {
    SpotJob job = good;
    change(job);
    return error_text([&] { check_job(trace, job, policy); });
  };
  EXPECT_EQ(error_of([](SpotJob&) {}), "nothing was thrown");
  EXPECT_THAT(error_of([](SpotJob& j) { j.work = 0; }), HasSubstr("0 seconds of work"));
  EXPECT_THAT(error_of([](SpotJob& j) { j.nodes = 0; }), HasSubstr("0 nodes"));
  EXPECT_THAT(error_of([](SpotJob& j) { j.restart = -1; }), HasSubstr("restarts of -1 s"));
  EXPECT_THAT(error_of([](SpotJob& j) { j.interval = 0; }), HasSubstr("interval above 0"));
  EXPECT_THAT(error_of([](SpotJob& j) { j.spot_price = -1; }), HasSubstr("no prices"));
  EXPECT_THAT(error_of([](SpotJob& j) { j.price = std::nan(""); }), HasSubstr("price of nan"));
  EXPECT_THAT(error_of([](SpotJob& j) { j.deadline = 0; }), HasSubstr("needs a deadline"));
  // 7200 s of work, 12 checkpoints of 60 s and a start of 300 s take 2.28 h.
  EXPECT_EQ(error_of([](SpotJob& j) { j.deadline = 8220; }), "nothing was thrown");
  EXPECT_THAT(error_of([](SpotJob& j) { j.deadline = 8219; }),
              HasSubstr("2.28 h is shorter than the run, which takes 2.28 h"));
}

}  // namespace
}  // namespace shoal::parallel
