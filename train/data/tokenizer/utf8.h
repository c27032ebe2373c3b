// UTF-8: is it well formed, and if not, what to make of it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace shoal {

// The offset of the first byte that no well-formed sequence accounts for, or -1. Overlong forms,
// surrogates (CESU) and code points above U+10FFFF are ill-formed (Unicode 15, table 3-7).
std::int64_t first_invalid_utf8(std::string_view text);

// Each maximal ill-formed part becomes one U+FFFD, as in WHATWG, Python's errors="replace" and
// Rust's from_utf8_lossy.
std::string repair_utf8(std::string_view text);

// Throws invalid_argument with the offset and the byte, `source` in front; `otherwise`: what else
// than converting the text would help.
void check_utf8(std::string_view text, std::string_view source, std::string_view otherwise = {});

}  // namespace shoal
