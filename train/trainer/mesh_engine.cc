#include "shoal/train/trainer/mesh_engine.h"

#include <algorithm>
#include <sstream>

#include "shoal/collectives/watch.h"
#include "shoal/parallel/pipeline/measure_units.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/io/file_system.h"
#include "shoal/train/trainer/held_state.h"
#include "shoal/train/trainer/log_format.h"
#include "shoal/train/trainer/mesh_check.h"
#include "shoal/train/trainer/mesh_rows.h"
#include "shoal/train/trainer/mp_parameters.h"

namespace shoal {
namespace {

using parallel::Microbatch;

// Limit of batch shapes whose inputs and graphs are kept.
constexpr std::size_t kMostShapes = 32;
constexpr const char* kPartitionFile = "partition.json";  // in a checkpoint: the cut into stages

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

parallel::MeshShape checked_shape(const EngineParts& parts) {
  const int ranks = parts.trainer.communicator->size();
  const nn::Chain* const chain = parts.trainer.task->chain();
  if (chain == nullptr)
    throw Error(ErrorCode::unavailable,
                fmt::format("{} is no chain of units, which mp_parameters need",
                            parts.trainer.task->describe()),
                "train it without mp_parameters");
  check_mesh(parts.arguments, *chain, ranks, 0);
  const parallel::MeshPlan& mesh = parts.arguments.model_parallel->plan.mesh;
  return parallel::mesh_shape(ranks, mesh.pipeline, mesh.tensor);
}

nn::LossScalerOptions scaler_options(const TrainingArguments& arguments) {
  return arguments.model_parallel->plan.precision.loss_scaling.value_or(loss_scaling(arguments));
}

parallel::DistributedOptimizerOptions scaling(const TrainingArguments& arguments) {
  if (!arguments.fp16) return {};
  const nn::LossScalerOptions options = scaler_options(arguments);
  return {.static_loss_scale = options.init_scale,
          .dynamic_loss_scale = options.dynamic,
          .dynamic_loss_args = options};
}

}  // namespace

MeshEngine::MeshEngine(const EngineParts& parts)
    : parts_(parts),
      plan_(parts_.arguments.model_parallel->plan),
      task_(*parts.trainer.task),
      context_(*parts.trainer.kernels, *parts.trainer.memory, recorder_),
      step_state_(*parts.trainer.kernels, *parts.trainer.memory),
      optimizer_memory_(parts),
      mesh_(*parts.trainer.communicator, checked_shape(parts), plan_.mesh.placement,
            captures() && on_device() ? &host_work_ : nullptr),
      scaler_(parts.arguments.fp16 && on_device() ? nn::LossScaler(scaler_options(parts.arguments))
                                                  : nn::LossScaler::none()) {
  mesh_.guarded([this] { build(); });
}

void MeshEngine::build() {
  const TrainingArguments& a = parts_.arguments;
  context_.random.seed = static_cast<std::uint64_t>(a.seed);
  context_.random.state = step_state_.pointer();
  context_.random.sample_stride = static_cast<std::uint32_t>(mesh_.shape().rdp);
  parallel::ParallelOptions options{.plan = plan_};
  options.plan.pipeline.microbatches *= batches_at_a_time();  // per step: a batch is a part of it
  options.plan.precision.dtype = compute_dtype(a);
  options.rounding_seed = rounding_seed(a);
  options.masters = optimizer_memory_.get();
  options.reducer = reducer_options(parts_);
  // The reasons in why_not_captured() that are known before the model is cut.
  const bool on_its_way = on_device() && plan_.activations.offload && mesh_.host_work() != nullptr;
  const bool rows_on_host =
      on_device() && plan_.mesh.tensor > 1 && task_.chain()->reads_target_rows();
  options.captured = captures() && !on_its_way && !rows_on_host;
  options.tracer = parts_.trainer.tracer;
  options.pinned = parts_.trainer.pinned_memory;
  if (parts_.trainer.tensor_parallel) options.tensor_parallel = *parts_.trainer.tensor_parallel;
  prepare_cut(options);
  model_ = std::make_unique<parallel::ParallelModel>(context_, *task_.chain(), mesh_, options);
  const parallel::PartitionChoice& partition = plan_.pipeline.partition;
  if (!partition.file.empty() && !partition.load && mesh_.world().rank() == 0)
    parallel::write_partition(partition.file, model_->partition(), model_->units());
  if (!parts_.trainer.initial_weights.empty()) load_weights(parts_.trainer.initial_weights);
}

void MeshEngine::prepare_cut(parallel::ParallelOptions& options) {
  parallel::PartitionChoice& choice = options.plan.pipeline.partition;
  if (!choice.is_automatic()) {
    choice.measured = false;  // costs do not matter
    cut_by_ = choice.load ? "as " + choice.file + " says" : "as mp_parameters say";
    return;
  }
  const std::string weighs = fmt::format("memory_weight {}", choice.memory_weight);
  cut_by_ = fmt::format("by numbers of parameters, {}: ", weighs);
  if (plan_.mesh.pipeline * plan_.pipeline.chunks == 1) {
    cut_by_.clear();
  } else if (!choice.measured) {
    cut_by_ += "skip_tracing is true";
  } else if (const std::string counts = kept_cut(); !counts.empty()) {
    choice.counts = counts;
    choice.measured = false;
    cut_by_ = "as in the checkpoint that is continued";
  } else {
    options.trace = trace();
    if (options.trace)
      cut_by_ = fmt::format("by measured memory and time, {}", weighs);
    else
      cut_by_ += "nothing is trained";
  }
}

// A resumed run must be cut as before, whatever its units cost today: its bits depend on the cut.
std::string MeshEngine::kept_cut() const {
  const auto stages = static_cast<std::size_t>(plan_.mesh.pipeline) *
                      static_cast<std::size_t>(plan_.pipeline.chunks);
  std::vector<std::int64_t> counts(stages, 0);
  const std::string path = parts_.continues + "/" + kPartitionFile;
  if (!parts_.continues.empty() && path_exists(path)) try {
      parallel::ParallelPlan from_file = plan_;
      from_file.pipeline.partition.file = path;
      from_file.pipeline.partition.load = true;
      const auto cut = parallel::choose_partition(from_file, parallel::count_units(*task_.chain()));
      for (std::size_t stage = 0; stage < stages; ++stage)
        counts[stage] = cut.stages[stage].last - cut.stages[stage].first;
    } catch (const Error& other) {
      if (other.code() == ErrorCode::io) throw;
      parts_.say(fmt::format("the model is cut anew: {}", other.what()));
    }
  if (mesh_.world().size() > 1)
    mesh_.world()
        .host()
        .broadcast(counts.data(), static_cast<std::int64_t>(stages), DType::i64, 0)
        ->wait();
  return counts[0] == 0 ? std::string() : fmt::format("{}", fmt::join(counts, ","));
}

std::optional<Microbatch> MeshEngine::trace() const {
  const TrainingArguments& a = parts_.arguments;
  const auto& dataset = parts_.trainer.train_dataset;
  if (!a.do_train || !dataset || dataset->size() == 0) return std::nullopt;
  const std::int64_t rows = a.per_device_train_batch_size / plan_.pipeline.microbatches;
  std::vector<Sample> samples;
  for (std::int64_t i = 0; i < rows; ++i) samples.push_back(dataset->get(i % dataset->size()));
  MemoryResource& memory = parts_.trainer.host();
  // If each tensor-parallel rank has its own rows, the offset of this rank's rows.
  const std::int64_t first = mesh_.place().tp * rows * context_.random.sample_stride;
  return Microbatch{task_.chain_input(parts_.trainer.collator->collate(samples, memory), memory),
                    static_cast<std::uint32_t>(first)};
}

const nn::LossScaler& MeshEngine::scaler() {
  SHOAL_ASSERT(optimizer_);
  if (!on_device()) return optimizer_->scaler();
  if (scaler_.dynamic()) scaler_.take(step_state_.read());
  return scaler_;
}

void MeshEngine::restore_scaler(const nn::LossScalerState& state) {
  SHOAL_ASSERT(optimizer_);
  if (!on_device()) return optimizer_->scaler().restore(state);
  scaler_.restore(state);
  kernels::StepState there = step_state_.read();
  scaler_.put(there);
  step_state_.write(there);
}

DataShare MeshEngine::data_share() const {
  const parallel::MeshPlace& place = mesh_.place();
  return {.count = mesh_.shape().rdp,
          .index = place.rdp,
          .devices = model_->batch_parts(),
          .counts = place.pp == 0 && place.tp == 0,
          .device = mesh_.shape().size() == mesh_.shape().rdp ? "rank"
                    : model_->batch_parts() > 1               ? "data-parallel rank"
                                                              : "replica"};
}

std::vector<std::string> MeshEngine::describe_layout() const {
  const parallel::MeshShape& shape = mesh_.shape();
  std::vector<std::string> lines = {
      fmt::format("layout: {} ranks = rdp {} x pp {} x tp {} ({}), {}", shape.size(), shape.rdp,
                  shape.pp, shape.tp, carried_by(mesh_.world()), context_.kernels().describe())};
  for (const std::string& text :
       {parallel::placement_table(shape, mesh_.placement()), model_->describe()})
    for (std::string& line : lines_of(text)) lines.push_back("  " + std::move(line));
  if (!cut_by_.empty()) lines.push_back("stages: cut " + cut_by_);
  if (parts_.arguments.gradient_accumulation_steps > 1 || plan_.pipeline.microbatches > 1)
    lines.push_back(fmt::format("microbatches: {} a step = {} of each batch x {} accumulated",
                                batches_at_a_time() * plan_.pipeline.microbatches,
                                plan_.pipeline.microbatches, batches_at_a_time()));
  if (std::string line = optimizer_memory_.describe(); !line.empty())
    lines.push_back(std::move(line));
  std::vector<std::string> notices = parts_.arguments.model_parallel->notices;
  if (const std::string why = why_not_captured(); captures() && !why.empty())
    notices.push_back(std::string(kCallByCall) + why);
  for (std::string& idle : parallel::find_idle_options(plan_, shape.size()))
    notices.push_back(std::move(idle));
  for (const std::string& notice : notices) lines.push_back("note: " + notice);
  return lines;
}

std::vector<std::string> MeshEngine::describe_gradients() const {
  if (mesh_.shape().rdp == 1) return {};
  const TrainingArguments& a = parts_.arguments;
  if (model_->sharded())
    return {
        fmt::format("gradients: buckets of {} elements (sdp_reduce_bucket_size), each summed "
                    "at its owner",
                    plan_.sharding.bucket_elements)};
  return {fmt::format(
      "gradients: buckets of {:.4g} MiB, the first {:.4g}, summed over {} replicas; a step waits "
      "for all of them",
      a.ddp_bucket_cap_mb, a.ddp_first_bucket_cap_mb, mesh_.shape().rdp)};
}

void MeshEngine::prepare_training() {
  if (optimizer_) return;
  optimizer_ = std::make_unique<parallel::DistributedOptimizer>(
      *model_,
      [this](std::vector<nn::Segment> segments) {
        return make_optimizer(parts_, std::move(segments), optimizer_memory_.get());
      },
      on_device() ? parallel::DistributedOptimizerOptions{} : scaling(parts_.arguments));
  if (on_device()) {
    late_ =
        std::make_unique<LateSteps>(context_.stream, mesh_.world(), parts_.trainer.pinned_memory);
    restore_scaler(scaler_.state());
    if (model_->adds_losses())
      losses_ = context_.empty({model_->plan().pipeline.microbatches}, DType::f32, MemoryTag::data);
  }
  begin_capture();
}

bool MeshEngine::reads_on_host() const {
  const nn::Chain& chain = *task_.chain();
  const auto is_part = [](const nn::Parameter* parameter) { return parameter->is_part(); };
  return on_device() && plan_.mesh.tensor > 1 &&
         (chain.reads_target_rows() ||
          std::ranges::none_of(chain.unit_parameters(chain.units() - 1), is_part));
}

bool MeshEngine::captures() const {
  return parts_.arguments.step_capture == StepCaptureMode::on &&
         parts_.trainer.planned_memory != nullptr;
}

// The same on every rank.
std::string MeshEngine::why_not_captured() const {
  if (reads_on_host())
    return "with tensor_parallel_degree > 1 the host reads the targets of this model's head";
  if (on_device() && plan_.activations.offload && mesh_.host_work() != nullptr)
    return std::string(kOffloadedBetweenGraphs);
  return {};
}

void MeshEngine::begin_capture() {
  if (!captures() || !why_not_captured().empty()) return;
  nn::StepCaptureOptions options{.most_kept = static_cast<int>(kMostShapes),
                                 .say = [this](const std::string& line) { parts_.say(line); },
                                 .host_work = &host_work_,
                                 .operations = &recorder_,
                                 .beside = mesh_.planned_memories()};
  collectives::Communicator& all = mesh_.world();
  options.before_waiting = [this, &all] { collectives::watch(all, context_.stream); };
  if (all.size() > 1 && all.can_capture()) options.exchange = exchange_over(all);
  ++captures_made_;
  capture_.reset();  // gives the arenas back before the next capture
  capture_ = std::make_unique<nn::StepCapture>(context_.kernels(), *parts_.trainer.planned_memory,
                                               std::move(options));
}

// The groups' arenas count as part of the room shared by all of them.
std::string MeshEngine::describe_capture() {
  if (!capture_) return {};
  const std::string text = capture_->describe();
  const auto planned = capture_->planned();
  std::optional<std::int64_t> room = parts_.trainer.planned_memory->room();
  if (text.empty() || planned.empty() || !room) return text;
  for (const nn::PlannedMemory* memory : mesh_.planned_memories()) *room += memory->arena_bytes();
  const nn::LargestBatch largest =
      nn::largest_batch(planned, last_microbatch_, *room, context_.kernels().device());
  return text + fmt::format(
                    "; of {} for a step of this rank, microbatches of up to about {} rows fit "
                    "captured, {} call by call, as their first steps run",
                    format_bytes(*room), largest.planned, largest.call_by_call);
}

// Everything that a graph cannot see change.
std::string MeshEngine::kind_of(const StepWork& work,
                                std::span<const Microbatch> microbatches) const {
  std::string key = fmt::format("{} {}", captures_made_, work.loss.label_smoothing);
  for (const Microbatch& microbatch : microbatches) {
    nn::ChainInput input = microbatch.input;
    for (const Tensor* tensor : input.tensors())
      key += tensor->defined()
                 ? fmt::format(" {} {}", to_string(tensor->dtype()), to_string(tensor->shape()))
                 : std::string(" none");
    key += fmt::format(" {} {}", input.target_rows.defined() ? input.target_rows.count() : -1,
                       microbatch.sample_first);
    // On the host, a split head skips rows without a target.
    if (!on_device() && plan_.mesh.tensor > 1 && input.targets.dtype() == DType::i32) {
      const auto* const targets = input.targets.const_data<std::int32_t>();
      key += fmt::format(" {}", std::count_if(targets, targets + input.targets.count(),
                                              [](std::int32_t one) { return one >= 0; }));
    }
  }
  return key;
}

int MeshEngine::batches_at_a_time() const {
  return static_cast<int>(parts_.arguments.gradient_accumulation_steps);
}

std::int64_t MeshEngine::rows_of_part(std::int64_t batch_rows) const {
  const std::int64_t unit = plan_.pipeline.microbatches * model_->batch_parts();
  return (batch_rows + unit - 1) / unit;
}

std::vector<Microbatch> MeshEngine::cut(std::span<const Batch> batches, std::int64_t first_ordinal,
                                        const nn::LossOptions& loss) const {
  const std::int64_t pieces = plan_.pipeline.microbatches, parts = model_->batch_parts();
  const std::int64_t stride = context_.random.sample_stride;
  MemoryResource& memory = parts_.trainer.host();
  std::vector<Microbatch> all;
  for (const Batch& batch : batches) {
    nn::ChainInput input = filled_up(task_.chain_input(batch, memory), pieces * parts, memory);
    input.loss = loss;
    const std::int64_t rows = rows_of_part(batch.rows);
    for (std::int64_t piece = 0; piece < pieces; ++piece) {
      const std::int64_t first = (piece * parts + model_->batch_part()) * rows;
      // Relative to the step: counters have 24 bits for samples, and the step has a word of its
      // own.
      all.push_back(
          {rows_of(input, first, rows),
           static_cast<std::uint32_t>(batch.ordinals.first - first_ordinal + first * stride)});
    }
  }
  // The last update of an epoch may have fewer batches. Any length that sequences divide into will
  // do.
  while (static_cast<std::int64_t>(all.size()) < batches_at_a_time() * pieces)
    all.push_back({row_without_targets(task_, mesh_.shape().tp, memory),
                   static_cast<std::uint32_t>(model_->batch_part() * stride)});
  return all;
}

// If heads read targets on the host, the host keeps copies of the uploaded tensors.
void MeshEngine::upload(std::vector<Microbatch>& microbatches) {
  if (!on_device()) return;
  std::vector<Tensor*> all;
  for (Microbatch& microbatch : microbatches) {
    nn::ChainInput& input = microbatch.input;
    // Only for one tensor-parallel rank: the parts of a layer must process the same rows.
    if (task_.chain()->reads_target_rows() && mesh_.shape().tp == 1)
      input.target_rows = nn::rows_with_targets(
          input.targets, nn::target_rows_granularity(input.targets), parts_.trainer.host());
    for (Tensor* tensor : input.tensors())
      if (tensor->defined()) all.push_back(tensor);
    if (input.target_rows.defined()) all.push_back(&input.target_rows);
  }
  std::vector<Tensor> host;
  std::string shapes;
  for (const Tensor* tensor : all) {
    host.push_back(*tensor);
    shapes += fmt::format("{} {} ", to_string(tensor->dtype()), to_string(tensor->shape()));
  }
  if (!staged_.contains(shapes) && staged_.size() >= kMostShapes) {
    if (late_) late_->wait_for_ranks();
    device_backend(context_.stream.device.type).synchronize(context_.stream);
    staged_.clear();
    begin_capture();  // its graphs read inputs that are gone
  }
  auto& staged =
      staged_
          .try_emplace(shapes, context_.kernels(), context_.memory(), parts_.trainer.pinned_memory)
          .first->second;
  const std::vector<Tensor>& device = staged.fill(host);
  context_.host_copies.clear();
  const bool keeps = reads_on_host();
  for (std::size_t i = 0; i < all.size(); ++i) {
    *all[i] = device[i];
    if (keeps && host[i].count() > 0) context_.host_copies[device[i].const_view().data] = host[i];
  }
}

StepDone MeshEngine::queue_step(const StepWork& work, std::span<const Microbatch> microbatches) {
  const parallel::UpdateOptions update{.learning_rate = work.learning_rate,
                                       .max_gradient_norm = parts_.arguments.max_grad_norm,
                                       .update = work.update,
                                       .inverse_targets = work.loss.loss_scale,
                                       .scaling = scaler_.rule()};
  optimizer_->set_step(*step_state_, update);
  const auto step = [&] {
    if (std::exchange(step_open_, true)) model_->abandon_step();  // its capture failed
    {
      const TraceSpan span(parts_.trainer.tracer, "step", "pipeline");
      model_->queue_train(microbatches, losses_);
    }
    const TraceSpan span(parts_.trainer.tracer, "step", "optimizer");
    optimizer_->queue_step(*step_state_, update);
    step_open_ = false;
  };
  if (capture_) {
    const TraceSpan span(parts_.trainer.tracer, "step", "captured step");
    mesh_.guarded([&] { capture_->run(kind_of(work, microbatches), step); });
  } else {
    step();
  }
  collectives::WorkPtr last = optimizer_->take_last_sum();
  // Sums in a graph leave no Work.
  if (capture_ && mesh_.world().can_capture()) last = mesh_.world().watch(context_.stream);
  late_->note(losses_, optimizer_->rule().norm(), std::move(last));
  if (!work.wait) return {.known = false};
  const StepDone done = late_->last();
  if (done.outcome.skipped) scaler();  // throws now if gradients keep overflowing
  return done;
}

std::vector<StepDone> MeshEngine::collect() {
  if (!late_) return {};
  std::vector<StepDone> done = late_->collect();
  if (std::ranges::any_of(done, [](const StepDone& step) { return step.outcome.skipped; }))
    scaler();
  return done;
}

StepDone MeshEngine::step(const StepWork& work) {
  nn::LossOptions loss = work.loss;
  loss.loss_scale = on_device() ? 1 : static_cast<float>(optimizer_->loss_scale() / work.targets);
  if (on_device()) loss.state = step_state_.pointer();  // the state holds the other factors
  std::vector<Microbatch> microbatches = cut(work.batches, work.first_ordinal, loss);
  upload(microbatches);
  const Tensor& ids = microbatches.front().input.ids;
  last_microbatch_ = {ids.shape()[0], ids.count()};
  if (on_device()) return queue_step(work, microbatches);
  if (!capture_) return host_step(work, microbatches);
  StepDone done;
  capture_->run(kind_of(work, microbatches), [&] { done = host_step(work, microbatches); });
  return done;
}

StepDone MeshEngine::host_step(const StepWork& work, std::span<const Microbatch> microbatches) {
  Tracer* const tracer = parts_.trainer.tracer;
  StepDone done;
  {
    const TraceSpan span(tracer, "step", "pipeline");
    const parallel::PipelineStatistics before = model_->pipeline_statistics();
    {
      const PhaseSpan phase(clock_, StepPhase::communication);  // other phases are split off below
      done.loss_sum = model_->train(microbatches).sum;
    }
    const parallel::PipelineStatistics& after = model_->pipeline_statistics();
    const double forward = after.forward_seconds - before.forward_seconds;
    const auto move = [this](StepPhase phase, double seconds) {
      clock_.move(StepPhase::communication, phase, seconds);
    };
    move(StepPhase::forward, forward);
    move(StepPhase::backward, after.compute_seconds - before.compute_seconds - forward);
    move(StepPhase::pipeline_wait, after.wait_seconds - before.wait_seconds);
  }
  const TraceSpan span(tracer, "step", "optimizer");
  const PhaseSpan phase(clock_, StepPhase::optimizer);
  done.outcome = optimizer_->step(
      *step_state_,
      {.learning_rate = work.learning_rate, .max_gradient_norm = parts_.arguments.max_grad_norm});
  return done;
}

LossSums MeshEngine::evaluate(std::span<const Batch> batches, const Scores& scores) {
  const std::vector<Microbatch> microbatches = cut(batches, 0, {});
  std::vector<Tensor> logits;
  const parallel::StageLoss loss =
      model_->evaluate(microbatches, scores ? &logits : nullptr);  // of all ranks, on each rank
  const auto pieces = static_cast<std::size_t>(plan_.pipeline.microbatches);
  for (std::size_t i = 0; i < logits.size() && i / pieces < batches.size(); ++i) {
    const Batch& batch = batches[i / pieces];
    const std::int64_t rows = rows_of_part(batch.rows);
    const std::int64_t first =
        (static_cast<std::int64_t>(i % pieces) * model_->batch_parts() + model_->batch_part()) *
        rows;
    const std::int64_t given = std::min(rows, batch.rows - first);  // the other rows were added
    if (given <= 0) continue;
    scores(i / pieces, first,
           scores_on_host(context_, logits[i].narrowed(0, 0, given), parts_.trainer.host()));
  }
  if (mesh_.world().rank() != 0) return {};
  return {loss.sum, static_cast<double>(loss.targets)};
}

Engine::Write MeshEngine::snapshot(bool with_optimizer) {
  MemoryResource& host = parts_.trainer.host();
  const Stream stream = context_.stream;
  auto copy = std::make_shared<std::vector<HeldNumbers>>(
      copied(held_weights(*model_, Which::written), host, stream));
  if (with_optimizer)
    for (HeldNumbers& moment : copied(held_moments(*optimizer_, Which::written), host, stream))
      copy->push_back(std::move(moment));
  return [copy, task = &task_, rank = mesh_.world().rank(), ranks = mesh_.world().size(),
          partition = model_->partition(), units = model_->units()](const std::string& directory) {
    write_held(directory, rank, ranks, *copy);
    if (rank != 0) return;
    task->save_setup(directory);
    parallel::write_partition(directory + "/" + kPartitionFile, partition, units);
  };
}

void MeshEngine::load_weights(const std::string& directory) {
  model_->wait_for_values();  // gathers read the values that are written now
  note_loaded(
      parts_, directory,
      read_weights(directory, task_, context_.kernels(), held_weights(*model_, Which::held)));
  model_->refresh();
}

void MeshEngine::load_optimizer(const std::string& directory, std::int64_t updates) {
  read_optimizer(directory, context_.kernels(), held_moments(*optimizer_, Which::held));
  kernels::StepState state = step_state_.read();
  state.step = static_cast<std::uint32_t>(updates);
  step_state_.write(state);
}

void MeshEngine::save_model(const std::string& directory) {
  save_whole_model(*model_, task_, directory, parts_.trainer.host(), context_.stream);
}

}  // namespace shoal
