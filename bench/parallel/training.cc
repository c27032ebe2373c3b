#include "training.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "shoal/parallel/apply/layout_memory.h"
#include "shoal/parallel/pipeline/measure_units.h"
#include "shoal/runtime/base/clock.h"
#include "shoal/runtime/base/error.h"

namespace shoal::bench {
namespace {

using parallel::Microbatch;
using parallel::ParallelModel;
using parallel::ParallelOptions;

nn::DecoderConfig config_of(const ParallelArguments& a) {
  nn::DecoderConfig config = nn::DecoderConfig::of("gpt2");
  config.vocab_size = a.vocabulary;
  config.max_position_embeddings = a.length;
  config.hidden_size = a.channels;
  config.num_hidden_layers = a.layers;
  config.num_attention_heads = a.heads;
  return config;
}

}  // namespace

std::vector<bool> chosen(const std::vector<std::string>& only,
                         const std::vector<std::string>& names) {
  std::vector<bool> taken(names.size(), only.empty());
  for (const std::string& one : only) {
    const bool whole = std::ranges::find(names, one) != names.end();
    bool found = false;
    for (std::size_t i = 0; i < names.size(); ++i) {
      const bool is = whole ? names[i] == one : names[i].find(one) != std::string::npos;
      taken[i] = taken[i] || is;
      found = found || is;
    }
    if (!found)
      throw Error(ErrorCode::invalid_argument, fmt::format("--only: no cell has '{}' in it", one),
                  fmt::format("there are: {}", fmt::join(names, ", ")));
  }
  return taken;
}

ParallelOptions pipelined(parallel::ScheduleKind kind, int microbatches, int chunks) {
  ParallelOptions options;
  options.plan.pipeline = {.schedule = kind, .microbatches = microbatches, .chunks = chunks};
  return options;
}

ParallelOptions checkpointed(ParallelOptions options, int group, bool offloaded) {
  options.plan.activations = {.checkpoint_group = group, .offload = offloaded};
  return options;
}

std::vector<Layout> chosen(std::vector<Layout> all, const ParallelArguments& a,
                           const std::vector<std::string>& always) {
  std::vector<std::string> names;
  for (const Layout& layout : all) names.push_back(layout.name);
  const std::vector<bool> taken = chosen(a.only, names);
  std::vector<Layout> some;
  for (std::size_t i = 0; i < all.size(); ++i)
    if (taken[i] || std::ranges::find(always, names[i]) != always.end())
      some.push_back(std::move(all[i]));
  return some;
}

bool listed(const std::vector<Layout>& all, const ParallelArguments& a, int rank) {
  if (a.list && rank == 0)
    for (const Layout& layout : all) std::printf("%s\n", layout.name.c_str());
  return a.list;
}

Training::Training(Layout layout, const ParallelArguments& a, collectives::Communicator& world,
                   kernels::Kernels& kernels, CountingMemory* counted)
    : layout_(std::move(layout)),
      arguments_(a),
      memory_(counted ? *counted : own_memory_),
      context_(kernels, memory_, dispatcher_),
      mesh_(world, layout_.mesh, parallel::Placement("cluster")),
      gpt2_(config_of(a)) {
  context_.random.state = &state_;
  ParallelOptions options = layout_.options;
  const parallel::MeshShape& mesh = layout_.mesh;
  options.plan.mesh = {.pipeline = mesh.pp, .tensor = mesh.tp};
  const std::int64_t samples = options.plan.tensor.prescaled_batch ? 1 : mesh.tp;
  const std::int64_t rows = a.rows / mesh.rdp / options.plan.pipeline.microbatches / samples;
  SHOAL_CHECK(rows > 0, "{}: {} rows do not divide over rdp {} x {} microbatches x {}",
              layout_.name, a.rows, mesh.rdp, options.plan.pipeline.microbatches, samples);
  const Tensor ids = tokens(rows, 0);
  Microbatch trace{.input = {ids, ids, {}, {}}};
  // Within a group, the ranks' separate batches are numbered consecutively.
  if (!options.plan.tensor.prescaled_batch)
    trace.sample_first = static_cast<std::uint32_t>(mesh_.place().tp * rows);
  const auto units = measure(trace, counted);
  // The ranks share computation, so split units by their measured cost.
  std::vector<int> counts;
  for (const parallel::UnitRange& stage :
       parallel::partition_units(
           units, {.stages = mesh.pp * options.plan.pipeline.chunks, .memory_weight = 0})
           .stages)
    counts.push_back(stage.last - stage.first);
  options.plan.pipeline.partition.counts = fmt::format("{}", fmt::join(counts, ","));
  model_ = std::make_unique<ParallelModel>(context_, gpt2_, mesh_, options);
  const bool sequence = options.plan.tensor.prescaled_batch && !options.plan.tensor.speed;
  predicted_activations_ = parallel::peak_activations(
      model_->schedule(), model_->partition().stages, mesh_.place().pp,
      {.units = units,
       .stream_bytes = static_cast<double>(ids.count() * a.channels * 4) / (sequence ? mesh.tp : 1),
       .checkpoint_group = options.plan.activations.checkpoint_group,
       .offloads = options.plan.activations.offload,
       .offload = options.offload});
  optimizer_ = std::make_unique<parallel::DistributedOptimizer>(*model_, nn::adamw());
  for (int i = 0; i < options.plan.pipeline.microbatches; ++i) {
    Microbatch batch;
    batch.sample_first = static_cast<std::uint32_t>(
        ((mesh_.place().rdp * options.plan.pipeline.microbatches + i) * model_->batch_parts() +
         model_->batch_part()) *
        rows);
    batch.input.ids = tokens(rows, batch.sample_first);
    batch.input.targets = tokens(rows, batch.sample_first + 1000);
    batch.input.loss.loss_scale = 1.0f / static_cast<float>(a.rows * a.length);
    microbatches_.push_back(std::move(batch));
  }
  memory_.reset_peaks();  // measuring is not part of a step
}

// Measures a model that is split by tensor parallelism like the trained one.
std::vector<parallel::UnitCost> Training::measure(const Microbatch& trace,
                                                  CountingMemory* counted) {
  using parallel::ActivationSplit;
  const ParallelOptions& options = layout_.options;
  nn::CausalLm probe(config_of(arguments_));
  parallel::MeasureOptions measure{.split_backward = true, .counted_by = counted};
  if (layout_.mesh.tp > 1) {
    const ActivationSplit split = !options.plan.tensor.prescaled_batch ? ActivationSplit::batch
                                  : options.plan.tensor.speed          ? ActivationSplit::none
                                                                       : ActivationSplit::sequence;
    parallel::apply_tensor_parallelism(probe, {mesh_.tp(), split}, options.tensor_parallel);
    probe.name_tree();
    if (split == ActivationSplit::sequence) {
      measure.stage.sequence_parts = layout_.mesh.tp;
      measure.stage.sequence_part = mesh_.place().tp;
    }
  }
  return parallel::measure_units(context_, probe, trace, mesh_.world(), measure);
}

double Training::step() {
  const parallel::StageLoss loss = model_->train(microbatches_);
  optimizer_->step(state_, {.learning_rate = 1e-3, .max_gradient_norm = 1});
  return loss.sum / static_cast<double>(loss.targets);
}

Tensor Training::tokens(std::int64_t rows, std::uint32_t first) {
  const ParallelArguments& a = arguments_;
  Tensor ids = Tensor::empty({rows, a.length}, DType::i32, memory_, MemoryTag::data);
  const kernels::RandomSite site{.seed = 1, .site = 7};
  for (std::int64_t row = 0; row < rows; ++row)
    for (std::int64_t t = 0; t < a.length; ++t)
      ids.data<std::int32_t>()[row * a.length + t] = static_cast<std::int32_t>(
          kernels::random_bits(site, first + static_cast<std::uint32_t>(row),
                               static_cast<std::uint64_t>(t)) %
          static_cast<std::uint32_t>(a.vocabulary));
  return ids;
}

void time_rounds(const std::vector<std::unique_ptr<Training>>& trainings,
                 const ParallelArguments& a, collectives::Communicator& world) {
  for (int round = -a.warmup; round < a.rounds; ++round)
    for (const auto& training : trainings) {
      world.barrier()->wait();
      const auto began = Clock::now();
      training->last_loss = training->step();
      world.barrier()->wait();
      if (round >= 0) training->seconds.push_back(seconds_since(began));
    }
}

}  // namespace shoal::bench
