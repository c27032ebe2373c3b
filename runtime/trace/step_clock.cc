#include "shoal/runtime/trace/step_clock.h"

#include <algorithm>
#include <numeric>

namespace shoal {

const char* to_string(StepPhase phase) {
  static constexpr std::array<const char*, kStepPhases> names = {
      "other", "data", "forward", "backward", "communication", "pipeline_wait", "optimizer"};
  return names[static_cast<std::size_t>(phase)];
}

double StepTimes::total() const { return std::accumulate(seconds.begin(), seconds.end(), 0.0); }

StepTimes operator-(StepTimes a, const StepTimes& b) {
  for (std::size_t i = 0; i < kStepPhases; ++i) a.seconds[i] -= b.seconds[i];
  return a;
}

void StepClock::start() {
  running_ = true;
  phase_ = StepPhase::other;
  since_ = Clock::now();
}

void StepClock::stop() {
  enter(phase_);
  running_ = false;
}

StepPhase StepClock::enter(StepPhase phase) {
  if (running_) {
    const auto now = Clock::now();
    times_.seconds[static_cast<std::size_t>(phase_)] +=
        std::chrono::duration<double>(now - since_).count();
    since_ = now;
  }
  const StepPhase before = phase_;
  phase_ = phase;
  return before;
}

}  // namespace shoal
