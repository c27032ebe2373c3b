#include "shoal/parallel/apply/parallel_model.h"

#include <algorithm>
#include <set>
#include <utility>

#include "shoal/collectives/watch.h"
#include "shoal/parallel/apply/layout_memory.h"
#include "shoal/parallel/pipeline/measure_units.h"
#include "shoal/runtime/base/error.h"

namespace shoal::parallel {
namespace {

using collectives::ReduceOp;

ActivationSplit split_of(const ParallelPlan& plan) {
  if (plan.mesh.tensor == 1) return ActivationSplit::none;
  if (!plan.tensor.prescaled_batch) return ActivationSplit::batch;
  return plan.tensor.speed ? ActivationSplit::none : ActivationSplit::sequence;
}

}  // namespace

ParallelModel::ParallelModel(nn::Context& context, nn::Chain& chain, ProcessMesh& mesh,
                             const ParallelOptions& options)
    : context_(context), chain_(chain), mesh_(mesh), options_(options) {
  const MeshShape& shape = mesh_.shape();
  SHOAL_CHECK(
      plan().mesh.pipeline == shape.pp && plan().mesh.tensor == shape.tp,
      "the plan has pipeline_parallel_degree {} and tensor_parallel_degree {}, and the mesh "
      "has pp {} and tp {}",
      plan().mesh.pipeline, plan().mesh.tensor, shape.pp, shape.tp);
  if (options_.pinned != nullptr) options_.offload.pinned = options_.pinned;
  try {
    mesh_.guarded([this] {
      split_tensors();
      cut();
      find_parameters();
      make_state();
      make_stages();
    });
  } catch (...) {  // values may be in memory of groups that the mesh aborts
    for (nn::Parameter* parameter : parameters_) parameter->value = {};
    throw;
  }
}

// Hooks and gradients are destroyed before the stages with their tapes; values are destroyed after
// them.
ParallelModel::~ParallelModel() { state_->drop_gradients(); }

void ParallelModel::split_tensors() {
  const int tp = mesh_.shape().tp;
  split_ = split_of(plan());
  if (tp == 1) return;
  if (split_ == ActivationSplit::batch) {
    batch_parts_ = tp;
    batch_part_ = mesh_.place().tp;
  }
  apply_tensor_parallelism(chain_,
                           {mesh_.tp(), split_, std::make_shared<HostToDevice>(options_.pinned)},
                           options_.tensor_parallel);
  chain_.name_tree();
}

void ParallelModel::cut() {
  schedule_ = make_schedule(schedule_options(plan()));
  evaluation_ = make_schedule(schedule_options(plan(), true));
  const bool measures =
      options_.trace && plan().pipeline.partition.measured && schedule_.stages() > 1;
  MeasureOptions measure{.dtype = plan().precision.dtype, .stage = stage_options()};
  if (plan().activations.offload) measure.offload = options_.offload;
  units_ = measures ? measure_units(context_, chain_, *options_.trace, mesh_.world(), measure)
                    : count_units(chain_);
  options_.trace.reset();
  agree_on_parameters(units_, mesh_.tp());
  const int rdp = mesh_.shape().rdp, degree = plan().sharding.degree;
  const StateMemory state = state_memory({.elements = 1,
                                          .dtype = plan().precision.dtype,
                                          .level = plan().sharding.level,
                                          .shards = degree > 0 ? degree : rdp,
                                          .states = 2,  // AdamW's
                                          .masters = !options_.rounding_seed});
  const double bytes = state.parameters + state.gradients + state.optimizer;
  partition_ = choose_partition(plan(), units_, bytes);
  SHOAL_CHECK(partition_.stages.size() == static_cast<std::size_t>(schedule_.stages()),
              "a partition of {} stages for a schedule of {}", partition_.stages.size(),
              schedule_.stages());
}

// Every pipeline rank walks through the whole model, so that tied weights have the same order on
// all ranks.
void ParallelModel::find_parameters() {
  std::vector<nn::Parameter*>& all = parameters_of_all_;
  std::map<nn::Parameter*, std::set<int>> ranks_of;  // pipeline ranks that hold it
  for (std::size_t stage = 0; stage < partition_.stages.size(); ++stage)
    for (int unit = partition_.stages[stage].first; unit < partition_.stages[stage].last; ++unit)
      for (nn::Parameter* parameter : chain_.unit_parameters(unit)) {
        if (ranks_of[parameter].empty()) all.push_back(parameter);
        ranks_of[parameter].insert(schedule_.rank_of_stage[stage]);
      }
  const MeshPlace& place = mesh_.place();
  for (int number = 0; number < std::ssize(all); ++number) {
    nn::Parameter* const parameter = all[static_cast<std::size_t>(number)];
    const std::vector<int> ranks(ranks_of[parameter].begin(), ranks_of[parameter].end());
    const bool here = std::binary_search(ranks.begin(), ranks.end(), place.pp);
    const bool partial = gradient_is_partial(*parameter, split_);
    has_partial_ = has_partial_ || partial;
    int tied = -1;
    if (ranks.size() > 1 && parameter->trainable()) {
      const TiedSet set{ranks, partial};
      const auto known = std::ranges::find(tied_, set);
      tied = static_cast<int>(known - tied_.begin());
      if (known == tied_.end()) tied_.push_back(set);
    }
    if (!here) continue;
    parameters_.push_back(parameter);
    stage_parameters_.push_back(
        {parameter, partial, tied,
         ranks.front() == place.pp && (place.tp == 0 || parameter->is_part()), number});
  }
}

void ParallelModel::make_state() {
  if (!options_.fill)
    options_.fill = [this](nn::Parameter& parameter) {
      nn::materialize(context_, {&parameter}, DType::f32);
    };
  state_ =
      sharded()
          ? make_sharded_state(context_, chain_, mesh_, stage_parameters_, tied_, options_)
          : make_whole_state(context_, mesh_, stage_parameters_, has_partial_, tied_, options_);
}

ChainStageOptions ParallelModel::stage_options() const {
  ChainStageOptions options{.checkpoint_group = plan().activations.checkpoint_group};
  if (split_ == ActivationSplit::sequence) {
    options.sequence_parts = position_parts();
    options.sequence_part = mesh_.place().tp;
  }
  return options;
}

void ParallelModel::make_stages() {
  ChainStageOptions options = stage_options();
  options.observer = state_->observer();
  if (plan().activations.offload) {
    offloader_ = std::make_unique<Offloader>(context_.memory(), options_.offload, context_.stream);
    options.offloader = offloader_.get();
  }
  std::map<int, Stage*> table;
  for (int stage = 0; stage < schedule_.stages(); ++stage) {
    const auto at = static_cast<std::size_t>(stage);
    if (schedule_.rank_of_stage[at] != mesh_.place().pp) continue;
    const UnitRange units = partition_.stages[at];
    table[stage] =
        stages_.emplace(stage, std::make_unique<ChainStage>(context_, chain_, units, options))
            .first->second.get();
  }
  const auto abort = [this](const std::exception& why) { return !trying_ && mesh_.abort(why); };
  executor_ = std::make_unique<PipelineExecutor>(
      schedule_, mesh_.pp(), table, options_.tracer,
      plan().activations.offload ? plan().activations.loading_horizon : 0, abort, options_.clock);
  evaluator_ =
      std::make_unique<PipelineExecutor>(evaluation_, mesh_.pp(), table, options_.tracer, 0, abort);
}

std::vector<OwnedRun> ParallelModel::frozen() const {
  std::vector<OwnedRun> runs;
  for (const StageParameter& entry : stage_parameters_) {
    if (entry.parameter->trainable()) continue;
    OwnedRun run{entry.parameter, entry.number, 0, {}, entry.counted && mesh_.place().rdp == 0};
    run.segment.name = entry.parameter->name();
    run.segment.master = entry.parameter->value;
    runs.push_back(std::move(run));
  }
  return runs;
}

void ParallelModel::run(PipelineExecutor& executor, std::span<const Microbatch> microbatches,
                        const std::function<void()>& after_last_forward, bool scores) {
  SHOAL_CHECK(microbatches.size() == static_cast<std::size_t>(plan().pipeline.microbatches),
              "{} microbatches are given to a pipeline of {}", microbatches.size(),
              plan().pipeline.microbatches);
  for (const auto& [number, stage] : stages_) stage->begin(microbatches, scores);
  executor.run(after_last_forward);
}

// A tensor-parallel head computes the loss of its whole group, the same on every rank. If the ranks
// see the same samples, any head computes the same loss on every rank.
bool ParallelModel::losses_differ_over_tp() const {
  const auto is_part = [](const nn::Parameter* parameter) { return parameter->is_part(); };
  return split_ == ActivationSplit::batch &&
         std::ranges::none_of(chain_.unit_parameters(chain_.units() - 1), is_part);
}

StageLoss ParallelModel::own_loss() const {
  collectives::watch(mesh_.world(), context_.stream);
  if (!adds_losses()) return {};
  return stages_.at(schedule_.stages() - 1)->loss();
}

// The losses are f32, so their f64 sums do not depend on the order.
StageLoss ParallelModel::sum_over_ranks(const StageLoss& own) {
  double loss[] = {own.sum, static_cast<double>(own.targets)};
  if (mesh_.world().size() > 1)
    mesh_.world().host().all_reduce(loss, loss, 2, DType::f64, ReduceOp::sum)->wait();
  return {loss[0], static_cast<std::int64_t>(loss[1])};
}

bool ParallelModel::adds_losses() const {
  return stages_.contains(schedule_.stages() - 1) &&
         (mesh_.place().tp == 0 || losses_differ_over_tp());
}

void ParallelModel::refresh() {
  state_->refresh();
  collectives::watch(mesh_.world(), context_.stream);
}

void ParallelModel::prepare_training() {
  if (std::exchange(prepared_, true)) return;
  mesh_.guarded([this] { state_->make_gradients(); });
}

// Runs the pipeline for a training step. After the forwards of each run, `after_forward` gets the
// index of the run's first microbatch.
void ParallelModel::pass(std::span<const Microbatch> microbatches,
                         const std::function<void(std::int64_t first)>& after_forward) {
  prepare_training();
  context_.mode = nn::Mode::train;
  state_->begin_step();
  const auto each = static_cast<std::size_t>(plan().pipeline.microbatches);
  for (std::size_t first = 0; first < microbatches.size(); first += each) {
    const std::size_t left = microbatches.size() - first;
    run(*executor_, microbatches.subspan(first, std::min(each, left)), [&] {
      if (after_forward) after_forward(static_cast<std::int64_t>(first));
      if (left <= each) state_->arm();
    });
  }
}

StageLoss ParallelModel::train(std::span<const Microbatch> microbatches) {
  return mesh_.guarded([&] {
    pass(microbatches, {});
    const StageLoss loss = sum_over_ranks(own_loss());
    state_->finish();
    return loss;
  });
}

void ParallelModel::queue_train(std::span<const Microbatch> microbatches, const Tensor& losses) {
  forward_backward(microbatches, losses);
  finish_gradients();
}

void ParallelModel::forward_backward(std::span<const Microbatch> microbatches, const Tensor& losses,
                                     const std::function<void()>& after_forward) {
  mesh_.guarded([&] {
    const auto last = stages_.find(schedule_.stages() - 1);
    // The losses are taken before backward. Between the start and the end of the reductions, the
    // copy would become a separate captured graph.
    pass(microbatches, [&](std::int64_t first) {
      if (last != stages_.end())
        last->second->take_losses(
            losses.defined() ? losses.narrowed(0, first, plan().pipeline.microbatches) : losses);
      if (first == 0 && after_forward) after_forward();
    });
  });
}

void ParallelModel::finish_gradients() {
  mesh_.guarded([this] { state_->finish(); });
}

void ParallelModel::try_step(std::span<const Microbatch> microbatches) {
  struct Trying {  // drops the tapes, also after an exception
    ParallelModel& model;
    explicit Trying(ParallelModel& trying) : model(trying) { model.trying_ = true; }
    ~Trying() {
      model.trying_ = false;
      model.drop_tapes();
    }
  };
  prepare_training();
  context_.mode = nn::Mode::train;
  const Trying trying(*this);
  state_->begin_step();
  run(*executor_, microbatches, {});
}

void ParallelModel::drop_tapes() {
  for (const auto& [number, stage] : stages_) stage->begin({});
}

void ParallelModel::abandon_step() {
  state_->abandon_step([this] { drop_tapes(); });
}

StageLoss ParallelModel::evaluate(std::span<const Microbatch> microbatches,
                                  std::vector<Tensor>* logits) {
  return mesh_.guarded([&] { return sum_over_ranks(evaluate_own(microbatches, logits)); });
}

StageLoss ParallelModel::evaluate_own(std::span<const Microbatch> microbatches,
                                      std::vector<Tensor>* logits) {
  struct Evaluating {  // restores the mode, also after an exception
    nn::Context& context;
    nn::Mode before = std::exchange(context.mode, nn::Mode::evaluate);
    ~Evaluating() { context.mode = before; }
  };
  return mesh_.guarded([&] {
    StageLoss loss;
    {
      const Evaluating evaluating{context_};
      run(*evaluator_, microbatches, {}, logits != nullptr);
      loss = own_loss();
    }
    if (logits != nullptr) {
      logits->clear();
      const auto last = stages_.find(schedule_.stages() - 1);
      // Tensor-parallel ranks that read the same samples have the same scores.
      const bool speaks = split_ == ActivationSplit::batch || mesh_.place().tp == 0;
      if (last != stages_.end() && speaks) *logits = last->second->take_logits();
    }
    state_->drop_idle();
    return loss;
  });
}

OffloadStatistics ParallelModel::offload_statistics() const {
  return offloader_ ? offloader_->statistics() : OffloadStatistics{};
}

std::string ParallelModel::describe() const {
  const MeshShape& shape = mesh_.shape();
  const int degree = plan().sharding.degree == 0 ? shape.rdp : plan().sharding.degree;
  const std::string sharding =
      sharded() ? fmt::format(", sharding level {} over {} ranks", plan().sharding.level, degree)
                : "";
  const std::string times = unit_times(units_);
  return fmt::format("rdp {} x pp {} x tp {} ({}){}, schedule {} of {} microbatches\n{}{}",
                     shape.rdp, shape.pp, shape.tp, mesh_.placement().letters(), sharding,
                     schedule_.name, plan().pipeline.microbatches,
                     times.empty() ? "" : fmt::format("a microbatch takes {}\n", times),
                     partition_table(partition_, units_, schedule_.rank_of_stage));
}

}  // namespace shoal::parallel
