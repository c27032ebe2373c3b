// SentencePiece's precompiled_charsmap: which characters become which. Internal to this room.
//
// The format: u32 bytes of a double array (Yata's darts-clone), the array, then the replacements,
// each ended by a zero byte; the array's values are offsets into these.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace shoal {

class Charsmap {
 public:
  // corrupt_data with `source` in front where the bytes are not such a map.
  Charsmap(std::string_view bytes, const std::string& source);

  // What Hugging Face's normalizer puts in place of all of `chunk`: the replacement of the shortest
  // prefix of it that has one. Valid as long as the map.
  std::optional<std::string_view> transform(std::string_view chunk) const;

 private:
  std::vector<std::uint32_t> units_;
  std::string replacements_;
};

}  // namespace shoal
