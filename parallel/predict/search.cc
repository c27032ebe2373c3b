#include "shoal/parallel/predict/search.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <tuple>

#include "shoal/parallel/pipeline/generate.h"
#include "shoal/parallel/predict/unit_times.h"
#include "shoal/runtime/base/error.h"

namespace shoal::parallel {
namespace {

// Seconds of all units for one microbatch on one tensor-parallel group.
struct WholeModel {
  double forward = 0, backward = 0, blocks_forward = 0;
  double kept = 0, kept_again = 0;  // bytes of the blocks, without and with checkpoints
};

class Search {
  struct Layout {  // with each of these sharding levels
    ParallelPlan plan;
    RunShape run;
    std::vector<int> levels;
  };

 public:
  explicit Search(const SearchRequest& request) : request_(request) {
    limit_ = request.memory > 0 ? request.memory : 0.94 * request.machine.memory;
    std::map<int, int> uses;
    for (const UnitShape& unit : request.model.units)
      for (const auto& [id, count] : unit.parameters) ++uses[id];
    for (const UnitShape& unit : request.model.units)
      for (const auto& [id, count] : unit.parameters)
        if (unit.heads > 0 && uses[id] == 1) block_elements_ += static_cast<double>(count);
  }

  std::vector<Layout> layouts() {
    all_.clear();
    const int most = std::min(request_.ranks, request_.machine.devices);
    const int units = static_cast<int>(request_.model.units.size());
    for (int tensor = 1; tensor <= most; tensor *= 2)
      for (int pipeline = 1; pipeline <= units; ++pipeline)
        if (request_.ranks % (pipeline * tensor) == 0) microbatches(tensor, pipeline);
    return std::move(all_);
  }

  SearchResult run() {
    SearchResult result;
    std::vector<std::pair<double, Layout>> bounded;
    for (Layout& one : layouts()) {
      const double seconds = bound(one.plan, one.run);
      bounded.emplace_back(seconds, std::move(one));
    }
    std::ranges::stable_sort(bounded, {}, [](const auto& one) { return one.first; });
    for (auto& [seconds, one] : bounded) {
      result.layouts += static_cast<std::int64_t>(one.levels.size());
      if (is_slow(seconds, result)) continue;
      std::erase_if(one.levels, [&](int level) {
        one.plan.sharding.level = level;
        const double least = least_memory(one.plan, one.run);
        if (least > limit_) note_too_large(least, result);
        return least > limit_;
      });
      if (!one.levels.empty()) predict_all(one, result);
    }
    return result;
  }

  std::vector<Candidate> legal() {
    std::vector<Candidate> all;
    for (Layout& one : layouts())
      for (const int level : one.levels) {
        one.plan.sharding.level = level;
        if (is_legal(request_.model, one.plan, one.run)) all.push_back({one.plan, one.run, {}});
      }
    return all;
  }

 private:
  void predict_all(Layout& one, SearchResult& result) {
    const Schedule* const schedule = schedule_of(one.plan);
    if (schedule == nullptr) return;
    for (const int level : one.levels) {
      one.plan.sharding.level = level;
      const StepModel model(
          {.model = request_.model, .machine = request_.machine, .plan = one.plan, .run = one.run},
          schedule);
      if (model.memory() > limit_) {
        note_too_large(model.memory(), result);
        continue;
      }
      if (is_slow(model.least_seconds(), result)) continue;
      Candidate candidate{one.plan, one.run, model.predict()};
      ++result.predicted;
      const auto place =
          std::ranges::upper_bound(result.fastest, candidate.prediction.seconds, {},
                                   [](const Candidate& other) { return other.prediction.seconds; });
      result.fastest.insert(place, std::move(candidate));
      if (result.fastest.size() > static_cast<std::size_t>(request_.keep))
        result.fastest.pop_back();
    }
  }

  bool is_slow(double seconds, const SearchResult& result) const {
    return result.fastest.size() >= static_cast<std::size_t>(request_.keep) &&
           seconds > result.fastest.back().prediction.seconds;
  }

  // Null: there is no such schedule.
  const Schedule* schedule_of(const ParallelPlan& plan) {
    const ScheduleOptions options = schedule_options(plan);
    const auto [found, is_new] = schedules_.try_emplace(
        std::tuple(options.kind, options.ranks, options.microbatches, options.chunks));
    if (is_new) {
      try {
        found->second = std::make_unique<Schedule>(make_schedule(options));
      } catch (const Error&) {
        found->second.reset();  // microbatches that the chunks do not divide: not a layout
      }
    }
    return found->second.get();
  }

  static void note_too_large(double bytes, SearchResult& result) {
    ++result.too_large;
    if (result.least_memory == 0 || bytes < result.least_memory) result.least_memory = bytes;
  }
  // Bytes that the fullest rank of any cut has at least: its share of the state, and of the blocks'
  // activations for as many microbatches as its schedule keeps.
  double least_memory(const ParallelPlan& plan, const RunShape& run) {
    const int pipeline = plan.mesh.pipeline, split = plan.mesh.tensor * pipeline;
    const Elements elements = elements_of(request_.model.units);
    const StateMemory state = state_memory({.elements = elements.trained,
                                            .frozen = elements.frozen,
                                            .dtype = plan.precision.dtype,
                                            .level = plan.sharding.level,
                                            .shards = request_.ranks / split,
                                            .states = elements.rule.states});
    const double all = (state.parameters + state.gradients + state.optimizer) / plan.mesh.tensor;
    const WholeModel& model = whole(plan.mesh.tensor, run.batch / plan.pipeline.microbatches);
    const double kept = plan.activations.checkpoint_group > 0 ? model.kept_again : model.kept;
    // Rank r with a share s of the blocks needs s (blocks + microbatches x kept); the shares add up
    // to 1, and the largest need is least where all are equal.
    const double blocks =
        all * block_elements_ / static_cast<double>(elements.trained + elements.frozen);
    double shares = 0;
    for (int rank = 0; rank < pipeline; ++rank) {
      // Warmup of 1F1B and zero bubble. Several stages a rank keep one microbatch or more.
      const int microbatches = plan.pipeline.chunks > 1 ? 1 : pipeline - rank;
      shares += 1 / (blocks + std::min(microbatches, plan.pipeline.microbatches) * kept);
    }
    return std::max(all / pipeline, 1 / shares);
  }

  void microbatches(int tensor, int pipeline) {
    const int replicas = request_.ranks / (tensor * pipeline);
    if (request_.batch % replicas != 0) return;
    const std::int64_t batch = request_.batch / replicas;
    ParallelPlan plan;  // with as few microbatches as there can be: whether the mesh is legal
    plan.mesh.tensor = tensor;
    plan.mesh.pipeline = pipeline;
    plan.tensor.prescaled_batch = tensor > 1;
    plan.pipeline.schedule = ScheduleKind::simple;
    if (!is_legal(request_.model, plan,
                  {.ranks = request_.ranks, .batch = batch, .length = request_.length}))
      return;
    for (std::int64_t rows = 1; rows <= batch; rows *= 2)
      if (batch % rows == 0) schedules(tensor, pipeline, batch, static_cast<int>(batch / rows));
  }

  void schedules(int tensor, int pipeline, std::int64_t batch, int microbatches) {
    ParallelPlan plan;
    plan.mesh.tensor = tensor;
    plan.mesh.pipeline = pipeline;
    plan.tensor = {.prescaled_batch = tensor > 1, .speed = false};
    plan.pipeline.microbatches = microbatches;
    // On one rank too: each microbatch's backward follows its forward, so one is kept.
    plan.pipeline.schedule = ScheduleKind::one_f_one_b;
    memory(plan, batch);
    if (pipeline == 1) return;
    plan.pipeline.schedule = ScheduleKind::zero_bubble;
    memory(plan, batch);
    plan.pipeline.schedule = ScheduleKind::virtual_interleaved;
    for (const int chunks : {2, 4}) {
      if (pipeline * chunks > static_cast<int>(request_.model.units.size())) continue;
      plan.pipeline.chunks = chunks;
      memory(plan, batch);
    }
  }

  void memory(ParallelPlan plan, std::int64_t batch) {
    const int replicas = request_.ranks / (plan.mesh.tensor * plan.mesh.pipeline);
    plan.precision.dtype = request_.dtype;
    // A pipeline gathers parameters and sums gradients for each microbatch at levels 2 and 3.
    const std::vector<int> levels = replicas == 1            ? std::vector{0}
                                    : plan.mesh.pipeline > 1 ? std::vector{0, 1}
                                                             : std::vector{0, 1, 2, 3};
    const RunShape run{.ranks = request_.ranks, .batch = batch, .length = request_.length};
    for (const int group : {0, 1}) {
      plan.activations.checkpoint_group = group;
      all_.push_back({plan, run, levels});
    }
  }

  const WholeModel& whole(int tensor, std::int64_t rows) {
    const auto [found, is_new] = wholes_.try_emplace({tensor, rows});
    if (!is_new) return found->second;
    const RankBatch batch{.rows = rows,
                          .length = request_.length,
                          .dtype = request_.dtype,
                          .tensor = tensor,
                          .nodes = 1,
                          .sequence = tensor > 1};
    for (const UnitShape& unit : request_.model.units) {
      const UnitTimes times = unit_times(request_.machine, unit, request_.model.channels, batch);
      const double factor = unit.heads > 0
                                ? request_.machine.block_factor(request_.model.channels, tensor,
                                                                rows * request_.length)
                                : 1;
      const double forward = factor * std::max(times.forward.sum(), times.launch);
      found->second.forward += forward;
      found->second.backward += factor * std::max(times.backward.sum(), 2 * times.launch);
      if (unit.heads == 0) continue;
      found->second.blocks_forward += forward;
      found->second.kept += kept_bytes(unit, request_.model.channels, batch);
      found->second.kept_again += stream_bytes(request_.model.channels, batch);
    }
    return found->second;
  }

  // Seconds that no cut of the layout can be below: as if nothing but its units took time. In a
  // cut that takes X, let a stage before which the stages take P take t. Then m t <= X - P, so what
  // is left of X shrinks by 1 - 1/m at most with each stage, and all of them take no more than
  // X (1 - (1 - 1/m)^p). Where backward splits, only forwards are known to go before.
  double bound(const ParallelPlan& plan, const RunShape& run) {
    const int microbatches = plan.pipeline.microbatches;
    const WholeModel& model = whole(plan.mesh.tensor, run.batch / microbatches);
    const double recomputed = plan.activations.checkpoint_group > 0 ? model.blocks_forward : 0;
    const double all = model.forward + model.backward + recomputed;
    if (plan.pipeline.chunks > 1 || plan.pipeline.schedule == ScheduleKind::zero_bubble)
      return microbatches * all / plan.mesh.pipeline;
    return all / (1 - std::pow(1 - 1.0 / microbatches, plan.mesh.pipeline));
  }

  const SearchRequest& request_;
  double limit_ = 0, block_elements_ = 0;  // of the blocks' own parameters
  std::vector<Layout> all_;
  std::map<std::tuple<ScheduleKind, int, int, int>, std::unique_ptr<Schedule>> schedules_;
  std::map<std::pair<int, std::int64_t>, WholeModel> wholes_;
};

void check(const SearchRequest& request) {
  SHOAL_CHECK(request.ranks >= 1 && request.batch >= 1 && request.length >= 1 && request.keep >= 1,
              "a search needs ranks, a batch and a length of 1 or more; they are {}, {} and {}",
              request.ranks, request.batch, request.length);
}

}  // namespace

SearchResult search(const SearchRequest& request) {
  check(request);
  return Search(request).run();
}

std::vector<Candidate> legal_layouts(const SearchRequest& request) {
  check(request);
  return Search(request).legal();
}

}  // namespace shoal::parallel
