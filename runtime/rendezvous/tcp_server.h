// The server of make_tcp_store. It can also run without a store (in tests, and in tools that
// outlive a rank).
//
// Wire format, little-endian. The client opens with the 8 bytes "SHOALST1", and the server answers
// "SHOALOK1". Each request is
//   u32 length of the rest | u8 operation | operation's fields
// and gets exactly one answer
//   u32 length of the rest | u8 status | value bytes
// A string field is u32 length + bytes. A connection may have one outstanding request; a client
// that waits in one thread and sets in another opens a second connection.
#pragma once

#include <memory>
#include <string>

#include "shoal/runtime/base/clock.h"

namespace shoal {

class TcpStoreServer {
 public:
  // Listens on every address of this machine (IPv6 and IPv4 if available), or only on
  // `bind_address`. Port 0 picks a free one. If the port is taken, throws io and names MASTER_PORT.
  explicit TcpStoreServer(int port, const std::string& bind_address = {});
  // Stops serving; connected clients get peer_lost.
  ~TcpStoreServer();
  TcpStoreServer(const TcpStoreServer&) = delete;
  TcpStoreServer& operator=(const TcpStoreServer&) = delete;

  int port() const;
  // Returns once every client has closed its connection; false if the deadline passed first.
  // Requests are answered meanwhile.
  bool wait_for_clients_to_leave(Deadline deadline) const;
  // Number of connections dropped because they did not follow this protocol.
  int refused_connections() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace shoal
