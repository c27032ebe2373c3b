// Text after normalization, and where it came from. Internal to this room.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace shoal {

struct NormalizedText {
  std::string text;
  // Of each byte of `text`: the bytes of the original text it stands for, as [begin, end). Empty
  // where origins were not asked for.
  struct Origin {
    std::uint32_t begin, end;
  };
  std::vector<Origin> origins;

  // Of a part of `text`; {0, 0} where origins are not known.
  std::pair<std::size_t, std::size_t> origin_of(std::string_view part) const {
    if (origins.empty()) return {0, 0};
    const auto at = static_cast<std::size_t>(part.data() - text.data());
    return {origins[at].begin, origins[at + part.size() - 1].end};
  }
};

}  // namespace shoal
