// Out-of-band connections between all processes of a job (decision 4), for heartbeats, deaths and
// last words. They form a TCP star: rank 0 forwards news to all others. A thread that sleeps in
// poll(2) serves it, so a death is noticed even while the program computes and the fabric is
// silent.
//
// TCP acknowledgements distinguish a stopped process from an unreachable host: the kernel sends
// them even if the process is stopped or the machine is loaded.
//
// Thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shoal/collectives/transport/operation.h"
#include "shoal/runtime/base/clock.h"
#include "shoal/runtime/base/deadlines.h"
#include "shoal/runtime/rendezvous/store.h"

namespace shoal::collectives::transport {

// A reason why the job must end.
struct ControlNews {
  enum class Kind : std::uint8_t {
    died,         // the rank's connection ended without a goodbye
    unreachable,  // its host sent nothing, not even acknowledgements, for `text` seconds
    failed,       // the rank threw an error; `text` is its message
    aborted,      // a thread of the rank called abort; `text` is the reason
  };
  Kind kind = Kind::died;
  int rank = -1;
  std::string text;
  std::uint32_t code = 0;  // failed: the ErrorCode
};

class ControlLinks {
 public:
  // Seconds for which a host may be out of reach: at most a fraction of an operation's deadline, so
  // that a cut link is reported before the deadline passes.
  static double patience(double deadline_seconds);

  // Collective. `prefix` must be new in `store` for each group. `unreachable_seconds`: the same on
  // all ranks. Throws timeout naming the ranks that did not come.
  ControlLinks(int rank, int size, Store& store, const std::string& prefix, Deadline deadline,
               double unreachable_seconds = deadlines::kLongestOutOfReach);
  // If rank 0 leaves first, a detached thread of its process serves the links until all other ranks
  // have left or failed.
  ~ControlLinks();
  ControlLinks(const ControlLinks&) = delete;
  ControlLinks& operator=(const ControlLinks&) = delete;

  // The first news that arrived.
  std::optional<ControlNews> news() const;
  bool has_news() const;  // costs one load
  // Seconds since the last sign of life of `rank`'s process, if that is longer than usual. Silence
  // is no failure: the process may be stopped or starved and come back. If its host is out of
  // reach, that becomes news after unreachable_seconds. Ranks other than 0 learn of it from rank 0.
  std::optional<double> silent_seconds(int rank) const;
  // Sends to all other ranks; `what`: failed (with the code of the error) or aborted.
  void tell(ControlNews::Kind what, std::string_view text, std::uint32_t code = 0);
  // Records this rank's newest collective. Rank 0 receives it with the next heartbeat and compares
  // it with its own call of that number. A difference becomes news (failed, with code mismatch),
  // even if no data message would reveal it. Numbers may wrap. Costs a few tens of nanoseconds.
  void called(std::uint32_t number, const Signature& signature);
  // Ranks whose newest call, as far as this rank knows, is older than `number`: they have not made
  // that call. Rank 0 learns of calls by heartbeats, the other ranks from rank 0's.
  std::vector<int> behind(std::uint32_t number) const;
  // Announces that this rank leaves without a failure. Does not wait.
  void leave();
  bool left(int rank) const;
  bool all_left() const;

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace shoal::collectives::transport
