#include "shoal/train/command/stop_signals.h"

#include <cstddef>

namespace shoal::command {

std::atomic<int> stop_signal{0};

namespace {

extern "C" void on_stop_signal(int number) {
  stop_signal = number;
  std::signal(number, SIG_DFL);  // a second signal ends the process at once
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
  // With its flags: Python's handlers interrupt system calls.
  for (std::size_t i = 0; i < kNumbers.size(); ++i) ::sigaction(kNumbers[i], &before_[i], nullptr);
}

}  // namespace shoal::command
