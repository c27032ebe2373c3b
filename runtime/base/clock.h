// Steady clock, elapsed time, and the deadlines that every wait uses.
#pragma once

#include <chrono>

namespace shoal {

using Clock = std::chrono::steady_clock;

inline double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// The time at which a wait gives up. Cheap to copy. A function passes its deadline to the waits
// inside it, so that they share it.
class Deadline {
 public:
  // Infinity, NaN and values of 1e9 (about 30 years) or more mean never.
  static Deadline in_seconds(double seconds) {
    if (!(seconds < 1e9)) return never();
    if (seconds < 0) seconds = 0;
    return Deadline(Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                       std::chrono::duration<double>(seconds)));
  }
  static Deadline never() { return Deadline(Clock::time_point::max()); }

  bool passed() const { return Clock::now() >= at_; }
  Clock::time_point time() const { return at_; }
  double seconds_left() const {
    return at_ == Clock::time_point::max()
               ? 1e9
               : std::chrono::duration<double>(at_ - Clock::now()).count();
  }

 private:
  explicit Deadline(Clock::time_point at) : at_(at) {}
  Clock::time_point at_;
};

}  // namespace shoal
