#include <cstdio>
#include <map>

#include "bench.h"
#include "harness/row.h"
#include "training.h"
#include <nlohmann/json.hpp>

#include "shoal/runtime/base/clock.h"
#include "shoal/runtime/base/parallel_for.h"

namespace shoal::bench {
namespace {

using parallel::ParallelOptions;
using parallel::ScheduleKind;

struct Case {
  Layout layout;
  std::string beside;  // the layout to compare with; empty: a baseline
};

std::vector<Case> cases(int ranks, const ParallelArguments& a) {
  const ParallelOptions plain = pipelined(ScheduleKind::simple, 1);
  const ParallelOptions one_f_one_b = pipelined(ScheduleKind::one_f_one_b, a.microbatches);
  const parallel::MeshShape data{ranks, 1, 1}, pipeline{1, ranks, 1};
  return {{{"rdp", data, plain}, ""},
          {{"rdp each", data, checkpointed(plain, 1)}, "rdp"},
          {{"rdp group_2", data, checkpointed(plain, 2)}, "rdp"},
          {{"rdp contiguous", data, checkpointed(plain, kContiguous)}, "rdp"},
          {{"rdp each offloaded", data, checkpointed(plain, 1, true)}, "rdp"},
          {{"rdp group_2 offloaded", data, checkpointed(plain, 2, true)}, "rdp"},
          {{"pp 1f1b", pipeline, one_f_one_b}, ""},
          {{"pp 1f1b each", pipeline, checkpointed(one_f_one_b, 1)}, "pp 1f1b"},
          {{"pp 1f1b each offloaded", pipeline, checkpointed(one_f_one_b, 1, true)}, "pp 1f1b"}};
}

struct Figures {
  double seconds = 0, megabytes = 0, formula_megabytes = 0;  // per step; peak of activations
  double moved_megabytes = 0, waited_seconds = 0;  // per step: offloaded bytes in both directions
};

Figures figures_of(Training& training, const ParallelArguments& a) {
  const parallel::OffloadStatistics offload = training.model().offload_statistics();
  const double steps = a.rounds + std::max(a.warmup, 0);
  return {
      .seconds = percentile(training.seconds, 0.5),
      .megabytes = static_cast<double>(training.memory().usage(MemoryTag::activations).peak) * 1e-6,
      .formula_megabytes = training.predicted_activations() * 1e-6,
      .moved_megabytes = static_cast<double>(offload.bytes) * 1e-6 / steps,
      .waited_seconds = offload.waited_seconds / steps};
}

void print_row(const std::string& name, const Figures& mine, const Figures& plain, int ranks,
               int rounds, bool json) {
  const double added = mine.seconds - plain.seconds, saved = plain.megabytes - mine.megabytes,
               formula = plain.formula_megabytes - mine.formula_megabytes;
  if (json) {
    std::printf("%s\n", nlohmann::ordered_json{{"layout", name},
                                               {"ranks", ranks},
                                               {"seconds", mine.seconds},
                                               {"added_seconds", added},
                                               {"ratio_to_plain", mine.seconds / plain.seconds},
                                               {"peak_activation_mb", mine.megabytes},
                                               {"saved_mb", saved},
                                               {"saved_formula_mb", formula},
                                               {"offloaded_mb", mine.moved_megabytes},
                                               {"waited_seconds", mine.waited_seconds},
                                               {"rounds", rounds},
                                               {"machine", machine()},
                                               {"commit", commit()}}
                            .dump()
                            .c_str());
    return;
  }
  std::printf("%-26s %10.1f %10.1f %8.2f %14.1f %10.1f %10.1f %13.1f %10.1f\n", name.c_str(),
              mine.seconds * 1e3, added * 1e3, mine.seconds / plain.seconds, mine.megabytes, saved,
              formula, mine.moved_megabytes, mine.waited_seconds * 1e3);
}

}  // namespace

void measure_operations(const ParallelArguments& a, collectives::Communicator& world) {
  const auto start = Clock::now();
  std::vector<Layout> all;
  std::map<std::string, std::string> beside;
  for (Case& one : cases(world.size(), a)) {
    beside[one.layout.name] = one.beside;
    all.push_back(std::move(one.layout));
  }
  if (listed(all, a, world.rank())) return;
  // Also measure the baselines of the chosen layouts.
  std::vector<std::string> always;
  for (const Layout& layout : chosen(all, a, {})) always.push_back(beside[layout.name]);
  const int threads = std::max(available_cores() / world.size(), 1);
  const auto kernels = kernels::make_cpu_kernels({.threads = threads});
  std::vector<std::unique_ptr<Training>> trainings;
  for (Layout& layout : chosen(std::move(all), a, always))
    trainings.push_back(std::make_unique<Training>(std::move(layout), a, world, *kernels));
  time_rounds(trainings, a, world);
  if (world.rank() == 0) {
    if (!a.json)
      std::printf(
          "GPT-2 of %lld layers of width %lld; %lld samples of %lld positions a step; %d ranks of "
          "%d threads; median of %d rounds; rank 0's activations at their peak\n"
          "%-26s %10s %10s %8s %14s %10s %10s %13s %10s\n",
          static_cast<long long>(a.layers), static_cast<long long>(a.channels),
          static_cast<long long>(a.rows), static_cast<long long>(a.length), world.size(), threads,
          a.rounds, "layout", "ms", "added ms", "times", "activations MB", "saved MB", "formula",
          "offloaded MB", "waited ms");
    std::map<std::string, Figures> figures;
    for (const auto& training : trainings) {
      const std::string& name = training->layout().name;
      figures[name] = figures_of(*training, a);
      const std::string& plain = beside[name];
      print_row(name, figures[name], figures[plain.empty() ? name : plain], world.size(), a.rounds,
                a.json);
    }
    if (!a.json) std::printf("%.0f s in all\n", seconds_since(start));
  }
  world.barrier()->wait();
}

}  // namespace shoal::bench
