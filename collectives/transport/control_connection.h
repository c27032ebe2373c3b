// A TCP connection of the control links and what goes over it. For control_links.cc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "shoal/collectives/transport/shared_segment.h"
#include "shoal/runtime/base/clock.h"

namespace shoal::collectives::transport::control {

enum class Kind : std::uint32_t {
  hello,
  welcome,
  // Rank 0's: "3 2.4 5 7.1": seconds since ranks 3 and 5 were heard of. Others': "17 barrier".
  heartbeat,
  left,
  died,
  unreachable,
  failed,
  aborted
};

inline constexpr std::size_t kMostText = 2000;  // bytes; the rest is cut off

struct Message {
  Kind kind = Kind::heartbeat;
  int rank = -1;
  std::string text;
  std::uint32_t code = 0;

  std::string bytes() const;
};

// Never blocks.
struct Connection {
  FileDescriptor fd;
  std::string in, out;
  Clock::time_point heard = Clock::now();
  double out_of_reach = 0;   // seconds
  bool unreachable = false;  // that is how it ended

  // Writes what the socket takes; the rest waits for the next time.
  void flush();
  // Notes for how long nothing has come from the peer's kernel. Time in which this process itself
  // was stopped does not count: at most `most` more than the last time.
  void look(double most);
  // False at the end of the connection, or when it carries something else than our messages.
  bool receive(std::deque<Message>& messages);

 private:
  bool split(std::deque<Message>& messages);
};

// One message, for the handshake: blocks. False when none came.
bool await(Connection& connection, Message& message, Deadline deadline);

void prepare(int fd);
std::string host_name();
// Listens on all addresses, of IPv6 too where this machine has it; says on which port. Throws io.
FileDescriptor listen_anywhere(int backlog, int& port);
// Where this host can be reached: IPv4 first, and the loopbacks, so many, last.
std::vector<std::string> own_addresses();
inline constexpr int kLoopbacks = 2;
// `address`: IPv4 or IPv6, in figures. Blocks for at most 2 s; nothing where that failed.
FileDescriptor connect_to(const std::string& address, int port, Deadline deadline);

}  // namespace shoal::collectives::transport::control
