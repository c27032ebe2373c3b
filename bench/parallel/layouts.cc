#include <cstdio>

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

std::vector<Layout> layouts(int ranks, const ParallelArguments& a) {
  const ParallelOptions plain = pipelined(ScheduleKind::simple, 1);
  ParallelOptions sequence = plain, speed = plain;
  sequence.plan.tensor.prescaled_batch = speed.plan.tensor.prescaled_batch = true;
  speed.plan.tensor.speed = true;
  const parallel::MeshShape data{ranks, 1, 1}, tensor{1, 1, ranks}, pipeline{1, ranks, 1};
  std::vector<Layout> all{
      {"rdp", data, plain},
      {"tp own batches", tensor, plain},
      {"tp sequence parallel", tensor, sequence},
      {"tp speed", tensor, speed},
      {"pp simple", pipeline, pipelined(ScheduleKind::simple, a.microbatches)},
      {"pp interleaved", pipeline, pipelined(ScheduleKind::interleaved, a.microbatches)},
      {"pp 1f1b", pipeline, pipelined(ScheduleKind::one_f_one_b, a.microbatches)},
      {"pp zero_bubble", pipeline, pipelined(ScheduleKind::zero_bubble, a.microbatches)},
      {"rdp each", data, checkpointed(plain, 1)},
      {"rdp group_2", data, checkpointed(plain, 2)},
      {"rdp each offloaded", data, checkpointed(plain, 1, true)}};
  if (a.layers + 2 >= 2 * ranks)
    all.push_back({"pp virtual_interleaved", pipeline,
                   pipelined(ScheduleKind::virtual_interleaved, a.microbatches, 2)});
  return all;
}

}  // namespace

void measure_layouts(const ParallelArguments& a, collectives::Communicator& world) {
  const auto start = Clock::now();
  std::vector<Layout> all = layouts(world.size(), a);
  if (listed(all, a, world.rank())) return;
  const int threads = std::max(available_cores() / world.size(), 1);
  const auto kernels = kernels::make_cpu_kernels({.threads = threads});
  std::vector<std::unique_ptr<Training>> trainings;
  for (Layout& layout : chosen(std::move(all), a, {"rdp"}))
    trainings.push_back(std::make_unique<Training>(std::move(layout), a, world, *kernels));
  time_rounds(trainings, a, world);
  world.barrier()->wait();
  if (world.rank() != 0) return;
  const double data = percentile(trainings.front()->seconds, 0.5);
  const auto tokens = static_cast<double>(a.rows * a.length);
  if (!a.json)
    std::printf(
        "GPT-2 of %lld layers of width %lld, vocabulary %lld; %lld samples of %lld "
        "positions a step; %d ranks of %d threads; median of %d rounds\n%-26s %10s %12s "
        "%12s %10s %16s %10s\n",
        static_cast<long long>(a.layers), static_cast<long long>(a.channels),
        static_cast<long long>(a.vocabulary), static_cast<long long>(a.rows),
        static_cast<long long>(a.length), world.size(), threads, a.rounds, "layout", "ms",
        "tokens/s", "beside rdp", "loss", "activations MB", "formula");
  for (const auto& training : trainings) {
    const std::string& name = training->layout().name;
    const double seconds = percentile(training->seconds, 0.5);
    const double activations =
        static_cast<double>(training->memory().usage(MemoryTag::activations).peak) * 1e-6;
    const double formula = training->predicted_activations() * 1e-6;
    if (a.json)
      std::printf("%s\n", nlohmann::ordered_json{{"layout", name},
                                                 {"ranks", world.size()},
                                                 {"seconds", seconds},
                                                 {"tokens_per_second", tokens / seconds},
                                                 {"ratio_to_rdp", data / seconds},
                                                 {"loss", training->last_loss},
                                                 {"peak_activation_mb", activations},
                                                 {"formula_activation_mb", formula},
                                                 {"rounds", a.rounds},
                                                 {"machine", machine()},
                                                 {"commit", commit()}}
                              .dump()
                              .c_str());
    else
      std::printf("%-26s %10.1f %12.0f %12.2f %10.5f %16.1f %10.1f\n", name.c_str(), seconds * 1e3,
                  tokens / seconds, data / seconds, training->last_loss, activations, formula);
  }
  if (!a.json) std::printf("%.0f s in all\n", seconds_since(start));
}

}  // namespace shoal::bench
