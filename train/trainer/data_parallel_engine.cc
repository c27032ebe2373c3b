#include "shoal/train/trainer/data_parallel_engine.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <utility>

#include "shoal/collectives/watch.h"
#include "shoal/nn/autograd/device_values.h"
#include "shoal/nn/autograd/weight_branch.h"
#include "shoal/nn/models/inference.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/log.h"
#include "shoal/runtime/io/safetensors.h"
#include "shoal/train/checkpoint/checkpoint_directory.h"
#include "shoal/train/trainer/held_numbers.h"
#include "shoal/train/trainer/log_format.h"

namespace shoal {
namespace {

using collectives::ReduceOp;

// Limit of batch shapes whose inputs and graphs are kept. Questions about texts of up to 384
// tokens, padded to multiples of 8, have about 25 shapes, each of which recurs.
constexpr std::size_t kMostShapes = 32;

const Tensor& named(const std::vector<HeldNumbers>& tensors, const nn::Parameter& parameter) {
  for (const HeldNumbers& entry : tensors)
    if (entry.held.name == parameter.name()) return entry.tensor;
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
      context_(*parts.trainer.kernels, *parts.trainer.memory, recorder_),
      step_state_(*parts.trainer.kernels, *parts.trainer.memory),
      scaler_(parts.arguments.fp16 ? nn::LossScaler(loss_scaling(parts.arguments))
                                   : nn::LossScaler::none()),
      optimizer_memory_(parts) {
  const TrainerParts& p = parts_.trainer;
  context_.random.seed = static_cast<std::uint64_t>(parts_.arguments.seed);
  context_.random.state = step_state_.pointer();
  task_.module().materialize(context_, DType::f32);
  weights_ = std::make_unique<nn::MasterWeights>(
      task_.module().parameters(), compute_dtype(parts_.arguments), *p.kernels, *p.memory,
      std::function<void(nn::Parameter&)>{}, optimizer_memory_.get(),
      rounding_seed(parts_.arguments));
  if (!p.initial_weights.empty()) load_weights(p.initial_weights);
  restore_scaler(scaler_.state());
}

const nn::LossScaler& DataParallelEngine::scaler() {
  if (scaler_.dynamic()) scaler_.take(step_state_.read());
  return scaler_;
}

void DataParallelEngine::restore_scaler(const nn::LossScalerState& state) {
  scaler_.restore(state);
  kernels::StepState there = step_state_.read();
  scaler_.put(there);
  step_state_.write(there);
}

DataShare DataParallelEngine::data_share() const {
  return {.count = ranks(), .index = parts_.trainer.communicator->rank()};
}

std::vector<std::string> DataParallelEngine::describe_layout() const {
  std::vector<std::string> lines = {
      fmt::format("layout: {} data-parallel rank{} ({}), {}", ranks(), ranks() == 1 ? "" : "s",
                  carried_by(*parts_.trainer.communicator), parts_.trainer.kernels->describe())};
  if (std::string line = optimizer_memory_.describe(); !line.empty())
    lines.push_back(std::move(line));
  if (parts_.arguments.step_capture == StepCaptureMode::on && offloads_between_graphs())
    lines.push_back(fmt::format("note: {}{}", kCallByCall, kOffloadedBetweenGraphs));
  return lines;
}

std::vector<std::string> DataParallelEngine::describe_gradients() const {
  if (ranks() == 1) return {};
  const TrainingArguments& a = parts_.arguments;
  return {fmt::format(
      "gradients: buckets of {:.4g} MiB, the first {:.4g}; {}", a.ddp_bucket_cap_mb,
      a.ddp_first_bucket_cap_mb,
      early_                   ? "updates run behind the next forward (ddp_overlap_forward)"
      : !a.ddp_overlap_forward ? "a step waits for all of them (ddp_overlap_forward false)"
      : !on_cpu()              ? "a step waits for all of them (ddp_overlap_forward is for CPUs)"
      : a.fp16                 ? "a step waits for all of them, as the loss scale of fp16 needs"
               : "a step waits for all of them, as clipping needs (max_grad_norm 0: none)")};
}

collectives::Communicator& DataParallelEngine::beside() {
  return (beside_ ? *beside_ : *parts_.trainer.communicator).host();
}

void DataParallelEngine::abort(const std::exception& why) noexcept {
  if (ranks() == 1) return;
  const auto* const error = dynamic_cast<const Error*>(&why);
  for (collectives::Communicator* group : {parts_.trainer.communicator, beside_.get()}) try {
      if (group != nullptr) group->abort(error != nullptr ? error->message() : why.what());
    } catch (const std::exception& problem) {
      log::debug("the other ranks are not told why this one ends: {}", problem.what());
    }
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
    const PhaseSpan phase(clock_, StepPhase::optimizer);
    early_->on_reduced(parameter);
  };
  dispatcher_.before_read = [this](const Tensor& tensor) {
    if (!early_->updating()) return;
    const PhaseSpan phase(clock_, StepPhase::communication);
    early_->before_read(tensor);
  };
}

void DataParallelEngine::prepare_training() {
  if (optimizer_) return;
  collectives::Communicator& communicator = *parts_.trainer.communicator;
  const auto parameters = task_.module().parameters();
  parallel::ReducerOptions options = reducer_options(parts_);
  // Not on a device: its host would wait for the device at each parameter.
  if (parts_.arguments.overlaps_forward(ranks()) && on_cpu()) overlap_forward(options);
  std::shared_ptr<parallel::BucketReduction> reduction =
      ranks() == 1 && !on_cpu() ? parallel::make_no_reduction(context_.memory(), context_.stream)
                                : parallel::make_all_reduction(communicator);
  if (captures() && ranks() > 1 && !on_cpu() && !communicator.can_capture())
    options.host_work = &host_work_;
  reducer_ = std::make_unique<parallel::Reducer>(parameters, std::move(reduction), options);
  optimizer_ = make_optimizer(parts_, weights_->segments(), optimizer_memory_.get());
  losses_ =
      context_.empty({parts_.arguments.gradient_accumulation_steps}, DType::f32, MemoryTag::data);
  MemoryResource* const pinned = parts_.trainer.pinned_memory;
  if (!on_cpu()) late_ = std::make_unique<LateSteps>(context_.stream, communicator, pinned);
  if (parts_.arguments.activation_offloading)
    offloader_ = std::make_unique<parallel::Offloader>(
        context_.memory(), parallel::OffloadOptions{.pinned = pinned}, context_.stream);
  // Only for one rank: a sum over ranks begins when a bucket's last gradient is queued, on any
  // stream.
  if (captures() && ranks() == 1 && !on_cpu()) {
    (void)nn::wants_weight_branch(0);  // reports a wrong value of the setting now
    branch_ = std::make_unique<nn::WeightBranch>(context_.stream.device);
  }
  begin_capture();
  if (!early_) return;
  early_->attach(*reducer_, *optimizer_, parameters);
  beside_ = communicator.split(0, communicator.rank());
}

bool DataParallelEngine::offloads_between_graphs() const {
  return parts_.arguments.activation_offloading && ranks() > 1 && !on_cpu() &&
         !parts_.trainer.communicator->can_capture();
}

bool DataParallelEngine::captures() const {
  const StepCaptureMode mode = parts_.arguments.step_capture;
  if (offloads_between_graphs()) return false;
  if (mode == StepCaptureMode::off || parts_.trainer.planned_memory == nullptr) return false;
  return mode == StepCaptureMode::on || (!on_cpu() && ranks() == 1);
}

void DataParallelEngine::begin_capture() {
  if (!captures()) return;
  nn::StepCaptureOptions options{.most_kept = static_cast<int>(2 * kMostShapes),  // with branches
                                 .say = [this](const std::string& line) { parts_.say(line); },
                                 .host_work = &host_work_,
                                 .operations = &recorder_};
  collectives::Communicator& all = *parts_.trainer.communicator;
  if (ranks() > 1)
    options.before_waiting = [this, &all] { collectives::watch(all, context_.stream); };
  if (ranks() > 1 && all.can_capture()) options.exchange = exchange_over(all);
  ++captures_made_;
  in_line_.clear();
  capture_.reset();  // gives the arena back before the next capture
  capture_ = std::make_unique<nn::StepCapture>(context_.kernels(), *parts_.trainer.planned_memory,
                                               std::move(options));
}

// The first steps of a kind run call by call, because their memory decides how the kind can run.
std::string DataParallelEngine::describe_capture() {
  if (!capture_) return {};
  std::string text = capture_->describe();
  const auto in_line = in_line_.find(last_kind_);
  const std::span<const nn::MemorySequence> planned =
      in_line != in_line_.end() ? std::span(&in_line->second, 1) : capture_->planned();
  if (ran_beside_ && !text.empty()) text += "; gradients of weights beside backward";
  const auto room = parts_.trainer.planned_memory->room();
  if (text.empty() || planned.empty() || !room) return text;
  const Device device = context_.kernels().device();
  const nn::LargestBatch largest = nn::largest_batch(planned, last_batch_, *room, device);
  return text + fmt::format(
                    "; of {} for a step, batches of up to about {} samples fit captured, {} "
                    "call by call, as their first steps run",
                    format_bytes(*room), largest.planned, largest.call_by_call);
}

std::vector<nn::ChainInput> DataParallelEngine::inputs(const StepWork& work) {
  std::vector<nn::ChainInput> all;
  std::vector<Tensor> host;
  std::string shapes;
  for (const Batch& batch : work.batches) {
    all.push_back(task_.chain_input(batch, parts_.trainer.host()));
    nn::ChainInput& input = all.back();
    input.loss = work.loss;
    if (parts_.arguments.fp16 || !on_cpu()) input.loss.state = step_state_.pointer();
    if (!on_cpu()) input.loss.loss_scale = 1;  // the state holds the scale
    for (const Tensor* tensor : input.tensors()) {
      host.push_back(*tensor);
      shapes += tensor->defined() ? to_string(tensor->shape()) + " " : "none ";
    }
    // Host kernels skip rows without targets themselves.
    if (on_cpu() || !task_.chain() || !task_.chain()->reads_target_rows()) continue;
    input.target_rows = nn::rows_with_targets(
        input.targets, nn::target_rows_granularity(input.targets), parts_.trainer.host());
    host.push_back(input.target_rows);
    shapes += fmt::format("of {} ", input.target_rows.count());
  }
  if (on_cpu()) return all;
  if (!staged_.contains(shapes) && staged_.size() >= kMostShapes) {
    if (late_) late_->wait_for_ranks();
    device_backend(context_.stream.device.type).synchronize(context_.stream);
    staged_.clear();
    if (capture_) begin_capture();  // its graphs read inputs that are gone
  }
  auto& staged =
      staged_
          .try_emplace(shapes, context_.kernels(), context_.memory(), parts_.trainer.pinned_memory)
          .first->second;
  const std::vector<Tensor>& device = staged.fill(host);
  std::size_t next = 0;
  for (nn::ChainInput& input : all) {
    for (Tensor* tensor : input.tensors()) *tensor = device[next++];
    if (input.target_rows.defined()) input.target_rows = device[next++];
  }
  return all;
}

void DataParallelEngine::forward_backward(const StepWork& work,
                                          std::span<const nn::ChainInput> inputs, bool reduces) {
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const SampleOrdinals& ordinals = work.batches[i].ordinals;
    std::shared_ptr<parallel::Offloader::Batch> offloaded;
    nn::Tape tape;
    if (offloader_) {
      offloaded = offloader_->begin_batch();
      tape.set_saved_tensor_hooks(offloader_->hooks(offloaded));
    }
    context_.mode = nn::Mode::train;
    context_.tape = &tape;
    // Relative to the step: counters have 24 bits for samples, and the step has a word of its own.
    context_.random.sample_first = static_cast<std::uint32_t>(ordinals.first - work.first_ordinal);
    context_.random.sample_stride = static_cast<std::uint32_t>(ordinals.stride);
    context_.begin_forward();
    nn::LossOutput output;
    {
      const TraceSpan span(parts_.trainer.tracer, "step", "forward", static_cast<std::int64_t>(i));
      const PhaseSpan phase(clock_, StepPhase::forward);
      output = task_.loss(context_, inputs[i]);
    }
    context_.kernels().elementwise().cast(
        output.loss_sum, losses_.narrowed(0, static_cast<std::int64_t>(i), 1).view(),
        context_.stream);
    if (i == 0) settle();  // updates of parameters that this forward did not read
    if (reduces && i + 1 == inputs.size()) reducer_->arm();
    const TraceSpan span(parts_.trainer.tracer, "step", "backward", static_cast<std::int64_t>(i));
    const PhaseSpan phase(clock_, StepPhase::backward);
    if (offloaded) offloader_->expect(*offloaded);
    if (output.loss.needs_gradient()) tape.backward(context_, output.loss);
    context_.tape = nullptr;
  }
}

double DataParallelEngine::loss_sum() const {
  std::vector<float> sums(static_cast<std::size_t>(losses_.count()));
  nn::copy_to_host(sums.data(), losses_, context_.stream);
  double total = 0;
  for (std::size_t i = 0; i < microbatches_; ++i) total += static_cast<double>(sums[i]);
  return total;
}

nn::StepOptions DataParallelEngine::step_options(const StepWork& work) {
  nn::StepOptions options{.learning_rate = work.learning_rate,
                          .update = work.update,
                          .max_gradient_norm = parts_.arguments.max_grad_norm,
                          .scaling = scaler_.rule()};
  if (on_cpu()) return options;
  options.inverse_targets = work.loss.loss_scale;
  if (ranks() > 1)
    options.sum_in_place = [this](const Tensor& sum, Stream stream) {
      collectives::Communicator& all = *parts_.trainer.communicator;
      parallel::scale_squares(context_.kernels().reduction(), sum, all.rank() == 0, stream);
      const auto add = [this, &all, sum, stream] {
        last_sum_ = parallel::add_squares(all, sum, stream);
      };
      if (all.can_capture())
        add();
      else
        host_work_.run(add);
    };
  return options;
}

StepDone DataParallelEngine::step(const StepWork& work) {
  microbatches_ = work.batches.size();
  step_number_ = work.number;
  const std::vector<nn::ChainInput> all = inputs(work);
  if (capture_) last_batch_ = {all[0].ids.shape()[0], all[0].ids.count()};
  StepDone done;
  if (late_) {
    queue_step(work, all);
    // Sums in a graph leave no Work.
    if (capture_ && ranks() > 1 && parts_.trainer.communicator->can_capture())
      last_sum_ = parts_.trainer.communicator->watch(context_.stream);
    late_->note(losses_.narrowed(0, 0, static_cast<std::int64_t>(microbatches_)),
                optimizer_->norm(), std::move(last_sum_));
    if (!work.wait) return {.known = false};
    done = late_->last();
  } else {
    const auto step = [&] {
      reducer_->begin_step();
      forward_backward(work, all, true);
      done.outcome = update(work, done.loss_sum);
    };
    if (capture_)
      capture_->run(kind_of(work, all), step);
    else
      step();
  }
  if (done.outcome.skipped) scaler();  // throws now if gradients keep overflowing
  return done;
}

std::vector<StepDone> DataParallelEngine::collect() {
  if (!late_) return {};
  std::vector<StepDone> done = late_->collect();
  if (std::ranges::any_of(done, [](const StepDone& step) { return step.outcome.skipped; }))
    scaler();
  return done;
}

void DataParallelEngine::try_step(const Batch& batch) {
  const StepWork work{.batches = {&batch, 1}, .first_ordinal = batch.ordinals.first};
  const auto clear = [this] {
    context_.tape = nullptr;
    device_backend(context_.stream.device.type).synchronize(context_.stream);
    staged_.clear();
  };
  try {
    reducer_->begin_step();
    forward_backward(work, inputs(work), false);
  } catch (...) {
    clear();
    throw;
  }
  clear();
}

static const char* mask_kind(const Tensor& mask) {
  if (!mask.defined()) return "";
  return mask.dtype() == DType::i32 ? " of lengths" : " masked";
}

// Everything that a graph cannot see change. A new StepCapture has no warm kinds. Ranks agree on
// kinds, so all of them must start anew.
std::string DataParallelEngine::kind_of(const StepWork& work,
                                        std::span<const nn::ChainInput> inputs) const {
  std::string key = fmt::format("{} {}", captures_made_, work.loss.label_smoothing);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const SampleOrdinals& ordinals = work.batches[i].ordinals;
    const Tensor& sequences = inputs[i].sequences;
    const std::string packed =
        sequences.defined() ? " packed " + to_string(sequences.shape()) : std::string();
    key += fmt::format(" {}{}{}{}{} {} {}+{}", to_string(inputs[i].ids.shape()),
                       mask_kind(inputs[i].key_mask),
                       inputs[i].token_types.defined() ? " of types" : "",
                       inputs[i].ends.defined() ? " with ends" : "", packed,
                       inputs[i].target_rows.defined() ? inputs[i].target_rows.count() : -1,
                       ordinals.first - work.first_ordinal, ordinals.stride);
  }
  return key;
}

// The branch keeps more memory, which may not fit although a step with one stream fits. Then that
// step is captured instead, and the branch is dropped for good.
bool DataParallelEngine::queue_with_branch(const std::string& kind,
                                           std::span<const nn::ChainInput> inputs,
                                           const std::function<void()>& step) {
  std::int64_t most = 0;
  for (const nn::ChainInput& input : inputs) most = std::max(most, input.ids.count());
  if (!branch_ || !in_line_.contains(kind) || !nn::wants_weight_branch(most)) return false;
  context_.branch = branch_.get();
  std::string problem;
  try {
    capture_->run(kind + " beside", step, true);
    if (capture_->planned().empty()) problem = "such steps cannot be captured";
  } catch (const Error& error) {
    context_.branch = nullptr;
    if (error.code() != ErrorCode::out_of_memory || update_queued_) throw;
    problem = error.message();
  }
  context_.branch = nullptr;
  if (problem.empty()) return true;
  parts_.say("step capture: no gradients of weights beside backward, they run in line: " + problem);
  branch_.reset();
  return !step_open_;  // otherwise the caller queues the step again
}

void DataParallelEngine::queue_step(const StepWork& work, std::span<const nn::ChainInput> inputs) {
  const nn::StepOptions options = step_options(work);
  optimizer_->set_step(*step_state_, options);
  const auto step = [&] {
    if (std::exchange(step_open_, true)) reducer_->abandon_step();  // its capture failed
    update_queued_ = false;
    reducer_->begin_step();
    forward_backward(work, inputs, true);
    const TraceSpan span(parts_.trainer.tracer, "step", "optimizer");
    const PhaseSpan phase(clock_, StepPhase::optimizer);
    reducer_->finish();
    update_queued_ = true;
    optimizer_->queue_step(*step_state_, options);
    step_open_ = false;
  };
  if (!capture_) return step();
  const TraceSpan span(parts_.trainer.tracer, "step", "captured step");
  last_kind_ = kind_of(work, inputs);
  ran_beside_ = queue_with_branch(last_kind_, inputs, step);
  if (ran_beside_) return;
  capture_->run(last_kind_, step);
  if (!branch_ || capture_->planned().empty() || in_line_.contains(last_kind_)) return;
  if (in_line_.size() >= kMostShapes) in_line_.clear();
  in_line_.emplace(last_kind_, capture_->planned().front());
}

// `loss` becomes the sum over all ranks. It is read where the host waits for the device anyway.
nn::StepOutcome DataParallelEngine::update(const StepWork& work, double& loss) {
  Tracer* const tracer = parts_.trainer.tracer;
  const auto sum = [this](std::span<double> values) {
    if (ranks() > 1)
      beside()
          .all_reduce(values.data(), values.data(), std::ssize(values), DType::f64, ReduceOp::sum)
          ->wait();
  };
  bool all_finite = true;
  if (early_) {
    reducer_->flush();
    // One operation: between hosts a small sum waits behind the running buckets.
    double agreed[] = {loss_sum(), early_->take_all_finite() ? 0.0 : 1.0};
    const TraceSpan span(tracer, "step", "agree");
    const PhaseSpan phase(clock_, StepPhase::communication);
    sum(agreed);
    loss = agreed[0];
    all_finite = agreed[1] == 0;
  }
  if (early_ && all_finite) {
    early_->begin_updates(*step_state_, {.learning_rate = work.learning_rate});
    return {.gradient_norm = std::numeric_limits<double>::quiet_NaN()};
  }
  {
    const TraceSpan span(tracer, "step", "reduce");
    const PhaseSpan phase(clock_, StepPhase::communication);
    reducer_->finish();
  }
  const TraceSpan span(tracer, "step", "optimizer");
  const PhaseSpan phase(clock_, StepPhase::optimizer);
  nn::StepOptions options = step_options(work);
  if (ranks() > 1)
    options.sum_over_shards = [&](double squares) {
      const PhaseSpan waiting(clock_, StepPhase::communication);
      // One operation: the loss, rank 0's sum of squares, and whether any rank's is not finite.
      double agreed[] = {early_ ? 0 : loss_sum(), beside().rank() == 0 ? squares : 0,
                         std::isfinite(squares) ? 0.0 : 1.0};
      sum(agreed);
      if (!early_) loss = agreed[0];
      const bool refused = agreed[2] > 0 && std::isfinite(agreed[1]);
      return refused ? std::numeric_limits<double>::quiet_NaN() : agreed[1];
    };
  const nn::StepOutcome outcome = optimizer_->step(*step_state_, options);
  if (ranks() == 1) loss = loss_sum();
  return outcome;
}

std::optional<double> DataParallelEngine::settle() {
  if (!early_ || !early_->updating()) return std::nullopt;
  const TraceSpan span(parts_.trainer.tracer, "step", "settle");
  const PhaseSpan phase(clock_, StepPhase::communication);
  return early_->settle();
}

std::optional<parallel::ReducerStatistics> DataParallelEngine::reduced() const {
  if (!reducer_ || !on_cpu()) return std::nullopt;
  return reducer_->statistics();
}

nn::LossOutput DataParallelEngine::score(const nn::ChainInput& input, std::size_t batch,
                                         const Scores& scores) {
  nn::Chain* const chain = task_.chain();
  SHOAL_CHECK(chain != nullptr, "{} is no chain of units, which predictions need",
              task_.describe());
  nn::ScoredOutput scored =
      nn::score_head(context_, *chain,
                     nn::forward_units(context_, *chain, 0, chain->units() - 1, {}, input), input);
  scores(batch, 0, scores_on_host(context_, scored.logits, parts_.trainer.host()));
  return std::move(scored.loss);
}

LossSums DataParallelEngine::evaluate(std::span<const Batch> batches, const Scores& scores) {
  LossSums sums;
  const nn::Inference inference(context_);
  for (std::size_t i = 0; i < batches.size(); ++i) {
    context_.begin_forward();
    const nn::ChainInput input = task_.chain_input(batches[i], parts_.trainer.host());
    const nn::LossOutput output = scores ? score(input, i, scores) : task_.loss(context_, input);
    sums.loss += context_.read(output.loss_sum);
    sums.targets += static_cast<double>(output.targets);
  }
  return sums;
}

Engine::Write DataParallelEngine::snapshot(bool with_optimizer) {
  if (parts_.trainer.communicator->rank() != 0) return {};
  struct Copy {
    std::vector<HeldNumbers> masters, moments;
  };
  auto copy = std::make_shared<Copy>();
  MemoryResource& host = parts_.trainer.host();
  copy->masters = copied(whole(weights_->masters()), host, context_.stream);
  if (with_optimizer)
    copy->moments = copied(whole(optimizer_->state_tensors()), host, context_.stream);
  return [task = &task_, copy](const std::string& directory) {
    task->save(directory,
               [&](const nn::Parameter& p) { return named(copy->masters, p).const_view(); });
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
  Tensor one;  // must stay valid until the next call
  task_.save(directory, [&](const nn::Parameter& p) {
    one = on_host(named(masters, p), parts_.trainer.host(), context_.stream);
    return one.const_view();
  });
}

void DataParallelEngine::load_weights(const std::string& directory) {
  note_loaded(parts_, directory,
              read_weights(directory, task_, *parts_.trainer.kernels, whole(weights_->masters())));
  weights_->refresh();
}

void DataParallelEngine::load_optimizer(const std::string& directory, std::int64_t updates) {
  read_optimizer(directory, *parts_.trainer.kernels, whole(optimizer_->state_tensors()));
  kernels::StepState state = step_state_.read();
  state.step = static_cast<std::uint32_t>(updates);
  step_state_.write(state);
}

}  // namespace shoal
