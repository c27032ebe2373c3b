#include "shoal/runtime/base/kept_signals.h"

namespace shoal {

KeptSignals::KeptSignals() noexcept {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, &blocked_before_);
  for (int number = 1; number < NSIG; ++number) {
    Kept& kept = actions_[static_cast<std::size_t>(number)];
    kept.known = ::sigaction(number, nullptr, &kept.action) == 0;
  }
}

KeptSignals::~KeptSignals() {
  // Fails for SIGKILL and SIGSTOP, which have no handlers.
  for (int number = 1; number < NSIG; ++number)
    if (const Kept& kept = actions_[static_cast<std::size_t>(number)]; kept.known)
      ::sigaction(number, &kept.action, nullptr);
  pthread_sigmask(SIG_SETMASK, &blocked_before_, nullptr);
}

}  // namespace shoal
