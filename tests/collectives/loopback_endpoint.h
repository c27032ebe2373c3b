// Endpoints between the threads of one process, with the protocol of the real ones. Small messages
// travel eagerly. A larger message is written into the receiver's buffer once the receiver has
// announced it. For tests of the engine and the algorithms; not fast.
#pragma once

#include <memory>
#include <vector>

#include "shoal/collectives/transport/endpoint.h"

namespace shoal::collectives::transport {

struct LoopbackOptions {
  std::int64_t eager_bytes = 4096;
};

// The connection between the endpoints. Created once and shared by all threads.
class LoopbackFabric {
 public:
  explicit LoopbackFabric(int size, LoopbackOptions options = {});
  ~LoopbackFabric();
  LoopbackFabric(const LoopbackFabric&) = delete;
  LoopbackFabric& operator=(const LoopbackFabric&) = delete;

  struct Mailbox;
  int size() const { return static_cast<int>(mailboxes_.size()); }
  const LoopbackOptions& options() const { return options_; }
  Mailbox& mailbox(int rank) const { return *mailboxes_[static_cast<std::size_t>(rank)]; }

 private:
  LoopbackOptions options_;
  std::vector<std::unique_ptr<Mailbox>> mailboxes_;
};

// Makes one rank's endpoint. Messages to an endpoint that no longer exists are dropped.
std::unique_ptr<Endpoint> make_loopback_endpoint(std::shared_ptr<LoopbackFabric> fabric, int rank);

}  // namespace shoal::collectives::transport
