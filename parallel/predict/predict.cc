#include "shoal/parallel/predict/predict.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "shoal/parallel/pipeline/generate.h"
#include "shoal/parallel/pipeline/partition.h"
#include "shoal/parallel/predict/unit_times.h"
#include "shoal/runtime/base/error.h"

namespace shoal::parallel {
namespace {

double blended(double device, double host, double sharpness) {
  if (host <= 0) return device;
  const double most = std::max(device, host), least = std::min(device, host);
  return most * std::pow(1 + std::pow(least / most, sharpness), 1 / sharpness);
}

LayoutModel layout_of(const ModelShape& model) {
  LayoutModel layout{.units = static_cast<int>(model.units.size())};
  for (const UnitShape& unit : model.units) {
    layout.heads = std::gcd(layout.heads, unit.key_heads);
    layout.inner = std::gcd(layout.inner, unit.inner);
  }
  return layout;
}

}  // namespace

class StepModel::Impl {
 public:
  Impl(const PredictionRequest& r, const Schedule* schedule)
      : model_(r.model),
        machine_(r.machine),
        plan_(r.plan),
        run_(r.run),
        mesh_(mesh_shape(r.run.ranks, r.plan.mesh.pipeline, r.plan.mesh.tensor)) {
    // A tensor-parallel group without prescaled_batch gathers the samples of its ranks.
    const std::int64_t gathered = plan_.tensor.prescaled_batch ? 1 : mesh_.tp;
    batch_ = {
        .rows = std::max<std::int64_t>(run_.batch * gathered / plan_.pipeline.microbatches, 1),
        .length = run_.length,
        .dtype = plan_.precision.dtype,
        .tensor = mesh_.tp,
        .nodes = nodes_of(kTp),
        .sequence = plan_.tensor.prescaled_batch && !plan_.tensor.speed};
    time_units();
    cut();
    pipeline(schedule);
  }

  Prediction predict(const ShardingOptions& sharding) const {
    Prediction result = result_;
    add_gradients(sharding, result);
    add_state(sharding, result);
    finish(result);
    return result;
  }

 private:
  struct TimedUnit {
    UnitTimes times;
    double forward = 0, backward = 0, recomputed = 0;  // with launches
  };

  int nodes_of(Axes axes) const {
    std::set<int> nodes;
    for (const int rank : plan_.mesh.placement.group(0, axes, mesh_))
      nodes.insert(rank / machine_.devices);
    return static_cast<int>(nodes.size());
  }

  void time_units() {
    const std::int64_t tokens = batch_.rows * batch_.length;
    for (std::size_t i = 0; i < model_.units.size(); ++i) {
      const UnitShape& shape = model_.units[i];
      TimedUnit unit{.times = unit_times(machine_, shape, model_.channels, batch_)};
      const double factor =
          shape.heads > 0 ? machine_.block_factor(model_.channels, batch_.tensor, tokens) : 1;
      const bool checkpointed = plan_.activations.checkpoint_group > 0 && shape.heads > 0;
      const double sharpness = machine_.software.sharpness;
      const double launch = unit.times.launch;
      unit.forward = factor * blended(unit.times.forward.sum(), launch, sharpness);
      unit.recomputed = checkpointed ? unit.forward : 0;
      unit.backward = factor * blended(unit.times.backward.sum(), 2 * launch, sharpness);
      units_.push_back(unit);
    }
  }

  void cut() {
    std::vector<UnitCost> costs;
    for (std::size_t i = 0; i < units_.size(); ++i) {
      UnitCost cost{.name = model_.units[i].name, .parameters = model_.units[i].parameters};
      cost.seconds = units_[i].forward + units_[i].recomputed + units_[i].backward;
      cost.work = cost.seconds;
      costs.push_back(std::move(cost));
    }
    partition_ = choose_partition(plan_, costs);
  }

  void pipeline(const Schedule* given) {
    const double fixed = machine_.software.microbatch_fixed;
    PipelineCosts costs;
    costs.stages.clear();
    for (const UnitRange& range : partition_.stages) {
      StageCosts stage{.forward = fixed / 2, .input_backward = fixed / 2, .weight_backward = 0};
      for (int unit = range.first; unit < range.last; ++unit) {
        const TimedUnit& timed = units_[static_cast<std::size_t>(unit)];
        stage.forward += timed.forward;
        // A split backward computes the gradients of inputs first, which is half of the products.
        const double weights = timed.times.backward.products / 2;
        stage.input_backward += timed.recomputed + timed.backward - weights;
        stage.weight_backward += weights;
      }
      costs.stages.push_back(stage);
      StagePrediction prediction{
          .units = range.last - range.first == 1
                       ? model_.units[static_cast<std::size_t>(range.first)].name
                       : fmt::format("{} to {}",
                                     model_.units[static_cast<std::size_t>(range.first)].name,
                                     model_.units[static_cast<std::size_t>(range.last - 1)].name),
          .forward = stage.forward,
          .backward = stage.input_backward + stage.weight_backward,
          .state = {}};
      result_.stages.push_back(std::move(prediction));
    }
    const double stream = stream_bytes(model_.channels, batch_);
    // The slowest message of the pipeline counts: the one that leaves a node.
    costs.message = message_seconds(machine_, stream, nodes_of(kPp) == 1);
    ScheduleOptions options = schedule_options(plan_);
    options.microbatches *= run_.accumulated;
    options.costs = costs;
    const Schedule made = given == nullptr ? make_schedule(options) : Schedule{};
    const Schedule& schedule = given == nullptr ? made : *given;
    const Simulation simulation = simulate(schedule, costs);
    pipeline_seconds_ = simulation.time;
    const auto slowest = std::ranges::max_element(simulation.busy);
    slowest_ = static_cast<int>(slowest - simulation.busy.begin());
    microbatches_ = options.microbatches;
    for (std::size_t stage = 0; stage < partition_.stages.size(); ++stage)
      if (schedule.rank_of_stage[stage] == slowest_)
        last_backward_ = result_.stages[stage].backward;
    count_parts(schedule);
    count_activations(schedule, stream);
    result_.parts.bubble = simulation.time - *slowest;
    result_.block_seconds = simulation.time * block_share();
  }

  // The share of a pipeline's time that the blocks of its slowest rank take.
  double block_share() const {
    double blocks = 0, all = 0;
    for (std::size_t stage = 0; stage < partition_.stages.size(); ++stage) {
      all += result_.stages[stage].forward + result_.stages[stage].backward;
      const UnitRange& range = partition_.stages[stage];
      for (int unit = range.first; unit < range.last; ++unit)
        if (model_.units[static_cast<std::size_t>(unit)].heads > 0) {
          const TimedUnit& timed = units_[static_cast<std::size_t>(unit)];
          blocks += timed.forward + timed.recomputed + timed.backward;
        }
    }
    return all > 0 ? blocks / all : 0;
  }

  // What the slowest rank computes, by part.
  void count_parts(const Schedule& schedule) {
    StepParts& parts = result_.parts;
    for (std::size_t stage = 0; stage < partition_.stages.size(); ++stage) {
      if (schedule.rank_of_stage[stage] != slowest_) continue;
      const UnitRange& range = partition_.stages[stage];
      for (int index = range.first; index < range.last; ++index) {
        const TimedUnit& unit = units_[static_cast<std::size_t>(index)];
        const PassTimes& f = unit.times.forward;
        const PassTimes& b = unit.times.backward;
        const double n = microbatches_;
        parts.products += n * (f.products + b.products);
        parts.attention += n * (f.attention + b.attention);
        parts.passes += n * (f.passes + b.passes);
        parts.loss += n * (f.loss + b.loss);
        parts.tensor_exchanges += n * (f.exchanges + b.exchanges);
        parts.recomputation += n * unit.recomputed;
        parts.launches += n * (unit.forward + unit.backward - f.sum() - b.sum());
      }
      parts.fixed += microbatches_ * machine_.software.microbatch_fixed;
    }
  }

  void count_activations(const Schedule& schedule, double stream) {
    std::vector<UnitCost> costs;
    for (const UnitShape& unit : model_.units) {
      UnitCost cost{.name = unit.name};
      cost.activation_bytes = static_cast<std::int64_t>(kept_bytes(unit, model_.channels, batch_));
      cost.peak_bytes = cost.activation_bytes + static_cast<std::int64_t>(stream);
      cost.weight_bytes = cost.activation_bytes;
      cost.split_peak_bytes = cost.peak_bytes;
      costs.push_back(std::move(cost));
    }
    const ActivationRequest request{.units = costs,
                                    .stream_bytes = stream,
                                    .checkpoint_group = plan_.activations.checkpoint_group,
                                    .offloads = plan_.activations.offload,
                                    .offload = {}};
    for (int rank = 0; rank < schedule.ranks(); ++rank)
      activations_.push_back(peak_activations(schedule, partition_.stages, rank, request));
    rank_of_stage_ = schedule.rank_of_stage;
  }

  // Elements of the parameters of one stage on one of its ranks. Blocks, embeddings and head are
  // split over the tensor-parallel ranks.
  double elements(const UnitRange& range) const {
    std::map<int, std::int64_t> all;
    for (int unit = range.first; unit < range.last; ++unit) {
      const auto& own = model_.units[static_cast<std::size_t>(unit)].parameters;
      all.insert(own.begin(), own.end());
    }
    double sum = 0;
    for (const auto& [id, count] : all) sum += static_cast<double>(count);
    return sum / mesh_.tp;
  }

  void add_gradients(const ShardingOptions& sharding, Prediction& result) const {
    const double width = machine_.software.gradient_bytes;
    if (mesh_.rdp > 1) {
      const int nodes = nodes_of(kRdp);
      const int inside = std::max(mesh_.rdp / nodes, 1);
      const double whole =
          all_reduce_seconds(machine_, most_elements() * width, mesh_.rdp, nodes,
                             std::max(machine_.devices / inside, 1), machine_.network_efficiency);
      // Level 3 gathers the parameters for forward and backward as well: 1.5 times the bytes.
      const double seconds = sharding.level == 3 ? 1.5 * whole : whole;
      // Sums begin while the last microbatch's backward runs; the last bucket is always exposed.
      const double backward = machine_.software.overlaps_gradients ? last_backward_ : 0;
      result.parts.gradients = std::max(seconds - backward, seconds * 0.05);
    }
    if (mesh_.pp > 1) result.parts.gradients += tied_seconds(width);
  }

  // A parameter on two stages: their gradients are summed at the end.
  double tied_seconds(double width) const {
    std::map<int, std::pair<int, std::int64_t>> seen;  // parameter: stages, elements
    for (const UnitRange& range : partition_.stages) {
      std::set<int> own;
      for (int unit = range.first; unit < range.last; ++unit)
        for (const auto& [id, count] : model_.units[static_cast<std::size_t>(unit)].parameters)
          if (own.insert(id).second) {
            ++seen[id].first;
            seen[id].second = count;
          }
    }
    double seconds = 0;
    for (const auto& [id, what] : seen)
      if (what.first > 1)
        seconds +=
            2 * message_seconds(machine_, static_cast<double>(what.second) / mesh_.tp * width,
                                nodes_of(kPp) == 1);
    return seconds;
  }

  // Elements of the fullest stage, with as many stages on its rank as on each.
  double most_elements() const {
    double most = 0;
    for (const UnitRange& range : partition_.stages) most = std::max(most, elements(range));
    return most * plan_.pipeline.chunks;
  }

  void add_state(const ShardingOptions& sharding, Prediction& result) const {
    const int shards = sharding.level == 0 ? 1 : sharding.degree == 0 ? mesh_.rdp : sharding.degree;
    std::vector<double> state_of_rank(activations_.size());
    for (std::size_t stage = 0; stage < partition_.stages.size(); ++stage) {
      StateMemory& state = result.stages[stage].state;
      state = state_memory(
          {.elements = static_cast<std::int64_t>(std::ceil(elements(partition_.stages[stage]))),
           .dtype = plan_.precision.dtype,
           .level = sharding.level,
           .shards = shards});
      state_of_rank[static_cast<std::size_t>(rank_of_stage_[stage])] +=
          state.parameters + state.gradients + state.optimizer;
    }
    for (std::size_t rank = 0; rank < activations_.size(); ++rank)
      if (const double all = state_of_rank[rank] + activations_[rank]; all > result.memory) {
        result.memory = all;
        result.activations = activations_[rank];
      }
    // AdamW reads gradient, master and two moments, and writes all but the gradient.
    const double bytes = most_elements() / shards * (7 * 4.0 + 2);
    result.parts.optimizer = bytes / (machine_.bandwidth * machine_.software.optimizer_efficiency);
    result.parts.fixed += machine_.software.step_fixed;
  }

  void finish(Prediction& result) const {
    const StepParts& p = result.parts;
    result.seconds = pipeline_seconds_ + p.gradients + p.optimizer + machine_.software.step_fixed;
    const double samples = static_cast<double>(run_.batch * run_.accumulated) * mesh_.rdp *
                           (plan_.tensor.prescaled_batch ? 1 : mesh_.tp);
    result.samples_per_second = samples / result.seconds;
    result.tokens_per_second = result.samples_per_second * static_cast<double>(run_.length);
    const double forward = forward_flops(model_, 1, run_.length) * samples;
    const double peak = machine_.products.flops.at(plan_.precision.dtype) * run_.ranks;
    result.mfu = 3 * forward / result.seconds / peak;
    result.hfu = (plan_.activations.checkpoint_group > 0 ? 4 : 3) * forward / result.seconds / peak;
    const double nodes = std::ceil(static_cast<double>(run_.ranks) / machine_.devices);
    result.dollars_per_step = result.seconds / 3600 * machine_.price.dollars_per_hour * nodes;
    const std::vector<std::pair<const char*, double>> named = {
        {"attention", p.attention},
        {"element-wise passes", p.passes},
        {"the loss", p.loss},
        {"sums over tensor-parallel ranks", p.tensor_exchanges},
        {"recomputation", p.recomputation},
        {"launches", p.launches},
        {"the pipeline's bubble", p.bubble},
        {"sums of gradients", p.gradients},
        {"the optimizer", p.optimizer}};
    const auto largest =
        std::ranges::max_element(named, {}, &std::pair<const char*, double>::second);
    result.limit = fmt::format("{}, {:.0f} % of the step", largest->first,
                               100 * largest->second / result.seconds);
  }

  const ModelShape& model_;
  const Machine& machine_;
  const ParallelPlan& plan_;
  const RunShape run_;
  MeshShape mesh_;
  RankBatch batch_;
  std::vector<TimedUnit> units_;
  Partition partition_;
  Prediction result_;
  std::vector<double> activations_;  // by pipeline rank
  std::vector<int> rank_of_stage_;
  double pipeline_seconds_ = 0, last_backward_ = 0;
  int slowest_ = 0, microbatches_ = 1;
};

StepModel::StepModel(const PredictionRequest& request, const Schedule* schedule)
    : impl_(std::make_unique<Impl>(request, schedule)) {}
StepModel::~StepModel() = default;
Prediction StepModel::predict(const ShardingOptions& sharding) const {
  return impl_->predict(sharding);
}

bool is_legal(const ModelShape& model, const ParallelPlan& plan, const RunShape& run) {
  return find_problems(plan, run, layout_of(model)).empty();
}

Prediction predict(const PredictionRequest& request) {
  SHOAL_CHECK(request.run.length > 0, "a prediction needs the length of a sample");
  check_layout(request.plan, request.run, layout_of(request.model));
  return StepModel(request).predict(request.plan.sharding);
}

}  // namespace shoal::parallel
