// What travels in the UDP datagrams between two endpoints. Both are of one build on machines of one
// byte order.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace shoal::test::efa {

// FI_ADDR_EFA, laid out as EFA does: to its users 32 opaque bytes.
struct Address {
  std::array<std::uint8_t, 16> gid{};  // ::ffff:a.b.c.d, the interface's IPv4 address
  std::uint16_t qpn = 0;               // its UDP port
  std::uint16_t reserved = 0;
  std::uint32_t qkey = 0;  // chosen by the endpoint, so that a reused port is another address
  std::uint64_t next = 0;
  friend bool operator==(const Address&, const Address&) = default;
};
static_assert(sizeof(Address) == 32);

// Largest message of efa-direct, and what a write is cut into.
inline constexpr std::size_t kLargestPacket = 8760;
inline constexpr std::size_t kFragmentBytes = 8192;

// Packets of a pair are numbered, so that each is taken once however often it was sent.
inline constexpr std::uint32_t kFirstSequence = 0xffffffc0;  // wraps soon, in every test
inline constexpr int kAckWords = 4;
inline constexpr std::uint32_t kAckBits = 64 * kAckWords;  // receive window, packets

enum class PacketKind : std::uint16_t {
  acknowledge = 1,  // not numbered: nothing but what each header says
  message,          // a fragment of one
  write,            // a fragment of one
  responses         // to messages and writes that are finished
};

struct PacketHeader {
  std::uint32_t magic = 0;
  std::uint32_t to_qkey = 0;
  Address from;
  std::uint32_t sequence = 0;
  std::uint32_t expected = 0;                       // all before it have come
  std::array<std::uint64_t, kAckWords> received{};  // bit i: expected + 1 + i has come too
  PacketKind kind = PacketKind::acknowledge;
  std::uint16_t responses = 0;  // how many follow
  std::uint32_t bytes = 0;      // after the headers
};
static_assert(std::is_trivially_copyable_v<PacketHeader> && sizeof(PacketHeader) == 88);

// Follows the header of message and write.
struct FragmentHeader {
  std::uint64_t operation = 0;  // unique to the sender
  std::uint64_t total = 0, offset = 0;
  std::uint64_t address = 0, key = 0;  // write: of its first byte
  std::uint64_t data = 0;              // immediate
  std::uint32_t has_data = 0;
  std::uint32_t number = 0;  // message: counted by (sender, receiver), for send-after-send order
};
static_assert(sizeof(FragmentHeader) == 56);

enum class Status : std::uint32_t {  // EFA's own numbers (fi_cq_err_entry::prov_errno)
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
