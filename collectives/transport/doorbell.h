// Waiting for another rank's word: spin briefly, then yield the core, then sleep until somebody
// rings (futex(2)), so that a wait costs little and ranks may outnumber cores.
#pragma once

#include <cstdint>

#include "shoal/collectives/transport/control.h"

namespace shoal::collectives {

// Wakes the threads of that rank that sleep, if any do. Call after a sequentially consistent
// store of what they wait for.
void wake(RankPage& page);
void wake_always(RankPage& page);

// How one thread waits; escalates from call to call. reset() after progress.
class Backoff {
 public:
  // `spins`: polls before yielding. A thread that must never burn a core passes `sleep_only`.
  explicit Backoff(std::uint32_t spins, bool sleep_only = false)
      : spins_(spins), sleep_only_(sleep_only) {}
  void reset() { round_ = 0; }
  bool sleeping() const { return sleep_only_ || round_ >= spins_ + kYields; }

  // One pause; returns at the latest after `milliseconds`. ready() says whether waiting is over.
  template <typename Ready>
  void pause(RankPage& own, int milliseconds, Ready&& ready) {
    if (!sleeping()) {
      ++round_;
      relax(round_ > spins_);
      return;
    }
    // Announce the sleep, remember the bell, look once more: a word stored before the announcement
    // is seen by ready(), one stored after it rings, and futex_wait compares the bell.
    own.sleepers.fetch_add(1);
    const std::uint32_t bell = own.doorbell.load();
    if (!ready()) sleep(own, bell, milliseconds);
    own.sleepers.fetch_sub(1);
  }

 private:
  static constexpr std::uint32_t kYields = 100;
  static void relax(bool yield);
  static void sleep(RankPage& own, std::uint32_t bell, int milliseconds);

  std::uint32_t spins_, round_ = 0;
  bool sleep_only_;
};

// Spins that suit `ranks` on this host: none where they outnumber the cores.
std::uint32_t suitable_spins(int ranks);

}  // namespace shoal::collectives
