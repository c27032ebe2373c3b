// Messages between the processes of a job, for the algorithms of `native` without shared memory.
// Implementations: libfabric's RDM endpoints and, in tests, a loopback that shuffles, delays and
// loses.
//
// The network may deliver out of order (EFA's SRD), and a peer's death may complete nothing
// (decision 4). Messages are therefore matched by (peer, tag), which one message uses at a time.
// Their segments are counted, never ordered. Small messages travel eagerly. Larger ones are written
// straight into the receiver's buffer once the receiver has announced it, striped over the rails.
//
// Not thread-safe: the engine that owns it holds one lock around all calls.
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
  std::int64_t by_sockets = 0;     // of the sent messages: those by sockets instead of rails
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

  // Announces that this rank runs the operation. All its messages, earlier or later, are then
  // compared: one with another signature fails the key (mismatch, naming the peer and both calls).
  // Messages of operations not begun yet are kept.
  virtual void begin(OperationKey key, const Signature& signature) = 0;
  // Call once all posts of the operation are finished.
  virtual void end(OperationKey key) = 0;

  // `data` belongs to the post until the post decrements `completion`: then it may be reused (send)
  // or holds the message (receive). A receive's length must equal the sender's (checked). A message
  // may have 0 bytes. `peer` is never this rank.
  virtual void post_send(int peer, MessageTag tag, const void* data, std::int64_t bytes,
                         Completion& completion) = 0;
  virtual void post_receive(int peer, MessageTag tag, void* data, std::int64_t bytes,
                            Completion& completion) = 0;

  // Moves what is possible without waiting; true if there was progress. Throws mismatch, peer_lost
  // (with the peer) or io.
  virtual bool progress() = 0;
  // Whether copied data of finished posts is still being sent. While true, progress() must be
  // called now and then, or the receiver may wait forever.
  virtual bool sending() const { return false; }
  // Call before the destructor if pending sends need not be completed. A peer that is gone would
  // otherwise delay the destructor.
  virtual void abandon() {}
  // Manual progress: only progress() answers other ranks' transports (acknowledgements,
  // retransmissions), so it must be called now and then even if nothing is expected here.
  virtual bool must_be_polled() const { return false; }
  // Sleeps until progress() may have something to do, but at most this long. Leaves the core to
  // other ranks.
  virtual void sleep(int microseconds) = 0;

  // Optional: unregistered memory works too, through a registration cache.
  virtual std::unique_ptr<MemoryRegion> register_memory(void* data, std::int64_t bytes) = 0;

  // Why posts cannot use memory of the device that the endpoint was made for (GPUDirect). Empty:
  // they can, while the memory is registered.
  virtual std::string device_memory_problem() const { return name() + " carries host memory only"; }
  // Call on a thread whose current device is that device. The endpoint itself never accesses the
  // memory: messages from it travel by rendezvous at any length. Messages that may arrive
  // eagerly (at most eager_bytes(), from host memory) must not be received into it.
  virtual std::unique_ptr<MemoryRegion> register_device_memory(void* /*data*/,
                                                               std::int64_t /*bytes*/) {
    throw Error(ErrorCode::unavailable, device_memory_problem());
  }
  virtual EndpointStatistics statistics() const = 0;
};

}  // namespace shoal::collectives::transport
