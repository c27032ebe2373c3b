// The server of make_tcp_store. It can also run without a store (in tests, and in tools that
// outlive a rank).
//
// Wire format, little-endian. The client opens with the 8 bytes "SHOALST2" and a handshake's hello
// (job_token.h). The server answers "SHOALOK2" and the challenge; the client sends its proof. A
// client without the job's token gets no further. Each request is
//   u32 length of the rest | u8 operation | operation's fields
// and gets exactly one answer
//   u32 length of the rest | u8 status | value bytes
// A string field is u32 length + bytes. A connection may have one outstanding request; a client
// that waits in one thread and sets in another opens a second connection. So the server listens as
// long as it lives.
//
// The server keeps the 64 newest clients that have not shown the token yet, each for kStoreGreeting
// and at most 76 bytes.
#pragma once

#include <memory>
#include <string>

#include "shoal/runtime/base/clock.h"
#include "shoal/runtime/rendezvous/job_token.h"

namespace shoal {

class TcpStoreServer {
 public:
  // Listens on every address of this machine (IPv6 and IPv4 if available), or only on
  // `bind_address`. Port 0 picks a free one. If the port is taken, throws io and names MASTER_PORT.
  explicit TcpStoreServer(int port, const std::string& bind_address = {},
                          const JobToken& token = {});
  // Stops serving; connected clients get peer_lost.
  ~TcpStoreServer();
  TcpStoreServer(const TcpStoreServer&) = delete;
  TcpStoreServer& operator=(const TcpStoreServer&) = delete;

  int port() const;
  // Returns once every client has closed its connection; false if the deadline passed first.
  // Requests are answered meanwhile.
  bool wait_for_clients_to_leave(Deadline deadline) const;
  // Number of connections dropped because they did not follow this protocol or lack the token.
  int refused_connections() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace shoal
