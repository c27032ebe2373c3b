#include "apps/program.h"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <thread>
#include <utility>

#include "support/temporary_directory.h"
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

namespace shoal::test {
namespace {

struct Running {
  // A session directory for Open MPI. By default all of a user's mpiruns share one. An mpirun that
  // starts while another removes it fails ("A call to mkdir ... File exists").
  std::unique_ptr<testing::TemporaryDirectory> sessions;
  pid_t pid = -1;
  int out = -1, err = -1;
  ProgramResult result;
  bool ended = false, signalled = false;
  std::chrono::steady_clock::time_point began = std::chrono::steady_clock::now();
};

[[noreturn]] void become(const std::vector<std::string>& words, const ProgramOptions& options,
                         const std::vector<std::string>& environment, const std::string& sessions,
                         int out, int err) {
  ::dup2(out, STDOUT_FILENO);
  ::dup2(err, STDERR_FILENO);
  ::close(out);
  ::close(err);
  if (!options.directory.empty() && ::chdir(options.directory.c_str()) != 0) ::_exit(126);
  ::setenv("OMPI_MCA_orte_tmpdir_base", sessions.c_str(), 0);
  for (const auto* list : {&options.environment, &environment})
    for (const std::string& entry : *list) {
      const auto equals = entry.find('=');
      ::setenv(entry.substr(0, equals).c_str(), entry.substr(equals + 1).c_str(), 1);
    }
  if (options.file_size_limit > 0) {
    const rlimit limit{static_cast<rlim_t>(options.file_size_limit),
                       static_cast<rlim_t>(options.file_size_limit)};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  if (rlimit limit{}; options.core_files && ::getrlimit(RLIMIT_CORE, &limit) == 0) {
    limit.rlim_cur = limit.rlim_max;
    ::setrlimit(RLIMIT_CORE, &limit);
  }
  std::vector<char*> arguments;
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  ::execvp(arguments[0], arguments.data());
  ::_exit(127);
}

Running start(const std::vector<std::string>& words, const ProgramOptions& options,
              const std::vector<std::string>& environment) {
  int out[2], err[2];
  if (::pipe2(out, O_CLOEXEC) != 0 || ::pipe2(err, O_CLOEXEC) != 0)
    throw std::runtime_error(std::strerror(errno));
  auto sessions = std::make_unique<testing::TemporaryDirectory>();
  const std::string at = sessions->path();
  const pid_t pid = ::fork();
  if (pid < 0) throw std::runtime_error(std::strerror(errno));
  if (pid == 0) become(words, options, environment, at, out[1], err[1]);
  ::close(out[1]);
  ::close(err[1]);
  ::fcntl(out[0], F_SETFL, O_NONBLOCK);
  ::fcntl(err[0], F_SETFL, O_NONBLOCK);
  Running running;
  running.sessions = std::move(sessions);
  running.pid = running.result.pid = pid;
  running.out = out[0];
  running.err = err[0];
  return running;
}

void drain(int descriptor, std::string& text) {
  char block[4096];
  for (ssize_t got; (got = ::read(descriptor, block, sizeof block)) > 0;)
    text.append(block, static_cast<std::size_t>(got));
}

void poll(Running& running, const ProgramOptions& options, bool may_be_signalled) {
  if (running.ended) return;
  int status = 0;
  running.ended = ::waitpid(running.pid, &status, WNOHANG) == running.pid;
  drain(running.out, running.result.out);
  drain(running.err, running.result.err);
  const std::chrono::duration<double> lives = std::chrono::steady_clock::now() - running.began;
  const bool said = !options.signal_when_out_has.empty() &&
                    running.result.out.find(options.signal_when_out_has) != std::string::npos;
  const bool due = (options.signal_after > 0 && lives.count() >= options.signal_after) ||
                   (options.signal_when && options.signal_when());
  if (may_be_signalled && !running.ended && !running.signalled && (said || due)) {
    ::kill(running.pid, options.signal);
    running.signalled = true;
    running.result.signalled = lives.count();
  }
  if (!running.ended) return;
  running.result.ended = lives.count();
  if (WIFEXITED(status)) running.result.status = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) {
    running.result.signal = WTERMSIG(status);
    running.result.left_core = WCOREDUMP(status);
  }
  ::close(running.out);
  ::close(running.err);
}

}  // namespace

std::vector<ProgramResult> run_programs(const std::vector<std::string>& words,
                                        const std::vector<std::vector<std::string>>& environments,
                                        const ProgramOptions& options) {
  std::vector<Running> all;
  for (const auto& environment : environments) all.push_back(start(words, options, environment));
  const auto limit =
      std::chrono::steady_clock::now() + std::chrono::duration<double>(options.seconds);
  for (bool any = true; any;) {
    any = false;
    const bool late = std::chrono::steady_clock::now() > limit;
    const auto others = std::ranges::count_if(
        all, [](const Running& running) { return !running.ended && !running.signalled; });
    for (Running& running : all) {
      const bool alone = options.signal_only >= 0 && running.signalled && others == 0;
      if ((late || alone) && !running.ended) ::kill(running.pid, SIGKILL);
      poll(running, options,
           options.signal_only < 0 ||
               &running == &all[static_cast<std::size_t>(options.signal_only)]);
      any = any || !running.ended;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  std::vector<ProgramResult> results;
  for (Running& running : all) results.push_back(std::move(running.result));
  return results;
}

ProgramResult run_program(const std::vector<std::string>& words, const ProgramOptions& options) {
  return run_programs(words, {{}}, options).front();
}

}  // namespace shoal::test
