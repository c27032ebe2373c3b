#include "shoal/train/command/stop_signals.h"

#include <cstddef>

#include <unistd.h>

namespace shoal::command {

std::atomic<int> stop_signal{0};

namespace {

extern "C" void on_stop_signal(int number) { stop_signal = number; }

}  // namespace

StopSignals::StopSignals() {
  for (std::size_t i = 0; i < kNumbers.size(); ++i) {
    ::sigaction(kNumbers[i], nullptr, &before_[i]);
    // The parent (nohup, a shell's background job) may have set this signal to be ignored.
    if (before_[i].sa_handler == SIG_IGN) continue;
    struct sigaction action{};
    action.sa_handler = on_stop_signal;
    // A second signal ends the process at once, except SIGUSR1, which the container repeats. The
    // kernel resets the action: a handler that did so could undo what ~StopSignals() restores.
    action.sa_flags = SA_RESTART | (kNumbers[i] == SIGUSR1 ? 0 : SA_RESETHAND);
    ::sigaction(kNumbers[i], &action, nullptr);
  }
}

StopSignals::~StopSignals() {
  // sigaction() restores the flags too: Python's handlers interrupt system calls.
  for (std::size_t i = 0; i < kNumbers.size(); ++i) ::sigaction(kNumbers[i], &before_[i], nullptr);
}

void StopSignals::ignore_repeats() {
  for (std::size_t i = 0; i < kNumbers.size(); ++i)
    if (kNumbers[i] == SIGUSR1) before_[i].sa_handler = SIG_IGN;
}

void end_by(int signal) {
  std::signal(signal, SIG_DFL);
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, signal);
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);  // SignalThread blocks it
  std::raise(signal);
  for (;;) ::pause();
}

}  // namespace shoal::command
