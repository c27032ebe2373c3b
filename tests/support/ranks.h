// Ranks for multi-rank tests: as threads of this process, or as forked processes that can be
// killed. Both carry a World and a Store of their own kind and never outlive the test.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <sys/types.h>

#include "shoal/runtime/rendezvous/store.h"
#include "shoal/runtime/rendezvous/world.h"

namespace shoal::test {

using RankBody = std::function<void(const World& world, Store& store)>;

// Runs `body` on `size` threads over one hash store; returns when all have ended, then rethrows
// what the lowest failing rank threw. A rank's failed EXPECTs count for the test.
void run_thread_ranks(int size, const RankBody& body);
// The same, but hands each rank's Error text back ("" where the rank returned).
std::vector<std::string> thread_rank_errors(int size, const RankBody& body);

struct RankOutcome {
  bool running = false;  // past the deadline; has been killed
  int exit_status = -1;  // -1: ended by a signal
  int signal = 0;
  std::string error;   // what() of what the body threw
  double seconds = 0;  // from start to end
};

// Forks before any thread exists: start it first in a test. A temporary directory holds a file
// store; it goes away with the object.
class ProcessRanks {
 public:
  ProcessRanks(int size, const RankBody& body);
  ~ProcessRanks();  // kills what still runs
  ProcessRanks(const ProcessRanks&) = delete;
  ProcessRanks& operator=(const ProcessRanks&) = delete;

  void send_signal(int rank, int signal);  // SIGKILL, SIGSTOP ...
  // Waits until the ranks say so by say_ready(); false after `seconds`.
  bool wait_until_ready(double seconds, int ranks);
  // In a rank: counts as ready.
  static void say_ready(Store& store);
  std::vector<RankOutcome> wait(double seconds);
  const std::string& directory() const { return directory_; }

 private:
  struct Child {
    pid_t pid = -1;
    int error_pipe = -1;
  };
  std::string directory_;
  std::vector<Child> children_;
  double started_ = 0;
};

// A World of `size` ranks on this host.
World local_world(int rank, int size);

}  // namespace shoal::test
