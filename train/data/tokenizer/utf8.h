// Validates and repairs UTF-8.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace shoal {

// Offset of the first byte that is not part of a well-formed sequence, or -1. Overlong forms,
// surrogates (CESU) and code points above U+10FFFF are ill-formed (Unicode 15, table 3-7).
std::int64_t first_invalid_utf8(std::string_view text);

// Replaces each maximal ill-formed part with one U+FFFD, as WHATWG, Python's errors="replace" and
// Rust's from_utf8_lossy do.
std::string repair_utf8(std::string_view text);

// Throws invalid_argument with the offset and the byte, `source` prefixed. `otherwise`: a remedy
// other than converting the text.
void check_utf8(std::string_view text, std::string_view source, std::string_view otherwise = {});

}  // namespace shoal
