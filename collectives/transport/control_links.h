// The out-of-band connection of every process of a job (decision 4): heartbeats, the end of a
// process, last words. A star over TCP around rank 0, which passes on what it hears; a thread of
// its own that sleeps in poll(2), so that a death is known although the program computes and the
// fabric is silent.
//
// Thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "shoal/runtime/base/clock.h"
#include "shoal/runtime/rendezvous/store.h"

namespace shoal::collectives {

// Why the job cannot go on.
struct ControlNews {
  enum class Kind : std::uint8_t {
    died,     // its connection ended without a word
    silent,   // no heartbeat for kSilentSeconds
    failed,   // it threw; `text` are its words
    aborted,  // somebody called abort there; `text` says why
  };
  Kind kind = Kind::died;
  int rank = -1;
  std::string text;
  std::uint32_t code = 0;  // of what it threw
};

class ControlLinks {
 public:
  static constexpr double kHeartbeatSeconds = 1, kSilentSeconds = 15;

  // Collective. `prefix` must be new in `store` for each group. Throws timeout naming the ranks
  // that did not come.
  ControlLinks(int rank, int size, Store& store, const std::string& prefix, Deadline deadline);
  ~ControlLinks();
  ControlLinks(const ControlLinks&) = delete;
  ControlLinks& operator=(const ControlLinks&) = delete;

  // The first that came.
  std::optional<ControlNews> news() const;
  bool has_news() const;  // costs one load
  // Tells all other ranks; `what`: failed (with the code of the error) or aborted.
  void tell(ControlNews::Kind what, std::string_view text, std::uint32_t code = 0);
  // Says that this rank leaves in peace. Does not wait.
  void leave();
  bool left(int rank) const;
  bool everybody_left() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace shoal::collectives
