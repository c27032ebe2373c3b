#include <array>
#include <cstdio>

#include "bench.h"
#include "harness/row.h"
#include "training.h"
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "shoal/parallel/apply/layout_memory.h"
#include "shoal/parallel/pipeline/simulate.h"
#include "shoal/runtime/base/clock.h"
#include "shoal/runtime/base/parallel_for.h"

namespace shoal::bench {
namespace {

using parallel::ParallelOptions;
using parallel::ScheduleKind;

std::vector<Layout> memory_layouts(int ranks, const ParallelArguments& a) {
  const ParallelOptions plain = pipelined(ScheduleKind::simple, 1);
  const auto sharded = [](ParallelOptions options, int level, int degree = 0) {
    options.plan.sharding = {
        .level = level, .degree = degree, .bucket_elements = 1'000'000, .persistence_threshold = 0};
    return options;
  };
  const parallel::MeshShape data{ranks, 1, 1}, pipeline{1, ranks, 1};
  const ParallelOptions one_f_one_b = pipelined(ScheduleKind::one_f_one_b, a.microbatches);
  std::vector<Layout> all{{"rdp", data, plain},
                          {"rdp sharding_1", data, sharded(plain, 1)},
                          {"rdp sharding_2", data, sharded(plain, 2)},
                          {"rdp sharding_3", data, sharded(plain, 3)}};
  if (ranks % 2 == 0 && ranks > 2) {
    ParallelOptions sequence = plain;
    sequence.plan.tensor.prescaled_batch = true;
    const int half = ranks / 2;
    all.push_back({"rdp sharding_3 over_half", data, sharded(plain, 3, half)});
    all.push_back({"rdp x tp sharding_1", {half, 1, 2}, sharded(sequence, 1)});
    all.push_back({"rdp x tp sharding_3", {half, 1, 2}, sharded(sequence, 3)});
    all.push_back({"rdp x pp sharding_3", {half, 2, 1}, sharded(one_f_one_b, 3)});
  }
  for (const bool offloaded : {false, true})
    for (const auto& [name, group] :
         {std::pair{"each", 1}, {"group_2", 2}, {"contiguous", kContiguous}})
      all.push_back({fmt::format("rdp {}{}", name, offloaded ? " offloaded" : ""), data,
                     checkpointed(plain, group, offloaded)});
  for (const ScheduleKind kind : {ScheduleKind::simple, ScheduleKind::interleaved,
                                  ScheduleKind::one_f_one_b, ScheduleKind::zero_bubble})
    all.push_back({fmt::format("pp {}", name(kind)), pipeline, pipelined(kind, a.microbatches)});
  if (a.layers + 2 >= 2 * ranks)
    for (const ScheduleKind kind : {ScheduleKind::virtual_interleaved, ScheduleKind::zero_bubble_v})
      all.push_back(
          {fmt::format("pp {}", name(kind)), pipeline, pipelined(kind, a.microbatches, 2)});
  all.push_back({"pp 1f1b each", pipeline, checkpointed(one_f_one_b, 1)});
  all.push_back({"pp 1f1b each offloaded", pipeline, checkpointed(one_f_one_b, 1, true)});
  return all;
}

// Figures of one rank; doubles, so that one call gathers all of them.
enum Number : std::size_t {
  kPp,
  kFirst,  // first of its pipeline stage: one row covers identical ranks
  kParameters,
  kParametersFormula,
  kGradients,
  kGradientsFormula,
  kOptimizer,
  kOptimizerFormula,
  kActivations,
  kActivationsFormula,
  kNumbers
};
using Numbers = std::array<double, kNumbers>;

Numbers numbers_of(Training& training) {
  const CountingMemory& memory = training.memory();
  const auto current = [&](MemoryTag tag) {
    return static_cast<double>(memory.usage(tag).current);
  };
  const parallel::StateMemory state =
      parallel::state_memory(parallel::state_request(training.model(), *nn::adamw()));
  const parallel::MeshPlace& place = training.model().mesh().place();
  Numbers numbers{};
  numbers[kPp] = place.pp;
  numbers[kFirst] = place.rdp == 0 && place.tp == 0 ? 1 : 0;
  numbers[kParameters] = current(MemoryTag::parameters);
  numbers[kParametersFormula] = state.parameters;
  numbers[kGradients] = current(MemoryTag::gradients);
  numbers[kGradientsFormula] = state.gradients;
  numbers[kOptimizer] = current(MemoryTag::optimizer);
  numbers[kOptimizerFormula] = state.optimizer;
  numbers[kActivations] = static_cast<double>(memory.usage(MemoryTag::activations).peak);
  numbers[kActivationsFormula] = training.predicted_activations();
  return numbers;
}

void print_row(const std::string& layout, int rank, int in_flight, const Numbers& n, double seconds,
               int ranks, bool json) {
  if (json) {
    std::printf("%s\n", nlohmann::ordered_json{{"layout", layout},
                                               {"ranks", ranks},
                                               {"rank", rank},
                                               {"microbatches_in_flight", in_flight},
                                               {"parameters_bytes", n[kParameters]},
                                               {"parameters_formula", n[kParametersFormula]},
                                               {"gradients_bytes", n[kGradients]},
                                               {"gradients_formula", n[kGradientsFormula]},
                                               {"optimizer_bytes", n[kOptimizer]},
                                               {"optimizer_formula", n[kOptimizerFormula]},
                                               {"peak_activation_bytes", n[kActivations]},
                                               {"activations_formula", n[kActivationsFormula]},
                                               {"cell_seconds", seconds},
                                               {"machine", machine()},
                                               {"commit", commit()}}
                            .dump()
                            .c_str());
    return;
  }
  const auto pair = [&](Number measured, Number formula) {
    return fmt::format("{:>8.2f} /{:>8.2f}", n[measured] * 1e-6, n[formula] * 1e-6);
  };
  std::printf(
      "%-26s %4d %9d %18s %18s %18s %18s %7.3f %6.1f\n", layout.c_str(), rank, in_flight,
      pair(kParameters, kParametersFormula).c_str(), pair(kGradients, kGradientsFormula).c_str(),
      pair(kOptimizer, kOptimizerFormula).c_str(), pair(kActivations, kActivationsFormula).c_str(),
      n[kActivations] / n[kActivationsFormula], seconds);
}

}  // namespace

void measure_memory(const ParallelArguments& a, collectives::Communicator& world,
                    CountingMemory& memory) {
  std::vector<Layout> all = memory_layouts(world.size(), a);
  if (listed(all, a, world.rank())) return;
  const int threads = std::max(available_cores() / world.size(), 1);
  const auto kernels = kernels::make_cpu_kernels({.threads = threads});
  if (world.rank() == 0 && !a.json)
    std::printf(
        "GPT-2 of %lld layers of width %lld, vocabulary %lld; %lld samples of %lld positions a "
        "step; %d ranks\nMB counted / by formula: parameters, gradients and optimizer between two "
        "steps, activations at their peak (and counted over formula)\n"
        "%-26s %4s %9s %18s %18s %18s %18s %7s %6s\n",
        static_cast<long long>(a.layers), static_cast<long long>(a.channels),
        static_cast<long long>(a.vocabulary), static_cast<long long>(a.rows),
        static_cast<long long>(a.length), world.size(), "layout", "rank", "in flight", "parameters",
        "gradients", "optimizer", "activations", "ratio", "s");
  for (Layout& layout : chosen(std::move(all), a, {})) {
    const auto began = Clock::now();
    Training training(std::move(layout), a, world, *kernels, &memory);
    training.step();
    training.model().wait_for_values();
    const Numbers mine = numbers_of(training);
    std::vector<Numbers> everyone(static_cast<std::size_t>(world.size()));
    world.all_gather(mine.data(), everyone.data(), kNumbers, DType::f64)->wait();
    const std::vector<int> kept = parallel::microbatches_kept(training.model().schedule());
    const std::vector<int>& rank_of_stage = training.model().schedule().rank_of_stage;
    for (int rank = 0; world.rank() == 0 && rank < world.size(); ++rank) {
      const Numbers& one = everyone[static_cast<std::size_t>(rank)];
      if (one[kFirst] == 0) continue;
      int in_flight = 0;  // over all stages of the rank
      for (std::size_t stage = 0; stage < kept.size(); ++stage)
        if (rank_of_stage[stage] == static_cast<int>(one[kPp])) in_flight += kept[stage];
      print_row(training.layout().name, rank, in_flight, one, seconds_since(began), world.size(),
                a.json);
    }
    std::fflush(stdout);
    world.barrier()->wait();  // keep groups that other ranks still use
  }
}

}  // namespace shoal::bench
