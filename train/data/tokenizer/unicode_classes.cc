#include "shoal/train/data/tokenizer/unicode_classes.h"

#include <algorithm>
#include <iterator>
#include <memory>

namespace shoal::unicode {
namespace {

struct Range {
  std::uint32_t first;
  std::uint8_t value;
};

constexpr Range kRanges[] = {
#include "unicode_classes.inc"
};

// A flat table of 1.1 MB: one load a character; text touches few of its pages.
std::unique_ptr<std::uint8_t[]> expand() {
  auto table = std::make_unique<std::uint8_t[]>(kCodePoints);
  for (std::size_t i = 0; i < std::size(kRanges); ++i) {
    const std::int64_t end =
        i + 1 < std::size(kRanges) ? static_cast<std::int64_t>(kRanges[i + 1].first) : kCodePoints;
    std::fill(table.get() + kRanges[i].first, table.get() + end, kRanges[i].value);
  }
  return table;
}

}  // namespace

const std::uint8_t* classes() {
  static const std::unique_ptr<std::uint8_t[]> table = expand();
  return table.get();
}

}  // namespace shoal::unicode
