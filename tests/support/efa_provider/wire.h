// The layout of the UDP datagrams between two endpoints. Both ends run the same build on machines
// of the same byte order.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace shoal::test::efa {

// FI_ADDR_EFA with EFA's layout. To users it is 32 opaque bytes.
struct Address {
  std::array<std::uint8_t, 16> gid{};  // ::ffff:a.b.c.d, the interface's IPv4 address
  std::uint16_t qpn = 0;               // its UDP port
  std::uint16_t reserved = 0;
  std::uint32_t qkey = 0;  // chosen by the endpoint, so that a reused port gives another address
  std::uint64_t next = 0;
  friend bool operator==(const Address&, const Address&) = default;
};
static_assert(sizeof(Address) == 32);

// The largest message of efa-direct, and the size of a write's fragments.
inline constexpr std::size_t kLargestPacket = 8760;
inline constexpr std::size_t kFragmentBytes = 8192;

// The packets of a pair are numbered, so that a resent packet is taken only once.
inline constexpr std::uint32_t kFirstSequence = 0xffffffc0;  // every test wraps around
inline constexpr int kAckWords = 4;
inline constexpr std::uint32_t kAckBits = 64 * kAckWords;  // receive window, packets

enum class PacketKind : std::uint16_t {
  acknowledge = 1,  // not numbered: only the header
  message,          // a fragment of a message
  write,            // a fragment of a write
  responses         // confirms completed messages and writes
};

struct PacketHeader {
  std::uint32_t magic = 0;
  std::uint32_t to_qkey = 0;
  Address from;
  std::uint32_t sequence = 0;
  std::uint32_t expected = 0;                       // all earlier ones have arrived
  std::array<std::uint64_t, kAckWords> received{};  // bit i: expected + 1 + i has arrived
  PacketKind kind = PacketKind::acknowledge;
  std::uint16_t responses = 0;  // number of responses that follow
  std::uint32_t bytes = 0;      // bytes after the headers
};
static_assert(std::is_trivially_copyable_v<PacketHeader> && sizeof(PacketHeader) == 88);

// Follows the packet header of a message or write.
struct FragmentHeader {
  std::uint64_t operation = 0;  // unique to the sender
  std::uint64_t total = 0, offset = 0;
  std::uint64_t address = 0, key = 0;  // of the write's first byte
  std::uint64_t data = 0;              // immediate
  std::uint32_t has_data = 0;
  std::uint32_t number = 0;  // message: counted by (sender, receiver), for send-after-send order
};
static_assert(sizeof(FragmentHeader) == 56);

enum class Status : std::uint32_t {  // EFA's numbers (fi_cq_err_entry::prov_errno)
  ok = 0,
  invalid_local_key = 5,
  bad_remote_address = 7,
  bad_remote_length = 11,
  unknown_peer = 14,
};
struct Response {
  std::uint64_t operation = 0;
  Status status = Status::ok;
  std::uint32_t reserved = 0;
};
static_assert(sizeof(Response) == 16);

inline constexpr std::size_t kLargestDatagram =
    sizeof(PacketHeader) + sizeof(FragmentHeader) + kLargestPacket;

}  // namespace shoal::test::efa
