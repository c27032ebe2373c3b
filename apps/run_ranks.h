// The ranks of a run from its first word until they have a communicator: they watch each other, so
// that no long work hides the death of one.
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
  // Collective: meets the others, settles which ranks share a host, and forms the control links.
  explicit RunRanks(World world);
  // Says that this rank leaves, and waits a moment for the others.
  ~RunRanks();
  RunRanks(const RunRanks&) = delete;
  RunRanks& operator=(const RunRanks&) = delete;

  World& world() { return world_; }
  // Its waits end once a rank is gone (watched_store.h).
  collectives::WatchedStore& store() { return *watched_; }
  // A communicator watches from here on.
  void stop_watching();

 private:
  World world_;
  std::shared_ptr<Store> store_;
  std::unique_ptr<collectives::transport::ControlLinks> links_;
  std::unique_ptr<collectives::WatchedStore> watched_;
};

}  // namespace shoal::app
