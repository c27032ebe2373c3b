// A store whose waits end when a rank dies and last as long as ranks make progress.
//
//   WatchedStore ranks(store, &links, names, "setup");
//   prepare(..., [&] { ranks.progressed(); });         // on the working rank
//   exchange(ranks, "tokens", rank, size, answer, deadlines::start());  // on the others
//
// When a rank dies, the waits of all others end within a second (ControlLinks). Otherwise a wait
// lasts until its deadline, which restarts whenever any rank reports progress. Ranks can thus wait
// for hours of work, but not for a rank that is stopped or hangs.
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

// Thread-safe, except that one thread calls progressed() and one thread uses each Wait.
class WatchedStore final : public ForwardingStore {
 public:
  // If `links` is null, ranks are not watched, and waits are those of the store. Errors name
  // `operation`. `store` and `links` must outlive this object.
  WatchedStore(Store& store, const transport::ControlLinks* links, net::RankNames names,
               std::string operation);

  // Throws peer_lost, naming the rank, once a rank is gone. Throws timeout, naming the key and the
  // ranks without a heartbeat, once the time of `deadline` has passed without progress.
  std::string get(std::string_view key, Deadline deadline) override;
  // Throws peer_lost at once if rank 0, which may serve the store, is gone.
  void set(std::string_view key, std::string_view value) override;
  std::int64_t add(std::string_view key, std::int64_t amount) override;

  // Reports progress of this rank's long work. Also ends the work: throws peer_lost once a rank is
  // gone, and timeout once a rank has been silent for a whole deadline. Costs one load; informs the
  // other ranks about once a second.
  void progressed();
  // Call when a communicator takes over the watch.
  void stop_watching() { links_ = nullptr; }

  // A wait for other ranks that does not go through this store, such as for a file lock.
  class Wait {
   public:
    Wait(WatchedStore& ranks, Deadline deadline);
    // True if the time has passed without progress. Throws once a rank is gone.
    bool is_over();
    // Throws timeout, naming `what`.
    [[noreturn]] void give_up(const std::string& what) const;

   private:
    friend class WatchedStore;

    WatchedStore& ranks_;
    const double seconds_;
    const Clock::time_point began_ = Clock::now();
    Deadline deadline_, next_look_;
    std::optional<std::string> progress_;  // the progress counter at the last look
  };

 private:
  void throw_if_lost() const;
  std::string silent_ranks(double seconds) const;  // "; no heartbeat of rank 1 for 7 s"
  void throw_if_server_lost() const;
  // A lost store usually means that rank 0 ended; the links then name it.
  [[noreturn]] void throw_cause(const Error& lost) const;

  const transport::ControlLinks* links_;
  const net::RankNames names_;
  const std::string operation_;
  Clock::time_point next_tell_{};
};

}  // namespace shoal::collectives
