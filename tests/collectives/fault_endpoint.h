// An Endpoint with network faults. It delays messages so that later ones overtake them, splits them
// into independent pieces, and loses a peer on command. All ranks must use the same seed and
// pieces.
#pragma once

#include <atomic>
#include <memory>

#include "shoal/collectives/transport/endpoint.h"

namespace shoal::collectives::transport {

struct FaultOptions {
  std::uint64_t seed = 1;
  double held_back = 0.5;         // share of messages that are delayed
  int longest_delay_us = 500;     // the longest such delay
  std::uint32_t most_pieces = 4;  // a message is split into 1 to this many pieces (at most 16)
};

// Commands from the test's thread, and counters for it.
class FaultControl {
 public:
  // After this call no message to or from that rank completes, as with EFA after a death.
  void lose_silently(int rank) { silent_.store(rank); }
  // After this call the next progress() throws peer_lost, as after a TCP reset.
  void lose_loudly(int rank) { loud_.store(rank); }
  int silent() const { return silent_.load(); }
  int loud() const { return loud_.load(); }
  void note_abandoned() { abandoned_.fetch_add(1); }
  int abandoned() const { return abandoned_.load(); }  // number of endpoints, over all ranks

 private:
  std::atomic<int> silent_{-1}, loud_{-1}, abandoned_{0};
};

std::unique_ptr<Endpoint> make_fault_endpoint(std::unique_ptr<Endpoint> inner,
                                              const FaultOptions& options,
                                              std::shared_ptr<FaultControl> control);

}  // namespace shoal::collectives::transport
