#include "shoal/train/command/stop_signals.h"

#include <cstddef>

namespace shoal::command {

std::atomic<int> stop_signal{0};

namespace {

extern "C" void on_stop_signal(int number) {
  stop_signal = number;
  // A second signal ends the process at once. The container repeats SIGUSR1.
  if (number != SIGUSR1) std::signal(number, SIG_DFL);
}

}  // namespace

StopSignals::StopSignals() {
  for (std::size_t i = 0; i < kNumbers.size(); ++i) {
    ::sigaction(kNumbers[i], nullptr, &before_[i]);
    // The parent (nohup, a shell's background job) may have it ignored.
    if (before_[i].sa_handler != SIG_IGN) std::signal(kNumbers[i], on_stop_signal);
  }
}

StopSignals::~StopSignals() {
  for (std::size_t i = 0; i < kNumbers.size(); ++i) {
    // The container repeats SIGUSR1 until the program has ended.
    if (kNumbers[i] == SIGUSR1 && stop_signal == SIGUSR1 && before_[i].sa_handler == SIG_DFL)
      before_[i].sa_handler = SIG_IGN;
    // With its flags: Python's handlers interrupt system calls.
    ::sigaction(kNumbers[i], &before_[i], nullptr);
  }
}

}  // namespace shoal::command
