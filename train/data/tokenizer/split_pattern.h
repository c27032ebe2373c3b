// Hugging Face's "Split" pre-tokenizer for patterns other than GPT-2's. Internal to this room.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace shoal {

// What becomes of the pieces that the pattern matches.
enum class SplitBehavior { removed, isolated, merged_with_previous, merged_with_next, contiguous };

// Bytes [begin, end) of a text that a pattern matches, or that stand between two matches.
struct SplitRange {
  std::size_t begin, end;
  bool matched;
};
// Appends the pieces that `ranges`, which tile the text, become; empty ones are left out.
void append_pieces(std::string_view text, const std::vector<SplitRange>& ranges,
                   SplitBehavior behavior, std::vector<std::string_view>& pieces);

// True of the spellings of GPT-2's pattern that tokenizer.json files hold: Gpt2Scanner does those.
bool is_gpt2_pattern(std::string_view pattern);

// Thread-safe once made.
class SplitPattern {
 public:
  // A regular expression in Oniguruma's syntax, as tokenizer.json has them. Of that syntax what ICU
  // reads the same or can be told is taken; the rest (\b, \h, set operations ...) is refused by
  // name (unavailable), since ICU would read it otherwise. Code points assigned after ICU's Unicode
  // version count as unassigned.
  static SplitPattern regex(std::string_view pattern, SplitBehavior behavior, bool invert,
                            const std::string& source);
  static SplitPattern literal(std::string text, SplitBehavior behavior, bool invert);

  // Appends the pieces of `text`, in order; empty ones are left out.
  void split(std::string_view text, std::vector<std::string_view>& pieces) const;

  // The matches, without empty ones, and all that stands between them, in order.
  std::vector<SplitRange> ranges(std::string_view text) const;

  struct Compiled;

 private:
  SplitPattern() = default;
  std::shared_ptr<const Compiled> compiled_;  // null: literal_
  std::string literal_;
  SplitBehavior behavior_ = SplitBehavior::isolated;
  bool invert_ = false;
};

}  // namespace shoal
