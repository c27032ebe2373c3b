// The out-of-band connection of every process of a job (decision 4): heartbeats, the end of a
// process, last words. A star over TCP around rank 0, which passes on what it hears; a thread of
// its own that sleeps in poll(2), so that a death is known although the program computes and the
// fabric is silent.
//
// A process that is stopped and a host that is out of reach are told apart by the host's TCP
// acknowledgements, which neither a stopped process nor a loaded machine holds back.
//
// Thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "shoal/collectives/transport/operation.h"
#include "shoal/runtime/base/clock.h"
#include "shoal/runtime/base/deadlines.h"
#include "shoal/runtime/rendezvous/store.h"

namespace shoal::collectives::transport {

// Why the job cannot go on.
struct ControlNews {
  enum class Kind : std::uint8_t {
    died,         // its connection ended without a word
    unreachable,  // nothing came from its host, not even acknowledgements, for `text` seconds
    failed,       // it threw; `text` are its words
    aborted,      // a thread called abort there; `text` says why
  };
  Kind kind = Kind::died;
  int rank = -1;
  std::string text;
  std::uint32_t code = 0;  // of what it threw
};

class ControlLinks {
 public:
  // How long a host may be out of reach, where operations have so long: a cut link is named as
  // such before the deadline passes.
  static double patience(double deadline_seconds);

  // Collective. `prefix` must be new in `store` for each group. `unreachable_seconds`: the same on
  // all ranks. Throws timeout naming the ranks that did not come.
  ControlLinks(int rank, int size, Store& store, const std::string& prefix, Deadline deadline,
               double unreachable_seconds = deadlines::kLongestOutOfReach);
  // Where rank 0 has said that it leaves, its links go on without it, in a thread of this process,
  // until all others have left or failed.
  ~ControlLinks();
  ControlLinks(const ControlLinks&) = delete;
  ControlLinks& operator=(const ControlLinks&) = delete;

  // The first that came.
  std::optional<ControlNews> news() const;
  bool has_news() const;  // costs one load
  // Seconds since the process of `rank` was heard of, where that is longer than it should be: it is
  // stopped or starved, or (for longer than unreachable_seconds: news) out of reach. Others than
  // rank 0 know of each other what rank 0 told them. No reason to fail: it may come back.
  std::optional<double> silent_seconds(int rank) const;
  // Tells all other ranks; `what`: failed (with the code of the error) or aborted.
  void tell(ControlNews::Kind what, std::string_view text, std::uint32_t code = 0);
  // This rank's newest collective. Rank 0 hears of it with the next heartbeat; one that differs
  // from its own of that number is news (failed, mismatch), also where no message would tell.
  // Numbers may wrap; costs a few tens of nanoseconds.
  void called(std::uint32_t number, const Signature& signature);
  // Says that this rank leaves in peace. Does not wait.
  void leave();
  bool left(int rank) const;
  bool everybody_left() const;

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace shoal::collectives::transport
