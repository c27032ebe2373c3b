// How long a waiting thread polls before it sleeps. A sleep costs a wake-up (some 5 to 50 us);
// polling costs a core that other ranks may need. The lengths of recent waits tell which is
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
  // Every wait yields this often before it sleeps, however long recent waits took. The awaited rank
  // may run next on the core, and then neither rank needs a wake-up. After a very long yield, these
  // yields are skipped for a while, because the core must have run something other than a waiting
  // rank.
  static constexpr int kLateLooks = 80;
  using Duration = Clock::duration;
  // `most`: the longest time that one wait polls.
  explicit Patience(Duration most) : most_(most), look_(most) {}

  // Call when nothing moved. Returns true to sleep now, false to yield before the next poll.
  bool spent(Clock::time_point now) {
    if (!waiting_) {
      waiting_ = true;
      since_ = now;
    } else if (yielded_ && now - last_ >= kGivenAway) {
      // The yield gave the core to another thread. On such a core, a sleeping thread is woken at
      // once, but a yielding one waits for its turn. A single case may be an interrupt or the
      // hypervisor, so several of the recent yields must show it.
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
  // Call when something moved. If polling could have covered the wait, the next poll is longer;
  // otherwise it is shorter.
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
  std::uint16_t given_away_ = 0;  // one bit for each recent yield
  bool waiting_ = false, yielded_ = false;
  bool late_ = false;  // it yielded although polling would not cover the wait
};

}  // namespace shoal::collectives::net
