#include "support/simulation/seeds.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <sstream>

#include <fmt/format.h>
#include <malloc.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

namespace shoal::simulation {
namespace {

constexpr std::uint64_t kBatch = 64;  // seeds of a child

// A child that plays a batch and reports each seed in a line.
struct Child {
  pid_t process = -1;
  int output = -1;
  std::uint64_t next = 0, end = 0;  // the seed that it plays
  std::string text;
};

void say(int to, const std::string& line) {
  for (std::size_t sent = 0; sent < line.size();) {
    const ssize_t count = ::write(to, line.data() + sent, line.size() - sent);
    if (count <= 0) ::_exit(2);
    sent += static_cast<std::size_t>(count);
  }
}

[[noreturn]] void play_batch(std::uint64_t seed, std::uint64_t end, int to) {
  // Keeps memory: ranks take megabytes of buffers, and to map them anew costs more than the job.
  ::mallopt(M_MMAP_THRESHOLD, 1 << 30);
  ::mallopt(M_TRIM_THRESHOLD, 1 << 30);
  for (; seed < end; ++seed) {
    const Report report = play(plan_of(seed));
    std::string failure = report.verdict.empty() ? "" : describe(report);
    std::ranges::replace(failure, '\n', '\r');
    say(to, fmt::format("{} {} {} {}\n", seed, report.hash, report.steps, failure));
  }
  ::_exit(0);
}

Child start(std::uint64_t seed, std::uint64_t end) {
  int ends[2] = {-1, -1};
  Child child;
  child.next = seed;
  child.end = end;
  if (::pipe(ends) != 0) return child;
  child.process = ::fork();
  if (child.process == 0) {
    ::close(ends[0]);
    play_batch(seed, end, ends[1]);
  }
  ::close(ends[1]);
  child.output = ends[0];
  return child;
}

// Returns false at the end of the child's output.
bool read_lines(Child& child, std::vector<SeedResult>& results) {
  char block[4096];
  const ssize_t count = ::read(child.output, block, sizeof block);
  if (count <= 0) return false;
  child.text.append(block, static_cast<std::size_t>(count));
  for (std::size_t end = 0; (end = child.text.find('\n')) != child.text.npos;) {
    std::istringstream line(child.text.substr(0, end));
    child.text.erase(0, end + 1);
    SeedResult result;
    line >> result.seed >> result.hash >> result.steps;
    line.get();
    std::getline(line, result.failure);
    std::ranges::replace(result.failure, '\r', '\n');
    child.next = result.seed + 1;
    results.push_back(std::move(result));
  }
  return true;
}

void finish(Child& child, std::vector<SeedResult>& results) {
  ::close(child.output);
  int status = 0;
  (void)::waitpid(child.process, &status, 0);
  if (child.next == child.end) return;
  SeedResult crashed;
  crashed.seed = child.next++;
  crashed.failure = fmt::format("{}\n  ended the simulation: {}", describe(plan_of(crashed.seed)),
                                WIFSIGNALED(status) ? ::strsignal(WTERMSIG(status)) : "it exited");
  results.push_back(std::move(crashed));
}

}  // namespace

std::vector<SeedResult> play_seeds(std::uint64_t first, std::uint64_t count, int jobs) {
  std::vector<SeedResult> results;
  std::vector<Child> children;
  const std::uint64_t end = first + count;
  for (std::uint64_t next = first; next < end || !children.empty();) {
    while (next < end && static_cast<int>(children.size()) < jobs) {
      const std::uint64_t last = std::min(next + kBatch, end);
      children.push_back(start(next, last));
      next = last;
    }
    std::vector<pollfd> entries;
    for (const Child& child : children) entries.push_back({child.output, POLLIN, 0});
    if (::poll(entries.data(), entries.size(), -1) < 0) continue;
    for (std::size_t i = children.size(); i-- > 0;) {
      if (entries[i].revents == 0 || read_lines(children[i], results)) continue;
      finish(children[i], results);
      const Child rest = children[i];
      children.erase(children.begin() + static_cast<std::ptrdiff_t>(i));
      if (rest.next < rest.end) children.push_back(start(rest.next, rest.end));
    }
  }
  std::ranges::sort(results, {}, &SeedResult::seed);
  return results;
}

}  // namespace shoal::simulation
