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
    stream_ = stream_bytes(model_.channels, batch_);
    ScheduleOptions options = schedule_options(plan_);
    options.microbatches *= run_.accumulated;
    microbatches_ = options.microbatches;
    time_units();
    if (schedule == nullptr && plan_.pipeline.schedule != ScheduleKind::interleaved)
      made_ = make_schedule(options);
    cut(schedule);
    time_stages();
    if (schedule == nullptr && plan_.pipeline.schedule == ScheduleKind::interleaved) {
      options.costs = costs_;
      made_ = make_schedule(options);
    }
    schedule_ = schedule == nullptr ? &made_ : schedule;
    count_activations();
    count_state();
  }

  double memory() const { return result_.memory; }

  // Each rank waits for the first forwards of the stages before its first one, then does all its
  // work. If its last action is a whole backward, the stages before it follow with theirs.
  double least_seconds() const {
    const bool splits = plan_.pipeline.schedule >= ScheduleKind::zero_bubble;
    double before = 0, most = 0;
    for (int rank = 0; rank < mesh_.pp; ++rank) {
      double work = 0;
      for (std::size_t stage = 0; stage < costs_.stages.size(); ++stage)
        if (schedule_->rank_of_stage[stage] == rank) work += seconds_of(stage);
      most = std::max(most, before + microbatches_ * work);
      const StageCosts& first = costs_.stages[static_cast<std::size_t>(rank)];
      before += first.forward + (splits ? 0 : first.input_backward + first.weight_backward);
    }
    return most + result_.parts.optimizer + machine_.software.step_fixed;
  }

  Timeline timeline() const { return {*schedule_, simulate(*schedule_, costs_)}; }

  Prediction predict() const {
    Prediction result = result_;
    const Simulation simulation = simulate(*schedule_, costs_);
    const auto slowest = std::ranges::max_element(simulation.busy);
    const int rank = static_cast<int>(slowest - simulation.busy.begin());
    count_parts(rank, result.parts);
    result.parts.bubble += simulation.time - *slowest;
    result.block_seconds = simulation.time * block_share();
    add_gradients(rank, result.parts);
    add_ranks(simulation, result);
    finish(simulation.time, result);
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

  void cut(const Schedule* schedule) {
    for (std::size_t i = 0; i < units_.size(); ++i) {
      UnitCost cost{.name = model_.units[i].name, .parameters = model_.units[i].parameters};
      cost.seconds = units_[i].forward + units_[i].recomputed + units_[i].backward;
      cost.activation_bytes =
          static_cast<std::int64_t>(kept_bytes(model_.units[i], model_.channels, batch_));
      cost.peak_bytes = cost.activation_bytes + static_cast<std::int64_t>(working_bytes(
                                                    model_.units[i], model_.channels, batch_));
      cost.weight_bytes = cost.activation_bytes;
      cost.split_peak_bytes = cost.peak_bytes;
      unit_costs_.push_back(std::move(cost));
    }
    const Elements all = elements_of(model_.units);
    // A run cuts its model before it has an update rule: with AdamW's two moments.
    const StateMemory state = state_of(
        {.trained = all.trained, .frozen = all.frozen, .rule = {.states = 2 * all.trained}}, 1);
    partition_ = choose_partition(plan_, unit_costs_,
                                  (state.parameters + state.gradients + state.optimizer) /
                                      static_cast<double>(all.trained + all.frozen),
                                  schedule);
  }

  // The slowest message of the pipeline counts: the one that leaves a node.
  double message() const {
    const bool splits = machine_.software.splits_messages && !batch_.sequence;
    const double bytes = stream_ / (splits ? mesh_.tp : 1);
    double seconds = message_seconds(machine_, bytes, nodes_of(kPp) == 1);
    if (splits)  // half of an all_reduce
      seconds += all_reduce_seconds(machine_, stream_, mesh_.tp, batch_.nodes, 1,
                                    machine_.network_tensor_efficiency) /
                 2;
    return seconds;
  }

  void time_stages() {
    const double fixed = machine_.software.microbatch_fixed;
    const bool overlaps = machine_.software.overlaps_messages || mesh_.pp == 1;
    sent_ = overlaps ? 0 : message();
    costs_.message = overlaps ? message() : 0;
    costs_.stages.clear();
    for (const UnitRange& range : partition_.stages) {
      StageCosts stage{
          .forward = fixed / 2 + sent_, .input_backward = fixed / 2 + sent_, .weight_backward = 0};
      for (int unit = range.first; unit < range.last; ++unit) {
        const TimedUnit& timed = units_[static_cast<std::size_t>(unit)];
        stage.forward += timed.forward;
        const double weights = timed.times.weights;
        stage.input_backward += timed.recomputed + timed.backward - weights;
        stage.weight_backward += weights;
      }
      costs_.stages.push_back(stage);
      const std::string& first = model_.units[static_cast<std::size_t>(range.first)].name;
      const std::string& last = model_.units[static_cast<std::size_t>(range.last - 1)].name;
      result_.stages.push_back(
          {.units = range.last - range.first == 1 ? first : fmt::format("{} to {}", first, last),
           .forward = stage.forward,
           .backward = stage.input_backward + stage.weight_backward,
           .state = {}});
    }
  }
  double seconds_of(std::size_t stage) const {
    return result_.stages[stage].forward + result_.stages[stage].backward;
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

  // Adds the times of a pipeline rank's computations to `parts`.
  void count_parts(int rank, StepParts& parts) const {
    for (std::size_t stage = 0; stage < partition_.stages.size(); ++stage) {
      if (schedule_->rank_of_stage[stage] != rank) continue;
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
      parts.bubble += microbatches_ * 2 * sent_;
    }
  }

  void add_ranks(const Simulation& simulation, Prediction& result) const {
    const double n = microbatches_;
    for (int rank = 0; rank < schedule_->ranks(); ++rank) {
      const auto at = static_cast<std::size_t>(rank);
      RankPrediction one;
      one.waits = simulation.time - simulation.busy[at];
      one.activations = activations_[at];
      for (std::size_t stage = 0; stage < partition_.stages.size(); ++stage) {
        if (schedule_->rank_of_stage[stage] != rank) continue;
        one.waits += n * 2 * sent_;
        const StateMemory& state = result.stages[stage].state;
        one.state.parameters += state.parameters;
        one.state.gradients += state.gradients;
        one.state.optimizer += state.optimizer;
        const UnitRange& range = partition_.stages[stage];
        for (int index = range.first; index < range.last; ++index) {
          const TimedUnit& unit = units_[static_cast<std::size_t>(index)];
          const bool loss = model_.units[static_cast<std::size_t>(index)].vocabulary > 0;
          one.forward += n * unit.forward;
          (loss ? one.forward : one.backward) += n * (unit.recomputed + unit.backward);
        }
      }
      result.ranks.push_back(one);
    }
  }

  void count_activations() {
    const ActivationRequest request{.units = unit_costs_,
                                    .stream_bytes = stream_,
                                    .checkpoint_group = plan_.activations.checkpoint_group,
                                    .offloads = plan_.activations.offload,
                                    .offload = {}};
    for (int rank = 0; rank < schedule_->ranks(); ++rank)
      activations_.push_back(peak_activations(*schedule_, partition_.stages, rank, request));
  }

  // Parameters of one stage on one of its ranks. Blocks, embeddings and head are split over the
  // tensor-parallel ranks.
  Elements elements(const UnitRange& range) const {
    return elements_of(std::span(model_.units)
                           .subspan(static_cast<std::size_t>(range.first),
                                    static_cast<std::size_t>(range.last - range.first)));
  }

  // Gradients are summed in `gradient_bytes` an element. Sharding gathers values in place of the
  // second half of that: once a step, at level 3 in each forward and backward. Levels 2 and 3 sum
  // the gradients of each microbatch.
  void add_gradients(int slowest, StepParts& parts) const {
    const int level = plan_.sharding.level;
    const double sum_width = machine_.software.gradient_bytes;
    if (mesh_.rdp > 1) {
      const int nodes = nodes_of(kRdp);
      const int inside = std::max(mesh_.rdp / nodes, 1);
      const auto half = [&](double width) {
        return all_reduce_seconds(
                   machine_, most_elements() * width, mesh_.rdp, nodes,
                   std::max(machine_.devices / inside, 1),
                   inside > 1 ? machine_.network_efficiency : machine_.network_rail_efficiency) /
               2;
      };
      const double sums = level >= 2 ? microbatches_ : 1;
      const double gathers = level == 3 ? 2 * microbatches_ : 1;
      const double values =
          level == 0 ? sum_width : static_cast<double>(size_of(plan_.precision.dtype));
      const double seconds = sums * half(sum_width) + gathers * half(values);
      // Sums begin while the last microbatch's backward runs; gathers while forwards do. The last
      // bucket is always exposed.
      double forward = 0, backward = 0;
      for (std::size_t stage = 0; stage < partition_.stages.size(); ++stage)
        if (schedule_->rank_of_stage[stage] == slowest) {
          forward += result_.stages[stage].forward;
          backward += result_.stages[stage].backward;
        }
      const double hides = sums * backward + (level == 0   ? 0
                                              : level == 3 ? sums * forward
                                                           : forward);
      parts.gradients =
          std::max(seconds - (machine_.software.overlaps_gradients ? hides : 0), seconds * 0.05);
    }
    if (mesh_.pp > 1) parts.gradients += tied_seconds(sum_width);
  }

  // A parameter on several stages: their gradients are summed at the end.
  double tied_seconds(double width) const {
    std::map<int, std::pair<int, std::int64_t>> seen;  // parameter: stages, elements
    for (const UnitRange& range : partition_.stages) {
      std::set<int> own;
      for (int unit = range.first; unit < range.last; ++unit)
        for (const auto& [id, count] : model_.units[static_cast<std::size_t>(unit)].parameters)
          if (!model_.units[static_cast<std::size_t>(unit)].frozen.contains(id) &&
              own.insert(id).second) {
            ++seen[id].first;
            seen[id].second = count;
          }
    }
    double seconds = 0;
    for (const auto& [id, what] : seen)
      seconds += all_reduce_seconds(machine_, static_cast<double>(what.second) / mesh_.tp * width,
                                    what.first, nodes_of(kPp) == 1 ? 1 : what.first,
                                    machine_.devices, machine_.network_efficiency);
    return seconds;
  }

  // Trained elements of the fullest stage, with as many stages on its rank as on each.
  double most_elements() const {
    double most = 0;
    for (const UnitRange& range : partition_.stages)
      most = std::max(most, static_cast<double>(elements(range).trained) / mesh_.tp);
    return most * plan_.pipeline.chunks;
  }

  // Of one of `parts` tensor-parallel ranks.
  StateMemory state_of(const Elements& all, int parts) const {
    const auto part = [&](std::int64_t count) { return (count + parts - 1) / parts; };
    return state_memory({.elements = part(all.trained),
                         .frozen = part(all.frozen),
                         .dtype = plan_.precision.dtype,
                         .level = plan_.sharding.level,
                         .shards = shards(),
                         .states = part(all.rule.states),
                         .means = all.rule.means});
  }
  int shards() const {
    const ShardingOptions& sharding = plan_.sharding;
    return sharding.level == 0 ? 1 : sharding.degree == 0 ? mesh_.rdp : sharding.degree;
  }

  void count_state() {
    std::vector<double> all = activations_;
    double updated = 0;
    for (std::size_t stage = 0; stage < partition_.stages.size(); ++stage) {
      StateMemory& state = result_.stages[stage].state;
      const Elements own = elements(partition_.stages[stage]);
      state = state_of(own, mesh_.tp);
      updated = std::max(updated, update_bytes(own, model_.gradient_reads, plan_.precision.dtype,
                                               mesh_.tp * shards()));
      all[static_cast<std::size_t>(schedule_->rank_of_stage[stage])] +=
          state.parameters + state.gradients + state.optimizer;
    }
    const auto fullest = std::ranges::max_element(all);
    result_.memory = *fullest;
    result_.activations = activations_[static_cast<std::size_t>(fullest - all.begin())];
    result_.parts.optimizer = updated * plan_.pipeline.chunks /
                              (machine_.bandwidth * machine_.software.optimizer_efficiency);
    result_.parts.fixed = machine_.software.step_fixed;
  }

  void finish(double pipeline_seconds, Prediction& result) const {
    const StepParts& p = result.parts;
    result.seconds = pipeline_seconds + p.gradients + p.optimizer + machine_.software.step_fixed;
    const double samples = static_cast<double>(run_.batch * run_.accumulated) * mesh_.rdp *
                           (plan_.tensor.prescaled_batch ? 1 : mesh_.tp);
    result.samples_per_second = samples / result.seconds;
    result.tokens_per_second = result.samples_per_second * static_cast<double>(run_.length);
    const double trained = training_flops(model_, 1, run_.length) * samples;
    const double peak = machine_.products.flops.at(plan_.precision.dtype) * run_.ranks;
    result.mfu = trained / result.seconds / peak;
    double again = 0;  // blocks are recomputed, the head is not
    if (plan_.activations.checkpoint_group > 0)
      for (const UnitShape& unit : model_.units)
        if (unit.heads > 0) again += unit_flops(unit, 1, run_.length) * samples;
    result.hfu = (trained + again) / result.seconds / peak;
    const double nodes = std::ceil(static_cast<double>(run_.ranks) / machine_.devices);
    result.dollars_per_step = result.seconds / 3600 * machine_.price.dollars_per_hour * nodes;
    const auto named = named_parts(p);
    const auto largest =  // beside the products and what is fixed
        std::max_element(named.begin() + 1, named.end() - 1,
                         [](const auto& a, const auto& b) { return a.second < b.second; });
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
  Schedule made_;
  const Schedule* schedule_ = nullptr;
  PipelineCosts costs_;
  std::vector<UnitCost> unit_costs_;
  double stream_ = 0;  // bytes between two units
  double sent_ = 0;    // seconds of a message during which its stage computes nothing
  int microbatches_ = 1;
};

StepModel::StepModel(const PredictionRequest& request, const Schedule* schedule)
    : impl_(std::make_unique<Impl>(request, schedule)) {}
StepModel::~StepModel() = default;
double StepModel::memory() const { return impl_->memory(); }
double StepModel::least_seconds() const { return impl_->least_seconds(); }
Prediction StepModel::predict() const { return impl_->predict(); }
StepModel::Timeline StepModel::timeline() const { return impl_->timeline(); }

std::vector<std::pair<const char*, double>> named_parts(const StepParts& parts) {
  return {{"products", parts.products},
          {"attention", parts.attention},
          {"element-wise passes", parts.passes},
          {"the loss", parts.loss},
          {"sums over tensor-parallel ranks", parts.tensor_exchanges},
          {"recomputation", parts.recomputation},
          {"launches", parts.launches},
          {"the pipeline's bubble", parts.bubble},
          {"sums of gradients", parts.gradients},
          {"the optimizer", parts.optimizer},
          {"what each step costs anyway", parts.fixed}};
}

bool is_legal(const ModelShape& model, const ParallelPlan& plan, const RunShape& run) {
  return find_problems(plan, run, layout_of(model)).empty();
}

Prediction predict(const PredictionRequest& request) {
  SHOAL_CHECK(request.run.length > 0, "a prediction needs the length of a sample");
  check_layout(request.plan, request.run, layout_of(request.model));
  return StepModel(request).predict();
}

}  // namespace shoal::parallel
