#include "shoal/sagemaker/container/rank.h"

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/terminal.h"

namespace shoal::sagemaker {
namespace {

constexpr const char* kTorchrunPort = "29500";
constexpr int kNotStarted = 127;  // the shell's status for a missing program

// Called in the child process; replaces it by the command.
[[noreturn]] void become(const std::vector<char*>& words, const Variables& variables, pid_t parent,
                         const sigset_t& mask) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(kNotStarted);  // the parent ended before prctl
  // mpirun signals this process's group, and SIGUSR1 would end the command.
  ::setpgid(0, 0);
  for (const auto& [name, value] : variables) ::setenv(name.c_str(), value.c_str(), 1);
  for (const int number : {SIGTERM, SIGINT, SIGUSR1, SIGPIPE}) std::signal(number, SIG_DFL);
  ::sigprocmask(SIG_SETMASK, &mask, nullptr);
  ::execvp(words[0], words.data());
  const std::string line =
      fmt::format("train: cannot start {}: {}\n", words[0], std::strerror(errno));
  static_cast<void>(::write(STDERR_FILENO, line.data(), line.size()));
  ::_exit(kNotStarted);
}

}  // namespace

Variables torchrun_variables(const VariableReader& variables) {
  Variables made;
  for (const auto& [name, from, otherwise] :
       {std::array{"RANK", "OMPI_COMM_WORLD_RANK", "0"},
        {"LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "0"},
        {"WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "1"},
        {"LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "1"}})
    made.emplace_back(name, variables(from).value_or(otherwise));
  // On several hosts mpirun passes MASTER_ADDR (launch.cc).
  if (!variables("MASTER_ADDR")) made.emplace_back("MASTER_ADDR", "127.0.0.1");
  if (!variables("MASTER_PORT")) made.emplace_back("MASTER_PORT", kTorchrunPort);
  return made;
}

int run_rank(const std::vector<std::string>& command, const VariableReader& variables) {
  const Variables torchrun = torchrun_variables(variables);
  std::vector<std::string> words = command;
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  sigset_t awaited, mask;
  ::sigemptyset(&awaited);
  for (const int number : {SIGTERM, SIGINT, SIGUSR1, SIGCHLD}) ::sigaddset(&awaited, number);
  std::signal(SIGCHLD, SIG_DFL);
  ::sigprocmask(SIG_BLOCK, &awaited, &mask);
  ::prctl(PR_SET_NAME, kRankName);
  const pid_t self = ::getpid();
  const pid_t child = ::fork();
  if (child < 0) throw_error(ErrorCode::unavailable, "fork: {}", std::strerror(errno));
  if (child == 0) become(arguments, torchrun, self, mask);
  int stopped_by = 0, status = 0;
  while (::waitpid(child, &status, WNOHANG) == 0) {
    int number = 0;
    if (::sigwait(&awaited, &number) != 0 || number == SIGCHLD) continue;
    // The container repeats SIGUSR1; the command's second SIGTERM could end it before it has saved.
    const bool is_repeated = number == SIGUSR1 && stopped_by == SIGUSR1;
    stopped_by = number;
    if (!is_repeated) ::kill(child, SIGTERM);
  }
  const int ended = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  if (stopped_by == SIGUSR1) {
    if (ended != 0 && ended != 128 + SIGTERM)
      terminal::print(stderr, "train: {} was stopped and ended with status {}\n", command.front(),
                      ended);
    return 0;
  }
  if (WIFSIGNALED(status) && stopped_by == 0)
    terminal::print(stderr, "train: {} was ended by signal {} ({})\n", command.front(),
                    WTERMSIG(status), ::strsignal(WTERMSIG(status)));
  return ended;
}

}  // namespace shoal::sagemaker
