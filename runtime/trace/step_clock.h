// Measures the training thread's time by phase, for metrics.jsonl. Phases do not overlap: time
// counts for the phase entered last. When that phase ends, the phase it interrupted continues. Each
// phase costs two clock readings.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "shoal/runtime/base/clock.h"

namespace shoal {

enum class StepPhase : std::uint8_t {
  other,          // between phases
  data,           // waiting for the loader
  forward,        // including copies of its inputs
  backward,       // including gradient reduction on the training thread
  communication,  // waiting for other ranks: gradients and agreements
  pipeline_wait,  // waiting for neighbouring stages, including bubbles
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

// For one thread. Counts time between start() and stop(), which may be called repeatedly.
class StepClock {
 public:
  void start();
  void stop();
  StepTimes times() const { return times_; }  // as of the last change of phase

 private:
  friend class PhaseSpan;
  StepPhase enter(StepPhase phase);  // returns the previous phase
  StepTimes times_;
  StepPhase phase_ = StepPhase::other;
  bool running_ = false;
  Clock::time_point since_{};
};

// { const PhaseSpan phase(clock, StepPhase::forward); ... }
class PhaseSpan {
 public:
  PhaseSpan(StepClock& clock, StepPhase phase) : PhaseSpan(&clock, phase) {}
  // `clock` may be null.
  PhaseSpan(StepClock* clock, StepPhase phase)
      : clock_(clock), before_(clock != nullptr ? clock->enter(phase) : phase) {}
  ~PhaseSpan() {
    if (clock_ != nullptr) clock_->enter(before_);
  }
  PhaseSpan(const PhaseSpan&) = delete;
  PhaseSpan& operator=(const PhaseSpan&) = delete;

 private:
  StepClock* clock_;
  StepPhase before_;
};

}  // namespace shoal
