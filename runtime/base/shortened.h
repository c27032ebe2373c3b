// Shows other programs' data in a message: in one line, and not at any length.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace shoal {

// At most `most` bytes of the text, never a part of a character, and "..." if more follows. Line
// breaks become \n and \r. Every message that quotes a value, a line or a name from a file, a
// variable or another program takes it through here.
std::string shortened(std::string_view text, std::size_t most = 200);

}  // namespace shoal
