// Ranks of emulated hosts that divide replicas unevenly, so that sums are added in different
// orders. State that several replicas hold has the same bits nevertheless, and SMP's rules
// for collectives apply.
#include <cmath>
#include <cstring>
#include <mutex>

#include "rig.h"
#include "support/one_core.h"
#include <nlohmann/json.hpp>

#include "shoal/collectives/transport/fabric/fabric.h"
#include "shoal/parallel/plan/smp_parameters.h"

namespace shoal::parallel {
namespace {

World on_host(World world, const std::string& hosts) {
  if (!hosts.empty()) world.host = hosts.substr(static_cast<std::size_t>(world.rank), 1);
  return world;
}

// Compares bytes that several ranks hold, by name, and lists the ranks that differ from the first.
class Alike {
 public:
  void note(const std::string& what, const void* data, std::size_t bytes, int rank) {
    const std::string held(static_cast<const char*>(data), bytes);
    const std::scoped_lock lock(mutex_);
    const auto [first, fresh] = held_.try_emplace(what, held);
    if (fresh) return;
    ++compared_;
    if (first->second != held) others_.push_back(fmt::format("{} of rank {}", what, rank));
  }
  void note(const std::string& what, const OwnedRun& run, const Tensor& numbers, int rank, int tp) {
    const nn::Parameter& parameter = *run.parameter;
    const std::string part = parameter.is_part() ? fmt::format(" of tp {}", tp) : "";
    note(fmt::format("{} of {}{} from {}", what, parameter.name(), part, run.first),
         testing::values_of<float>(numbers).data(), numbers.bytes(), rank);
  }
  const std::vector<std::string>& others() const { return others_; }
  int compared() const { return compared_; }

 private:
  std::mutex mutex_;
  std::map<std::string, std::string> held_;
  std::vector<std::string> others_;
  int compared_ = 0;
};

struct Outcome {
  Alike alike;
  std::vector<double> norms;
  Whole gradients;  // of the first step
};

constexpr int kLayers = 4;  // ALBERT's blocks are one layer; with its ends, six units

// Trains two steps. `hosts`: a letter for each rank; empty: one host.
void train(const Layout& layout, const std::string& hosts, Outcome& outcome) {
  const test::OneCore one_core;
  std::mutex mutex;
  test::run_thread_ranks(layout.ranks(), [&](const World& world, Store& store) {
    collectives::CommunicatorOptions how;
    if (!hosts.empty()) how.transport = "tcp";
    how.fixed_order = layout.speed;  // then tensor-parallel ranks sum separately
    const auto group = testing::make_test_communicator(on_host(world, hosts), store, how);
    ProcessMesh mesh(*group, {layout.rdp, layout.pp, layout.tp}, Placement(layout.placement));
    Rank rank;
    nn::Encoder encoder(tiny_encoder("albert", 8, kLayers), nn::EncoderTask::masked_lm);
    ParallelModel model(rank.context, encoder, mesh, options_of(layout));
    DistributedOptimizer optimizer(model, nn::adamw());
    const int rows = kRows / layout.rdp / layout.microbatches / model.batch_parts();
    for (int step = 0; step < 2; ++step) {
      std::vector<Microbatch> microbatches;
      for (int i = 0; i < layout.microbatches; ++i) {
        const int first = ((mesh.place().rdp * layout.microbatches + i) * model.batch_parts() +
                           model.batch_part()) *
                          rows;
        microbatches.push_back(
            {encoder_input(rank, encoder.config(), nn::EncoderTask::masked_lm, step, first, rows),
             static_cast<std::uint32_t>(first)});
        microbatches.back().input.loss.loss_scale = 1.0f / 64;
      }
      model.train(microbatches);
      for (const OwnedRun& run : model.owned()) {
        const Tensor& gradient = run.segment.gradient;
        outcome.alike.note(fmt::format("step {}: gradient", step), run, gradient, world.rank,
                           mesh.place().tp);
        const std::scoped_lock lock(mutex);
        if (step == 0 && run.writes)
          collect(*run.parameter, run.first, gradient, outcome.gradients);
      }
      // The step clips, so a differing norm would give different weights.
      const double norm =
          optimizer.step(rank.state, {.learning_rate = 1e-2, .max_gradient_norm = 0.1})
              .gradient_norm;
      outcome.alike.note(fmt::format("step {}: norm", step), &norm, sizeof norm, world.rank);
      if (world.rank == 0) outcome.norms.push_back(norm);
    }
    model.wait_for_values();
    for (const OwnedRun& run : model.owned())
      outcome.alike.note("weights", run, run.segment.master, world.rank, mesh.place().tp);
    group->barrier()->wait();
  });
}

double apart(const Whole& got, const Whole& want) {
  double whole = 0, apart = 0;
  for (const auto& [name, values] : want.values)
    for (std::size_t i = 0; i < values.size(); ++i) {
      whole += values[i] * values[i];
      apart += std::pow(got.values.at(name)[i] - values[i], 2);
    }
  return std::sqrt(apart / whole);
}

struct Case {
  Layout layout;
  const char* hosts;
};
class TiedWeights : public ::testing::TestWithParam<Case> {};

// ALBERT's layers are tied across all stages of blocks, its table across the first and the last
// stage.
TEST_P(TiedWeights, AreOneSumAndCountOnce) {
  const auto& [layout, hosts] = GetParam();
  if (*hosts != 0 && collectives::fabric::fabric_providers().empty())
    GTEST_SKIP() << "built without libfabric";
  static Outcome want;
  if (want.norms.empty()) train({}, "", want);
  Outcome got;
  train(layout, hosts, got);
  EXPECT_THAT(got.alike.others(), ::testing::IsEmpty());
  EXPECT_GT(got.alike.compared(), 20);
  EXPECT_LT(apart(got.gradients, want.gradients), 1e-5);
  ASSERT_EQ(got.norms.size(), want.norms.size());
  for (std::size_t step = 0; step < want.norms.size(); ++step)
    EXPECT_NEAR(got.norms[step] / want.norms[step], 1, 2e-4) << step;
}

// Hosts have unequal numbers of the replicas, copies or tensor-parallel parts.
INSTANTIATE_TEST_SUITE_P(
    Layouts, TiedWeights,
    ::testing::Values(
        Case{{.pp = 4, .microbatches = 4}, ""}, Case{{.pp = 3, .tp = 2, .microbatches = 2}, ""},
        Case{{.rdp = 2, .pp = 3, .microbatches = 2}, "aaaabb"},
        Case{{.rdp = 2, .pp = 4, .microbatches = 2}, "aaaaabbb"},
        Case{{.pp = 3, .tp = 2, .microbatches = 2}, "aaabbb"},
        Case{{.pp = 3, .tp = 2, .microbatches = 2, .prescaled = true, .sharding = 2}, "aaabbb"},
        Case{{.rdp = 2, .pp = 3, .microbatches = 2, .sharding = 1, .degree = 1}, "aaaabb"},
        Case{{.rdp = 2, .pp = 3, .microbatches = 2, .sharding = 3}, "aaaabb"},
        Case{{.rdp = 2, .tp = 4, .prescaled = true, .sharding = 1, .degree = 1}, "aaaaabbb"},
        Case{{.rdp = 2, .pp = 2, .tp = 2, .microbatches = 2, .sharding = 3, .degree = 1},
             "aaaaabbb"},
        Case{{.rdp = 4, .tp = 2, .prescaled = true, .speed = true}, "aaaaabbb"}),
    [](const auto& test) {
      return test.param.layout.text() + (*test.param.hosts ? "_on_" : "") + test.param.hosts;
    });

// sdp_hierarchical_allgather applies to the groups that gather shards.
TEST(SmpRules, HoldInTheGroupsOfTheMesh) {
  if (collectives::fabric::fabric_providers().empty()) GTEST_SKIP() << "built without libfabric";
  for (const bool hierarchical : {true, false}) {
    const SmpParameters parameters =
        parse_smp_parameters({{"ddp", true},
                              {"sharded_data_parallel_degree", 4},
                              {"sdp_hierarchical_allgather", hierarchical}});
    test::run_thread_ranks(4, [&](const World& world, Store& store) {
      collectives::CommunicatorOptions how = communicator_options(parameters);
      how.transport = "tcp";
      const auto group = testing::make_test_communicator(on_host(world, "aabb"), store, how);
      const ProcessMesh mesh(*group, {4, 1, 1}, parameters.plan.mesh.placement);
      const auto shard = mesh.split(mesh.rdp(), 0, mesh.place().rdp);
      const std::vector<float> mine(100'000, static_cast<float>(world.rank));
      std::vector<float> all(4 * mine.size());
      shard->all_gather(mine.data(), all.data(), std::ssize(mine), DType::f32)->wait();
      EXPECT_EQ(all.back(), 3);
      EXPECT_EQ(shard->statistics().algorithm == "hierarchical", hierarchical)
          << shard->statistics().algorithm;
      group->barrier()->wait();
    });
  }
}

}  // namespace
}  // namespace shoal::parallel
