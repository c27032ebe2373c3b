// How a thread waits for another rank: it spins briefly, then yields the core, then sleeps until
// woken (futex(2)). So a wait costs little, and ranks may outnumber cores.
#pragma once

#include <cstdint>
#include <span>

#include "shoal/collectives/transport/control.h"

namespace shoal::collectives::transport {

// Publishing is frequent and sleeping is rare. So the sleeper, not the publisher, executes the
// fence that keeps it from missing a publication: membarrier(2) makes every running thread of every
// registered process execute a fence. Returns true once this process is registered. False if the
// kernel or a container's filter refuses; publishers must then fence themselves.
bool register_for_fences();
void fence_all_ranks();

// Wakes the sleeping threads of the page's rank, if there are any. Call it after storing the
// awaited data, with a sequentially consistent fence between unless sleepers fence all ranks.
void wake(RankPage& page);
void wake_always(RankPage& page);

// A pause between two polls, which leaves more of the core to its other hardware thread.
inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// How one thread waits: successive pauses spin, then yield, then sleep. Call reset() after
// progress.
class Backoff {
 public:
  // `spins`: polls before yielding. `fence_all`: publishers do not fence, so sleepers must.
  // `sleep_only`: for a thread that must never occupy a core while waiting.
  Backoff(std::uint32_t spins, bool fence_all, bool sleep_only = false)
      : spins_(spins), fence_all_(fence_all), sleep_only_(sleep_only) {}
  void reset() { round_ = 0; }
  bool sleeping() const { return sleep_only_ || round_ >= spins_ + kYields; }

  // Pauses once, for at most `milliseconds` if it sleeps. ready() tells whether the wait is over.
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
    // Announces the sleep, reads the bell, then polls once more. ready() sees a word that was
    // stored before the announcement. A rank that stores one later rings the bell, and futex_wait
    // then returns at once.
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

// Writes the cores that this rank may run on, and its CPU quota, into its page.
void publish_cores(RankPage& own);
// Number of cores that these ranks may use together; fewer if the quotas of all their control
// groups allow less. At least 1.
int cores_of(std::span<const RankPage* const> pages);

// Polls before yielding (Backoff) for `ranks` ranks on `cores` cores: 0 if ranks outnumber cores.
std::uint32_t suitable_spins(int ranks, int cores);
std::uint32_t suitable_spins(int ranks);  // on the cores that this rank may use

}  // namespace shoal::collectives::transport
