#include "shoal/runtime/io/mapped_faults.h"

#include <array>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <string_view>

#include <unistd.h>

#include "shoal/runtime/io/mapped_files.h"

namespace shoal {
namespace {

bool is_control(char one) { return static_cast<unsigned char>(one) < 0x20 || one == '\x7f'; }

// A line of output without allocation, since a signal handler may call write(2) but must not
// allocate.
class Line {
 public:
  void add(std::string_view text) {
    for (const char one : text)
      if (length_ < text_.size() - 1) text_[length_++] = is_control(one) ? '?' : one;
  }
  void print() {
    text_[length_++] = '\n';
    (void)!::write(STDERR_FILENO, text_.data(), length_);
  }

 private:
  std::array<char, 2048> text_{};
  std::size_t length_ = 0;
};

extern "C" void on_bus_error(int, siginfo_t* what, void*) {
  Line line;
  const char* const path = path_of_mapped(what->si_addr);
  if (path == nullptr) {  // the access repeats when the handler returns, and then ends the program
    std::signal(SIGBUS, SIG_DFL);
    return;
  }
  line.add("shoal: cannot read ");
  line.add(path);
  line.add(
      " any more (bus error): it was cut short while it was in use, or its disk fails; do not "
      "change files that a run reads");
  line.print();
  ::_exit(1);
}

}  // namespace

void name_files_that_bus_errors_hit() noexcept {
  struct sigaction action{};
  action.sa_sigaction = on_bus_error;
  action.sa_flags = SA_SIGINFO;
  sigemptyset(&action.sa_mask);
  ::sigaction(SIGBUS, &action, nullptr);
}

}  // namespace shoal
