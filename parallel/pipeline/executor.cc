#include "shoal/parallel/pipeline/executor.h"

#include <algorithm>
#include <stdexcept>

#include "shoal/runtime/base/clock.h"
#include "shoal/runtime/base/deadlines.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/device/captured_work.h"

namespace shoal::parallel {
PipelineExecutor::PipelineExecutor(const Schedule& schedule, collectives::Communicator& pp,
                                   std::map<int, Stage*> stages, Tracer* tracer, int horizon,
                                   Abort abort, StepClock* clock)
    : schedule_(schedule),
      pp_(pp),
      stages_(std::move(stages)),
      tracer_(tracer),
      horizon_(horizon),
      abort_(std::move(abort)),
      clock_(clock) {
  SHOAL_CHECK(schedule_.ranks() == pp_.size(), "a schedule for {} ranks is run by a group of {}",
              schedule_.ranks(), pp_.size());
  for (int stage = 0; stage < schedule_.stages(); ++stage) {
    const bool mine = schedule_.rank_of_stage[static_cast<std::size_t>(stage)] == pp_.rank();
    SHOAL_CHECK(mine == (stages_.count(stage) == 1),
                "the schedule gives stage {} to rank {} of the pipeline, and rank {} {} it", stage,
                schedule_.rank_of_stage[static_cast<std::size_t>(stage)], pp_.rank(),
                mine ? "lacks" : "has");
  }
}

void PipelineExecutor::run(const std::function<void()>& after_last_forward) {
  const Clock::time_point began = Clock::now();
  const PhaseSpan phase(clock_, StepPhase::communication);
  const auto& actions = schedule_.actions[static_cast<std::size_t>(pp_.rank())];
  const auto is_forward = [](const Action& action) { return action.kind == ActionKind::forward; };
  const auto last = std::find_if(actions.rbegin(), actions.rend(), is_forward);
  const auto forwards_end = static_cast<std::size_t>(actions.rend() - last);
  try {
    for (std::size_t i = 0; i < actions.size(); ++i) {
      if (i == forwards_end && after_last_forward) after_last_forward();
      look_ahead(i);
      perform(actions[i]);
      drop_what_left();
    }
    if (forwards_end == actions.size() && after_last_forward) after_last_forward();
    const Clock::time_point waits = Clock::now();
    const PhaseSpan waiting(clock_, StepPhase::pipeline_wait);
    for (Leaving& message : leaving_) message.work->block_stream(pp_.stream());
    leaving_.clear();
    statistics_.wait_seconds += seconds_since(waits);
    const std::size_t unused =
        inputs_.size() + gradients_.size() + outputs_.size() + input_gradients_.size();
    SHOAL_CHECK(unused == 0, "the schedule {} left {} messages unused", schedule_.name, unused);
  } catch (const std::exception& problem) {
    give_up(problem);
    throw;
  } catch (...) {
    give_up(std::runtime_error("for a reason that is no std::exception"));
    throw;
  }
  statistics_.seconds += seconds_since(began);
}

// After an error in a stage, messages in flight would arrive in freed memory, and other ranks would
// wait for messages that are never sent. If `pp` has already failed, all its messages have ended.
void PipelineExecutor::give_up(const std::exception& why) noexcept {
  const auto each_work = [this](const auto& act) {
    for (const auto* table : {&inputs_, &gradients_})
      for (const auto& [key, message] : *table)
        if (message.work) act(*message.work);
    for (const Leaving& message : leaving_) act(*message.work);
  };
  try {
    if (!abort_ || abort_(why)) {
      each_work([](collectives::Work& work) { work.test(); });  // throws if `pp` has failed
      if (pp_.size() > 1) pp_.abort(fmt::format("its step of the pipeline failed: {}", why.what()));
      // Once one of these waits throws, the communicator no longer touches this rank's buffers.
      each_work([](collectives::Work& work) { work.wait(deadlines::at_once()); });
    }
    // Expected: the communicator has failed, or fails now.
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch)
  }
  inputs_.clear();
  gradients_.clear();
  outputs_.clear();
  input_gradients_.clear();
  leaving_.clear();
}

// Announces the backwards among the next `horizon_` computations.
void PipelineExecutor::look_ahead(std::size_t from) {
  const auto& actions = schedule_.actions[static_cast<std::size_t>(pp_.rank())];
  int seen = 0;
  for (std::size_t i = from; i < actions.size() && seen < horizon_; ++i) {
    const ActionKind kind = actions[i].kind;
    if (kind == ActionKind::backward || kind == ActionKind::input_backward)
      stage(actions[i].stage).expect_backward(actions[i].microbatch);
    if (computes(kind)) ++seen;
  }
}

void PipelineExecutor::perform(const Action& action) {
  if (computes(action.kind)) return compute(action);
  if (sends(action.kind)) return send(action);
  receive(action);
}

void PipelineExecutor::compute(const Action& action) {
  const Key key{action.stage, action.microbatch};
  Stage& on = stage(action.stage);
  const bool first = action.stage == 0, last = action.stage + 1 == schedule_.stages();
  const bool forward = action.kind == ActionKind::forward;
  Tensor received;
  if (forward && !first) received = take(inputs_, key);
  const bool backward =
      action.kind == ActionKind::backward || action.kind == ActionKind::input_backward;
  if (backward && !last) {
    received = take(gradients_, key);
    drop_output(key);
  }

  // Without a pipeline, the action's name would add no information.
  const char* const name = first && last ? (forward ? "forward" : "backward")
                           : tracer_     ? tracer_->intern(to_string(action))
                                         : nullptr;
  const TraceSpan span(tracer_, first && last ? "step" : "pipeline", name);
  const PhaseSpan phase(clock_, forward ? StepPhase::forward : StepPhase::backward);
  const Clock::time_point began = Clock::now();
  if (forward) {
    Tensor output = on.forward(action.microbatch, std::move(received));
    SHOAL_CHECK(output.defined() == !last, "stage {} of {} {} an output", action.stage,
                schedule_.stages(), last ? "returned" : "did not return");
    if (!last) deliver(true, action.stage, action.microbatch, std::move(output));
  } else if (backward) {
    Tensor gradient = on.backward(action.microbatch, std::move(received),
                                  action.kind == ActionKind::input_backward);
    SHOAL_CHECK(gradient.defined() == !first, "stage {} {} the gradient of an input", action.stage,
                first ? "returned" : "did not return");
    if (!first) deliver(false, action.stage, action.microbatch, std::move(gradient));
  } else {
    on.weight_backward(action.microbatch);
  }
  statistics_.compute_seconds += seconds_since(began);
}

// Puts the tensor into the table of a neighbour on this rank, or into the table of its SEND.
void PipelineExecutor::deliver(bool forward, int from_stage, int microbatch, Tensor tensor) {
  const int to_stage = from_stage + (forward ? 1 : -1);
  if (stages_.count(to_stage) == 1)
    (forward ? inputs_ : gradients_)[{to_stage, microbatch}] = {std::move(tensor), nullptr};
  else
    (forward ? outputs_ : input_gradients_)[{from_stage, microbatch}] = std::move(tensor);
}

Tensor PipelineExecutor::take(std::map<Key, Arriving>& from, const Key& key) {
  const auto found = from.find(key);
  SHOAL_CHECK(found != from.end(),
              "{}: stage {} computes microbatch {} before anything was received for it",
              schedule_.name, key.first, key.second);
  if (found->second.work) {
    const TraceSpan span(tracer_, "pipeline", "wait", key.first);
    const PhaseSpan phase(clock_, StepPhase::pipeline_wait);
    const Clock::time_point began = Clock::now();
    // On a device the stream waits before it computes with the tensor; on the host this blocks.
    found->second.work->block_stream(pp_.stream());
    statistics_.wait_seconds += seconds_since(began);
  }
  Tensor tensor = std::move(found->second.tensor);
  from.erase(found);
  return tensor;
}

void PipelineExecutor::send(const Action& action) {
  auto& from = action.kind == ActionKind::send_forward ? outputs_ : input_gradients_;
  const auto found = from.find({action.stage, action.microbatch});
  SHOAL_CHECK(found != from.end(), "{}: {} before it was computed", schedule_.name,
              to_string(action));
  Leaving message{std::move(found->second),
                  nullptr,
                  action.kind == ActionKind::send_forward,
                  {action.stage, action.microbatch}};
  from.erase(found);
  const ConstView view = message.tensor.const_view();
  message.work =
      pp_.send(view.data, view.shape.count(), view.dtype, peer_of(schedule_, action).rank);
  ++statistics_.messages;
  statistics_.message_bytes += static_cast<std::int64_t>(message.tensor.bytes());
  leaving_.push_back(std::move(message));
}

void PipelineExecutor::receive(const Action& action) {
  const bool forward = action.kind == ActionKind::recv_forward;
  Stage& on = stage(action.stage);
  const Stage::Message message =
      forward ? on.input(action.microbatch) : on.output(action.microbatch);
  Arriving arriving{on.allocate(message), nullptr};
  const View view = arriving.tensor.view();
  arriving.work =
      pp_.recv(view.data, view.shape.count(), view.dtype, peer_of(schedule_, action).rank);
  (forward ? inputs_ : gradients_)[{action.stage, action.microbatch}] = std::move(arriving);
}

// In a repeatable step, drop_output() and the end of run() drop the messages instead.
void PipelineExecutor::drop_what_left() {
  if (is_repeatable_step()) return;
  std::erase_if(leaving_, [](Leaving& message) { return message.work->test(); });
}

// The output's gradient has arrived, so the output has been sent.
void PipelineExecutor::drop_output(const Key& key) {
  const auto found = std::ranges::find_if(
      leaving_, [&](const Leaving& message) { return message.forward && message.from == key; });
  if (found == leaving_.end()) return;  // already dropped, or handed to a stage of this rank
  found->work->block_stream(pp_.stream());
  leaving_.erase(found);
}

}  // namespace shoal::parallel
