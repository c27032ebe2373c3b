// Message headers between two fabric endpoints. Little-endian, like all supported machines.
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
  segment,    // of a granted message, without remote writes
  credit      // only the values that every header returns
};

// Starts every message, which takes one receive buffer of its receiver. The sender spends a credit
// of the (peer, rail), which a later header of the receiver returns.
struct MessageHeader {
  std::uint32_t magic = 0;  // of the job: packets of strangers are dropped
  MessageKind kind = MessageKind::credit;
  std::uint8_t credit_rail = 0;  // of the sender of this header
  std::uint16_t credits = 0;     // buffers of that rail that are free again
  std::uint32_t source = 0;      // rank
  std::uint16_t matched = 0;     // eager messages matched to their receive since the last header
  std::uint16_t reserved = 0;
  transport::MessageTag tag;
  std::uint32_t receive_id = 0;  // grant, segment; returned as the data of remote writes
  Signature signature;
  std::int64_t bytes = 0;   // of the whole message
  std::int64_t offset = 0;  // segment: its position
};
static_assert(std::endian::native == std::endian::little);
static_assert(std::is_trivially_copyable_v<MessageHeader> && sizeof(MessageHeader) == 72);

// Follows a grant's header: the address, then a key for each of the receiver's rails.
inline constexpr std::size_t kMostRails = 64;

}  // namespace shoal::collectives::fabric
