// Limits how much a tokenizer's steps may grow a text. Otherwise a few successive replacements,
// each tenfold, could turn one letter into more than fits in memory. Internal to this folder.
#pragma once

#include <cstddef>
#include <string_view>

#include "shoal/runtime/base/error.h"

namespace shoal {

// Maximum bytes that steps may produce from a text of `text` bytes.
constexpr std::size_t most_bytes_of(std::size_t text) {
  return 64 * text + (std::size_t{64} << 10);
}

// `step`: its name, with the file.
[[noreturn]] inline void made_too_much(std::string_view step, std::size_t text) {
  throw Error(
      ErrorCode::corrupt_data,
      fmt::format("{} makes more than {} bytes of a text of {}", step, most_bytes_of(text), text),
      "a step may make 64 times the text and 64 KiB; write a shorter text in its place");
}

}  // namespace shoal
