// Recognises text in UTF-16 or UTF-32. If its characters are ASCII, its bytes are also UTF-8.
#pragma once

#include <string_view>

namespace shoal {

// "UTF-16" or "UTF-32" if the text begins with their mark; "UTF-16LE" or "UTF-16BE" if near its
// start there are zero bytes at every other place; otherwise empty. The names are iconv's.
std::string_view wide_encoding(std::string_view text);

// corrupt_data if the text is UTF-16 without a mark, with the line that converts it. A mark is no
// UTF-8, and a reader's check for that says where it is. `name`: the file.
void refuse_unmarked_utf16(std::string_view text, std::string_view name);

}  // namespace shoal
