#include "shoal/train/trainer/engine.h"

#include <algorithm>
#include <limits>
#include <sstream>
#include <utility>

#include "shoal/nn/autograd/device_values.h"
#include "shoal/parallel/plan/legality.h"
#include "shoal/parallel/plan/smp_parameters.h"
#include "shoal/runtime/base/error.h"
#include "shoal/train/trainer/mesh_check.h"
#include "shoal/train/trainer/optimizers.h"
#include "shoal/train/trainer/stage_cut.h"
#include "shoal/train/trainer/task_unit.h"

namespace shoal {
namespace {

// Visible rows are filled up to a multiple of it, so that few shapes of products are prepared.
constexpr std::int64_t kVisibleRows = 16;

using parallel::Microbatch;

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

// Returns the task wrapped as a chain; null: it is a chain. Throws before any allocation if this
// rank cannot run the task.
std::unique_ptr<nn::Chain> unit_of(const EngineParts& parts) {
  parts.trainer.kernels->check_computes(compute_dtype(parts.arguments));
  Task& task = *parts.trainer.task;
  if (task.chain() != nullptr) return nullptr;
  if (parts.arguments.model_parallel)
    throw Error(ErrorCode::unavailable,
                fmt::format("{} is no chain of units, which mp_parameters need", task.describe()),
                "train it without mp_parameters");
  return std::make_unique<TaskUnit>(task);
}

parallel::ParallelPlan plan_of(const ResolvedRun& arguments, const nn::Chain& chain) {
  if (arguments.model_parallel) return arguments.model_parallel->plan;
  parallel::ParallelPlan plan;
  plan.activations.checkpoint_group = chain.gradient_checkpointing() ? 1 : 0;
  plan.activations.offload = arguments.activation_offloading;
  return plan;
}

parallel::MeshShape checked_shape(const EngineParts& parts, const nn::Chain& chain,
                                  const parallel::MeshPlan& mesh) {
  const int ranks = parts.trainer.communicator->size();
  if (parts.arguments.model_parallel) check_mesh(parts.arguments, chain, ranks, 0);
  return parallel::mesh_shape(ranks, mesh.pipeline, mesh.tensor);
}

// Waits for the logits and returns them as Engine::Scores needs them.
Tensor scores_on_host(const nn::Context& context, const Tensor& logits, MemoryResource& host) {
  Tensor scores = logits;
  if (logits.dtype() != DType::f32) {
    scores = context.empty(logits.shape(), DType::f32);
    context.kernels().elementwise().cast(logits, scores.view(), context.stream);
  }
  return nn::on_host(scores, host, context.stream);
}

}  // namespace

Engine::Engine(const EngineParts& parts)
    : parts_(parts),
      task_(*parts.trainer.task),
      task_unit_(unit_of(parts)),
      chain_(task_unit_ ? *task_unit_ : *task_.chain()),
      plan_(plan_of(parts.arguments, chain_)),
      context_(*parts.trainer.kernels, *parts.trainer.memory, recorder_),
      step_state_(*parts.trainer.kernels, *parts.trainer.memory),
      scaler_(make_scaler(parts.arguments)),
      optimizer_memory_(parts),
      replayed_(wants_capture(parts) && on_device() && parts.trainer.communicator->size() > 1
                    ? std::make_unique<parallel::ReplayedCommunicator>(*parts.trainer.communicator)
                    : nullptr),
      mesh_(replayed_ ? *replayed_ : *parts.trainer.communicator,
            checked_shape(parts, chain_, plan_.mesh), plan_.mesh.placement),
      steps_(parts_, plan_, mesh_, context_, recorder_, replayed_.get()) {
  mesh_.guarded([this] { build(); });
}

void Engine::build() {
  const TrainingArguments& a = parts_.arguments;
  context_.random.seed = static_cast<std::uint64_t>(a.seed);
  context_.random.state = step_state_.pointer();
  context_.random.sample_stride = static_cast<std::uint32_t>(mesh_.shape().rdp);
  context_.embedding_noise = static_cast<float>(a.neftune_noise_alpha.value_or(0));
  parallel::ParallelOptions options{.plan = plan_};
  options.plan.precision.dtype = compute_dtype(a);
  options.rounding_seed = rounding_seed(a);
  options.masters = optimizer_memory_.get();
  options.reducer = reducer_options(parts_);
  // On a device, updates do not overlap the forward: the host would wait at each parameter.
  if (whole() && a.overlaps_forward(ranks()) && !on_device()) overlap_forward(options.reducer);
  options.tracer = parts_.trainer.tracer;
  options.clock = &clock_;
  options.pinned = parts_.trainer.pinned_memory;
  if (parts_.trainer.tensor_parallel) options.tensor_parallel = *parts_.trainer.tensor_parallel;
  cut_by_ = choose_cut(parts_, chain_, mesh_, context_.random.sample_stride, options);
  options.plan.pipeline.microbatches *= batches_at_a_time();
  model_ = std::make_unique<parallel::ParallelModel>(context_, chain_, mesh_, options);
  const parallel::PartitionChoice& partition = plan_.pipeline.partition;
  if (!partition.file.empty() && !partition.load && mesh_.world().rank() == 0)
    parallel::write_partition(partition.file, model_->partition(), model_->units());
  if (!parts_.trainer.initial_weights.empty()) load_weights(parts_.trainer.initial_weights);
  restore_scaler(scaler_.state());
}

void Engine::overlap_forward(parallel::ReducerOptions& options) {
  early_ =
      std::make_unique<EarlyForward>(*parts_.trainer.kernels, [this](const std::string& parameter) {
        if (std::exchange(warned_overflow_, true)) return;
        parts_.say(
            fmt::format("warning: the sum of the ranks' gradients of {} overflows at step {}; it "
                        "alone is left out of such steps (ddp_overlap_forward)",
                        parameter, step_number_));
      });
  options.priority = parallel::BucketPriority::forward;
  options.on_complete = [this](nn::Parameter& parameter) { early_->on_complete(parameter); };
  options.on_reduced = [this](nn::Parameter& parameter) {
    const TraceSpan span(parts_.trainer.tracer, "step", "optimizer");
    const PhaseSpan phase(clock_, StepPhase::optimizer);
    early_->on_reduced(parameter);
  };
  dispatcher_.before_read = [this](const Tensor& tensor) {
    if (!early_->updating()) return;
    const PhaseSpan phase(clock_, StepPhase::communication);
    early_->before_read(tensor);
  };
}

DataShare Engine::data_share() const {
  const parallel::MeshPlace& place = mesh_.place();
  return {.count = mesh_.shape().rdp,
          .index = place.rdp,
          .devices = model_->batch_parts(),
          .counts = place.pp == 0 && place.tp == 0,
          .device = mesh_.shape().size() == mesh_.shape().rdp ? "rank"
                    : model_->batch_parts() > 1               ? "data-parallel rank"
                                                              : "replica"};
}

std::vector<std::string> Engine::describe_layout() const {
  const parallel::MeshShape& shape = mesh_.shape();
  const std::string on =
      fmt::format("({}), {}", carried_by(mesh_.world()), context_.kernels().describe());
  std::vector<std::string> lines, notices;
  if (whole()) {
    lines.push_back(
        fmt::format("layout: {} data-parallel rank{} {}", ranks(), ranks() == 1 ? "" : "s", on));
  } else {
    lines.push_back(fmt::format("layout: {} ranks = rdp {} x pp {} x tp {} {}", shape.size(),
                                shape.rdp, shape.pp, shape.tp, on));
    for (const std::string& text :
         {parallel::placement_table(shape, mesh_.placement()), model_->describe()})
      for (std::string& line : lines_of(text)) lines.push_back("  " + std::move(line));
    if (!cut_by_.empty()) lines.push_back("stages: cut " + cut_by_);
    if (const int microbatches = model_->plan().pipeline.microbatches; microbatches > 1)
      lines.push_back(fmt::format("microbatches: {} a step = {} of each batch x {} accumulated",
                                  microbatches, plan_.pipeline.microbatches, batches_at_a_time()));
    notices = parts_.arguments.model_parallel->notices;
  }
  if (std::string line = optimizer_memory_.describe(); !line.empty())
    lines.push_back(std::move(line));
  if (const std::string why = steps_.why_not(); wants_capture(parts_) && !why.empty())
    notices.push_back("steps run call by call, though step_capture is on: " + why);
  if (!whole())
    for (std::string& idle : parallel::find_idle_options(plan_, shape.size()))
      notices.push_back(std::move(idle));
  if (leaves_out_padding())
    lines.emplace_back("padding: layers leave it out");
  else if (!on_device() && chain_.computes_visible_rows() && wants_capture(parts_))
    notices.emplace_back("layers compute padding, because step_capture is on");
  for (const std::string& notice : notices) lines.push_back("note: " + notice);
  return lines;
}

std::vector<std::string> Engine::describe_gradients() const {
  const TrainingArguments& a = parts_.arguments;
  if (mesh_.shape().rdp == 1) return {};
  if (model_->sharded())
    return {
        fmt::format("gradients: buckets of {} elements (sdp_reduce_bucket_size), each summed "
                    "at its owner",
                    plan_.sharding.bucket_elements)};
  const std::string buckets = fmt::format("gradients: buckets of {:.4g} MiB, the first {:.4g}",
                                          a.ddp_bucket_cap_mb, a.ddp_first_bucket_cap_mb);
  if (!whole())
    return {fmt::format("{}, summed over {} replicas; a step waits for all of them", buckets,
                        mesh_.shape().rdp)};
  const char* const when =
      early_                   ? "updates run behind the next forward (ddp_overlap_forward)"
      : !a.ddp_overlap_forward ? "a step waits for all of them (ddp_overlap_forward false)"
      : on_device()            ? "a step waits for all of them (ddp_overlap_forward is for CPUs)"
      : a.fp16                 ? "a step waits for all of them, as the loss scale of fp16 needs"
               : "a step waits for all of them, as clipping needs (max_grad_norm 0: none)";
  return {fmt::format("{}; {}", buckets, when)};
}

void Engine::prepare_training() {
  if (optimizer_) return;
  optimizer_ = std::make_unique<parallel::DistributedOptimizer>(
      *model_, make_rule(parts_.arguments), parallel::DistributedOptimizerOptions{},
      optimizer_memory_.get());
  if (on_device())
    results_ =
        std::make_unique<StepResults>(context_.stream, mesh_.world(), parts_.trainer.pinned_memory);
  if (model_->adds_losses())
    losses_ =
        context_.empty({parts_.arguments.gradient_accumulation_steps * plan_.pipeline.microbatches},
                       DType::f32, MemoryTag::data);
  if (early_) early_->attach(*model_->reducer(), optimizer_->rule(), model_->parameters());
  steps_.begin();
}

int Engine::batches_at_a_time() const {
  return whole() ? 1 : static_cast<int>(parts_.arguments.gradient_accumulation_steps);
}

// Whether layers leave out the padding of a batch. The rank must have whole samples and all layers.
// Shapes then change from step to step, so each captured step would have to be captured anew.
bool Engine::leaves_out_padding() const {
  return !on_device() && chain_.computes_visible_rows() && mesh_.shape().tp == 1 &&
         mesh_.shape().pp == 1 && !wants_capture(parts_);
}

BatchCut Engine::batch_cut() const {
  return {.pieces = plan_.pipeline.microbatches,
          .parts = model_->batch_parts(),
          .part = model_->batch_part(),
          .stride = context_.random.sample_stride,
          .batches = batches_at_a_time(),
          // Any length that tensor-parallel ranks can divide.
          .length = mesh_.shape().tp,
          .visible_granularity = leaves_out_padding() ? kVisibleRows : 0};
}

std::vector<Microbatch> Engine::inputs(const StepWork& work) {
  MemoryResource& host = parts_.trainer.host();
  nn::LossOptions loss = work.loss;
  if (on_device()) loss.loss_scale = 1;  // step_state_ has the loss scale
  if (on_device() || parts_.arguments.fp16) loss.state = step_state_.pointer();
  std::vector<Microbatch> microbatches =
      cut_batches(task_, work.batches, work.first_ordinal, loss, batch_cut(), host);
  // Host kernels skip rows without targets themselves, and the tensor-parallel parts of a layer
  // must process the same rows.
  if (on_device() && chain_.reads_target_rows() && mesh_.shape().tp == 1)
    for (Microbatch& microbatch : microbatches) {
      nn::ChainInput& input = microbatch.input;
      input.target_rows =
          nn::rows_with_targets(input.targets, nn::target_rows_granularity(input.targets), host);
    }
  for (const Microbatch& microbatch : microbatches)
    if (const nn::VisibleRows& visible = microbatch.input.visible; visible.defined())
      left_out_ += visible.places.count() - visible.rows.count();
  steps_.upload(microbatches, results_.get());
  return microbatches;
}

StepDone Engine::step(const StepWork& work) {
  step_number_ = work.number;
  const std::vector<Microbatch> microbatches = inputs(work);
  nn::StepOptions update{.learning_rate = work.learning_rate,
                         .max_gradient_norm = parts_.arguments.max_grad_norm,
                         .scaling = scaler_.rule()};
  if (on_device()) {
    update.update = work.update;
    update.inverse_targets = work.loss.loss_scale;
    optimizer_->set_step(*step_state_, update);
  }
  StepDone done;
  mesh_.guarded([&] {
    steps_.run(microbatches, {.run = [&] { compute(work, microbatches, update, done); },
                              .abandon = [&] { model_->abandon_step(); }});
  });
  if (results_) {
    results_->note(losses_.defined() ? losses_.narrowed(0, 0, std::ssize(microbatches)) : Tensor(),
                   optimizer_->rule().norm(),
                   ranks() > 1 ? mesh_.world().watch(context_.stream) : nullptr);
    if (!work.wait) return {.known = false};
    done = results_->last();
  }
  if (done.outcome.skipped) scaler();  // throws now if gradients keep overflowing
  return done;
}

// On a device: queues or captures the whole step without waiting. On the host: sets the results in
// `done`.
void Engine::compute(const StepWork& work, std::span<const Microbatch> microbatches,
                     nn::StepOptions update, StepDone& done) {
  Tracer* const tracer = parts_.trainer.tracer;
  done = {};
  {
    const TraceSpan span(whole() ? nullptr : tracer, "step", "pipeline");
    // After the forward, ends the updates of parameters that it did not read.
    model_->forward_backward(microbatches, losses_, [this] { settle(); });
  }
  if (!on_device() && losses_.defined()) {
    std::vector<float> losses(microbatches.size());
    nn::copy_to_host(losses.data(), losses_.narrowed(0, 0, std::ssize(losses)), context_.stream);
    for (const float loss : losses) done.loss_sum += static_cast<double>(loss);
  }
  if (!early_ || !begin_early_updates(work, done)) {
    {
      const TraceSpan span(tracer, "step", "reduce");
      const PhaseSpan phase(clock_, StepPhase::communication);
      model_->finish_gradients();
    }
    const TraceSpan span(tracer, "step", "optimizer");
    const PhaseSpan phase(clock_, StepPhase::optimizer);
    steps_.begin_update();
    if (on_device()) {
      optimizer_->queue_step(*step_state_, update);
    } else {
      if (!early_) update.loss = &done.loss_sum;
      done.outcome = optimizer_->step(*step_state_, update);
    }
  }
}

// Returns false if any rank's gradients are not finite: the whole step must then be skipped.
bool Engine::begin_early_updates(const StepWork& work, StepDone& done) {
  model_->reducer()->flush();
  // One all-reduce for both values, because between hosts each small sum waits behind running
  // buckets.
  double agreed[] = {done.loss_sum, early_->take_all_finite() ? 0.0 : 1.0};
  {
    const TraceSpan span(parts_.trainer.tracer, "step", "agree");
    const PhaseSpan phase(clock_, StepPhase::communication);
    beside().all_reduce(agreed, agreed, 2, DType::f64, collectives::ReduceOp::sum)->wait();
  }
  done.loss_sum = agreed[0];
  if (agreed[1] != 0) return false;
  early_->begin_updates(*step_state_, {.learning_rate = work.learning_rate});
  done.outcome = {.gradient_norm = std::numeric_limits<double>::quiet_NaN()};
  return true;
}

std::vector<StepDone> Engine::collect() {
  if (!results_) return {};
  std::vector<StepDone> done = results_->collect();
  if (std::ranges::any_of(done, [](const StepDone& step) { return step.outcome.skipped; }))
    scaler();
  return done;
}

void Engine::try_step(const Batch& batch) {
  if (!whole())
    throw Error(ErrorCode::unavailable, "a rank that has part of a model cannot try a step alone",
                "leave auto_find_batch_size out");
  const auto clear = [this] {
    device_backend(context_.stream.device.type).synchronize(context_.stream);
    steps_.drop_inputs();
  };
  try {
    model_->try_step(inputs({.batches = {&batch, 1}, .first_ordinal = batch.ordinals.first}));
  } catch (...) {
    clear();
    throw;
  }
  clear();
}

const nn::LossScaler& Engine::scaler() {
  if (scaler_.dynamic()) scaler_.take(step_state_.read());
  return scaler_;
}

void Engine::restore_scaler(const nn::LossScalerState& state) {
  scaler_.restore(state);
  kernels::StepState there = step_state_.read();
  scaler_.put(there);
  step_state_.write(there);
}

std::optional<double> Engine::settle() {
  if (!early_ || !early_->updating()) return std::nullopt;
  const TraceSpan span(parts_.trainer.tracer, "step", "settle");
  const PhaseSpan phase(clock_, StepPhase::communication);
  return early_->settle();
}

std::optional<parallel::ReducerStatistics> Engine::reduced() const {
  if (on_device()) return std::nullopt;
  return model_->gradient_statistics();
}

std::optional<parallel::OffloadStatistics> Engine::offloaded() const {
  if (!plan_.activations.offload) return std::nullopt;
  return model_->offload_statistics();
}

bool Engine::runs_whole_model() {
  const bool split =
      has_pipeline() || plan_.sharding.level == 3 ||
      (mesh_.shape().tp > 1 && !(plan_.tensor.prescaled_batch && plan_.tensor.speed));
  if (!split) model_->wait_for_values();
  return !split;
}

std::vector<Microbatch> Engine::cut(std::span<const Batch> batches) const {
  return cut_batches(task_, batches, 0, {}, batch_cut(), parts_.trainer.host());
}

LossSums Engine::evaluate(std::span<const Batch> batches, const Scores& scores) {
  const BatchCut cut = batch_cut();
  const auto pieces = static_cast<std::size_t>(cut.pieces);
  PieceScores take;
  if (scores)
    take = [&](std::size_t i, const Tensor& rows) {
      if (i / pieces >= batches.size()) return;
      const Batch& batch = batches[i / pieces];
      const std::int64_t first = cut.first_row(static_cast<std::int64_t>(i % pieces), batch.rows);
      const std::int64_t given = std::min(cut.rows_of_part(batch.rows), batch.rows - first);
      if (given > 0) scores(i / pieces, first, rows.narrowed(0, 0, given));
    };
  return evaluate(this->cut(batches), take);
}

LossSums Engine::evaluate(std::span<const Microbatch> microbatches, const PieceScores& scores) {
  SHOAL_CHECK(!scores || !task_unit_, "{} is no chain of units, which predictions need",
              task_.describe());
  std::vector<Tensor> logits;
  const parallel::StageLoss loss =
      mesh_.guarded([&] { return model_->evaluate_own(microbatches, scores ? &logits : nullptr); });
  for (std::size_t i = 0; i < logits.size(); ++i)
    scores(i, scores_on_host(context_, logits[i], parts_.trainer.host()));
  return {loss.sum, static_cast<double>(loss.targets)};
}

}  // namespace shoal
