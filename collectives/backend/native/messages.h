// send and recv of a native Communicator: messages through the ranks' shared memory (ShmEndpoint),
// independent of the queue of collectives.
//
// Not thread-safe: guarded by the engine's lock.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "shoal/collectives/backend/native/engine.h"
#include "shoal/collectives/transport/shm_endpoint.h"

namespace shoal::collectives::native {

class Messages {
 public:
  Messages(std::shared_ptr<Group> group, FlightRecorder& flight);

  // Starts a send or recv. Numbers it in the order of messages from its sender to its receiver.
  void post(QueuedOperation& operation);
  // Makes progress; appends finished operations to `finished`. Throws mismatch and peer_lost.
  bool progress(std::vector<QueuedOperation*>& finished);
  bool idle() const { return in_flight_.empty(); }
  // Whether progress() would make progress now.
  bool ready() const { return !idle() && endpoint_->ready(); }
  const QueuedOperation& first() const { return *in_flight_.front()->operation; }
  // Discards everything in flight after a failure. Post nothing afterwards.
  void clear() { in_flight_.clear(); }

 private:
  struct InFlight {
    QueuedOperation* operation = nullptr;
    transport::OperationKey key;
    transport::Completion completion;
    std::uint64_t ticket = 0;  // for the flight recorder
  };
  [[noreturn]] void rethrow(const Error& error) const;

  std::shared_ptr<Group> group_;
  FlightRecorder& flight_;  // owned by the engine
  std::unique_ptr<transport::ShmEndpoint> endpoint_;
  std::vector<std::uint32_t> sent_, received_;  // by peer
  std::vector<std::unique_ptr<InFlight>> in_flight_;
};

// "send of 5 f32 to rank 1 (message 3 from rank 0)"
std::string message_name(const QueuedOperation& operation, const Group& group);

}  // namespace shoal::collectives::native
