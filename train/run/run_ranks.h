// The ranks of a run, which watch each other. Before there is a communicator, a rank's death ends
// long work on the others. Afterwards, failure reports are not awaited from dead ranks.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "shoal/collectives/watched_store.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/rendezvous/world.h"

namespace shoal {

class RunRanks {
 public:
  // Collective: connects to the other ranks, determines which share a host, and opens control
  // links.
  explicit RunRanks(World world);
  // Announces that this rank leaves, and waits briefly for the others.
  ~RunRanks();
  RunRanks(const RunRanks&) = delete;
  RunRanks& operator=(const RunRanks&) = delete;

  World& world() { return world_; }
  // Its waits end if a rank is lost (watched_store.h).
  collectives::WatchedStore& store() { return *watched_; }
  // Call once a communicator watches the ranks. Afterwards only deadlines end the store's waits.
  void stop_watching() { watched_->stop_watching(); }
  // True if the rank's process died, its host is unreachable, or it missed a few heartbeats.
  bool is_gone(int rank) const;

 private:
  World world_;
  std::shared_ptr<Store> store_;
  std::unique_ptr<collectives::transport::ControlLinks> links_;
  std::unique_ptr<collectives::WatchedStore> watched_;
};

}  // namespace shoal
