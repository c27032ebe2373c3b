// Installs signal handlers when loaded, as some libraries do. The signal named by SHOAL_TEST_SIGNAL
// is raised at that moment.
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
