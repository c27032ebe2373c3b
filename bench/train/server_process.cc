#include "server_process.h"

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <ctime>

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shoal/runtime/base/error.h"

namespace shoal::bench {

ServerProcess::ServerProcess(std::string name, const std::vector<std::string>& command)
    : name_(std::move(name)) {
  int to[2], from[2];
  if (pipe2(to, O_CLOEXEC) != 0 || pipe2(from, O_CLOEXEC) != 0)
    throw_error(ErrorCode::io, "{}: no pipe: {}", name_, std::strerror(errno));
  std::vector<char*> arguments;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  pid_ = fork();
  if (pid_ < 0) throw_error(ErrorCode::io, "{}: no process: {}", name_, std::strerror(errno));
  if (pid_ == 0) {
    dup2(to[0], STDIN_FILENO);
    dup2(from[1], STDOUT_FILENO);
    execvp(arguments[0], arguments.data());
    std::_Exit(127);
  }
  close(to[0]);
  close(from[1]);
  input_ = fdopen(to[1], "w");
  output_ = fdopen(from[0], "r");
}

ServerProcess::~ServerProcess() {
  std::fclose(input_);  // the server exits at end of input
  for (int i = 0; i < 200; ++i) {
    if (waitpid(pid_, nullptr, WNOHANG) != 0) {
      std::fclose(output_);
      return;
    }
    const timespec pause{0, 100'000'000};
    nanosleep(&pause, nullptr);
  }
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
  std::fclose(output_);
}

nlohmann::ordered_json ServerProcess::answer() {
  char* line = nullptr;
  std::size_t capacity = 0;
  const ssize_t length = getline(&line, &capacity, output_);
  const std::string text = length > 0 ? std::string(line, static_cast<std::size_t>(length)) : "";
  std::free(line);
  if (length <= 0)
    throw Error(ErrorCode::unavailable, fmt::format("{} has ended without an answer", name_),
                "its own message is above");
  return nlohmann::ordered_json::parse(text);
}

nlohmann::ordered_json ServerProcess::round() {
  std::fputs("round\n", input_);
  std::fflush(input_);
  return answer();
}

}  // namespace shoal::bench
