// A simulated job: ranks that run Shoal's own rendezvous, control links, engine and fabric endpoint
// on simulated hosts, a fault that a seed chooses, and a judgement of how each rank ended.
//
//   const Report report = play(plan_of(42));
//   EXPECT_EQ(report.verdict, "") << report;
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "support/simulation/network.h"
#include "support/simulation/scheduler.h"

namespace shoal::simulation {

enum class Fault : std::uint8_t {
  none,
  // The job goes on.
  pause,  // the process is stopped for less than the deadline
  blink,  // the host is cut off for less than links may be out of reach
  slow,   // the host's packets take milliseconds
  // The job ends, and the survivors name the victim.
  kill,       // the process
  power_off,  // the host, which says nothing any more
  stop,       // the process, for good
  cut,        // the host is cut off for good
  abort,      // the rank calls abort()
  absent,     // the rank does not make a call
  differs     // the rank makes another call
};
std::string_view to_string(Fault fault);

struct Plan {  // everything that a seed decides, but the order of turns and packets
  std::uint64_t seed = 0;
  int ranks = 2, calls = 0;
  double deadline = 0;  // seconds
  bool direct = false;  // the fabric efa-direct, not efa
  Weather weather;
  Fault fault = Fault::none;
  int victim = 0;
  int stage = 0;    // the fault comes when the victim has come so far, ...
  Time delay = 0;   // ... this much later
  Time length = 0;  // of a pause or blink
};
Plan plan_of(std::uint64_t seed);
std::string describe(const Plan& plan);

struct Outcome {  // of one rank
  int stage = 0;  // 0: started, 1: has the store, 2: has the communicator, 3 + n: made call n
  bool ended = false, failed = false;
  std::int64_t wrong = 0;  // elements
  std::string error;       // what it threw
  Time since = 0;          // when it began what failed
  Time failed_at = 0, ended_at = 0;
};

struct Report {
  Plan plan;
  std::vector<Outcome> ranks;
  Time began = 0, fault_at = 0;  // fault_at 0: it did not come
  Time ended = 0;
  std::uint64_t hash = 0, steps = 0;
  std::string verdict;  // empty: as it should be
};
std::string describe(const Report& report);

// Only one simulation runs at a time in a process. What killed ranks had allocated is never freed.
Report play(const Plan& plan);

// The ranks that an error's text names: 1, 2 and 3 in "ranks 1, 2 ... rank 3".
std::vector<int> named_ranks(std::string_view text);

}  // namespace shoal::simulation
