// Ranks for multi-rank tests: threads of this process, or forked processes that can be killed. Each
// rank gets a World and a Store, and none outlives the test.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <sys/types.h>

#include "shoal/runtime/rendezvous/store.h"
#include "shoal/runtime/rendezvous/world.h"

namespace shoal::test {

using RankBody = std::function<void(const World& world, Store& store)>;

// Runs `body` on `size` threads with one hash store. After all have ended it rethrows the exception
// of the lowest failing rank. A rank's failed EXPECTs count for the test.
void run_thread_ranks(int size, const RankBody& body);
// Does the same, but returns each rank's Error text ("" if the rank returned).
std::vector<std::string> thread_rank_errors(int size, const RankBody& body);

struct RankOutcome {
  bool running = false;  // still running at the deadline, then killed
  int exit_status = -1;  // -1: a signal ended it
  int signal = 0;
  std::string error;   // what() of the exception from the body
  double seconds = 0;  // from start to end
};

// Runs ranks as forked processes. Create it first in a test, before any thread exists. It owns a
// temporary directory with a file store.
class ProcessRanks {
 public:
  ProcessRanks(int size, const RankBody& body);
  ~ProcessRanks();  // kills ranks that still run
  ProcessRanks(const ProcessRanks&) = delete;
  ProcessRanks& operator=(const ProcessRanks&) = delete;

  void send_signal(int rank, int signal);  // SIGKILL, SIGSTOP ...
  // Waits until `ranks` ranks have called say_ready(). Returns false after `seconds`.
  bool wait_until_ready(double seconds, int ranks);
  // Called by a rank: counts it as ready.
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
