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
    before_[i] = std::signal(kNumbers[i], on_stop_signal);
    // Keep a signal ignored if the parent ignored it (nohup, a shell's background job).
    if (before_[i] == SIG_IGN) std::signal(kNumbers[i], SIG_IGN);
  }
}

StopSignals::~StopSignals() {
  for (std::size_t i = 0; i < kNumbers.size(); ++i) std::signal(kNumbers[i], before_[i]);
}

}  // namespace shoal::command
