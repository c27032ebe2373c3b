// Recognises text in UTF-16 or UTF-32. UTF-8 checks do not: UTF-16 of ASCII characters is valid
// UTF-8 with NUL bytes.
#pragma once

#include <string_view>

namespace shoal {

// "UTF-16" or "UTF-32" if the text begins with a byte order mark; "UTF-16LE" or "UTF-16BE" if its
// start has many zero bytes at odd or at even offsets; otherwise empty. The names are iconv's.
std::string_view wide_encoding(std::string_view text);

// Throws corrupt_data, with the command that converts the text, if it is UTF-16 without a byte
// order mark. Text with a mark is not valid UTF-8, so the reader's UTF-8 check reports it. `name`:
// the file.
void refuse_unmarked_utf16(std::string_view text, std::string_view name);

}  // namespace shoal
