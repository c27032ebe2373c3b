// Where the training thread's time goes, for metrics.jsonl: phases that never overlap. The phase
// entered last has the time; what it interrupted (an update inside a forward that waits for
// gradients) goes on when it ends. Two readings of the clock a phase.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "shoal/runtime/base/clock.h"

namespace shoal {

enum class StepPhase : std::uint8_t {
  other,          // between the phases
  data,           // waiting for the loader
  forward,        // with the copies of its inputs
  backward,       // with what it does of the reduction behind itself
  communication,  // waiting for other ranks: gradients, and what they agree on
  pipeline_wait,  // waiting for neighbouring stages, bubbles too
  optimizer,
};
inline constexpr std::size_t kStepPhases = 7;
const char* to_string(StepPhase phase);  // "data", "pipeline_wait", ...

struct StepTimes {
  std::array<double, kStepPhases> seconds{};
  double of(StepPhase phase) const { return seconds[static_cast<std::size_t>(phase)]; }
  double total() const;
};
StepTimes operator-(StepTimes a, const StepTimes& b);

// One thread. Counts between start() and stop(), which may be called again and again.
class StepClock {
 public:
  void start();
  void stop();
  StepTimes times() const { return times_; }  // as of the last change of phase
  // Hands `seconds` of what `from` has, as far as it has them, over to `to`: where a phase is found
  // inside another by who measured it himself.
  void move(StepPhase from, StepPhase to, double seconds);

 private:
  friend class PhaseSpan;
  StepPhase enter(StepPhase phase);  // the one before
  StepTimes times_;
  StepPhase phase_ = StepPhase::other;
  bool running_ = false;
  Clock::time_point since_{};
};

// { const PhaseSpan phase(clock, StepPhase::forward); ... }
class PhaseSpan {
 public:
  PhaseSpan(StepClock& clock, StepPhase phase) : clock_(clock), before_(clock.enter(phase)) {}
  ~PhaseSpan() { clock_.enter(before_); }
  PhaseSpan(const PhaseSpan&) = delete;
  PhaseSpan& operator=(const PhaseSpan&) = delete;

 private:
  StepClock& clock_;
  StepPhase before_;
};

}  // namespace shoal
