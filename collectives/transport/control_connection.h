// A TCP connection of the control links, and its messages. Internal to the control links.
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
  // From rank 0, "3 2.4 5 7.1 calls 4 17" means that ranks 3 and 5 were last heard from 2.4 and 7.1
  // seconds ago, and that rank 4, whose newest call is number 17, is behind the others. Other ranks
  // send their newest call: "17 barrier".
  heartbeat,
  left,
  died,
  unreachable,
  failed,
  aborted
};

inline constexpr std::size_t kMostText = 2000;  // bytes; longer text is cut off

struct Message {
  Kind kind = Kind::heartbeat;
  int rank = -1;
  std::string text;
  std::uint32_t code = 0;

  std::string bytes() const;
};

// Its methods never block.
struct Connection {
  FileDescriptor fd;
  std::string in, out;
  Clock::time_point heard = Clock::now();  // last sign of life
  double out_of_reach = 0;                 // seconds
  bool unreachable = false;  // whether the host was unreachable when the connection ended

  // Writes as much as the socket takes; the rest follows later.
  void flush();
  // Updates `out_of_reach`, the time for which the peer's kernel has been silent. Adds at most
  // `most` seconds per call, so that time in which this process was stopped does not count.
  void look(double most);
  // Appends the messages that have arrived, of at most `most` bytes. False if the connection has
  // ended or carries data that is no Message.
  bool receive(std::deque<Message>& messages, std::size_t most = std::size_t{1} << 20);

 private:
  bool split(std::deque<Message>& messages);
};

// Does not block: queues bytes that the socket does not take yet. Does nothing without a
// connection.
void send(Connection& connection, const Message& message);

// Blocks until one handshake message arrives. False if none came in time.
bool await(Connection& connection, Message& message, Deadline deadline);

void prepare(int fd);
// Listens on all addresses, including IPv6 if available; sets `port`. Throws io.
FileDescriptor listen_anywhere(int backlog, int& port);
// Addresses at which this host can be reached: IPv4 first, the kLoopbacks loopback addresses last.
std::vector<std::string> own_addresses();
inline constexpr int kLoopbacks = 2;
bool is_address(const std::string& text);  // numeric IPv4 or IPv6
// `address`: is_address(). Blocks for at most deadlines::kHubConnectAttempt. On failure returns an
// empty descriptor and sets `why`.
FileDescriptor connect_to(const std::string& address, int port, Deadline deadline,
                          std::string* why = nullptr);

}  // namespace shoal::collectives::transport::control
