#include "shoal/train/trainer/data_parallel_engine.h"

#include <limits>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/io/safetensors.h"
#include "shoal/train/checkpoint/checkpoint_directory.h"
#include "shoal/train/trainer/held_numbers.h"

namespace shoal {
namespace {

using collectives::ReduceOp;

ConstView named(const std::vector<HeldNumbers>& tensors, const nn::Parameter& parameter) {
  for (const HeldNumbers& entry : tensors)
    if (entry.held.name == parameter.name()) return entry.tensor.const_view();
  throw_error(ErrorCode::internal, "{} has no master", parameter.name());
}

std::vector<HeldNumbers> whole(const std::vector<nn::NamedTensor>& tensors) {
  std::vector<HeldNumbers> all;
  for (const nn::NamedTensor& entry : tensors)
    all.push_back(
        {whole_tensor(entry.name, entry.tensor.shape(), entry.tensor.dtype()), entry.tensor});
  return all;
}

}  // namespace

DataParallelEngine::DataParallelEngine(const EngineParts& parts)
    : parts_(parts),
      task_(*parts.trainer.task),
      context_(*parts.trainer.kernels, *parts.trainer.memory, dispatcher_),
      scaler_(parts.arguments.fp16 ? nn::LossScaler(kF16Scaling) : nn::LossScaler::none()) {
  const TrainerParts& p = parts_.trainer;
  context_.random.seed = static_cast<std::uint64_t>(parts_.arguments.seed);
  context_.random.state = &step_state_;
  task_.module().materialize(context_, DType::f32);
  weights_ = std::make_unique<nn::MasterWeights>(
      task_.module().parameters(), compute_dtype(parts_.arguments), *p.kernels, *p.memory);
  if (!p.initial_weights.empty()) load_weights(p.initial_weights);
}

DataShare DataParallelEngine::data_share() const {
  return {.count = ranks(), .index = parts_.trainer.communicator->rank()};
}

std::vector<std::string> DataParallelEngine::describe_layout() const {
  return {fmt::format("layout: {} data-parallel rank{} ({}), {}", ranks(), ranks() == 1 ? "" : "s",
                      parts_.trainer.communicator->backend(), parts_.trainer.kernels->describe())};
}

std::vector<std::string> DataParallelEngine::describe_gradients() const {
  if (ranks() == 1) return {};
  const TrainingArguments& a = parts_.arguments;
  return {fmt::format(
      "gradients: buckets of {:.4g} MiB, the first {:.4g}; {}", a.ddp_bucket_cap_mb,
      a.ddp_first_bucket_cap_mb,
      early_                   ? "updates run behind the next forward (ddp_overlap_forward)"
      : !a.ddp_overlap_forward ? "a step waits for all of them (ddp_overlap_forward false)"
      : a.fp16                 ? "a step waits for all of them, as the loss scale of fp16 needs"
               : "a step waits for all of them, as clipping needs (max_grad_norm 0: none)")};
}

collectives::Communicator& DataParallelEngine::beside() {
  return beside_ ? *beside_ : *parts_.trainer.communicator;
}

void DataParallelEngine::overlap_forward(parallel::ReducerOptions& options) {
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
    early_->on_reduced(parameter);
  };
  dispatcher_.before_read = [this](const Tensor& tensor) { early_->before_read(tensor); };
}

void DataParallelEngine::prepare_training() {
  if (optimizer_) return;
  collectives::Communicator& communicator = *parts_.trainer.communicator;
  const auto parameters = task_.module().parameters();
  parallel::ReducerOptions options = reducer_options(parts_);
  if (parts_.arguments.overlaps_forward(ranks())) overlap_forward(options);
  reducer_ = std::make_unique<parallel::Reducer>(parameters, communicator, options);
  optimizer_ = make_optimizer(parts_, weights_->segments());
  if (!early_) return;
  early_->attach(*reducer_, *optimizer_, parameters);
  beside_ = communicator.split(0, communicator.rank());
}

double DataParallelEngine::forward_backward(const StepWork& work) {
  double loss_sum = 0;
  for (std::size_t i = 0; i < work.batches.size(); ++i) {
    const Batch& batch = work.batches[i];
    nn::Tape tape;
    context_.mode = nn::Mode::train;
    context_.tape = &tape;
    // Relative to the step: counters have 24 bits for samples, and step itself is another word.
    context_.random.sample_first =
        static_cast<std::uint32_t>(batch.ordinals.first - work.first_ordinal);
    context_.random.sample_stride = static_cast<std::uint32_t>(batch.ordinals.stride);
    context_.begin_forward();
    nn::LossOutput output;
    {
      const TraceSpan span(parts_.trainer.tracer, "step", "forward", static_cast<std::int64_t>(i));
      output = task_.loss(context_, batch, work.loss);
    }
    loss_sum += context_.read(output.loss_sum);
    if (i == 0) settle();  // what this forward did not read
    if (i + 1 == work.batches.size()) reducer_->arm();
    const TraceSpan span(parts_.trainer.tracer, "step", "backward", static_cast<std::int64_t>(i));
    if (output.loss.needs_gradient()) tape.backward(context_, output.loss);
    context_.tape = nullptr;
  }
  return loss_sum;
}

StepDone DataParallelEngine::step(const StepWork& work) {
  reducer_->begin_step();
  StepDone done;
  done.loss_sum = forward_backward(work);
  step_number_ = work.number;
  done.outcome = update(work, done.loss_sum);
  scaler_.update(done.outcome.skipped);
  return done;
}

// `loss_sum`: this rank's, then all ranks'.
nn::StepOutcome DataParallelEngine::update(const StepWork& work, double& loss_sum) {
  Tracer* const tracer = parts_.trainer.tracer;
  const auto sum = [this](double* values, std::int64_t count) {
    if (ranks() > 1) beside().all_reduce(values, values, count, DType::f64, ReduceOp::sum)->wait();
  };
  bool all_finite = true;
  if (early_) {
    reducer_->flush();
    // In one: between hosts a small sum waits behind the buckets that are on the way.
    double agreed[] = {loss_sum, early_->take_all_finite() ? 0.0 : 1.0};
    const TraceSpan span(tracer, "step", "agree");
    sum(agreed, 2);
    loss_sum = agreed[0];
    all_finite = agreed[1] == 0;
  }
  if (early_ && all_finite) {
    early_->begin_updates(step_state_, {.learning_rate = work.learning_rate});
    return {.gradient_norm = std::numeric_limits<double>::quiet_NaN()};
  }
  {
    const TraceSpan span(tracer, "step", "reduce");
    reducer_->finish();
    if (!early_) sum(&loss_sum, 1);
  }
  const TraceSpan span(tracer, "step", "optimizer");
  return optimizer_->step(step_state_, {.learning_rate = work.learning_rate,
                                        .gradient_scale = 1.0 / scaler_.scale(),
                                        .max_gradient_norm = parts_.arguments.max_grad_norm});
}

std::optional<double> DataParallelEngine::settle() {
  if (!early_ || !early_->updating()) return std::nullopt;
  const TraceSpan span(parts_.trainer.tracer, "step", "settle");
  return early_->settle();
}

std::optional<parallel::ReducerStatistics> DataParallelEngine::reduced() const {
  if (!reducer_) return std::nullopt;
  return reducer_->statistics();
}

LossSums DataParallelEngine::evaluate(std::span<const Batch> batches) {
  LossSums sums;
  context_.mode = nn::Mode::evaluate;
  context_.tape = nullptr;
  for (const Batch& batch : batches) {
    context_.begin_forward();
    const nn::LossOutput output = task_.loss(context_, batch, {});
    sums.loss += context_.read(output.loss_sum);
    sums.targets += static_cast<double>(output.targets);
  }
  context_.mode = nn::Mode::train;
  return sums;
}

Engine::Write DataParallelEngine::snapshot(bool with_optimizer) {
  if (parts_.trainer.communicator->rank() != 0) return {};
  struct Copy {
    std::vector<HeldNumbers> masters, moments;
  };
  auto copy = std::make_shared<Copy>();
  copy->masters = copied(whole(weights_->masters()), *parts_.trainer.memory);
  if (with_optimizer)
    copy->moments = copied(whole(optimizer_->state_tensors()), *parts_.trainer.memory);
  return [task = &task_, copy](const std::string& directory) {
    task->save(directory, [&](const nn::Parameter& p) { return named(copy->masters, p); });
    if (copy->moments.empty()) return;
    std::vector<NamedView> views;
    for (const HeldNumbers& entry : copy->moments)
      views.push_back({entry.held.name, entry.tensor.const_view()});
    write_safetensors(directory + "/" + std::string(kOptimizerStateFile), views);
  };
}

void DataParallelEngine::save_model(const std::string& directory) {
  if (parts_.trainer.communicator->rank() != 0) return;
  const auto masters = whole(weights_->masters());
  task_.save(directory, [&](const nn::Parameter& p) { return named(masters, p); });
}

void DataParallelEngine::load_weights(const std::string& directory) {
  read_weights(directory, task_, *parts_.trainer.kernels, whole(weights_->masters()));
  weights_->refresh();
}

void DataParallelEngine::load_optimizer(const std::string& directory, std::int64_t updates) {
  read_optimizer(directory, *parts_.trainer.kernels, whole(optimizer_->state_tensors()));
  step_state_.step = static_cast<std::uint32_t>(updates);
}

}  // namespace shoal
