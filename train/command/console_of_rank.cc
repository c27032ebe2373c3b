#include "shoal/train/command/console_of_rank.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <optional>
#include <string_view>

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include "shoal/runtime/base/terminal.h"

namespace shoal::command {
namespace {

// The mpirun that started this rank, if it runs on this host.
std::optional<pid_t> own_mpirun(const World& world) {
  if (world.launcher != Launcher::open_mpi) return std::nullopt;
  std::string name;
  std::getline(std::ifstream(fmt::format("/proc/{}/comm", ::getppid())) >> std::ws, name);
  const bool is_mpirun = name == "mpirun" || name == "orterun" || name == "mpiexec";
  return is_mpirun ? std::optional(::getppid()) : std::nullopt;
}

}  // namespace

// On Ctrl-C, mpirun sends SIGTERM and one second later SIGKILL.
// (odls_base_sigkill_timeout would lengthen that second, but delays SIGTERM by as much.)
std::string how_to_stop(const World& world) {
  if (world.launcher != Launcher::open_mpi) return {};
  const auto mpirun = own_mpirun(world);
  return fmt::format(
      "to stop early: kill -USR1 {} saves a checkpoint first; after Ctrl-C mpirun grants 1 s",
      mpirun ? std::to_string(*mpirun) : "PID_OF_MPIRUN");
}

ConsoleCallback::Options console_options(const World& world, bool quiet) {
  ConsoleCallback::Options options{.out = stdout, .plain_progress = !quiet};
  if (quiet) return options;
  if (const auto mpirun = own_mpirun(world)) {
    const std::string path = fmt::format("/proc/{}/fd/1", *mpirun);
    // May fail: mpirun may belong to another user.
    std::array<char, 64> target{};
    const ssize_t length = ::readlink(path.c_str(), target.data(), target.size());
    const std::string_view behind(target.data(),
                                  static_cast<std::size_t>(std::max<ssize_t>(length, 0)));
    if (!behind.starts_with("/dev/pts/") && !behind.starts_with("/dev/tty")) return options;
    const int terminal = ::open(path.c_str(), O_RDONLY | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
    if (terminal < 0) return options;
    options.columns = terminal_width(terminal);
    ::close(terminal);
    if (options.columns > 0) options.bar = stdout;
  } else if (terminal_width(stderr) > 0) {
    options.bar = stderr;
  }
  return options;
}

}  // namespace shoal::command
