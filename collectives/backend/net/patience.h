// How long a waiting thread keeps looking before it sleeps: a sleep costs a wake-up (some 5 to 50
// us), looking costs a core that other ranks may need. What the last waits took tells which is
// cheaper.
#pragma once

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstdint>

#include "shoal/runtime/base/clock.h"

namespace shoal::collectives::net {

class Patience {
 public:
  // Whatever the last waits took, each yields so often before it sleeps: what it waits for may be
  // next in the core's queue, and then neither has to be woken. Unless a yield takes so long that
  // somebody else than a rank that waits too must have had the core.
  static constexpr int kLateLooks = 80;
  using Duration = Clock::duration;
  // `most`: no wait is looked through for longer.
  explicit Patience(Duration most) : most_(most), look_(most) {}

  // Nothing moved: true when it is time to sleep, else yield before the next look.
  bool spent(Clock::time_point now) {
    if (!waiting_) {
      waiting_ = true;
      since_ = now;
    } else if (yielded_ && now - last_ >= kGivenAway) {
      // The yield gave the core to somebody: who sleeps there is woken at once, who yields waits
      // for its turn again. Once is nothing (an interrupt, the hypervisor): several of the last.
      given_away_ |= 1;
      if (std::popcount(given_away_) >= kOften) crowded_until_ = now + kCrowdedFor;
    }
    if (late_ && now - last_ >= kTaken) taken_until_ = now + kCrowdedFor;
    given_away_ = static_cast<std::uint16_t>(given_away_ << 1);
    last_ = now;
    yielded_ = now >= crowded_until_ && now - since_ < look_;
    late_ = !yielded_ && now >= taken_until_ && ++late_looks_ <= kLateLooks;
    return !yielded_ && !late_;
  }
  // Something moved. A wait that looking could have covered makes the next look longer, one that it
  // could not makes it shorter.
  void moved(Clock::time_point now) {
    if (!waiting_) return;
    waiting_ = yielded_ = late_ = false;
    late_looks_ = 0;
    look_ =
        now - since_ <= most_ ? std::min(2 * look_, most_) : std::max(look_ / 2, most_ / kShortest);
  }
  Duration look() const { return look_; }

 private:
  static constexpr int kShortest = 32;
  static constexpr Duration kGivenAway = std::chrono::microseconds(20);
  static constexpr int kOften = 4;  // of 16 yields
  static constexpr Duration kTaken = std::chrono::microseconds(500);
  static constexpr Duration kCrowdedFor = std::chrono::milliseconds(20);
  Duration most_, look_;
  Clock::time_point since_, last_, crowded_until_, taken_until_;
  int late_looks_ = 0;
  std::uint16_t given_away_ = 0;  // a bit for each of the last yields
  bool waiting_ = false, yielded_ = false;
  bool late_ = false;  // yielded although looking would not cover the wait
};

}  // namespace shoal::collectives::net
