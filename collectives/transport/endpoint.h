// Messages between the processes of a job, for the algorithms of `native` where memory is not
// shared: libfabric's RDM endpoints, and in tests a loopback that shuffles, delays and loses.
//
// Delivery beneath may be unordered (EFA's SRD) and a death may complete nothing (decision 4): a
// message is matched by (peer, tag), each of which is used once at a time, and its segments are
// counted, never ordered. Small messages travel eagerly; larger ones are written straight into the
// receiver's buffer once it has said where that is, striped over the rails.
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
  std::uint32_t ordinal = 0;  // of the message from this sender to this receiver
  friend bool operator==(const MessageTag&, const MessageTag&) = default;
};

// Counts posts that are not finished. Must outlive them, and so must the buffers.
struct Completion {
  std::int32_t pending = 0;
  bool done() const { return pending == 0; }
};

struct EndpointStatistics {
  std::int64_t eager_messages = 0, rendezvous_messages = 0;  // sent
  std::int64_t bytes_sent = 0, bytes_received = 0;
  std::int64_t by_sockets = 0;     // messages sent beside the rails, of either kind
  std::int64_t unexpected = 0;     // eager messages that came before their receive was posted
  std::int64_t staged_bytes = 0;   // copied through the ring of shared memory
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
  virtual int size() const = 0;          // processes it can reach, itself included
  virtual std::string name() const = 0;  // "tcp;ofi_rxm over eth0, eth1"
  virtual int rails() const = 0;
  virtual std::int64_t eager_bytes() const = 0;  // the largest message that travels eagerly

  // Says that this rank runs the operation, so that every message that belongs to it, come already
  // or later, is compared: one with another signature fails its key (mismatch, naming the peer,
  // what it called and what we called). Messages of operations not begun are kept.
  virtual void begin(OperationKey key, const Signature& signature) = 0;
  // All posts of the operation are finished.
  virtual void end(OperationKey key) = 0;

  // data belongs to the post until `completion` counts it down: then it may be reused (send) or
  // holds the message (receive). A receive's length must be the sender's (checked). 0 bytes are
  // a message too. `peer` is never this rank.
  virtual void post_send(int peer, MessageTag tag, const void* data, std::int64_t bytes,
                         Completion& completion) = 0;
  virtual void post_receive(int peer, MessageTag tag, void* data, std::int64_t bytes,
                            Completion& completion) = 0;

  // Moves what can be moved without waiting; true when something did. Throws mismatch, peer_lost
  // (with the peer) or io.
  virtual bool progress() = 0;
  // Something is still on its way, though its post is finished (its data was copied): until it is
  // not, progress() must be called now and then, or the receiver may wait for ever.
  virtual bool sending() const { return false; }
  // Nobody waits any more for what is still on its way: the destructor, which comes next, need not
  // see it out. A peer that is gone would keep it waiting.
  virtual void abandon() {}
  // Manual progress: only progress() answers the other ranks' transports (acknowledgements, what
  // was lost on the way), so it must be called now and then even where nothing is expected here.
  virtual bool must_be_polled() const { return false; }
  // Sleeps until progress() may have something to do, at most so long; never holds up a rank that
  // shares the core.
  virtual void sleep(int microseconds) = 0;

  // Optional: unregistered memory works, through a registration cache.
  virtual std::unique_ptr<MemoryRegion> register_memory(void* data, std::int64_t bytes) = 0;

  // Memory of the device that the endpoint was made for (GPUDirect). Why posts cannot lie there;
  // empty: they can, while it is registered.
  virtual std::string device_memory_problem() const { return name() + " carries host memory only"; }
  // On a thread on which that device is current. Nothing here touches the memory: what lies in it
  // travels by rendezvous whatever its length, and what may come eagerly (eager_bytes() or less,
  // from host memory) must not be received into it.
  virtual std::unique_ptr<MemoryRegion> register_device_memory(void* /*data*/,
                                                               std::int64_t /*bytes*/) {
    throw Error(ErrorCode::unavailable, device_memory_problem());
  }
  virtual EndpointStatistics statistics() const = 0;
};

}  // namespace shoal::collectives::transport
