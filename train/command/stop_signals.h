// Signals that ask a training run to save a checkpoint and to stop.
#pragma once

#include <array>
#include <atomic>
#include <csignal>

namespace shoal::command {

// The signal that asked this process to stop; 0: none. Written by the handler of StopSignals.
extern std::atomic<int> stop_signal;

// During its lifetime, these signals ask the Trainer to save and stop. Before and after, when
// nothing can be lost, they end the program. mpirun forwards SIGUSR1 without killing ranks, and
// SLURM can send it before its time limit.
class StopSignals {
 public:
  static constexpr std::array kNumbers = {SIGINT, SIGTERM, SIGUSR1};

  StopSignals();
  ~StopSignals();  // restores the previous action of each signal
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  // For a program that a signal has stopped and that ends now: later SIGUSR1s have no effect. The
  // container repeats them until the program has ended.
  void ignore_repeats();

 private:
  std::array<struct sigaction, kNumbers.size()> before_{};
};

// Ends the process as this signal does without a handler. No StopSignals may exist.
[[noreturn]] void end_by(int signal);

}  // namespace shoal::command
