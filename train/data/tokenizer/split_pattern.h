// Hugging Face's "Split" pre-tokenizer, for patterns other than GPT-2's. Internal to this folder.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace shoal {

// Treatment of the pieces that the pattern matches.
enum class SplitBehavior { removed, isolated, merged_with_previous, merged_with_next, contiguous };

// Bytes [begin, end) of a match, or of the text between two matches. A match may be empty.
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

  // Applies the pattern to one text after another, on one thread. Throws invalid_argument if it
  // takes too much work (work.h).
  class Run {
   public:
    explicit Run(const SplitPattern& pattern);
    ~Run();
    Run(const Run&) = delete;
    Run& operator=(const Run&) = delete;

    // The matches and the text between them, in order. As in Hugging Face, a match may be empty,
    // unless another match ends at its position. Valid until the next call.
    const std::vector<SplitRange>& ranges(std::string_view text);
    // Appends the non-empty pieces of `text` in order.
    void split(std::string_view text, std::vector<std::string_view>& pieces);

   private:
    struct Matcher;
    const SplitPattern& pattern_;
    std::unique_ptr<Matcher> matcher_;  // null: a literal
    std::vector<SplitRange> ranges_;
  };
  void split(std::string_view text, std::vector<std::string_view>& pieces) const {
    Run(*this).split(text, pieces);
  }

  struct Compiled;

 private:
  SplitPattern() = default;
  std::shared_ptr<const Compiled> compiled_;  // null: literal_
  std::string literal_;
  SplitBehavior behavior_ = SplitBehavior::isolated;
  bool invert_ = false;
};

}  // namespace shoal
