#include "shoal/train/trainer/trainer.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/log.h"
#include "shoal/train/checkpoint/checkpoint_directory.h"
#include "shoal/train/trainer/log_format.h"
#include "shoal/train/trainer/trainer_impl.h"

namespace shoal {
namespace {

using collectives::ReduceOp;

std::unique_ptr<nn::Optimizer> make_optimizer(const TrainingArguments& a, kernels::Kernels& kernels,
                                              MemoryResource& memory,
                                              std::vector<nn::Segment> segments) {
  const nn::AdamWOptions adam{.beta1 = a.adam_beta1,
                              .beta2 = a.adam_beta2,
                              .epsilon = a.adam_epsilon,
                              .weight_decay = a.weight_decay};
  switch (a.optim) {
    case Optim::adamw:
      return nn::make_adamw(kernels, memory, std::move(segments), adam);
    case Optim::lamb:
      return nn::make_lamb(kernels, memory, std::move(segments), {.adam = adam});
    case Optim::sgd:
      return nn::make_sgd(kernels, memory, std::move(segments),
                          {.momentum = a.sgd_momentum, .weight_decay = a.weight_decay});
  }
  throw_error(ErrorCode::internal, "optimizer {} is not in make_optimizer",
              static_cast<int>(a.optim));
}

// At least one byte: 1e-9 MiB is still a bucket.
std::int64_t mebibytes(double mb) {
  return std::max<std::int64_t>(static_cast<std::int64_t>(mb * (1 << 20)), 1);
}

}  // namespace

Trainer::Impl::Impl(const TrainingArguments& arguments, const TrainerParts& trainer_parts)
    : args(arguments),
      parts(trainer_parts),
      context(*trainer_parts.kernels, *trainer_parts.memory, dispatcher) {
  check_arguments(args);
  context.random.seed = static_cast<std::uint64_t>(args.seed);
  context.random.state = &step_state;
  initialise_weights();
  state.seed = static_cast<std::uint64_t>(args.seed);
  state.data_seed = static_cast<std::uint64_t>(args.order_seed());
  state.train_batch_size = args.per_device_train_batch_size;
}

void Trainer::Impl::sum(std::int64_t* values, std::int64_t count) {
  collectives::Communicator& with = beside ? *beside : *parts.communicator;
  if (ranks() > 1) with.all_reduce(values, values, count, DType::i64, ReduceOp::sum)->wait();
}

void Trainer::Impl::sum(double* values, std::int64_t count) {
  collectives::Communicator& with = beside ? *beside : *parts.communicator;
  if (ranks() > 1) with.all_reduce(values, values, count, DType::f64, ReduceOp::sum)->wait();
}

void Trainer::Impl::initialise_weights() {
  nn::Module& module = parts.task->module();
  module.materialize(context, DType::f32);
  if (!parts.initial_weights.empty())
    parts.task->load(parts.initial_weights,
                     [this](nn::Parameter& parameter, const ConstView& from) {
                       parts.kernels->elementwise().cast(from, parameter.value.view(), {});
                     });
  const auto parameters = module.parameters();
  weights = std::make_unique<nn::MasterWeights>(parameters, compute_dtype(), *parts.kernels,
                                                *parts.memory);
}

std::unique_ptr<Loader> Trainer::Impl::make_train_loader() {
  SHOAL_CHECK(parts.train_dataset != nullptr, "there is no training set; give train_file");
  const std::int64_t samples = parts.train_dataset->size();
  SHOAL_CHECK(samples > 0, "the training set is empty");
  const std::int64_t together = args.per_device_train_batch_size * ranks();
  if (args.dataloader_drop_last && samples < together)
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("the training set has {} samples, fewer than one batch of {} x {} ranks "
                    "= {}, and dataloader_drop_last leaves nothing",
                    samples, args.per_device_train_batch_size, ranks(), together),
        "use a smaller batch or block_size, or more text");
  auto sampler = std::make_unique<DistributedSampler>(
      samples, DistributedSamplerOptions{.ranks = ranks(),
                                         .rank = parts.communicator->rank(),
                                         .seed = static_cast<std::uint64_t>(args.order_seed()),
                                         .drop_last = args.dataloader_drop_last});
  return std::make_unique<Loader>(
      parts.train_dataset, parts.collator, std::move(sampler), *parts.memory,
      LoaderOptions{.batch_size = args.per_device_train_batch_size,
                    .num_workers = static_cast<int>(args.dataloader_num_workers),
                    .prefetch_factor = static_cast<int>(args.dataloader_prefetch_factor),
                    .drop_last_batch = args.dataloader_drop_last});
}

void Trainer::Impl::prepare_training() {
  if (optimizer) return;
  const auto parameters = parts.task->module().parameters();
  parallel::ReducerOptions options{
      .bucket_bytes = mebibytes(args.ddp_bucket_cap_mb),
      .first_bucket_bytes = mebibytes(args.ddp_first_bucket_cap_mb),
      .buckets_in_flight = static_cast<int>(args.ddp_buckets_in_flight),
      .tracer = parts.tracer};
  if (args.overlaps_forward(ranks())) {
    early = std::make_unique<EarlyForward>(*parts.kernels, [this](const std::string& parameter) {
      if (std::exchange(warned_overflow, true)) return;
      say(
          fmt::format("warning: the sum of the ranks' gradients of {} overflows at step {}; it "
                      "alone is left out of such steps (ddp_overlap_forward)",
                      parameter, state.global_step));
    });
    options.priority = parallel::BucketPriority::forward;
    options.on_complete = [this](nn::Parameter& parameter) { early->on_complete(parameter); };
    options.on_reduced = [this](nn::Parameter& parameter) {
      const TraceSpan span(parts.tracer, "step", "optimizer");
      early->on_reduced(parameter);
    };
    dispatcher.before_read = [this](const Tensor& tensor) { early->before_read(tensor); };
  }
  reducer = std::make_unique<parallel::Reducer>(parameters, *parts.communicator, options);
  optimizer = make_optimizer(args, *parts.kernels, *parts.memory, weights->segments());
  if (early) early->attach(*reducer, *optimizer, parameters);
  loader = make_train_loader();
  plan = plan_steps(args, loader->batches(), ranks());
  schedule.emplace(args.lr_scheduler_type, args.learning_rate, plan->warmup_steps,
                   plan->total_steps, args.lr_scheduler_kwargs);
  // torch.amp.GradScaler's numbers, which Hugging Face trains f16 with.
  if (args.fp16) scaler = nn::LossScaler({.init_scale = 65536.0, .window = 2000});
  state.max_steps = plan->total_steps;
  state.num_train_epochs = plan->epochs;
  state.global_batch_size = plan->global_batch;
}

Trainer::Impl::StepInput Trainer::Impl::next_input() {
  const TraceSpan span(parts.tracer, "step", "data");
  StepInput input;
  if (state.data_position >= plan->batches_per_epoch * args.per_device_train_batch_size * ranks()) {
    state.data_position = 0;
    ++state.data_epoch;
  }
  if (loader->state() != SamplerState{state.data_epoch, state.data_position})
    loader->seek({state.data_epoch, state.data_position});
  const SamplerState place{state.data_epoch, state.data_position};
  input.first_ordinal = state.data_position;
  const auto wanted = static_cast<std::size_t>(args.gradient_accumulation_steps);
  while (input.microbatches.size() < wanted) {
    auto batch = loader->next();
    if (!batch) break;
    input.targets += parts.task->count_targets(*batch);
    input.tokens += batch->input_ids.count();
    input.microbatches.push_back(std::move(*batch));
  }
  SHOAL_ASSERT(!input.microbatches.empty());
  const std::int64_t together = args.per_device_train_batch_size * ranks();
  state.data_position += static_cast<std::int64_t>(input.microbatches.size()) * together;
  input.epoch_end = state.data_position >= plan->batches_per_epoch * together;
  if (input.epoch_end) {
    state.data_position = 0;
    ++state.data_epoch;
  }
  // One agreement a step: how many targets the loss is divided by, and whether anybody must stop.
  std::int64_t agreed[] = {input.targets, input.tokens,
                           parts.stop_signal != nullptr && *parts.stop_signal != 0 ? 1 : 0,
                           is_main() && args.max_train_minutes &&
                                   seconds_since(train_began) > *args.max_train_minutes * 60
                               ? 1
                               : 0};
  sum(agreed, 4);
  input.targets = agreed[0];
  input.tokens = agreed[1];
  input.stop = agreed[2] != 0;
  input.out_of_time = agreed[3] != 0;
  if (input.stop) {  // these microbatches are for whoever resumes
    state.data_epoch = place.epoch;
    state.data_position = place.position;
  }
  return input;
}

int Trainer::Impl::stop() {
  settle();
  std::int64_t signal = parts.stop_signal != nullptr ? parts.stop_signal->load() : 0;
  if (ranks() > 1)
    parts.communicator->all_reduce(&signal, &signal, 1, DType::i64, ReduceOp::max)->wait();
  if (last_checkpoint_step != state.global_step) {
    say(fmt::format("signal {}: saving {} before stopping; a second signal ends the run at once",
                    signal, checkpoint_path(args.output_dir, state.global_step)));
    save_checkpoint();
  }
  return static_cast<int>(signal);
}

double Trainer::Impl::forward_backward(const StepInput& input) {
  const auto divisor = static_cast<double>(std::max<std::int64_t>(input.targets, 1));
  const nn::LossOptions options{.loss_scale = static_cast<float>(scaler.scale() / divisor),
                                .label_smoothing = static_cast<float>(args.label_smoothing_factor)};
  double loss_sum = 0;
  for (std::size_t i = 0; i < input.microbatches.size(); ++i) {
    const Batch& batch = input.microbatches[i];
    nn::Tape tape;
    context.mode = nn::Mode::train;
    context.tape = &tape;
    // Relative to the step: counters have 24 bits for samples, and step itself is another word.
    context.random.sample_first =
        static_cast<std::uint32_t>(batch.ordinals.first - input.first_ordinal);
    context.random.sample_stride = static_cast<std::uint32_t>(batch.ordinals.stride);
    context.begin_forward();
    nn::LossOutput output;
    {
      const TraceSpan span(parts.tracer, "step", "forward", static_cast<std::int64_t>(i));
      output = parts.task->loss(context, batch, options);
    }
    loss_sum += static_cast<double>(output.loss_sum);
    if (i == 0) settle();  // what this forward did not read
    if (i + 1 == input.microbatches.size()) reducer->arm();
    const TraceSpan span(parts.tracer, "step", "backward", static_cast<std::int64_t>(i));
    if (output.loss.needs_gradient()) tape.backward(context, output.loss);
    context.tape = nullptr;
  }
  return loss_sum;
}

StepReport Trainer::Impl::run_step(const StepInput& input) {
  const auto began = Clock::now();
  const TraceSpan whole(parts.tracer, "step", "step", state.global_step + 1);
  StepReport report;
  report.learning_rate = schedule->learning_rate(state.optimizer_steps);
  const parallel::ReducerStatistics before = reducer->statistics();
  reducer->begin_step();
  double loss_sum = forward_backward(input);
  nn::StepOutcome outcome = update(report.learning_rate, loss_sum);
  if (early && settles(input, state.global_step + 1))
    outcome.gradient_norm = settle().value_or(outcome.gradient_norm);
  const parallel::ReducerStatistics reduced = reducer->statistics() - before;
  log::debug("step {}: {:.1f} MB of gradients reduced, {:.0f} % behind backward, waited {:.1f} ms",
             state.global_step + 1, static_cast<double>(reduced.reduced_bytes) * 1e-6,
             reduced.hidden_share() * 100, reduced.exposed_seconds * 1e3);
  if (args.fp16) scaler.update(outcome.skipped);
  if (!outcome.skipped) ++state.optimizer_steps;
  if (outcome.skipped && !args.fp16 && !warned_not_finite) {
    warned_not_finite = true;
    say(fmt::format(
        "warning: the gradient norm of step {} is not finite; such steps change nothing",
        state.global_step + 1));
  }
  ++state.global_step;
  state.tokens_seen += input.tokens;
  report.step = state.global_step;
  report.total_steps = plan->total_steps;
  report.loss = loss_sum / static_cast<double>(std::max<std::int64_t>(input.targets, 1));
  report.grad_norm = outcome.gradient_norm;
  report.tokens = input.tokens;
  report.seconds = seconds_since(began);
  return report;
}

// `loss_sum`: this rank's, then all ranks'.
nn::StepOutcome Trainer::Impl::update(double learning_rate, double& loss_sum) {
  bool all_finite = true;
  if (early) {
    reducer->flush();
    // In one: between hosts a small sum waits behind the buckets that are on the way.
    double agreed[] = {loss_sum, early->take_all_finite() ? 0.0 : 1.0};
    const TraceSpan span(parts.tracer, "step", "agree");
    sum(agreed, 2);
    loss_sum = agreed[0];
    all_finite = agreed[1] == 0;
  }
  if (early && all_finite) {
    early->begin_updates(step_state, {.learning_rate = learning_rate});
    return {.gradient_norm = std::numeric_limits<double>::quiet_NaN()};
  }
  {
    const TraceSpan span(parts.tracer, "step", "reduce");
    reducer->finish();
    if (!early) sum(&loss_sum, 1);
  }
  const TraceSpan span(parts.tracer, "step", "optimizer");
  return optimizer->step(step_state, {.learning_rate = learning_rate,
                                      .gradient_scale = 1.0 / scaler.scale(),
                                      .max_gradient_norm = args.max_grad_norm});
}

std::optional<double> Trainer::Impl::settle() {
  if (!early || !early->updating()) return std::nullopt;
  const TraceSpan span(parts.tracer, "step", "settle");
  return early->settle();
}

bool Trainer::Impl::settles(const StepInput& input, std::int64_t step) const {
  return plan->log_at(args, step, input.epoch_end) || plan->save_at(args, step, input.epoch_end) ||
         plan->evaluate_at(args, step, input.epoch_end) || input.out_of_time ||
         step >= plan->total_steps;
}

double Trainer::Impl::epoch_now() const {
  const auto per_epoch =
      static_cast<double>(plan->batches_per_epoch * args.per_device_train_batch_size * ranks());
  return static_cast<double>(state.data_epoch) +
         static_cast<double>(state.data_position) / per_epoch;
}

void Trainer::Impl::log(nlohmann::ordered_json record, const StepReport* report) {
  record["epoch"] = epoch_now();
  record["step"] = state.global_step;
  state.log_history.push_back(nlohmann::json(record));
  each_callback([&](TrainerCallback& c) { c.on_log(record); });
  if (!metrics_file) return;
  // What the clock says is in the file, but not in the state: checkpoints of equal runs are equal.
  if (report != nullptr) {
    record["tokens_seen"] = state.tokens_seen;
    record["tokens_per_second"] = report->tokens_per_second;
    record["elapsed"] = report->elapsed;
    if (ranks() > 1) {  // since the record before
      const parallel::ReducerStatistics reduced = reducer->statistics() - reduced_when_logged;
      reduced_when_logged = reducer->statistics();
      record["exposed_communication_seconds"] =
          reduced.exposed_seconds / static_cast<double>(std::max<std::int64_t>(reduced.steps, 1));
      record["hidden_communication_share"] = reduced.hidden_share();
    }
  }
  metrics_file->write(record);
}

void Trainer::Impl::log_window(const StepReport& report) {
  nlohmann::ordered_json record;
  // No finite loss in the whole window: not 0.
  record["loss"] = state.window_steps > 0
                       ? state.window_loss / static_cast<double>(state.window_steps)
                       : std::numeric_limits<double>::quiet_NaN();
  record["grad_norm"] = report.grad_norm;
  record["learning_rate"] = report.learning_rate;
  if (args.include_tokens_per_second) record["tokens_per_second"] = report.tokens_per_second;
  if (args.fp16) record["loss_scale"] = scaler.scale();
  state.window_loss = 0;
  state.window_steps = 0;
  log(std::move(record), &report);
}

void Trainer::Impl::after_step(const StepInput& input, const StepReport& report,
                               TrainerControl& control) {
  if (std::isfinite(report.loss) || !args.logging_nan_inf_filter) {
    state.window_loss += report.loss;
    state.total_loss += report.loss;
    ++state.window_steps;
  }
  state.epoch = epoch_now();
  each_callback([&](TrainerCallback& c) { c.on_step_end(report, control); });
  const std::int64_t step = state.global_step;
  if (plan->log_at(args, step, input.epoch_end)) log_window(report);
  if (parts.eval_dataset &&
      (plan->evaluate_at(args, step, input.epoch_end) || control.should_evaluate))
    note_metric(evaluate());
  const bool due = plan->save_at(args, step, input.epoch_end);
  const bool last = input.out_of_time && args.save_strategy != Interval::no;
  if (due || control.should_save || last) save_checkpoint();
  if (writer) writer->check();
}

TrainResult Trainer::Impl::train() {
  prepare_training();
  const bool resumed = resume();
  if (is_main()) {
    std::error_code error;
    std::filesystem::create_directories(args.output_dir, error);
    if (error)
      throw Error(ErrorCode::io,
                  fmt::format("cannot make output_dir {}: {}", args.output_dir, error.message()),
                  "choose another --output_dir or its permissions");
    if (!metrics_file)
      metrics_file = std::make_unique<JsonLinesWriter>(
          args.output_dir + "/metrics.jsonl",
          resumed ? JsonLinesWriter::Mode::append : JsonLinesWriter::Mode::truncate);
    remove_unfinished_checkpoints(args.output_dir);
    if (!writer) writer = std::make_unique<CheckpointWriter>();
  }
  each_callback([&](TrainerCallback& c) { c.on_train_begin(state); });
  if (args.eval_on_start && parts.eval_dataset && !resumed) evaluate();

  if (early && !beside) beside = parts.communicator->split(0, parts.communicator->rank());
  const auto began = Clock::now();
  train_began = began;
  const std::int64_t first_step = state.global_step;
  std::int64_t samples = 0, tokens = 0;
  TrainResult result;
  while (state.global_step < plan->total_steps) {
    const StepInput input = next_input();
    if (input.stop) {
      result.stop_signal = stop();
      break;
    }
    StepReport report = run_step(input);
    for (const Batch& batch : input.microbatches) samples += batch.rows * ranks();
    tokens += report.tokens;
    report.elapsed = seconds_since(began);
    report.tokens_per_second = static_cast<double>(tokens) / std::max(report.elapsed, 1e-9);
    TrainerControl control;
    after_step(input, report, control);
    if (control.should_stop) break;
    if (input.out_of_time) {
      say(fmt::format("stopping at step {} of {}: max_train_minutes {} is over", state.global_step,
                      plan->total_steps, *args.max_train_minutes));
      break;
    }
  }
  settle();
  if (writer) writer->finish();
  const std::int64_t steps_done = state.global_step - first_step;
  result.metrics = finish(seconds_since(began), steps_done, samples);
  if (args.load_best_model_at_end && result.stop_signal == 0) load_best_model();
  each_callback([&](TrainerCallback& c) { c.on_train_end(state); });
  result.global_step = state.global_step;
  result.train_loss =
      state.total_loss / static_cast<double>(std::max<std::int64_t>(1, state.global_step));
  result.last_checkpoint = last_checkpoint;
  return result;
}

nlohmann::ordered_json Trainer::Impl::finish(double seconds, std::int64_t steps_done,
                                             std::int64_t samples_done) {
  nlohmann::ordered_json metrics;
  const double time = std::max(seconds, 1e-9);
  metrics["train_runtime"] = seconds;
  metrics["train_samples_per_second"] = static_cast<double>(samples_done) / time;
  metrics["train_steps_per_second"] = static_cast<double>(steps_done) / time;
  metrics["train_loss"] =
      state.total_loss / static_cast<double>(std::max<std::int64_t>(1, state.global_step));
  log(metrics, nullptr);
  metrics["epoch"] = epoch_now();
  return metrics;
}

Trainer::Trainer(const TrainingArguments& arguments, const TrainerParts& parts)
    : impl_(std::make_unique<Impl>(arguments, parts)) {}
Trainer::~Trainer() = default;

TrainResult Trainer::train() { return impl_->train(); }
nlohmann::ordered_json Trainer::evaluate() { return impl_->evaluate(); }
void Trainer::save_model(const std::string& directory) { impl_->save_model(directory); }
const TrainerState& Trainer::state() const { return impl_->state; }

std::int64_t Trainer::total_steps() const { return impl_->plan ? impl_->plan->total_steps : 0; }

std::int64_t Trainer::parameter_count() const {
  std::int64_t count = 0;
  for (const nn::Parameter* parameter : impl_->parts.task->module().parameters())
    count += parameter->shape().count();
  return count;
}

std::vector<std::string> Trainer::header() const {
  impl_->prepare_training();
  const TrainingArguments& a = impl_->args;
  const StepPlan& plan = *impl_->plan;
  const int ranks = impl_->ranks();
  std::vector<std::string> lines;
  lines.push_back(fmt::format("model: {}, {} parameters, {}", impl_->parts.task->describe(),
                              format_count(parameter_count()),
                              a.bf16   ? "bf16 with f32 masters"
                              : a.fp16 ? "f16 with f32 masters"
                                       : "f32"));
  lines.push_back(fmt::format("layout: {} data-parallel rank{} ({}), {}", ranks,
                              ranks == 1 ? "" : "s", impl_->parts.communicator->backend(),
                              impl_->parts.kernels->describe()));
  lines.push_back(fmt::format(
      "global batch: {} samples = {} per device x {} rank{} x {} accumulated", plan.global_batch,
      a.per_device_train_batch_size, ranks, ranks == 1 ? "" : "s", a.gradient_accumulation_steps));
  lines.push_back(fmt::format("steps: {} = {:.4g} epochs x {} updates ({} samples an epoch)",
                              format_count(plan.total_steps), plan.epochs,
                              format_count(plan.updates_per_epoch),
                              format_count(impl_->parts.train_dataset->size())));
  if (ranks > 1)
    lines.push_back(fmt::format(
        "gradients: buckets of {:.4g} MiB, the first {:.4g}; {}", a.ddp_bucket_cap_mb,
        a.ddp_first_bucket_cap_mb,
        impl_->early             ? "updates run behind the next forward (ddp_overlap_forward)"
        : !a.ddp_overlap_forward ? "a step waits for all of them (ddp_overlap_forward false)"
        : a.fp16                 ? "a step waits for all of them, as the loss scale of fp16 needs"
                 : "a step waits for all of them, as clipping needs (max_grad_norm 0: none)"));
  return lines;
}

std::vector<std::string> Trainer::memory_report() const {
  std::vector<std::string> lines;
  for (std::size_t i = 0; i < kMemoryTags; ++i) {
    const auto tag = static_cast<MemoryTag>(i);
    const MemoryUsage usage = impl_->parts.memory->usage(tag);
    if (usage.peak > 0)
      lines.push_back(fmt::format("{:<14} {:>12} peak {:>12}", to_string(tag),
                                  format_bytes(usage.current), format_bytes(usage.peak)));
  }
  const MemoryUsage total = impl_->parts.memory->total();
  lines.push_back(fmt::format("{:<14} {:>12} peak {:>12}", "all", format_bytes(total.current),
                              format_bytes(total.peak)));
  return lines;
}

}  // namespace shoal
