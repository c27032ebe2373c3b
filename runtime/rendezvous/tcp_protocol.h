// Wire format between the tcp store's client and server (tcp_server.h). Private to
// runtime/rendezvous.
#pragma once

#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>

#include "shoal/runtime/rendezvous/store.h"

namespace shoal::store {

// Both ends then show each other the job's token (job_token.h) for this purpose.
inline constexpr std::string_view kClientGreeting = "SHOALST2";
// Differs from the client's greeting: a socket that connected to itself by accident must not look
// like a server.
inline constexpr std::string_view kServerGreeting = "SHOALOK2";
inline constexpr std::string_view kPurpose = "store";

enum class Operation : std::uint8_t { set = 1, try_get, get, add, compare_set, remove };
enum class Status : std::uint8_t { ok, none, not_a_counter, full };

// The largest request: two values, a key, lengths and flags.
inline constexpr std::size_t kMaxFrame = 2 * kMaxStoreValue + kMaxStoreKey + 64;

// Writes integers byte by byte, so that both ends agree on any machine.
template <typename Integer>
void put_integer(std::string& out, Integer value) {
  for (std::size_t i = 0; i < sizeof(Integer); ++i)
    out += static_cast<char>((static_cast<std::uint64_t>(value) >> (8 * i)) & 0xff);
}

inline void put_string(std::string& out, std::string_view text) {
  put_integer(out, static_cast<std::uint32_t>(text.size()));
  out += text;
}

// Reads fields in order. A field beyond the end makes finished() false and all later fields empty.
class FieldReader {
 public:
  explicit FieldReader(std::string_view bytes) : rest_(bytes) {}
  template <typename Integer>
  Integer integer() {
    std::uint64_t value = 0;
    const std::string_view raw = take(sizeof(Integer));
    for (std::size_t i = 0; i < raw.size(); ++i)
      value |= static_cast<std::uint64_t>(static_cast<unsigned char>(raw[i])) << (8 * i);
    return static_cast<Integer>(value);
  }
  std::string_view string() { return take(integer<std::uint32_t>()); }
  bool finished() const { return ok_ && rest_.empty(); }

 private:
  std::string_view take(std::size_t bytes) {
    ok_ = ok_ && bytes <= rest_.size();
    if (!ok_) return {};
    const std::string_view taken = rest_.substr(0, bytes);
    rest_.remove_prefix(bytes);
    return taken;
  }
  std::string_view rest_;
  bool ok_ = true;
};

}  // namespace shoal::store
