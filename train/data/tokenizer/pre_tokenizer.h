// Applies Hugging Face's pre-tokenizers in sequence, splitting normalized text into words. Internal
// to this folder.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shoal/train/data/tokenizer/bert_unicode.h"
#include "shoal/train/data/tokenizer/normalized_text.h"
#include "shoal/train/data/tokenizer/split_pattern.h"
#include "shoal/train/data/tokenizer/unicode_classes.h"

namespace shoal {

// SentencePiece's treatment of spaces: each becomes a mark before a word.
struct Metaspace {
  enum class Prefix { always, first, never };  // which words get a mark if no space precedes them
  std::string replacement = "\u2581";
  Prefix prefix = Prefix::always;
  bool split = true;  // each mark starts a word
};

struct PreTokenizerStep {
  enum class Kind {
    split,        // splits by `pattern`
    gpt2,         // words of GPT-2's pattern
    white_space,  // splits at white space and removes it
    words,        // "Whitespace": runs of \w and runs of neither \w nor white space
    digits,       // \p{N}: separate if `individual`, else in runs
    punctuation,  // splits at punctuation, according to `behavior`
    bert,         // white_space, then each punctuation mark separately
    metaspace,
    byte_level  // optional prefix space, GPT-2's words, then bytes in GPT-2's alphabet
  };
  Kind kind = Kind::white_space;
  std::string name = {};  // file and location in it
  std::optional<SplitPattern> pattern = {};
  SplitBehavior behavior = SplitBehavior::isolated;
  bool individual = false;
  Metaspace metaspace = {};
  bool add_prefix_space = false, use_regex = true;  // only for byte_level
};

// Thread-safe.
class PreTokenizer {
 public:
  explicit PreTokenizer(std::vector<PreTokenizerStep> steps) : steps_(std::move(steps)) {}

  struct Workspace {
    std::array<NormalizedText, 2> texts;  // output of steps that change text
    std::vector<std::string_view> words, finer;
    std::vector<std::pair<std::size_t, std::size_t>> places;
    std::string prefixed;
  };
  // Splits `part`, a view of from.text, into non-empty workspace.words. Returns the text that
  // contains them. corrupt_data if a step grows a text of `of` bytes too much (growth.h).
  const NormalizedText& cut(std::string_view part, const NormalizedText& from, std::size_t of,
                            Workspace& workspace) const;
  // Whether a step depends on a word's position in the text. If so, cut() needs from.origins.
  bool needs_origins() const;

 private:
  std::vector<PreTokenizerStep> steps_;
};

// Appends `part`, a view of from.text, with spaces replaced by the mark, and with a leading mark if
// `metaspace` asks for it. `begins_text`: `part` starts the text.
inline void append_marked(const Metaspace& metaspace, std::string_view part, bool begins_text,
                          const NormalizedText& from, NormalizedText& marked) {
  const std::string& mark = metaspace.replacement;
  const bool origins = !from.origins.empty();
  const auto of = [&](std::size_t at) {
    const auto begin = static_cast<std::size_t>(part.data() - from.text.data());
    return from.origins.begin() + static_cast<std::ptrdiff_t>(begin + at);
  };
  const bool first = metaspace.prefix == Metaspace::Prefix::first && begins_text;
  if ((first || metaspace.prefix == Metaspace::Prefix::always) && part[0] != ' ' &&
      !part.starts_with(mark)) {
    marked.text += mark;
    if (origins) marked.origins.insert(marked.origins.end(), mark.size(), *of(0));
  }
  for (std::size_t at = 0; at < part.size();) {
    const std::size_t space = std::min(part.find(' ', at), part.size());
    marked.text += part.substr(at, space - at);
    if (origins) marked.origins.insert(marked.origins.end(), of(at), of(space));
    if (space == part.size()) break;
    marked.text += mark;
    if (origins) marked.origins.insert(marked.origins.end(), mark.size(), *of(space));
    at = space + 1;
  }
}

// Calls word(view) for each run of text between white space.
template <typename Word>
void split_at_white_space(std::string_view text, const Word& word) {
  const std::uint8_t* classes = unicode::classes();
  std::size_t begin = 0;
  for (std::size_t at = 0; at < text.size();) {
    const auto c = unicode::decode(text.data() + at);
    if ((classes[c.value] & unicode::kKind) == unicode::space) {
      if (begin < at) word(text.substr(begin, at - begin));
      begin = at + c.bytes;
    }
    at += c.bytes;
  }
  if (begin < text.size()) word(text.substr(begin));
}

// The same with BERT's classes: each punctuation mark is also a word.
template <typename Word>
void split_as_bert(std::string_view text, const Word& word) {
  const std::uint8_t* classes = unicode::bert_classes();
  constexpr std::uint8_t kEnds = unicode::bert_white | unicode::bert_punctuation;
  std::size_t begin = 0;
  for (std::size_t at = 0; at < text.size();) {
    const auto c = unicode::decode(text.data() + at);
    const std::uint8_t kind = classes[c.value];
    if (kind & kEnds) {
      if (begin < at) word(text.substr(begin, at - begin));
      if (kind & unicode::bert_punctuation) word(text.substr(at, c.bytes));
      begin = at + c.bytes;
    }
    at += c.bytes;
  }
  if (begin < text.size()) word(text.substr(begin));
}

}  // namespace shoal
