// As a library does that takes the signals while it is loaded. The one that SHOAL_TEST_SIGNAL names
// comes at that moment.
#include <csignal>
#include <cstdlib>

#include <unistd.h>

namespace {

extern "C" void leave(int) { ::_exit(1); }

[[gnu::constructor]] void take() {
  const char* const given = std::getenv("SHOAL_TEST_SIGNAL");
  if (given == nullptr) return;
  const int number = static_cast<int>(std::strtol(given, nullptr, 10));
  std::signal(number, leave);
  ::kill(::getpid(), number);
}

}  // namespace
