// Shortens text from other programs for messages, and puts it on one line.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace shoal {

// At most `most` bytes of the text, cut between characters, with "..." if the text is longer. Line
// breaks become \n and \r. Every message that quotes a value, line or name from a file, a variable
// or another program uses this function.
std::string shortened(std::string_view text, std::size_t most = 200);

}  // namespace shoal
