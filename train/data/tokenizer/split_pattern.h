// Hugging Face's "Split" pre-tokenizer, for patterns other than GPT-2's. Internal to this folder.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace shoal {

// Treatment of the pieces that the pattern matches.
enum class SplitBehavior { removed, isolated, merged_with_previous, merged_with_next, contiguous };

// Bytes [begin, end) of a match, or of the text between two matches.
struct SplitRange {
  std::size_t begin, end;
  bool matched;
};
// Appends the non-empty pieces that result from `ranges`, which cover the text.
void append_pieces(std::string_view text, const std::vector<SplitRange>& ranges,
                   SplitBehavior behavior, std::vector<std::string_view>& pieces);

// Whether `pattern` is a spelling of GPT-2's pattern found in tokenizer.json files; Gpt2Scanner
// handles those.
bool is_gpt2_pattern(std::string_view pattern);

// Thread-safe after construction.
class SplitPattern {
 public:
  // A regular expression in Oniguruma's syntax, as in tokenizer.json. Accepts syntax that ICU reads
  // the same way or that can be rewritten for it. Rejects the rest by name (unavailable): \b, \h,
  // set operations and others. Code points assigned after ICU's Unicode version count as
  // unassigned.
  static SplitPattern regex(std::string_view pattern, SplitBehavior behavior, bool invert,
                            const std::string& source);
  static SplitPattern literal(std::string text, SplitBehavior behavior, bool invert);

  // Appends the non-empty pieces of `text` in order.
  void split(std::string_view text, std::vector<std::string_view>& pieces) const;

  // The non-empty matches and the text between them, in order.
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
