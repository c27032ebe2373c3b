#include "shoal/train/data/tokenizer/charsmap.h"

#include <algorithm>
#include <cstring>

#include "shoal/runtime/base/error.h"
#include "shoal/train/data/tokenizer/unicode_classes.h"
#include "shoal/train/data/tokenizer/utf8.h"

namespace shoal {
namespace {

// A unit of darts-clone. Bit 31 marks a value. Otherwise bits 0-7 are the label, bit 8 means that a
// value follows, and bits 10-30 are the offset to the children, in units of 256 if bit 9 is set.
constexpr std::uint32_t kIsValue = std::uint32_t{1} << 31;

std::uint32_t offset_of(std::uint32_t unit) { return (unit >> 10) << ((unit & (1u << 9)) >> 6); }

}  // namespace

Charsmap::Charsmap(std::string_view bytes, const std::string& source) {
  std::uint32_t array_bytes = 0;
  if (bytes.size() >= 4) std::memcpy(&array_bytes, bytes.data(), 4);
  if (array_bytes < 4 || array_bytes % 4 != 0 || array_bytes > bytes.size() - 4)
    throw_error(ErrorCode::corrupt_data,
                "{}: precompiled_charsmap has {} bytes and says that its array takes {}", source,
                bytes.size(), array_bytes);
  units_.resize(array_bytes / 4);
  std::memcpy(units_.data(), bytes.data() + 4, array_bytes);
  replacements_ = bytes.substr(4 + array_bytes);
  if (const auto at = first_invalid_utf8(replacements_); at >= 0)
    throw_error(ErrorCode::corrupt_data,
                "{}: byte {} of precompiled_charsmap's replacements is not UTF-8", source, at);
  for (const std::uint32_t unit : units_) {
    const std::size_t at = unit & ~kIsValue;
    if (!(unit & kIsValue) ||
        (at < replacements_.size() && !unicode::is_continuation(replacements_[at])))
      continue;
    throw_error(ErrorCode::corrupt_data,
                "{}: precompiled_charsmap points at byte {} of {} bytes of replacements", source,
                at, replacements_.size());
  }
}

std::optional<std::string_view> Charsmap::transform(std::string_view chunk) const {
  std::size_t at = offset_of(units_[0]);
  for (const char c : chunk) {
    const auto byte = static_cast<std::uint8_t>(c);
    if (byte == 0) break;
    at ^= byte;
    if (at >= units_.size()) break;
    const std::uint32_t unit = units_[at];
    if ((unit & (kIsValue | 0xFF)) != byte) break;
    at ^= offset_of(unit);
    if (at >= units_.size()) break;
    if (unit & (1u << 8)) {
      if (!(units_[at] & kIsValue)) break;
      const std::size_t begin = units_[at] & ~kIsValue;
      const std::size_t end = std::min(replacements_.find('\0', begin), replacements_.size());
      return std::string_view(replacements_).substr(begin, end - begin);
    }
  }
  return std::nullopt;
}

}  // namespace shoal
