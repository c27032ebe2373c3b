// How much a tokenizer's steps may make of a text. A few replacements in a row, each ten times as
// long as what it replaces, would make more of one letter than fits in memory. Internal to this
// room.
#pragma once

#include <cstddef>
#include <string_view>

#include "shoal/runtime/base/error.h"

namespace shoal {

// Bytes that steps may make of a text of so many.
constexpr std::size_t most_bytes_of(std::size_t text) {
  return 64 * text + (std::size_t{64} << 10);
}

// `step`: with its file.
[[noreturn]] inline void made_too_much(std::string_view step, std::size_t text) {
  throw Error(
      ErrorCode::corrupt_data,
      fmt::format("{} makes more than {} bytes of a text of {}", step, most_bytes_of(text), text),
      "a step may make 64 times the text and 64 KiB; write a shorter text in its place");
}

}  // namespace shoal
