#include "shoal/parallel/predict/search.h"

#include <algorithm>
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
      const auto full = static_cast<std::size_t>(request_.keep);
      if (result.fastest.size() >= full && seconds > result.fastest.back().prediction.seconds)
        continue;
      std::erase_if(one.levels, [&](int level) {
        const double least = least_state(one.plan, level);
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
    const StepModel model(
        {.model = request_.model, .machine = request_.machine, .plan = one.plan, .run = one.run},
        schedule);
    for (const int level : one.levels) {
      one.plan.sharding.level = level;
      Candidate candidate{one.plan, one.run, model.predict(one.plan.sharding)};
      ++result.predicted;
      if (candidate.prediction.memory > limit_) {
        note_too_large(candidate.prediction.memory, result);
        continue;
      }
      const auto place =
          std::ranges::upper_bound(result.fastest, candidate.prediction.seconds, {},
                                   [](const Candidate& other) { return other.prediction.seconds; });
      result.fastest.insert(place, std::move(candidate));
      if (result.fastest.size() > static_cast<std::size_t>(request_.keep))
        result.fastest.pop_back();
    }
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
  // Bytes of the state of a rank whose stage is no larger than the mean one.
  double least_state(const ParallelPlan& plan, int level) const {
    const int split = plan.mesh.tensor * plan.mesh.pipeline;
    const StateMemory state = state_memory({.elements = request_.model.elements() / split,
                                            .dtype = plan.precision.dtype,
                                            .level = level,
                                            .shards = level > 0 ? request_.ranks / split : 1});
    return state.parameters + state.gradients + state.optimizer;
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
      if (unit.heads > 0) found->second.blocks_forward += forward;
    }
    return found->second;
  }

  // Seconds that no cut and no schedule of the layout can be below: as if the stages were equal and
  // nothing but their units took time.
  double bound(const ParallelPlan& plan, const RunShape& run) {
    const int microbatches = plan.pipeline.microbatches;
    const WholeModel& model = whole(plan.mesh.tensor, run.batch / microbatches);
    const double recomputed = plan.activations.checkpoint_group > 0 ? model.blocks_forward : 0;
    const double each = (model.forward + model.backward + recomputed) / plan.mesh.pipeline;
    return microbatches * each;
  }

  const SearchRequest& request_;
  double limit_ = 0;
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
