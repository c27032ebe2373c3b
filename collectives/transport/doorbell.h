// Waiting for another rank's word: spin briefly, then yield the core, then sleep until somebody
// rings (futex(2)), so that a wait costs little and ranks may outnumber cores.
#pragma once

#include <cstdint>

#include "shoal/collectives/transport/control.h"

namespace shoal::collectives::transport {

// Publishing is frequent and sleeping is rare, so the fence that keeps a sleeper from missing what
// was just published belongs to the sleeper: membarrier(2) makes every running thread of every
// registered process pass a fence. True once this process is registered; false where the kernel or
// a container's filter refuses, and then publishers fence themselves.
bool register_for_fences();
void fence_all_ranks();

// Wakes the threads of that rank that sleep, if any do. Call after storing what they wait for, and
// after a sequentially consistent fence unless sleepers fence all ranks.
void wake(RankPage& page);
void wake_always(RankPage& page);

// Between two looks at a word: leaves the core's other thread, if it has one, more of it.
inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// How one thread waits; escalates from call to call. reset() after progress.
class Backoff {
 public:
  // `spins`: polls before yielding. `fence_all`: publishers do not fence, so sleepers must. A
  // thread that must never burn a core passes `sleep_only`.
  Backoff(std::uint32_t spins, bool fence_all, bool sleep_only = false)
      : spins_(spins), fence_all_(fence_all), sleep_only_(sleep_only) {}
  void reset() { round_ = 0; }
  bool sleeping() const { return sleep_only_ || round_ >= spins_ + kYields; }

  // One pause; returns at the latest after `milliseconds`. ready() says whether waiting is over.
  template <typename Ready>
  void pause(RankPage& own, int milliseconds, Ready&& ready) {
    if (!sleeping()) {
      ++round_;
      if (round_ > spins_)
        yield();
      else
        relax();
      return;
    }
    // Announce the sleep, remember the bell, look once more: a word stored before the announcement
    // is seen by ready(), one stored after it rings, and futex_wait compares the bell.
    own.sleepers.fetch_add(1);
    if (fence_all_) fence_all_ranks();
    const std::uint32_t bell = own.doorbell.load();
    if (!ready()) sleep(own, bell, milliseconds);
    own.sleepers.fetch_sub(1);
  }

 private:
  static constexpr std::uint32_t kYields = 100;
  static void yield();
  static void sleep(RankPage& own, std::uint32_t bell, int milliseconds);

  std::uint32_t spins_, round_ = 0;
  bool fence_all_, sleep_only_;
};

// Spins that suit `ranks` that share `cores`: none where they outnumber them.
std::uint32_t suitable_spins(int ranks, int cores);
std::uint32_t suitable_spins(int ranks);  // on the cores that this rank may use

}  // namespace shoal::collectives::transport
