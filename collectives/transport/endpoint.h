// Tagged messages between the processes of a job. Implementations: shared memory inside a host,
// libfabric's RDM endpoints between hosts, and in tests a loopback that shuffles, delays and loses.
//
// The network may deliver out of order (EFA's SRD), so messages are matched by (peer, tag), and
// only one message at a time uses a pair. Segments are counted, never ordered. A peer's death may
// complete nothing (decision 4). Small messages travel eagerly. Between hosts, larger ones are
// striped over the rails and written straight into the receiver's buffer, once it is announced.
//
// Not thread-safe: the owning engine holds one lock around all calls.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "shoal/collectives/transport/operation.h"
#include "shoal/runtime/base/error.h"

namespace shoal::collectives::transport {

// One operation of one group. Sequences wrap.
struct OperationKey {
  std::uint32_t group = 0;     // agreed by the group's ranks, unique in the job
  std::uint32_t sequence = 0;  // of the operation in that group
  friend bool operator==(const OperationKey&, const OperationKey&) = default;
};

struct MessageTag {
  OperationKey operation;
  std::uint32_t ordinal = 0;  // counts messages from this sender to this receiver
  friend bool operator==(const MessageTag&, const MessageTag&) = default;
};

// Counts unfinished posts. The Completion and the posts' buffers must outlive the posts.
struct Completion {
  std::int32_t pending = 0;
  bool done() const { return pending == 0; }
};

struct EndpointStatistics {
  std::int64_t eager_messages = 0, rendezvous_messages = 0;  // sent
  std::int64_t bytes_sent = 0, bytes_received = 0;
  std::int64_t by_sockets = 0;     // messages sent through sockets instead of rails
  std::int64_t unexpected = 0;     // eager messages that arrived before their receive was posted
  std::int64_t staged_bytes = 0;   // copied through the shared-memory ring
  std::int64_t registrations = 0;  // misses of the registration cache
};

class MemoryRegion {  // keeps its range registered on every rail
 public:
  virtual ~MemoryRegion() = default;
};

class Endpoint {
 public:
  virtual ~Endpoint() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;          // number of processes it can reach, including itself
  virtual std::string name() const = 0;  // "tcp;ofi_rxm over eth0, eth1"
  virtual int rails() const = 0;
  virtual std::int64_t eager_bytes() const = 0;  // the largest message that travels eagerly

  // Announces that this rank runs the operation. The signatures of all its messages, earlier or
  // later, are then compared; a different one fails the operation (mismatch, naming the peer and
  // both calls). Messages of operations that have not begun here are kept.
  virtual void begin(OperationKey key, const Signature& signature) = 0;
  // Call once all posts of the operation are finished.
  virtual void end(OperationKey key) = 0;

  // Do not block. `data` belongs to the post until the post decrements `completion`; it may then be
  // reused (send) or holds the message (receive). Both lengths must be equal, which is checked;
  // they may be 0. `peer` is never this rank.
  virtual void post_send(int peer, MessageTag tag, const void* data, std::int64_t bytes,
                         Completion& completion) = 0;
  virtual void post_receive(int peer, MessageTag tag, void* data, std::int64_t bytes,
                            Completion& completion) = 0;

  // Makes progress without waiting; true if there was any. Throws mismatch, peer_lost (with the
  // peer) or io.
  virtual bool progress() = 0;
  // Whether copied data of finished posts is still being sent. While true, progress() must be
  // called now and then, or the receiver may wait forever.
  virtual bool sending() const { return false; }
  // Call before the destructor if pending sends need not be completed. Otherwise a peer that is
  // gone would delay the destructor.
  virtual void abandon() {}
  // True with manual progress: only progress() answers other ranks' transports (acknowledgements,
  // retransmissions), so it must be called now and then even if nothing is expected here.
  virtual bool must_be_polled() const { return false; }
  // Sleeps until progress() may have something to do, at most this long. Leaves the core to other
  // ranks.
  virtual void sleep(int microseconds) = 0;

  // Optional: unregistered memory goes through a registration cache.
  virtual std::unique_ptr<MemoryRegion> register_memory(void* data, std::int64_t bytes) = 0;

  // The reason why posts cannot use memory of the endpoint's device (GPUDirect). Empty: they can,
  // while the memory is registered.
  virtual std::string device_memory_problem() const { return name() + " carries host memory only"; }
  // Call on a thread whose current device is that device. The endpoint itself never accesses the
  // memory, so messages from it travel by rendezvous at any length. Messages that may arrive
  // eagerly (at most eager_bytes(), from host memory) must not be received into it.
  virtual std::unique_ptr<MemoryRegion> register_device_memory(void* /*data*/,
                                                               std::int64_t /*bytes*/) {
    throw Error(ErrorCode::unavailable, device_memory_problem());
  }
  virtual EndpointStatistics statistics() const = 0;
};

}  // namespace shoal::collectives::transport
