// The message header between two fabric endpoints. Little-endian, like all supported machines.
#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

#include "shoal/collectives/transport/endpoint.h"

namespace shoal::collectives::fabric {

enum class MessageKind : std::uint8_t {
  eager = 1,  // the whole message follows
  grant,      // from the receiver: write message `tag` here; address and keys follow
  announce,   // from the sender: it waits for the grant of `tag`
  segment,    // a part of a granted message, if there are no remote writes
  credit      // returns credits only, as every header does
};

// Starts every message. On the rails a message takes one receive buffer of its receiver, for which
// the sender spends a credit of that (peer, rail). A later header of the receiver returns the
// credit.
struct MessageHeader {
  std::uint32_t magic = 0;  // the job's; packets with another are dropped
  MessageKind kind = MessageKind::credit;
  std::uint8_t credit_rail = 0;  // a rail of this header's sender
  std::uint16_t credits = 0;     // number of that rail's buffers that are free again
  std::uint32_t source = 0;      // the sender's rank
  std::uint16_t matched = 0;     // eager messages matched to their receive since the last header
  std::uint16_t reserved = 0;
  transport::MessageTag tag;
  std::uint32_t receive_id = 0;  // grant, segment; remote writes return it as their data
  Signature signature;
  std::int64_t bytes = 0;   // length of the whole message
  std::int64_t offset = 0;  // segment: its position
};
static_assert(std::endian::native == std::endian::little);
static_assert(std::is_trivially_copyable_v<MessageHeader> && sizeof(MessageHeader) == 72);

// A grant's header is followed by the address and a key for each of the receiver's rails.
inline constexpr std::size_t kMostRails = 64;

}  // namespace shoal::collectives::fabric
