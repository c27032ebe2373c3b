#include "shoal/train/data/tokenizer/unicode_classes.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <memory>
#include <span>

#include "shoal/train/data/tokenizer/bert_unicode.h"
#include "shoal/train/data/tokenizer/graphemes.h"

namespace shoal::unicode {
namespace {

struct Range {
  std::uint32_t first;
  std::uint8_t value;
};

constexpr Range kRanges[] = {
#include "unicode_classes.inc"
};

constexpr Range kBertRanges[] = {
#include "bert_classes.inc"
};

constexpr Range kGraphemeRanges[] = {
#include "grapheme_classes.inc"
};

struct LowerRun {
  std::uint32_t first, last, step;
  std::int32_t distance;
};

constexpr LowerRun kLowerRuns[] = {
#include "lower_case.inc"
};

// Expands the ranges into a flat table of 1.1 MB, so that a lookup is one load. Usual text touches
// few of the table's pages.
std::unique_ptr<std::uint8_t[]> expand(std::span<const Range> ranges) {
  auto table = std::make_unique<std::uint8_t[]>(kCodePoints);
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    const std::int64_t end =
        i + 1 < ranges.size() ? static_cast<std::int64_t>(ranges[i + 1].first) : kCodePoints;
    std::fill(table.get() + ranges[i].first, table.get() + end, ranges[i].value);
  }
  return table;
}

}  // namespace

const std::uint8_t* classes() {
  static const std::unique_ptr<std::uint8_t[]> table = expand(kRanges);
  return table.get();
}

const std::uint8_t* bert_classes() {
  static const std::unique_ptr<std::uint8_t[]> table = expand(kBertRanges);
  return table.get();
}

const std::uint8_t* grapheme_classes() {
  static const std::unique_ptr<std::uint8_t[]> table = expand(kGraphemeRanges);
  return table.get();
}

std::uint32_t lower_case(std::uint32_t character) {
  // The last run that begins at or before the character.
  const auto* run = std::upper_bound(
      std::begin(kLowerRuns), std::end(kLowerRuns), character,
      [](std::uint32_t wanted, const LowerRun& candidate) { return wanted < candidate.first; });
  if (run == std::begin(kLowerRuns)) return character;
  --run;
  if (character > run->last || (character - run->first) % run->step != 0) return character;
  return static_cast<std::uint32_t>(static_cast<std::int32_t>(character) + run->distance);
}

}  // namespace shoal::unicode
