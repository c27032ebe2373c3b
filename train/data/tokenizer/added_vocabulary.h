// Finds added tokens in text before it is split into words. Internal to this folder.
//
// The rules are those of Hugging Face's AddedVocabulary (tokenizer/added_vocabulary.rs). Tokens
// that are not "normalized" are matched first, the others in the remaining text. At the leftmost
// position with a match, the longest token wins. If single_word rejects a match, the search
// continues after it.
#pragma once

#include <array>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shoal/train/data/tokenizer/tokenizer_base.h"
#include "shoal/train/data/tokenizer/unicode_classes.h"

namespace shoal {

class AddedVocabulary {
 public:
  using Normalizer = std::function<std::string(const std::string&)>;
  // Ignores tokens with empty content, as Hugging Face does. `normalizer` normalizes the content of
  // tokens that are matched in normalized text.
  explicit AddedVocabulary(std::vector<std::pair<AddedToken, TokenId>> tokens = {},
                           const Normalizer& normalizer = {});

  const std::vector<std::pair<AddedToken, TokenId>>& tokens() const { return tokens_; }

  // Calls text_piece(view) and added(view, id) from left to right; the views point into `text`.
  template <typename TextPiece, typename Added>
  void split(std::string_view text, const TextPiece& text_piece, const Added& added) const {
    split_text(
        text, [&](std::string_view piece) { split_normalized(piece, text_piece, added); }, added);
  }
  // The two passes of split(), for callers that normalize the text between them.
  template <typename TextPiece, typename Added>
  void split_text(std::string_view text, const TextPiece& text_piece, const Added& added) const {
    passes_[0].split(text, text_piece, added);
  }
  template <typename TextPiece, typename Added>
  void split_normalized(std::string_view text, const TextPiece& text_piece,
                        const Added& added) const {
    passes_[1].split(text, text_piece, added);
  }

 private:
  struct Entry {
    AddedToken token;
    std::string text;  // the text to match
    TokenId id;
  };
  struct Match {
    std::size_t begin, end;
    const Entry* entry;
  };

  class Pass {
   public:
    void add(const AddedToken& token, std::string text, TokenId id);
    void finish();

    template <typename TextPiece, typename Added>
    void split(std::string_view text, const TextPiece& text_piece, const Added& added) const {
      if (text.empty()) return;
      std::size_t done = 0;
      Spaces spaces;
      if (!entries_.empty()) {
        Match match;
        for (std::size_t from = 0; find(text, from, match);) {
          from = match.end;
          const AddedToken& token = match.entry->token;
          if (token.single_word && !stands_alone(text, match.begin, match.end)) continue;
          if (token.lstrip) match.begin = std::max(left_of_spaces(text, match.begin, done), done);
          if (token.rstrip) match.end = right_of_spaces(text, match.end, spaces);
          if (match.begin >= match.end) continue;  // the previous token consumed it
          if (done < match.begin) text_piece(text.substr(done, match.begin - done));
          added(text.substr(match.begin, match.end - match.begin), match.entry->id);
          done = match.end;
        }
      }
      if (done < text.size()) text_piece(text.substr(done));
    }

   private:
    bool find(std::string_view text, std::size_t from, Match& match) const;
    static bool stands_alone(std::string_view text, std::size_t begin, std::size_t end);
    // Keeps the last run of spaces, so that right_of_spaces() scans each space only once, even if
    // tokens consist of spaces.
    struct Spaces {
      std::size_t begin = 0, end = 0;  // the last run of spaces that was scanned
    };
    static std::size_t left_of_spaces(std::string_view text, std::size_t at, std::size_t done);
    static std::size_t right_of_spaces(std::string_view text, std::size_t at, Spaces& spaces);

    static constexpr std::uint32_t kNone = UINT32_MAX;
    std::vector<Entry> entries_;          // sorted by text, without duplicates
    std::vector<std::uint32_t> shorter_;  // by entry: the longest other entry that is its prefix
    std::array<std::uint32_t, 257> first_{};  // entries of byte b: [first_[b], first_[b + 1])
    int only_byte_ = -1;                      // the first byte of all entries, or -1 if they differ
  };

  std::vector<std::pair<AddedToken, TokenId>> tokens_;
  std::array<Pass, 2> passes_;  // for tokens matched in the original and in normalized text
};

}  // namespace shoal
