#include "support/ranks.h"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <optional>
#include <thread>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shoal/runtime/base/error.h"

namespace shoal::test {
namespace {

double now() { return std::chrono::duration<double>(Clock::now().time_since_epoch()).count(); }

// libfabric reads settings from the environment, and the first rank to open it would set this
// variable (collectives/transport/fabric/datagrams.h) while other ranks read theirs. setenv() and
// getenv() must not run at once, so set the value for this many ranks in advance.
void set_environment(int size) {
  constexpr const char* kVariable = "FI_OFI_RXD_MAX_UNACKED";
  const int window = std::clamp(512 / std::max(1, size - 1), 1, 16);
  ::setenv(kVariable, std::to_string(window).c_str(), 0);  // NOLINT(concurrency-mt-unsafe)
}

std::vector<std::exception_ptr> run_threads(int size, const RankBody& body) {
  set_environment(size);
  const auto store = make_hash_store();
  std::vector<std::exception_ptr> problems(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank)
    threads.emplace_back([&, rank] {
      try {
        body(local_world(rank, size), *store);
      } catch (...) {
        problems[static_cast<std::size_t>(rank)] = std::current_exception();
      }
    });
  for (auto& thread : threads) thread.join();
  return problems;
}

[[noreturn]] void run_child(int rank, int size, const RankBody& body, const std::string& directory,
                            int error_pipe) {
  int status = 0;
  try {
    const auto store = make_file_store(directory, "test");
    body(local_world(rank, size), *store);
    if (::testing::Test::HasFailure()) throw Error(ErrorCode::internal, "an EXPECT failed");
  } catch (const std::exception& problem) {
    status = 1;
    const std::string text = problem.what();
    if (write(error_pipe, text.data(), std::min<std::size_t>(text.size(), 4000)) < 0) status = 2;
  }
  // exit() would also run the parent's test framework and sanitizer handlers.
  fflush(nullptr);
  _exit(status);
}

}  // namespace

World local_world(int rank, int size) {
  World world;
  world.rank = world.local_rank = rank;
  world.size = world.local_size = size;
  return world;
}

void run_thread_ranks(int size, const RankBody& body) {
  for (const auto& problem : run_threads(size, body))
    if (problem) std::rethrow_exception(problem);
}

std::vector<std::string> thread_rank_errors(int size, const RankBody& body) {
  std::vector<std::string> texts;
  for (const auto& problem : run_threads(size, body)) {
    texts.emplace_back();
    if (!problem) continue;
    try {
      std::rethrow_exception(problem);
    } catch (const std::exception& error) {
      texts.back() = error.what();
    }
  }
  return texts;
}

ProcessRanks::ProcessRanks(int size, const RankBody& body) : started_(now()) {
  std::string pattern = (std::filesystem::temp_directory_path() / "shoal-ranks-XXXXXX").string();
  if (!mkdtemp(pattern.data())) throw_error(ErrorCode::io, "mkdtemp {}", pattern);
  directory_ = pattern;
  fflush(nullptr);
  for (int rank = 0; rank < size; ++rank) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) throw_error(ErrorCode::io, "pipe");
    const pid_t pid = fork();
    if (pid == 0) {
      // A rank must end with the test, however the test ends. It must also not hold the other
      // ranks' pipes open.
      for (const Child& child : children_) close(child.error_pipe);
      close(ends[0]);
      run_child(rank, size, body, directory_, ends[1]);
    }
    close(ends[1]);
    children_.push_back({pid, ends[0]});
  }
}

ProcessRanks::~ProcessRanks() {
  for (const Child& child : children_) {
    if (child.pid > 0) {
      kill(child.pid, SIGKILL);
      waitpid(child.pid, nullptr, 0);
    }
    close(child.error_pipe);
  }
  std::error_code ignored;
  std::filesystem::remove_all(directory_, ignored);
}

void ProcessRanks::send_signal(int rank, int signal) {
  kill(children_[static_cast<std::size_t>(rank)].pid, signal);
}

void ProcessRanks::say_ready(Store& store) { store.add("test/ready", 1); }

bool ProcessRanks::wait_until_ready(double seconds, int ranks) {
  const auto store = make_file_store(directory_, "test");
  const double end = now() + seconds;
  while (now() < end) {
    const auto count = store->try_get("test/ready");
    if (count && std::stoi(*count) >= ranks) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return false;
}

std::vector<RankOutcome> ProcessRanks::wait(double seconds) {
  const double end = now() + seconds;
  std::vector<RankOutcome> outcomes(children_.size());
  std::size_t left = 0;
  for (const Child& child : children_) left += child.pid > 0;
  while (left > 0) {
    const bool late = now() > end;
    for (std::size_t rank = 0; rank < children_.size(); ++rank) {
      Child& child = children_[rank];
      if (child.pid <= 0) continue;
      if (late) {
        outcomes[rank].running = true;
        kill(child.pid, SIGKILL);
      }
      int status = 0;
      if (waitpid(child.pid, &status, late ? 0 : WNOHANG) != child.pid) continue;
      child.pid = -1;
      --left;
      outcomes[rank].seconds = now() - started_;
      if (WIFEXITED(status)) outcomes[rank].exit_status = WEXITSTATUS(status);
      if (WIFSIGNALED(status)) outcomes[rank].signal = WTERMSIG(status);
      char text[4096];
      const ssize_t length = read(child.error_pipe, text, sizeof text);
      if (length > 0) outcomes[rank].error.assign(text, static_cast<std::size_t>(length));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return outcomes;
}

}  // namespace shoal::test
