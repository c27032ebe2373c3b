// Amounts of memory in messages.
#pragma once

#include <string>

#include <fmt/format.h>

namespace shoal {

// "12.5 MiB"; of less than a tenth, three significant digits.
template <typename Bytes>
std::string mebibytes(Bytes bytes) {
  const double amount = static_cast<double>(bytes) / 0x1p20;
  return amount >= 0.1 || bytes == 0 ? fmt::format("{:.1f} MiB", amount)
                                     : fmt::format("{:.3g} MiB", amount);
}

}  // namespace shoal
