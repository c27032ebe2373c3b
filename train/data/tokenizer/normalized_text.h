// Normalized text with the origin of each byte. Internal to this folder.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace shoal {

struct NormalizedText {
  std::string text;
  // For each byte of `text`: the range [begin, end) of bytes of the original text. Empty if origins
  // were not requested.
  struct Origin {
    std::uint32_t begin, end;
  };
  std::vector<Origin> origins;

  // Origin of a part of `text`; {0, 0} if origins are unknown.
  std::pair<std::size_t, std::size_t> origin_of(std::string_view part) const {
    if (origins.empty()) return {0, 0};
    const auto at = static_cast<std::size_t>(part.data() - text.data());
    return {origins[at].begin, origins[at + part.size() - 1].end};
  }
};

}  // namespace shoal
