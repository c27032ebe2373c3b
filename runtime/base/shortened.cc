#include "shoal/runtime/base/shortened.h"

namespace shoal {

std::string shortened(std::string_view text, std::size_t most) {
  std::size_t end = text.size();
  if (end > most) {
    end = most;
    while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80U) --end;
  }
  std::string shown;
  for (const char c : text.substr(0, end)) {
    if (c == '\n')
      shown += "\\n";
    else if (c == '\r')
      shown += "\\r";
    else
      shown += c;
  }
  if (end < text.size()) shown += "...";
  return shown;
}

}  // namespace shoal
