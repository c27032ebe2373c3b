#include "shoal/parallel/apply/layout_memory.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>
#include <vector>

#include "shoal/runtime/base/error.h"

namespace shoal::parallel {
namespace {

// Bytes in memory, and the number of stream-sized tensors that are offloaded to a file. Only a few
// of the offloaded tensors occupy memory at a time.
struct Holding {
  double bytes = 0, leaving = 0;
  Holding operator+(const Holding& other) const {
    return {bytes + other.bytes, leaving + other.leaving};
  }
  Holding operator-(const Holding& other) const {
    return {bytes - other.bytes, leaving - other.leaving};
  }
};

// Memory that one stage holds for a microbatch.
class StageMemory {
 public:
  StageMemory(const ActivationRequest& request, UnitRange stage) : request_(request) {
    const int units = static_cast<int>(request.units.size());
    for (int unit = stage.first; unit < stage.last; ++unit) {
      // Embeddings and head are never recomputed.
      const bool again = request.checkpoint_group > 0 && unit > 0 && unit < units - 1;
      if (begins_group(unit, stage.first, units, request.checkpoint_group))
        pieces_.push_back({unit, unit, again});
      pieces_.back().last = unit + 1;
    }
    for (const Piece& piece : pieces_) {
      kept_ = kept_ + kept_of(piece);
      weights_.bytes += weights_of(piece);
    }
    alone_ = {walk({}, false), walk({}, true)};
  }
  Holding kept() const { return kept_; }        // from the forward until the backward
  Holding weights() const { return weights_; }  // from the input backward until the weight backward

  // Peak of this stage's memory while it computes; `others` are held too. `splits`: this is a
  // backward of inputs only.
  double computing(const Holding& others, bool splits) const {
    return request_.offloads ? walk(others, splits) : others.bytes + alone_[splits ? 1 : 0];
  }
  double bytes_of(const Holding& holding) const {
    const double most = std::max(request_.offload.max_leaving, request_.offload.max_returning);
    return holding.bytes + std::min(holding.leaving, most) * request_.stream_bytes;
  }

 private:
  double walk(const Holding& others, bool splits) const {
    double most = 0;
    Holding before = others;
    double after = weights_.bytes;  // kept by the later pieces, whose input backward is done
    for (const Piece& piece : pieces_) {
      after -= weights_of(piece);
      double inside = 0, inside_after = weights_of(piece);
      for (int unit = piece.first; unit < piece.last; ++unit) {
        const UnitCost& cost = request_.units[static_cast<std::size_t>(unit)];
        inside_after -= static_cast<double>(cost.weight_bytes);
        const auto own = static_cast<double>(splits ? cost.split_peak_bytes : cost.peak_bytes);
        most =
            std::max(most, bytes_of(before) + inside + own + (splits ? after + inside_after : 0));
        inside += static_cast<double>(cost.activation_bytes);
      }
      before = before + kept_of(piece);
    }
    return most;
  }
  struct Piece {
    int first, last;
    bool again;  // recomputed in backward: keeps only its input
  };
  Holding kept_of(const Piece& piece) const {
    double bytes = 0;
    for (int unit = piece.first; unit < piece.last; ++unit)
      bytes += static_cast<double>(request_.units[static_cast<std::size_t>(unit)].activation_bytes);
    if (piece.again) bytes = request_.stream_bytes;
    if (request_.offloads && (piece.again || !request_.only_inputs) &&
        request_.stream_bytes >= static_cast<double>(request_.offload.min_bytes))
      return {0, std::round(bytes / request_.stream_bytes)};
    return {bytes, 0};
  }
  double weights_of(const Piece& piece) const {
    double bytes = 0;
    for (int unit = piece.first; unit < piece.last; ++unit)
      bytes += static_cast<double>(request_.units[static_cast<std::size_t>(unit)].weight_bytes);
    return bytes;
  }
  const ActivationRequest& request_;
  std::vector<Piece> pieces_;
  Holding kept_, weights_;
  std::array<double, 2> alone_{};  // computing() without others; where backward splits
};

std::vector<StageMemory> stage_memories(const Schedule& schedule, std::span<const UnitRange> stages,
                                        const ActivationRequest& request) {
  SHOAL_CHECK(
      stages.size() == static_cast<std::size_t>(schedule.stages()) && request.stream_bytes > 0,
      "{} stages for a schedule of {}, a stream of {} bytes", stages.size(), schedule.stages(),
      request.stream_bytes);
  std::vector<StageMemory> memory;
  for (const UnitRange& stage : stages) memory.emplace_back(request, stage);
  return memory;
}

}  // namespace

StateMemory state_memory(const StateRequest& r) {
  const double shards = r.shards, all = static_cast<double>(r.elements);
  const auto divided = [&](double count, int level) {
    return r.level >= level ? count / shards : count;
  };
  const auto whole = static_cast<double>(r.shards > 1 ? r.persistent : r.elements);
  const double values =
      static_cast<double>(r.frozen) + (r.level < 3 ? all : whole + (all - whole) / shards);
  const bool masters = r.dtype != DType::f32 && r.masters;
  const double numbers = static_cast<double>(r.states + (masters ? r.elements : 0));
  return {.parameters = static_cast<double>(size_of(r.dtype)) * values,
          .gradients = 4 * divided(all, 2),
          .optimizer = 4 * (divided(numbers, 1) + static_cast<double>(r.means))};
}

StateRequest state_request(const ParallelModel& model, const nn::UpdateRule& rule) {
  const ParallelPlan& plan = model.plan();
  StateRequest request{
      .dtype = plan.precision.dtype,
      .level = plan.sharding.level,
      .shards = plan.sharding.degree > 0 ? plan.sharding.degree : model.mesh().shape().rdp,
      .masters = !model.options().rounding_seed};
  if (request.level == 0) request.shards = 1;
  for (const nn::Parameter* parameter : model.parameters()) {
    const std::int64_t count = parameter->shape().count();
    if (!parameter->trainable()) {
      request.frozen += count;
      continue;
    }
    request.elements += count;
    for (const nn::RuleState& state : rule.states(parameter->whole_shape()))
      (state.mean_over == 0 ? request.states : request.means) +=
          state_shape(state, state.mean_over == 0 ? parameter->shape() : parameter->whole_shape())
              .count();
    if (count <= plan.sharding.persistence_threshold) request.persistent += count;
  }
  return request;
}

StateMemory exact_state_memory(const ParallelModel& model, const nn::UpdateRule& rule) {
  const KeptElements kept = model.kept();
  std::int64_t states = 0;
  for (const OwnedRun& run : model.owned()) {
    const Shape& whole = run.parameter->whole_shape();
    for (const nn::RuleState& state : rule.states(whole))
      states += whole_lines(state.mean_over == 0 ? run.segment.master.count()
                                                 : state_shape(state, whole).count());
  }
  const auto bytes = [](std::int64_t elements, std::size_t size) {
    return static_cast<double>(elements) * static_cast<double>(size);
  };
  return {.parameters = bytes(kept.values, size_of(model.plan().precision.dtype)),
          .gradients = bytes(kept.gradients, 4),
          .optimizer = bytes(kept.masters + states, 4)};
}

double peak_activations(const Schedule& schedule, std::span<const UnitRange> stages, int rank,
                        const ActivationRequest& request) {
  const std::vector<StageMemory> memory = stage_memories(schedule, stages, request);
  Holding held;
  double most = 0;
  std::vector<std::pair<int, int>> leaving;  // messages: sending stage and microbatch
  const auto compute = [&](const StageMemory& stage, bool splits) {
    const Holding messages{static_cast<double>(leaving.size()) * request.stream_bytes, 0};
    most = std::max(most, stage.computing(held + messages, splits));
    leaving.clear();
  };
  // Sends to a neighbour stage, on another rank or on this one.
  const auto deliver = [&](const Action& action, int to) {
    if (to < 0 || to >= schedule.stages()) return;
    if (schedule.rank_of_stage[static_cast<std::size_t>(to)] == rank)
      held.bytes += request.stream_bytes;
    else
      leaving.emplace_back(action.stage, action.microbatch);
  };
  for (const Action& action : schedule.actions[static_cast<std::size_t>(rank)]) {
    if (receives(action.kind)) held.bytes += request.stream_bytes;
    if (!computes(action.kind)) continue;
    const StageMemory& stage = memory[static_cast<std::size_t>(action.stage)];
    const bool splits = action.kind == ActionKind::input_backward;
    if (action.kind == ActionKind::forward) {
      if (action.stage > 0) held.bytes -= request.stream_bytes;  // now counted in the unit
      compute(stage, false);
      held = held + stage.kept();
      deliver(action, action.stage + 1);
    } else if (action.kind == ActionKind::weight_backward) {
      held = held - stage.weights();
      leaving.clear();
    } else {
      // The received gradient shows that the activation sent in forward has arrived.
      std::erase(leaving, std::pair(action.stage, action.microbatch));
      if (action.stage + 1 < schedule.stages()) held.bytes -= request.stream_bytes;
      held = held - stage.kept();
      compute(stage, splits);
      if (splits) held = held + stage.weights();
      deliver(action, action.stage - 1);
    }
  }
  return most;
}

double peak_offloaded(const Schedule& schedule, std::span<const UnitRange> stages, int rank,
                      const ActivationRequest& request) {
  const std::vector<StageMemory> memory = stage_memories(schedule, stages, request);
  double held = 0, most = 0;  // numbers of stream-sized tensors
  for (const Action& action : schedule.actions[static_cast<std::size_t>(rank)]) {
    if (!computes(action.kind) || action.kind == ActionKind::weight_backward) continue;
    const double own = memory[static_cast<std::size_t>(action.stage)].kept().leaving;
    most = std::max(most, held += action.kind == ActionKind::forward ? own : -own);
  }
  return most * request.stream_bytes;
}

}  // namespace shoal::parallel
