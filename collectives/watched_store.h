// A store whose waits end when a rank is gone, and last as long as ranks make progress.
//
//   WatchedStore ranks(store, &links, names, "setup");
//   prepare(..., [&] { ranks.progressed(); });         // on the rank that works
//   exchange(ranks, "tokens", rank, size, answer, deadlines::start());  // on those that wait
//
// A rank that dies ends the waits of all others within a second (ControlLinks). Ranks that live get
// until the deadline, counted from the last progress that any rank told: work of hours may be
// waited for, a rank that is stopped or hangs may not.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "shoal/collectives/backend/net/blame.h"
#include "shoal/collectives/transport/control_links.h"
#include "shoal/runtime/base/clock.h"
#include "shoal/runtime/rendezvous/forwarding_store.h"

namespace shoal::collectives {

// Calls may come from any thread, except progressed() and the methods of a Wait: one thread each.
class WatchedStore final : public ForwardingStore {
 public:
  // `links` null: nothing is watched, and waits are the store's own. `operation`: for messages.
  // All outlive it.
  WatchedStore(Store& store, const transport::ControlLinks* links, net::RankNames names,
               std::string operation);

  // peer_lost, naming the rank, once one is gone. timeout, naming the key and the ranks without a
  // heartbeat, once the time of `deadline` has passed without progress.
  std::string get(std::string_view key, Deadline deadline) override;
  // peer_lost at once where rank 0, which may serve the store, is gone.
  void set(std::string_view key, std::string_view value) override;
  std::int64_t add(std::string_view key, std::int64_t amount) override;

  // Long work of this rank got further. Throws as get() does once a rank is gone, so that the work
  // ends too. Costs a load; tells the other ranks once a second.
  void progressed();
  // From here on nothing is watched: a communicator does it.
  void stop_watching() { links_ = nullptr; }

  // A wait for other ranks by other means than this store, such as a lock on a file.
  class Wait {
   public:
    Wait(WatchedStore& ranks, Deadline deadline);
    // Whether the time has passed without progress. Throws once a rank is gone.
    bool is_over();
    // timeout: `what` was waited for in vain.
    [[noreturn]] void give_up(const std::string& what) const;

   private:
    friend class WatchedStore;
    std::string silent_ranks(double seconds) const;  // "; no heartbeat of rank 1 for 7 s"

    WatchedStore& ranks_;
    const double seconds_;
    const Clock::time_point began_ = Clock::now();
    Deadline deadline_, next_look_;
    std::optional<std::string> progress_;  // the counter at the last look
  };

 private:
  void throw_if_lost() const;
  void throw_if_server_lost() const;
  // A lost store is mostly the end of rank 0, which the links name.
  [[noreturn]] void throw_cause(const Error& lost) const;

  const transport::ControlLinks* links_;
  const net::RankNames names_;
  const std::string operation_;
  Clock::time_point next_tell_{};
};

}  // namespace shoal::collectives
