// SentencePiece's precompiled_charsmap, a map of character replacements. Internal to this folder.
//
// Format: u32 size in bytes of a double array (Yata's darts-clone), the array, then zero-terminated
// replacements. The array's values are offsets into the replacements.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace shoal {

class Charsmap {
 public:
  // corrupt_data, with `source` prefixed, if the bytes are not such a map.
  Charsmap(std::string_view bytes, const std::string& source);

  // Hugging Face's replacement for the whole of `chunk`: the map's replacement for the shortest
  // prefix of `chunk` that it contains. nullopt: it contains none. Valid as long as the map.
  std::optional<std::string_view> transform(std::string_view chunk) const;

 private:
  std::vector<std::uint32_t> units_;
  std::string replacements_;
};

}  // namespace shoal
