// The Endpoint between ranks of one host: a ring of packets for each ordered pair of ranks, in
// memory that both map.
//
// Small messages travel eagerly, as one packet. The sender offers larger ones first. If the
// receiver maps the sender's buffer (symmetric memory), it loads from there. Else, if the sender
// maps the receiver's buffer, it stores there. Else it streams the message through the ring in
// packets.
//
// Receivers always empty their rings and set unexpected messages aside, so no message blocks
// another.
#pragma once

#include <memory>
#include <string>

#include "shoal/collectives/transport/control.h"
#include "shoal/collectives/transport/endpoint.h"

namespace shoal::collectives::transport {

// The ranks of the host and their memory, as the endpoint needs them.
class ShmHost {
 public:
  virtual ~ShmHost() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual int member(int peer) const { return peer; }  // the peer's rank in the job, for Errors
  virtual RankPage& page(int peer) const = 0;          // holds the peer's doorbell
  // The peer's shm_mailbox_bytes(size()) bytes, initially zero, page-aligned.
  virtual std::byte* mailboxes(int peer) const = 0;
  virtual Location locate(const void* data, std::int64_t bytes) const = 0;
  // This process's mapping of the peer's buffer; null until its segment's announcement arrives.
  virtual std::byte* resolve(int peer, const Location& location) const = 0;
  // How the peer ended ("died", "left the group"); empty while it is alive.
  virtual std::string fate(int peer) const = 0;
};

std::size_t shm_mailbox_bytes(int size);

class ShmEndpoint : public Endpoint {
 public:
  // Whether progress() would make progress now.
  virtual bool ready() const = 0;
};
std::unique_ptr<ShmEndpoint> make_shm_endpoint(std::unique_ptr<ShmHost> host);

}  // namespace shoal::collectives::transport
