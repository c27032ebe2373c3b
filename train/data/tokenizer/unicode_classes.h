// Character classes of code points, as in Hugging Face's regular expressions.
#pragma once

#include <cstdint>
#include <string_view>

namespace shoal::unicode {

// Bits 0-1: \p{L}, \p{N}, \s or none. Bit 2: \w. kMultibyte, in tables indexed by byte, marks the
// start of a longer sequence.
enum Class : std::uint8_t { other = 0, letter = 1, number = 2, space = 3 };
inline constexpr std::uint8_t kKind = 3, kWord = 4, kMultibyte = 0xFF;

// kCodePoints class bytes, indexed by code point; built once, then constant. Hot loops should keep
// the pointer, because each call checks the guard of a static.
inline constexpr std::int64_t kCodePoints = 0x110000;
const std::uint8_t* classes();

// The code point at `at` of well-formed UTF-8, and its length in bytes.
struct CodePoint {
  std::uint32_t value;
  std::uint32_t bytes;
};
inline CodePoint decode(const char* at) {
  const auto byte = [at](int i) {
    return static_cast<std::uint32_t>(static_cast<std::uint8_t>(at[i]));
  };
  const std::uint32_t lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  if (lead < 0xE0) return {(lead & 0x1F) << 6 | (byte(1) & 0x3F), 2};
  if (lead < 0xF0) return {(lead & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F), 3};
  return {(lead & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F),
          4};
}

inline bool is_continuation(char c) { return (static_cast<std::uint8_t>(c) & 0xC0) == 0x80; }

// The start of the last character of text[0, end), end > 0.
inline std::size_t previous(std::string_view text, std::size_t end) {
  do --end;
  while (end > 0 && is_continuation(text[end]));
  return end;
}

}  // namespace shoal::unicode
