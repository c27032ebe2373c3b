#include "shoal/train/data/tokenizer/utf8.h"

#include <cstring>

#include "shoal/runtime/base/error.h"

namespace shoal {
namespace {

// Length of the well-formed sequence at text[at], or 0. In the latter case, `bad` is the length of
// the maximal ill-formed part (Unicode 15, table 3-7 and the recommendation of chapter 3.9).
std::size_t sequence_length(std::string_view text, std::size_t at, std::size_t& bad) {
  const auto byte = [&](std::size_t offset) -> unsigned {
    return at + offset < text.size() ? static_cast<unsigned char>(text[at + offset]) : 0u;
  };
  const unsigned lead = byte(0);
  bad = 1;
  if (lead < 0x80) return 1;
  unsigned low = 0x80, high = 0xBF;  // bounds of the second byte
  std::size_t length = 0;
  if (lead >= 0xC2 && lead <= 0xDF) {
    length = 2;
  } else if (lead >= 0xE0 && lead <= 0xEF) {
    length = 3;
    if (lead == 0xE0) low = 0xA0;
    if (lead == 0xED) high = 0x9F;
  } else if (lead >= 0xF0 && lead <= 0xF4) {
    length = 4;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;
  } else {
    return 0;
  }
  if (byte(1) < low || byte(1) > high) return 0;
  for (bad = 2; bad < length; ++bad)
    if ((byte(bad) & 0xC0) != 0x80) return 0;
  return length;
}

std::size_t ascii_run(std::string_view text, std::size_t at) {
  const std::size_t begin = at;
  for (; at + 8 <= text.size(); at += 8) {
    std::uint64_t eight;
    std::memcpy(&eight, text.data() + at, 8);
    if (eight & 0x8080808080808080u) break;
  }
  while (at < text.size() && static_cast<unsigned char>(text[at]) < 0x80) ++at;
  return at - begin;
}

}  // namespace

std::int64_t first_invalid_utf8(std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    at += ascii_run(text, at);
    while (at < text.size() && static_cast<unsigned char>(text[at]) >= 0x80) {
      std::size_t bad = 0;
      const std::size_t length = sequence_length(text, at, bad);
      if (length == 0) return static_cast<std::int64_t>(at);
      at += length;
    }
  }
  return -1;
}

std::string repair_utf8(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t ascii = ascii_run(text, at);
    result.append(text, at, ascii);
    at += ascii;
    if (at == text.size()) break;
    std::size_t bad = 0;
    if (const std::size_t length = sequence_length(text, at, bad); length > 0) {
      result.append(text, at, length);
      at += length;
    } else {
      result += "\xEF\xBF\xBD";
      at += bad;
    }
  }
  return result;
}

void check_utf8(std::string_view text, std::string_view source, std::string_view otherwise) {
  const std::int64_t at = first_invalid_utf8(text);
  if (at >= 0)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{}: byte 0x{:02x} at offset {} is not UTF-8", source,
                            static_cast<unsigned>(
                                static_cast<unsigned char>(text[static_cast<std::size_t>(at)])),
                            at),
                otherwise.empty() ? std::string("convert the text to UTF-8")
                                  : fmt::format("convert the text to UTF-8, or {}", otherwise));
}

}  // namespace shoal
