// The serving side of make_tcp_store, usable alone (tests, tools that outlive a rank).
//
// Wire format, little-endian. A client opens with the 8 bytes "SHOALST1", the server answers
// "SHOALOK1". Then each request is
//   u32 length of what follows | u8 operation | operation's fields
// and gets exactly one answer
//   u32 length of what follows | u8 status | value bytes
// A string field is u32 length + bytes. One request may be outstanding on a connection; a client
// that wants to wait in one thread and set in another opens a second connection.
#pragma once

#include <memory>
#include <string>

#include "shoal/runtime/base/clock.h"

namespace shoal {

class TcpStoreServer {
 public:
  // Listens on every address of this machine (IPv6 with IPv4 where the machine has it), or on
  // `bind_address` only. Port 0 picks a free one. A port that is taken: io, naming MASTER_PORT.
  explicit TcpStoreServer(int port, const std::string& bind_address = {});
  // Stops serving: connected clients see peer_lost.
  ~TcpStoreServer();
  TcpStoreServer(const TcpStoreServer&) = delete;
  TcpStoreServer& operator=(const TcpStoreServer&) = delete;

  int port() const;
  // Returns once every client has closed its connection; false when the deadline passed first.
  // What is asked meanwhile is answered.
  bool wait_for_clients_to_leave(Deadline deadline) const;
  // Connections dropped for bytes that are not this protocol.
  int refused_connections() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace shoal
