// What travels between two fabric endpoints. Little-endian, as all machines this runs on are.
#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

#include "shoal/collectives/transport/endpoint.h"

namespace shoal::collectives::fabric {

enum class MessageKind : std::uint8_t {
  eager = 1,  // a whole message follows
  grant,      // from its receiver: write message `tag` here; GrantTarget words follow
  announce,   // from its sender: I wait for your grant of `tag`
  segment,    // of a granted message, where remote writes are not to be had
  credit      // nothing but what every header returns
};

// Every message starts with one, and takes one receive buffer of its receiver: the sender spends a
// credit of the (peer, rail), which a later header of the receiver gives back.
struct MessageHeader {
  std::uint32_t magic = 0;  // of the job: strangers' packets are dropped
  MessageKind kind = MessageKind::credit;
  std::uint8_t credit_rail = 0;  // of the sender of this header
  std::uint16_t credits = 0;     // buffers of that rail which are free again
  std::uint32_t source = 0;      // rank
  std::uint16_t matched = 0;     // eager messages that have met their receive since the last time
  std::uint16_t reserved = 0;
  transport::MessageTag tag;
  std::uint32_t receive_id = 0;  // grant, segment; comes back as the data of remote writes
  Signature signature;
  std::int64_t bytes = 0;   // of the whole message
  std::int64_t offset = 0;  // segment: where its bytes belong
};
static_assert(std::endian::native == std::endian::little);
static_assert(std::is_trivially_copyable_v<MessageHeader> && sizeof(MessageHeader) == 72);

// After a grant's header: the address, then a key for each of the receiver's rails.
inline constexpr std::size_t kMostRails = 64;

}  // namespace shoal::collectives::fabric
