#include "shoal/train/trainer/trainer.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/log.h"
#include "shoal/runtime/base/parallel_for.h"
#include "shoal/runtime/io/file_system.h"
#include "shoal/train/checkpoint/checkpoint_directory.h"
#include "shoal/train/trainer/engine_parts.h"
#include "shoal/train/trainer/forecast.h"
#include "shoal/train/trainer/log_format.h"
#include "shoal/train/trainer/memory_record.h"
#include "shoal/train/trainer/resolved_run.h"
#include "shoal/train/trainer/trainer_impl.h"

namespace shoal {
namespace {

using collectives::ReduceOp;

constexpr std::size_t kMostPending = 1000;  // at this many pending steps the host waits
static_assert(kMostPending < kernels::kRates);

}  // namespace

Trainer::Impl::Impl(const ResolvedRun& run, const TrainerParts& trainer_parts)
    : args(run), parts(trainer_parts) {
  check_communicator();
  check_metric_name();
  SHOAL_CHECK((parts.task != nullptr) != static_cast<bool>(parts.model_init),
              "a Trainer is given a task or model_init, one of the two");
  guarded([this] { settle_precision(); });
  begin();
}

void Trainer::Impl::begin() {
  // The order matters: the engine refers to its task.
  unfinished.reset();
  writer.reset();
  run_lock.reset();
  owners = {};
  loader.reset();
  engine.reset();
  if (!long_work)
    guarded([this] {
      long_work = std::make_unique<collectives::LongWork>(parts.communicator->host());
    });
  if (parts.model_init) {
    made = parts.model_init();
    SHOAL_CHECK(made != nullptr, "model_init made no task");
    parts.task = made.get();
  }
  check_samples();
  guarded([this] {
    at_own_pace([this] {
      engine = std::make_unique<Engine>(EngineParts{
          args, parts, [this](const std::string& line) { say(line); }, will_continue()});
    });
  });
  share = engine->data_share();
  plan.reset();
  pending.clear();
  evaluated_now.reset();
  metrics_file.reset();
  sample_log.reset();
  weights_are_of_step = false;
  state = {};
  stream = {};
  loader_monitor = {};
  last_checkpoint.clear();
  last_checkpoint_step = -1;
  reduced_when_logged = {};
  times_when_logged = {};
  step_when_logged = 0;
  last_learnt = {};
  state.seed = static_cast<std::uint64_t>(args.seed);
  state.data_seed = static_cast<std::uint64_t>(args.order_seed());
  state.train_batch_size = args.per_device_train_batch_size;
}

// Checks the given communicator against the arguments.
void Trainer::Impl::check_communicator() const {
  if (ranks() == 1 && args.mp_parameters.empty()) return;
  // Gradients are in the communicator's memory, and its operations must follow the kernels' on one
  // stream.
  const Stream moves = parts.communicator->stream(), computes = parts.kernels->stream();
  if (moves.device != computes.device || moves.handle != computes.handle)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("the Trainer's kernels are on {}, but its communicator is made for {}",
                            to_string(parts.kernels->device()),
                            moves.device == computes.device ? "another stream of it"
                                                            : to_string(moves.device)),
                "make it with CommunicatorOptions::stream = the kernels' stream()");
  if (ranks() == 1) return;
  const auto refuse = [](const std::string& what) {
    throw Error(
        ErrorCode::invalid_argument, what,
        "make it with communicator_options(resolve_arguments(arguments)), and give these as "
        "TrainerParts::made_with");
  };
  const std::string there = parts.communicator->backend();
  if (!args.ddp_backend.empty() && args.ddp_backend != "auto" && args.ddp_backend != there)
    refuse(
        fmt::format("ddp_backend (mp_parameters' ddp_dist_backend) is {}, but the Trainer's "
                    "communicator is {}",
                    args.ddp_backend, there));
  const collectives::CommunicatorOptions* const with = parts.made_with;
  const char* const but = with == nullptr ? "but TrainerParts::made_with is null"
                                          : "but the Trainer's communicator was made without";
  if (!args.collectives.empty() &&
      (with == nullptr || with->collectives.find(args.collectives) == std::string::npos))
    refuse(
        fmt::format("collectives (and mp_parameters' sdp_hierarchical_allgather) ask for the "
                    "rules {}, {}",
                    args.collectives, but));
  if (args.fixed_order && (with == nullptr || !with->fixed_order))
    refuse(fmt::format("fixed_order is true, {}", but));
}

void Trainer::Impl::sum(std::int64_t* values, std::int64_t count) {
  if (ranks() > 1)
    engine->beside().all_reduce(values, values, count, DType::i64, ReduceOp::sum)->wait();
}

void Trainer::Impl::sum(double* values, std::int64_t count) {
  if (ranks() > 1)
    engine->beside().all_reduce(values, values, count, DType::f64, ReduceOp::sum)->wait();
}

void Trainer::Impl::prepare_training() {
  if (plan) return;
  loader = make_train_loader();  // reports errors before gradients are allocated
  engine->prepare_training();
  if (args.auto_find_batch_size) find_batch_size();
  // As in Hugging Face for sets without a length, one epoch is the whole run.
  const std::int64_t batches =
      streams() ? args.max_steps * args.gradient_accumulation_steps : loader->batches();
  plan = plan_steps(args, batches, share.count * share.devices);
  schedule.emplace(args.lr_scheduler_type, args.learning_rate, plan->warmup_steps,
                   plan->total_steps, args.lr_scheduler_kwargs);
  state.max_steps = plan->total_steps;
  state.num_train_epochs = plan->epochs;
  state.global_batch_size = plan->global_batch;
}

int Trainer::Impl::stop() {
  settle();
  std::int64_t signal = parts.stop_signal != nullptr ? parts.stop_signal->load() : 0;
  if (ranks() > 1)
    parts.communicator->host().all_reduce(&signal, &signal, 1, DType::i64, ReduceOp::max)->wait();
  if (last_checkpoint_step != state.global_step) {
    say(fmt::format(
        "signal {}: saving {} before stopping; a second SIGINT or SIGTERM ends it at once", signal,
        checkpoint_path(args.output_dir, state.global_step)));
    save_checkpoint();
  }
  return static_cast<int>(signal);
}

StepReport Trainer::Impl::run_step(const StepInput& input) {
  const auto began = Clock::now();
  const TraceSpan whole(parts.tracer, "step", "step", state.global_step + 1);
  const auto targets = static_cast<double>(std::max<std::int64_t>(input.targets, 1));
  StepReport report;
  // Assumes that no pending step was skipped.
  const std::int64_t update = state.optimizer_steps + std::ssize(pending);
  report.learning_rate = schedule->learning_rate(update);
  const auto before = engine->reduced();
  StepWork work{.batches = input.batches,
                .number = state.global_step + 1,
                .first_ordinal = input.first_ordinal,
                .learning_rate = report.learning_rate,
                .update = update};
  work.targets = targets;
  work.loss.loss_scale = static_cast<float>(1 / targets);
  work.loss.label_smoothing = static_cast<float>(args.label_smoothing_factor);
  const bool settled = settles(input, state.global_step + 1);
  work.wait = settled || needs_every_step || pending.size() >= kMostPending;
  StepDone done = with_memory_for(MemoryUse::step, [&] { return engine->step(work); });
  if (settled) done.outcome.gradient_norm = engine->settle().value_or(done.outcome.gradient_norm);
  if (before) {
    const parallel::ReducerStatistics reduced = *engine->reduced() - *before;
    log::debug(
        "step {}: {:.1f} MB of gradients reduced, {:.0f} % behind backward, waited {:.1f} ms",
        state.global_step + 1, static_cast<double>(reduced.reduced_bytes) * 1e-6,
        reduced.hidden_share() * 100, reduced.exposed_seconds * 1e3);
  }
  ++state.global_step;
  state.tokens_seen += input.tokens;
  report.step = state.global_step;
  report.total_steps = plan->total_steps;
  report.tokens = input.tokens;
  if (done.known) {
    learn_pending();  // pending steps come first
    learn(report, targets, done);
  } else {
    report.known = false;
    report.loss = report.grad_norm = std::numeric_limits<double>::quiet_NaN();
    pending.push_back({report, targets});
  }
  report.seconds = seconds_since(began);
  return report;
}

void Trainer::Impl::learn(StepReport& report, double targets, const StepDone& done) {
  report.known = true;
  report.loss = done.loss_sum / targets;
  report.grad_norm = done.outcome.gradient_norm;
  report.learning_rate = schedule->learning_rate(state.optimizer_steps);
  if (!done.outcome.skipped) {
    ++state.optimizer_steps;
  } else {
    if (!args.fp16 && !std::exchange(warned_not_finite, true))
      say(fmt::format(
          "warning: the gradient norm of step {} is not finite; such steps change nothing",
          report.step));
  }
  if (!std::isfinite(report.loss) && args.logging_nan_inf_filter) return;
  state.window_loss += report.loss;
  state.total_loss += report.loss;
  ++state.window_steps;
  last_learnt = report;
}

void Trainer::Impl::learn_pending() {
  const std::vector<StepDone> done = engine->collect();
  SHOAL_ASSERT(done.size() == pending.size());
  for (std::size_t i = 0; i < done.size(); ++i)
    learn(pending[i].report, pending[i].targets, done[i]);
  pending.clear();
}

void Trainer::Impl::settle() {
  engine->settle();
  learn_pending();
}

bool Trainer::Impl::settles(const StepInput& input, std::int64_t step) const {
  return plan->log_at(args, step, input.epoch_end) || plan->save_at(args, step, input.epoch_end) ||
         plan->evaluate_at(args, step, input.epoch_end) || input.out_of_time ||
         step >= plan->total_steps;
}

double Trainer::Impl::epoch_now() const {
  if (streams()) return stream.progress;
  const auto per_epoch = static_cast<double>(plan->batches_per_epoch * together());
  return static_cast<double>(state.data_epoch) +
         static_cast<double>(state.data_position) / per_epoch;
}

void Trainer::Impl::log(nlohmann::ordered_json record, const StepReport* report) {
  record["epoch"] = epoch_now();
  record["step"] = state.global_step;
  state.log_history.push_back(nlohmann::json(record));
  nlohmann::ordered_json line = record;
  if (report != nullptr) loader_monitor.add_to_line(line);
  each_callback([&](TrainerCallback& c) { c.on_log(line); });
  if (!metrics_file) return;
  // Times go into the file but not into the state, so that equal runs write equal checkpoints.
  if (report != nullptr) {
    record["tokens_seen"] = state.tokens_seen;
    record["tokens_per_second"] = report->tokens_per_second;
    record["elapsed"] = report->elapsed;
    add_where_time_went(record);
    loader_monitor.add_to(record);
    use_monitor.add_to(record);
    if (const auto now = engine->reduced(); now && ranks() > 1) {  // since the last record
      const parallel::ReducerStatistics reduced = *now - reduced_when_logged;
      reduced_when_logged = *now;
      record["exposed_communication_seconds"] =
          reduced.exposed_seconds / static_cast<double>(std::max<std::int64_t>(reduced.steps, 1));
      record["hidden_communication_share"] = reduced.hidden_share();
    }
    if (parts.predicted.is_object()) {
      predictions_missed = add_forecast(parts.predicted, record);
    }
  }
  write_metrics(record);
}

void Trainer::Impl::write_metrics(const nlohmann::ordered_json& record) {
  if (!metrics_file) return;
  check_output_dir();
  metrics_file->write(record);
}

void Trainer::Impl::add_where_time_went(nlohmann::ordered_json& record) {
  const StepTimes now = engine->clock().times(), since = now - times_when_logged;
  const auto steps = static_cast<double>(state.global_step - step_when_logged);
  const auto tokens = static_cast<double>(state.tokens_seen - tokens_when_logged);
  times_when_logged = now;
  step_when_logged = state.global_step;
  tokens_when_logged = state.tokens_seen;
  const std::int64_t left_out =
      engine->left_out() - std::exchange(left_out_when_logged, engine->left_out());
  if (steps > 0) {
    record["step_seconds"] = since.total() / steps;
    if (const double reached = mfu(tokens, left_out, since.total()); reached > 0)
      record["mfu"] = reached;
    for (const StepPhase phase :
         {StepPhase::data, StepPhase::forward, StepPhase::backward, StepPhase::communication,
          StepPhase::pipeline_wait, StepPhase::optimizer}) {
      if (phase != StepPhase::data && !engine->knows_phases()) break;
      if (phase == StepPhase::communication && ranks() == 1) continue;
      if (phase == StepPhase::pipeline_wait && !engine->has_pipeline()) continue;
      record[fmt::format("{}_seconds", to_string(phase))] = since.of(phase) / steps;
    }
  }
  add_memory(record, "memory", *parts.memory);
  if (parts.pinned_memory != nullptr) add_memory(record, "pinned_memory", *parts.pinned_memory);
}

void Trainer::Impl::log_window(const StepReport& report) {
  nlohmann::ordered_json record;
  // NaN, not 0, if the window has no finite loss.
  record["loss"] = state.window_steps > 0
                       ? state.window_loss / static_cast<double>(state.window_steps)
                       : std::numeric_limits<double>::quiet_NaN();
  record["grad_norm"] = report.grad_norm;
  record["learning_rate"] = report.learning_rate;
  if (args.include_tokens_per_second) record["tokens_per_second"] = report.tokens_per_second;
  if (args.fp16) record["loss_scale"] = engine->scaler().scale();
  state.window_loss = 0;
  state.window_steps = 0;
  if (const std::string hint =
          loader_monitor.look(loader->statistics(), static_cast<int>(args.dataloader_num_workers),
                              available_cores(), report.elapsed, state.global_step);
      !hint.empty())
    say(hint);
  use_monitor.look(parts.communicator->host(), report.elapsed);
  log(std::move(record), &report);
}

void Trainer::Impl::after_step(const StepInput& input, const StepReport& report,
                               TrainerControl& control) {
  state.epoch = epoch_now();
  each_callback([&](TrainerCallback& c) { c.on_step_end(report, control); });
  const std::int64_t step = state.global_step;
  const bool out_of_time = input.out_of_time && args.logging_strategy != Interval::no;
  if (plan->log_at(args, step, input.epoch_end) || out_of_time) log_window(report);
  if (parts.eval_dataset &&
      (plan->evaluate_at(args, step, input.epoch_end) || control.should_evaluate))
    note_metric(evaluate_in_training(), control);
  const bool due = plan->save_at(args, step, input.epoch_end);
  const bool last = input.out_of_time && args.save_strategy != Interval::no;
  if (due || control.should_save || last) {
    sample_before_saving();
    save_checkpoint();
  }
  if (writer) writer->check();
}

bool Trainer::Impl::prepare_run() {
  prepare_training();
  take_output_dir();  // before this run changes the directory
  const bool resumed = resume();
  check_output_dir();  // another run may have taken it during a long read
  if (!owners.is_shared())
    say("note: output_dir is on each host's own disk: a checkpoint is whole, and a resume finds "
        "it, "
        "once all are put together, as SageMaker does");
  if (run_lock) remove_unfinished_checkpoints(args.output_dir);
  if (is_main()) {
    make_directories(args.output_dir, "choose another --output_dir or its permissions");
    if (!metrics_file)
      metrics_file = std::make_unique<JsonLinesWriter>(
          args.output_dir + "/metrics.jsonl",
          resumed ? JsonLinesWriter::Mode::append : JsonLinesWriter::Mode::truncate);
  }
  open_samples(resumed);
  if (!writer && writes_files()) writer = std::make_unique<CheckpointWriter>();
  each_callback([&](TrainerCallback& c) { c.on_train_begin(state); });
  std::int64_t needing = std::ranges::count_if(
      parts.callbacks, [](const TrainerCallback* c) { return c->needs_every_step(); });
  sum(&needing, 1);  // ranks read the results of steps together
  needs_every_step = needing > 0;
  if (!resumed) state.evaluation_due = args.eval_on_start;
  return resumed;
}

// The signal that stopped the run before its end, or 0.
int Trainer::Impl::train_steps(StepsDone& done) {
  TrainerControl control;
  evaluate_what_is_due(control);
  done.began = train_began = Clock::now();
  while (state.global_step < plan->total_steps && !control.should_stop) {
    engine->clock().start();
    evaluated_now.reset();
    const StepInput input = next_input();
    if (input.stop) return stop();
    StepReport report = run_step(input);
    engine->clock().stop();
    for (const Batch& batch : input.batches) done.samples += batch.rows * share.count;
    done.tokens += report.tokens;
    report.elapsed = seconds_since(done.began);
    report.tokens_per_second = static_cast<double>(done.tokens) / std::max(report.elapsed, 1e-9);
    control = {};
    after_step(input, report, control);
    if (control.should_stop) break;
    if (input.out_of_time) {
      say(fmt::format("stopping at step {} of {}: max_train_minutes {} is over", state.global_step,
                      plan->total_steps, *args.max_train_minutes));
      break;
    }
  }
  return 0;
}

TrainResult Trainer::Impl::train() {
  if (std::exchange(trained, true) && parts.model_init) begin();
  const struct Under {
    bool& way;
    ~Under() { way = false; }
  } under{training = true};
  TrainResult result;
  StepsDone done;
  bool resumed = false;
  try {
    resumed = prepare_run();
  } catch (const StoppedBySignal& stopped) {  // nothing has changed yet
    run_lock.reset();
    result.stop_signal = stopped.signal;
    return result;
  }
  const std::int64_t first_step = state.global_step;
  step_when_logged = first_step;
  tokens_when_logged = tokens_when_begun = state.tokens_seen;
  left_out_when_logged = left_out_when_begun = engine->left_out();
  seconds_when_begun = engine->clock().times().total();
  if (resumed && first_step >= plan->total_steps)
    say(fmt::format("nothing is left to train: the checkpoint is of step {}, the last is {}",
                    first_step, plan->total_steps));
  try {
    result.stop_signal = train_steps(done);
  } catch (const StoppedBySignal&) {  // thrown during an evaluation
    state.evaluation_due = true;
    result.stop_signal = stop();
  }
  settle();
  // If a callback ended training, logs the steps since the last record. After a signal, the resumed
  // run logs them.
  if (result.stop_signal == 0 && state.window_steps > 0 && last_learnt.step == state.global_step &&
      args.logging_strategy != Interval::no) {
    last_learnt.elapsed = seconds_since(done.began);
    last_learnt.tokens_per_second =
        static_cast<double>(done.tokens) / std::max(last_learnt.elapsed, 1e-9);
    log_window(last_learnt);
  }
  finish_writing();
  const std::int64_t steps_done = state.global_step - first_step;
  result.metrics = finish(seconds_since(done.began), steps_done, done.samples);
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
  if (const double reached = speed().mfu; reached > 0) metrics["train_mfu"] = reached;
  log(metrics, nullptr);
  metrics["epoch"] = epoch_now();
  return metrics;
}

Trainer::Trainer(const ResolvedRun& run, const TrainerParts& parts)
    : impl_(std::make_unique<Impl>(run, parts)) {}
Trainer::Trainer(const TrainingArguments& arguments, const TrainerParts& parts)
    : Trainer(resolve_arguments(arguments), parts) {}
Trainer::~Trainer() = default;

TrainResult Trainer::train() {
  return impl_->guarded([this] { return impl_->train(); });
}
void Trainer::at_own_pace(const std::function<void()>& work) {
  impl_->guarded([&] { impl_->at_own_pace(work); });
}
void Trainer::save_model(const std::string& directory) {
  impl_->guarded([&] { impl_->save_model(directory); });
}
void Trainer::set_peak(double flops_per_token, double flops) {
  impl_->flops_per_token = flops_per_token;
  impl_->peak_flops = flops;
}

Trainer::Speed Trainer::Impl::speed() const {
  const double seconds = engine->clock().times().total() - seconds_when_begun;
  const auto tokens = static_cast<double>(state.tokens_seen - tokens_when_begun);
  return {seconds > 0 ? tokens / seconds : 0,
          mfu(tokens, engine->left_out() - left_out_when_begun, seconds)};
}
Trainer::Speed Trainer::speed() const { return impl_->speed(); }

DType Trainer::dtype() const { return compute_dtype(impl_->args); }

const TrainerState& Trainer::state() const { return impl_->state; }

std::int64_t Trainer::total_steps() const { return impl_->plan ? impl_->plan->total_steps : 0; }

std::int64_t Trainer::parameter_count() const {
  std::int64_t count = 0;
  for (const nn::Parameter* parameter : impl_->parts.task->module().parameters())
    count += parameter->whole_shape().count();
  return count;
}

std::vector<std::string> Trainer::header() const {
  impl_->guarded([this] { impl_->prepare_training(); });
  const TrainingArguments& a = impl_->args;
  const StepPlan& plan = *impl_->plan;
  std::vector<std::string> lines;
  const auto append = [&lines](const std::vector<std::string>& more) {
    lines.insert(lines.end(), more.begin(), more.end());
  };
  lines.push_back(fmt::format("model: {}, {} parameters, {}", impl_->parts.task->describe(),
                              format_count(parameter_count()),
                              a.stochastic_rounding ? "bf16 rounded stochastically, no masters"
                              : a.bf16              ? "bf16 with f32 masters"
                              : a.fp16              ? "f16 with f32 masters"
                                                    : "f32"));
  append(impl_->engine->describe_layout());
  lines.push_back(fmt::format("global batch: {} samples = {} per device x {} x {} accumulated",
                              plan.global_batch, a.per_device_train_batch_size, impl_->share.text(),
                              a.gradient_accumulation_steps));
  if (impl_->streams())
    lines.push_back(fmt::format(
        "steps: {} on a stream {}, {}", format_count(plan.total_steps),
        impl_->parts.train_shards->is_sequential()
            ? "from " + impl_->parts.train_shards->name(0)
            : fmt::format("of {} shards{}", format_count(impl_->parts.train_shards->count()),
                          impl_->parts.shard_by_rank ? ", each replica its own" : ""),
        impl_->parts.shuffle_buffer == 0 ? "in their order"
                                         : fmt::format("shuffled through a buffer of {} samples",
                                                       format_count(impl_->parts.shuffle_buffer))));
  else
    lines.push_back(fmt::format("steps: {} = {:.4g} epochs x {} updates ({} samples an epoch)",
                                format_count(plan.total_steps), plan.epochs,
                                format_count(plan.updates_per_epoch),
                                format_count(impl_->parts.train_dataset->size())));
  append(impl_->engine->describe_gradients());
  return lines;
}

std::vector<std::string> Trainer::predictions_missed() const { return impl_->predictions_missed; }
std::string Trainer::describe_capture() const { return impl_->engine->describe_capture(); }

std::vector<std::string> Trainer::memory_report() const {
  std::vector<std::string> lines = memory_lines(*impl_->parts.memory);
  if (const auto offloaded = impl_->engine->offloaded())
    lines.push_back(offloaded->tensors > 0
                        ? fmt::format("{:<14} {:>12} peak {:>12}", "offloaded", "",
                                      format_bytes(offloaded->peak_bytes))
                        : fmt::format("{:<14} nothing: what checkpoints keep is smaller than {}",
                                      "offloaded",
                                      format_bytes(parallel::OffloadOptions{}.min_bytes)));
  if (impl_->parts.pinned_memory == nullptr) return lines;
  lines.emplace_back("pinned in the host's memory, with what pools keep:");
  for (std::string& line : memory_lines(*impl_->parts.pinned_memory))
    lines.push_back("  " + std::move(line));
  return lines;
}

std::optional<parallel::OffloadStatistics> Trainer::offloaded() const {
  return impl_->engine->offloaded();
}

}  // namespace shoal
