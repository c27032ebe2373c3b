// The ranks of a run, from start until they have a communicator. They watch each other, so that a
// rank's death is noticed during long work.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "shoal/collectives/watched_store.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/rendezvous/world.h"

namespace shoal::app {

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
  // Call once a communicator watches the ranks.
  void stop_watching();

 private:
  World world_;
  std::shared_ptr<Store> store_;
  std::unique_ptr<collectives::transport::ControlLinks> links_;
  std::unique_ptr<collectives::WatchedStore> watched_;
};

}  // namespace shoal::app
