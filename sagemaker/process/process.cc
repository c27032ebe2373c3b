#include "shoal/sagemaker/process/process.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <sstream>
#include <string_view>
#include <system_error>

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shoal/runtime/base/clock.h"
#include "shoal/runtime/base/deadlines.h"
#include "shoal/runtime/base/error.h"

extern char** environ;

namespace shoal::sagemaker {
namespace {

constexpr std::size_t kKeptError = 64 << 10;
constexpr int kPollMilliseconds = 20;

// This process's variables, overridden by `changes`.
std::vector<std::string> merged_environment(const std::vector<std::string>& changes) {
  std::map<std::string, std::string, std::less<>> all;
  const auto put = [&all](std::string_view entry) {
    const auto equals = entry.find('=');
    if (equals != entry.npos)
      all[std::string(entry.substr(0, equals))] = std::string(entry.substr(equals + 1));
  };
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) put(*entry);
  for (const std::string& entry : changes) put(entry);
  std::vector<std::string> lines;
  lines.reserve(all.size());
  for (const auto& [name, value] : all) lines.push_back(name + "=" + value);
  return lines;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> all;
  for (std::string& text : texts) all.push_back(text.data());
  all.push_back(nullptr);
  return all;
}

struct Pipe {
  Pipe() {
    if (::pipe2(ends.data(), O_CLOEXEC) != 0)
      throw_error(ErrorCode::io, "pipe: {}", std::generic_category().message(errno));
  }
  ~Pipe() {
    close_end(0);
    close_end(1);
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  void close_end(std::size_t which) {
    if (ends[which] >= 0) ::close(ends[which]);
    ends[which] = -1;
  }
  std::array<int, 2> ends{-1, -1};
};

pid_t start(std::vector<std::string> words, const ProcessOptions& options, int error_end) {
  std::vector<std::string> environment = merged_environment(options.environment);
  const std::vector<char*> arguments = pointers(words), variables = pointers(environment);
  posix_spawn_file_actions_t files;
  ::posix_spawn_file_actions_init(&files);
  ::posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  if (!options.output.empty())
    ::posix_spawn_file_actions_addopen(&files, STDOUT_FILENO, options.output.c_str(),
                                       O_WRONLY | O_CREAT | O_TRUNC, 0666);
  ::posix_spawn_file_actions_adddup2(&files, error_end, STDERR_FILENO);
  if (!options.directory.empty())
    ::posix_spawn_file_actions_addchdir_np(&files, options.directory.c_str());
  posix_spawnattr_t attributes;
  ::posix_spawnattr_init(&attributes);
  ::posix_spawnattr_setpgroup(&attributes, 0);
  // The child does not inherit signals that this process ignores or blocks.
  sigset_t defaults, nothing;
  ::sigemptyset(&nothing);
  ::sigemptyset(&defaults);
  for (const int number : {SIGTERM, SIGINT, SIGUSR1, SIGPIPE, SIGXFSZ, SIGCHLD})
    ::sigaddset(&defaults, number);
  ::posix_spawnattr_setsigdefault(&attributes, &defaults);
  ::posix_spawnattr_setsigmask(&attributes, &nothing);
  ::posix_spawnattr_setflags(
      &attributes,
      static_cast<short>(POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK));
  pid_t child = -1;
  const int failed =
      ::posix_spawnp(&child, arguments[0], &files, &attributes, arguments.data(), variables.data());
  ::posix_spawn_file_actions_destroy(&files);
  ::posix_spawnattr_destroy(&attributes);
  if (failed != 0)
    throw Error(
        ErrorCode::unavailable,
        fmt::format("cannot start {}: {}", words[0], std::generic_category().message(failed)),
        failed == ENOENT  ? fmt::format("install {}, or put it in PATH", words[0])
        : failed == E2BIG ? "its words and variables are longer than the system allows; put long "
                            "hyperparameters into the run's file"
                          : std::string());
  return child;
}

void keep(std::string& text, std::string_view more) {
  text += more;
  if (text.size() > 2 * kKeptError) text.erase(0, text.size() - kKeptError);
}

void pass_on(std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;  // the reader has closed its end
    text.remove_prefix(static_cast<std::size_t>(written));
  }
}

// Reads available output, waiting briefly. Returns false at the end of the pipe.
bool read_some(int end, const ProcessOptions& options, std::string& error) {
  pollfd watched{end, POLLIN, 0};
  if (::poll(&watched, 1, kPollMilliseconds) <= 0) return true;
  std::array<char, 16384> block{};
  const ssize_t got = ::read(end, block.data(), block.size());
  if (got < 0) return errno == EINTR || errno == EAGAIN;
  const std::string_view text(block.data(), static_cast<std::size_t>(got));
  keep(error, text);
  if (options.passes_on_errors) pass_on(text);
  return got > 0;
}

}  // namespace

ProcessResult run_process(const std::vector<std::string>& words, const ProcessOptions& options) {
  Pipe errors;
  const pid_t child = start(words, options, errors.ends[1]);
  errors.close_end(1);
  ProcessResult result;
  Deadline grace = Deadline::never(), again = Deadline::never();
  bool is_open = true;
  int status = 0, stop_with = 0;
  for (bool ended = false; !ended;) {
    if (is_open)
      is_open = read_some(errors.ends[0], options, result.error);
    else
      ::poll(nullptr, 0, kPollMilliseconds);
    const pid_t waited = ::waitpid(child, &status, WNOHANG);
    if (waited < 0 && errno == ECHILD)
      throw Error(ErrorCode::unavailable,
                  fmt::format("{} has ended, and its exit status is lost", words[0]),
                  "the program that starts this one must not ignore SIGCHLD");
    ended = waited == child;
    const bool is_ending = ended || result.was_stopped || result.was_given_up;
    if (!is_ending && options.stop != nullptr && *options.stop != 0) {
      result.was_stopped = true;
      grace = Deadline::in_seconds(options.grace_seconds);
      stop_with = options.choose_stop ? options.choose_stop() : options.stop_with;
      ::kill(child, stop_with);
      again = Deadline::in_seconds(options.repeat_seconds);
    }
    if (!ended && result.was_stopped && stop_with == SIGUSR1 && again.passed()) {
      ::kill(child, stop_with);
      again = Deadline::in_seconds(options.repeat_seconds);
    }
    if (!is_ending && !result.was_stopped && options.gives_up && options.gives_up()) {
      result.was_given_up = true;
      grace = Deadline::in_seconds(deadlines::kGivenUp);
      ::kill(child, SIGTERM);
    }
    if (!ended && grace.passed()) {
      result.was_killed = true;
      ::kill(-child, SIGKILL);
    }
  }
  // Reads the rest of the pipe, without waiting for its end: a grandchild may keep it open.
  while (is_open) {
    pollfd watched{errors.ends[0], POLLIN, 0};
    if (::poll(&watched, 1, 0) <= 0) break;
    is_open = read_some(errors.ends[0], options, result.error);
  }
  if (result.error.size() > kKeptError) result.error.erase(0, result.error.size() - kKeptError);
  result.was_stopped = result.was_stopped || (options.stop != nullptr && *options.stop != 0);
  result.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return result;
}

bool is_program(const std::string& name) {
  if (name.find('/') != name.npos) return ::access(name.c_str(), X_OK) == 0;
  const char* path = std::getenv("PATH");
  std::istringstream folders(path != nullptr ? path : "");
  for (std::string folder; std::getline(folders, folder, ':');)
    if (::access((folder + "/" + name).c_str(), X_OK) == 0) return true;
  return false;
}

}  // namespace shoal::sagemaker
