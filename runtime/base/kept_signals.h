// Keeps the process's signal handlers while a library is loaded.
//
// Debian's libfabric, and the plugins that MPI_Init loads, bring libinfinipath. That library
// handles SIGINT, SIGTERM and crash signals: it exits with status 1 without a message, and destroys
// data that threads still use.
#pragma once

#include <array>
#include <csignal>

namespace shoal {

// The destructor restores every handler that the constructor found. Between them, this thread
// receives no signal that can be blocked; another thread may.
//
//   void* library = [&] { const KeptSignals kept; return ::dlopen(name, RTLD_NOW); }();
class KeptSignals {
 public:
  KeptSignals() noexcept;
  ~KeptSignals();
  KeptSignals(const KeptSignals&) = delete;
  KeptSignals& operator=(const KeptSignals&) = delete;

 private:
  struct Kept {
    struct sigaction action;
    bool known;  // the kernel has such a signal, and the C library does not reserve it
  };
  std::array<Kept, NSIG> actions_{};
  sigset_t blocked_before_{};
};

}  // namespace shoal
