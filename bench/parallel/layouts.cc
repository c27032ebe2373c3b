#include <chrono>
#include <cmath>
#include <cstdio>
#include <limits>
#include <memory>

#include "bench.h"
#include "harness/row.h"
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "shoal/kernels/kernels.h"
#include "shoal/nn/models/gpt2/model.h"
#include "shoal/parallel/apply/distributed_optimizer.h"
#include "shoal/parallel/pipeline/measure_units.h"
#include "shoal/parallel/pipeline/simulate.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/parallel_for.h"

namespace shoal::bench {
namespace {

using parallel::Microbatch;
using parallel::ParallelModel;
using parallel::ParallelOptions;
using parallel::ScheduleKind;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct Layout {
  std::string name;
  parallel::MeshShape mesh;
  ParallelOptions options;
};

std::vector<Layout> layouts(int ranks, const ParallelArguments& a) {
  const auto with = [&](ScheduleKind kind, int microbatches, int chunks = 1) {
    ParallelOptions options;
    options.schedule = kind;
    options.microbatches = microbatches;
    options.chunks = chunks;
    return options;
  };
  const ParallelOptions plain = with(ScheduleKind::simple, 1);
  ParallelOptions sequence = plain, speed = plain, checkpoint = plain, pairs = plain;
  sequence.prescaled_batch = speed.prescaled_batch = true;
  speed.speed = true;
  checkpoint.checkpoint_group = 1;
  pairs.checkpoint_group = 2;
  ParallelOptions offloaded = checkpoint;
  offloaded.offload_activations = true;
  const parallel::MeshShape data{ranks, 1, 1}, tensor{1, 1, ranks}, pipeline{1, ranks, 1};
  std::vector<Layout> all{
      {"rdp", data, plain},
      {"tp, own batches", tensor, plain},
      {"tp, sequence parallel", tensor, sequence},
      {"tp, speed", tensor, speed},
      {"pp, simple", pipeline, with(ScheduleKind::simple, a.microbatches)},
      {"pp, interleaved", pipeline, with(ScheduleKind::interleaved, a.microbatches)},
      {"pp, 1f1b", pipeline, with(ScheduleKind::one_f_one_b, a.microbatches)},
      {"pp, zero_bubble", pipeline, with(ScheduleKind::zero_bubble, a.microbatches)},
      {"rdp, checkpoints: each", data, checkpoint},
      {"rdp, checkpoints: group_2", data, pairs},
      {"rdp, each, offloaded", data, offloaded}};
  if (a.layers + 2 >= 2 * ranks)
    all.push_back({"pp, virtual_interleaved", pipeline,
                   with(ScheduleKind::virtual_interleaved, a.microbatches, 2)});
  return all;
}

// Bytes that rank 0 keeps at its peak, from what each unit keeps of a microbatch. A pipeline: by
// the simulator. Checkpoints: each group's input (offloaded: of those, what leaves, or what comes
// back and the one in use), and whatever is larger of the head and one group computed again.
// Unknown (NaN): optimize=speed, which duplicates some of them.
double predict_activations(const ParallelModel& model, const ParallelOptions& options,
                           const std::vector<parallel::UnitCost>& units, double input_bytes) {
  if (options.speed) return std::numeric_limits<double>::quiet_NaN();
  const auto bytes = [&](std::size_t unit) {
    return static_cast<double>(units[unit].activation_bytes);
  };
  const std::size_t head = units.size() - 1;
  if (options.checkpoint_group > 0) {
    const auto group = static_cast<std::size_t>(options.checkpoint_group);
    const std::size_t groups = (head - 1 + group - 1) / group;
    auto inputs = static_cast<double>(groups);
    if (options.offload_activations)
      inputs = std::min(inputs, static_cast<double>(std::max(options.offload.max_leaving,
                                                             options.offload.max_returning + 1)));
    return bytes(0) + inputs * input_bytes +
           std::max(bytes(head), static_cast<double>(group) * bytes(1));
  }
  parallel::PipelineCosts costs;
  costs.stages.clear();
  for (const parallel::UnitRange& stage : model.partition().stages) {
    parallel::StageCosts cost;
    cost.activation = 0;
    for (int unit = stage.first; unit < stage.last; ++unit)
      cost.activation += bytes(static_cast<std::size_t>(unit));
    cost.weight_activation = cost.activation;  // inputs and output gradients of its products
    costs.stages.push_back(cost);
  }
  return simulate(model.schedule(), costs).peak_activation[0];
}

// One layout's model and optimizer, ready to step.
class Training {
 public:
  Training(const Layout& layout, const ParallelArguments& a, collectives::Communicator& world,
           kernels::Kernels& kernels)
      : name(layout.name),
        memory(*host_),
        context_(kernels, memory, dispatcher_),
        mesh_(world, layout.mesh, parallel::Placement("cluster")),
        gpt2_(config(a)) {
    context_.random.state = &state_;
    ParallelOptions options = layout.options;
    const std::int64_t samples = options.prescaled_batch ? 1 : layout.mesh.tp;
    const Tensor ids = tokens(a, a.rows / layout.mesh.rdp / options.microbatches / samples, 0);
    const auto units =
        parallel::measure_units(context_, gpt2_, {.input = {ids, ids, {}, {}}}, world, {});
    // Computation is what two ranks have to share: units are cut by their measured cost.
    options.partition = [&](std::span<const parallel::UnitCost>) {
      return parallel::partition_units(
          units, {.stages = layout.mesh.pp * options.chunks, .memory_weight = 0});
    };
    model = std::make_unique<ParallelModel>(context_, gpt2_, mesh_, options);
    predicted_activations = predict_activations(*model, options, units,
                                                static_cast<double>(ids.count() * a.channels * 4)) /
                            (options.prescaled_batch ? layout.mesh.tp : 1);
    optimizer_ = std::make_unique<parallel::DistributedOptimizer>(
        *model, [&](std::vector<nn::Segment> segments) {
          return nn::make_adamw(kernels, memory, std::move(segments), {});
        });
    const std::int64_t rows =
        a.rows / layout.mesh.rdp / options.microbatches / model->batch_parts();
    SHOAL_CHECK(rows > 0, "{} rows do not divide over rdp {} x {} microbatches x {}", a.rows,
                layout.mesh.rdp, options.microbatches, model->batch_parts());
    for (int i = 0; i < options.microbatches; ++i) {
      Microbatch batch;
      batch.sample_first = static_cast<std::uint32_t>(
          ((mesh_.place().rdp * options.microbatches + i) * model->batch_parts() +
           model->batch_part()) *
          rows);
      batch.input.ids = tokens(a, rows, batch.sample_first);
      batch.input.targets = tokens(a, rows, batch.sample_first + 1000);
      batch.input.loss.loss_scale = 1.0f / static_cast<float>(a.rows * a.length);
      microbatches_.push_back(std::move(batch));
    }
  }

  double step() {
    const parallel::StageLoss loss = model->train(microbatches_);
    optimizer_->step(state_, {.learning_rate = 1e-3, .max_gradient_norm = 1});
    return loss.sum / static_cast<double>(loss.targets);
  }

  std::string name;
  std::vector<double> seconds;
  double last_loss = 0;
  double predicted_activations = 0;

 private:
  static nn::Gpt2Config config(const ParallelArguments& a) {
    nn::Gpt2Config config;
    config.vocab_size = a.vocabulary;
    config.n_positions = a.length;
    config.n_embd = a.channels;
    config.n_layer = a.layers;
    config.n_head = a.heads;
    return config;
  }
  Tensor tokens(const ParallelArguments& a, std::int64_t rows, std::uint32_t first) {
    Tensor ids = Tensor::empty({rows, a.length}, DType::i32, memory, MemoryTag::data);
    const kernels::RandomSite site{.seed = 1, .site = 7};
    for (std::int64_t row = 0; row < rows; ++row)
      for (std::int64_t t = 0; t < a.length; ++t)
        ids.data<std::int32_t>()[row * a.length + t] = static_cast<std::int32_t>(
            kernels::random_bits(site, first + static_cast<std::uint32_t>(row),
                                 static_cast<std::uint64_t>(t)) %
            static_cast<std::uint32_t>(a.vocabulary));
    return ids;
  }

  std::unique_ptr<MemoryResource> host_ = make_host_memory();

 public:
  CountingMemory memory;

 private:
  nn::DirectDispatcher dispatcher_;
  nn::Context context_;
  kernels::StepState state_;
  parallel::ProcessMesh mesh_;
  nn::Gpt2 gpt2_;

 public:
  std::unique_ptr<ParallelModel> model;

 private:
  std::unique_ptr<parallel::DistributedOptimizer> optimizer_;
  std::vector<Microbatch> microbatches_;
};

}  // namespace

void measure_layouts(const ParallelArguments& a, collectives::Communicator& world) {
  const int threads = std::max(available_cores() / world.size(), 1);
  const auto kernels = kernels::make_cpu_kernels({.threads = threads});
  std::vector<std::unique_ptr<Training>> trainings;
  for (const Layout& layout : layouts(world.size(), a))
    trainings.push_back(std::make_unique<Training>(layout, a, world, *kernels));
  for (int round = -a.warmup; round < a.rounds; ++round)
    for (const auto& training : trainings) {
      world.barrier()->wait();
      const double began = now();
      training->last_loss = training->step();
      world.barrier()->wait();
      if (round >= 0) training->seconds.push_back(now() - began);
    }
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
        "tokens/s", "beside rdp", "loss", "activations MB", "predicted");
  for (const auto& training : trainings) {
    const double seconds = percentile(training->seconds, 0.5);
    const double activations =
        static_cast<double>(training->memory.usage(MemoryTag::activations).peak) * 1e-6;
    const double predicted = training->predicted_activations * 1e-6;
    if (a.json)
      std::printf("%s\n", nlohmann::ordered_json{{"layout", training->name},
                                                 {"ranks", world.size()},
                                                 {"seconds", seconds},
                                                 {"tokens_per_second", tokens / seconds},
                                                 {"ratio_to_rdp", data / seconds},
                                                 {"loss", training->last_loss},
                                                 {"peak_activation_mb", activations},
                                                 {"predicted_activation_mb", predicted},
                                                 {"rounds", a.rounds},
                                                 {"machine", machine()},
                                                 {"commit", commit()}}
                              .dump()
                              .c_str());
    else
      std::printf("%-26s %10.1f %12.0f %12.2f %10.5f %16.1f %10s\n", training->name.c_str(),
                  seconds * 1e3, tokens / seconds, data / seconds, training->last_loss, activations,
                  std::isnan(predicted) ? "" : fmt::format("{:.1f}", predicted).c_str());
  }
}

}  // namespace shoal::bench
