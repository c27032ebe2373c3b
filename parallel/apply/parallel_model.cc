#include "shoal/parallel/apply/parallel_model.h"

#include <algorithm>
#include <set>

#include "shoal/parallel/pipeline/measure_units.h"
#include "shoal/runtime/base/error.h"

namespace shoal::parallel {
namespace {

using collectives::ReduceOp;

bool holds(const std::vector<nn::Parameter*>& parameters, const nn::Parameter* parameter) {
  return std::find(parameters.begin(), parameters.end(), parameter) != parameters.end();
}

ActivationSplit split_of(const ParallelOptions& options, int tp) {
  if (tp == 1) return ActivationSplit::none;
  if (!options.prescaled_batch) return ActivationSplit::batch;
  return options.speed ? ActivationSplit::none : ActivationSplit::sequence;
}

}  // namespace

ParallelModel::ParallelModel(nn::Context& context, nn::Chain& chain, ProcessMesh& mesh,
                             const ParallelOptions& options)
    : context_(context), chain_(chain), mesh_(mesh), options_(options) {
  split_tensors();
  cut();
  find_tied();
  make_reducers();
}

// Gradients lie in memory of communicators that end here.
ParallelModel::~ParallelModel() {
  for (nn::Parameter* parameter : parameters_) parameter->gradient = {};
}

void ParallelModel::split_tensors() {
  const int tp = mesh_.shape().tp;
  split_ = split_of(options_, tp);
  if (tp == 1) return;
  if (split_ == ActivationSplit::batch) {
    batch_parts_ = tp;
    batch_part_ = mesh_.place().tp;
  }
  apply_tensor_parallelism(chain_, {mesh_.tp(), split_});
  chain_.name_tree();
}

ScheduleOptions ParallelModel::schedule_options(bool forward_only) const {
  ScheduleOptions options;
  options.kind = options_.schedule;
  options.ranks = mesh_.shape().pp;
  options.microbatches = options_.microbatches;
  options.chunks = options_.chunks;
  options.active_microbatches = options_.active_microbatches;
  options.forward_only = forward_only;
  return options;
}

void ParallelModel::cut() {
  schedule_ = make_schedule(schedule_options(false));
  evaluation_ = make_schedule(schedule_options(true));
  units_ = count_units(chain_);
  partition_ = options_.partition ? *options_.partition
                                  : partition_units(units_, {.stages = schedule_.stages()});
  SHOAL_CHECK(partition_.stages.size() == static_cast<std::size_t>(schedule_.stages()),
              "a partition of {} stages for a schedule of {}", partition_.stages.size(),
              schedule_.stages());
  ChainStageOptions options{.checkpoint_group = options_.checkpoint_group};
  if (split_ == ActivationSplit::sequence) {
    options.sequence_parts = mesh_.shape().tp;
    options.sequence_part = mesh_.place().tp;
  }
  if (options_.offload_activations) {
    offloader_ = std::make_unique<Offloader>(context_.memory(), options_.offload);
    options.offloader = offloader_.get();
  }
  std::map<int, Stage*> table;
  std::vector<char> mine(static_cast<std::size_t>(chain_.units()), 0);
  for (int stage = 0; stage < schedule_.stages(); ++stage) {
    const auto at = static_cast<std::size_t>(stage);
    if (schedule_.rank_of_stage[at] != mesh_.place().pp) continue;
    const UnitRange units = partition_.stages[at];
    table[stage] =
        stages_.emplace(stage, std::make_unique<ChainStage>(context_, chain_, units, options))
            .first->second.get();
    for (int unit = units.first; unit < units.last; ++unit)
      mine[static_cast<std::size_t>(unit)] = 1;
  }
  for (int unit = 0; unit < chain_.units(); ++unit) {
    if (!mine[static_cast<std::size_t>(unit)]) continue;
    for (nn::Parameter* parameter : chain_.unit_parameters(unit))
      if (!holds(parameters_, parameter)) parameters_.push_back(parameter);
  }
  nn::materialize(context_, parameters_, options_.dtype);
  executor_ = std::make_unique<PipelineExecutor>(
      schedule_, mesh_.pp(), table, options_.tracer,
      options_.offload_activations ? options_.activation_loading_horizon : 0);
  evaluator_ = std::make_unique<PipelineExecutor>(evaluation_, mesh_.pp(), table, options_.tracer);
}

// Parameters that several stages read, by the ranks that hold them: every rank of the pipeline goes
// through the same list, in the order of the model.
void ParallelModel::find_tied() {
  if (mesh_.shape().pp == 1) return;
  std::vector<nn::Parameter*> all;
  std::map<nn::Parameter*, std::set<int>> ranks_of;
  for (std::size_t stage = 0; stage < partition_.stages.size(); ++stage)
    for (int unit = partition_.stages[stage].first; unit < partition_.stages[stage].last; ++unit)
      for (nn::Parameter* parameter : chain_.unit_parameters(unit)) {
        if (!holds(all, parameter)) all.push_back(parameter);
        ranks_of[parameter].insert(schedule_.rank_of_stage[stage]);
      }
  std::map<std::vector<int>, collectives::Communicator*> groups;
  for (nn::Parameter* parameter : all) {
    if (!parameter->trainable()) continue;
    const std::vector<int> ranks(ranks_of[parameter].begin(), ranks_of[parameter].end());
    if (ranks.size() < 2) continue;
    const bool here = std::binary_search(ranks.begin(), ranks.end(), mesh_.place().pp);
    if (!groups.contains(ranks)) {
      tied_groups_.push_back(mesh_.pp().split(here ? 0 : -1, mesh_.place().pp));
      groups[ranks] = tied_groups_.back().get();
    }
    if (here) tied_.push_back({parameter, ranks, groups[ranks]});
  }
}

void ParallelModel::make_reducers() {
  std::vector<nn::Parameter*> over_rdp, over_dp;
  for (nn::Parameter* parameter : parameters_)
    (gradient_is_partial(*parameter, split_) ? over_dp : over_rdp).push_back(parameter);
  ReducerOptions options = options_.reducer;
  options.tracer = options_.tracer;
  rdp_ = mesh_.rdp().split(0, mesh_.place().rdp);
  over_rdp_ = std::make_unique<Reducer>(over_rdp, *rdp_, options);
  if (split_ == ActivationSplit::none) return;
  // Communicators are made by all ranks or none, whatever their stages hold.
  dp_ = mesh_.dp().split(0, mesh_.dp().rank());
  if (!over_dp.empty()) over_dp_ = std::make_unique<Reducer>(over_dp, *dp_, options);
}

bool ParallelModel::counts_in_norm(const nn::Parameter& parameter) const {
  if (mesh_.place().tp > 0 && !parameter.is_part()) return false;
  for (const Tied& tied : tied_)
    if (tied.parameter == &parameter) return tied.ranks.front() == mesh_.place().pp;
  return true;
}

double ParallelModel::sum_over_replica(double value) {
  if (mesh_.mp().size() > 1)
    mesh_.mp().all_reduce(&value, &value, 1, DType::f64, ReduceOp::sum)->wait();
  return value;
}

std::int64_t ParallelModel::sum_over_samples(std::int64_t value) {
  collectives::Communicator& group = split_ == ActivationSplit::batch ? mesh_.dp() : mesh_.rdp();
  if (group.size() > 1) group.all_reduce(&value, &value, 1, DType::i64, ReduceOp::sum)->wait();
  return value;
}

StageLoss ParallelModel::run(PipelineExecutor& executor, std::span<const Microbatch> microbatches,
                             const std::function<void()>& after_last_forward) {
  SHOAL_CHECK(microbatches.size() == static_cast<std::size_t>(options_.microbatches),
              "{} microbatches are given to a pipeline of {}", microbatches.size(),
              options_.microbatches);
  for (const auto& [number, stage] : stages_) stage->begin(microbatches);
  executor.run(after_last_forward);
  double loss[2] = {};
  const auto last = stages_.find(schedule_.stages() - 1);
  if (last != stages_.end()) {
    loss[0] = last->second->loss().sum;
    loss[1] = static_cast<double>(last->second->loss().targets);
  }
  // A tensor-parallel head has the loss of its whole group, the same on every rank of it; so has
  // any head where they see the same samples.
  const auto is_part = [](const nn::Parameter* parameter) { return parameter->is_part(); };
  const bool own = split_ == ActivationSplit::batch &&
                   std::ranges::none_of(chain_.unit_parameters(chain_.units() - 1), is_part);
  for (collectives::Communicator* group : {&mesh_.pp(), own ? &mesh_.dp() : &mesh_.rdp()})
    if (group->size() > 1) group->all_reduce(loss, loss, 2, DType::f64, ReduceOp::sum)->wait();
  return {loss[0], static_cast<std::int64_t>(loss[1])};
}

StageLoss ParallelModel::train(std::span<const Microbatch> microbatches) {
  context_.mode = nn::Mode::train;
  over_rdp_->begin_step();
  if (over_dp_) over_dp_->begin_step();
  const StageLoss loss = run(*executor_, microbatches, [this] {
    over_rdp_->arm();
    if (over_dp_) over_dp_->arm();
  });
  over_rdp_->finish();
  if (over_dp_) over_dp_->finish();
  sum_tied();
  return loss;
}

StageLoss ParallelModel::evaluate(std::span<const Microbatch> microbatches) {
  const nn::Mode before = context_.mode;
  context_.mode = nn::Mode::evaluate;
  const StageLoss loss = run(*evaluator_, microbatches, {});
  context_.mode = before;
  return loss;
}

void ParallelModel::sum_tied() {
  for (const Tied& tied : tied_) {
    float* gradient = tied.parameter->gradient.data<float>();
    tied.group
        ->all_reduce(gradient, gradient, tied.parameter->shape().count(), DType::f32, ReduceOp::sum)
        ->wait();
  }
}

std::string ParallelModel::describe() const {
  const MeshShape& shape = mesh_.shape();
  return fmt::format("rdp {} x pp {} x tp {} ({}), schedule {} of {} microbatches\n{}", shape.rdp,
                     shape.pp, shape.tp, mesh_.placement().letters(), schedule_.name,
                     options_.microbatches,
                     partition_table(partition_, units_, schedule_.rank_of_stage));
}

}  // namespace shoal::parallel
