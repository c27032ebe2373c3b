// White space as in Python's str.strip() and Rust's str::trim().
#pragma once

#include <cstdint>
#include <string_view>

namespace shoal {

// Characters that Rust's char::is_whitespace() and Python's str.isspace() accept. Only Python's
// includes the ASCII separators U+001C to U+001F.
constexpr bool is_rust_space(std::uint32_t c) {
  return (c >= 0x9 && c <= 0xD) || c == ' ' || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}
constexpr bool is_python_space(std::uint32_t c) {
  return is_rust_space(c) || (c >= 0x1C && c <= 0x1F);
}

// The text without such characters at its end (_behind) or start (_in_front). Bytes that are not
// UTF-8 stay.
//
//   without_spaces_behind(line, is_python_space)  // line.rstrip()
template <typename IsSpace>
constexpr std::string_view without_spaces_behind(std::string_view text, IsSpace is_space) {
  const auto byte = [&](std::size_t from_end) {
    return static_cast<std::uint32_t>(static_cast<std::uint8_t>(text[text.size() - from_end]));
  };
  while (!text.empty()) {
    const std::size_t n = text.size();
    std::size_t bytes = 0;
    if (byte(1) < 0x80)
      bytes = is_space(byte(1)) ? 1 : 0;
    else if (n >= 2 && byte(2) == 0xC2)
      bytes = is_space(byte(1)) ? 2 : 0;
    else if (n >= 3 && (byte(3) & 0xF0) == 0xE0)
      bytes = is_space((byte(3) & 0xF) << 12 | (byte(2) & 0x3F) << 6 | (byte(1) & 0x3F)) ? 3 : 0;
    if (bytes == 0) break;
    text.remove_suffix(bytes);
  }
  return text;
}
template <typename IsSpace>
constexpr std::string_view without_spaces_in_front(std::string_view text, IsSpace is_space) {
  const auto byte = [&](std::size_t at) {
    return static_cast<std::uint32_t>(static_cast<std::uint8_t>(text[at]));
  };
  while (!text.empty()) {
    const std::size_t n = text.size();
    std::size_t bytes = 0;
    if (byte(0) < 0x80)
      bytes = is_space(byte(0)) ? 1 : 0;
    else if (n >= 2 && byte(0) == 0xC2)
      bytes = is_space(byte(1)) ? 2 : 0;
    else if (n >= 3 && (byte(0) & 0xF0) == 0xE0)
      bytes = is_space((byte(0) & 0xF) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F)) ? 3 : 0;
    if (bytes == 0) break;
    text.remove_prefix(bytes);
  }
  return text;
}

}  // namespace shoal
