// Tokens found in the text itself, before it is cut into words. Internal to this room.
//
// As Hugging Face's AddedVocabulary (tokenizer/added_vocabulary.rs): tokens that are not
// "normalized" are looked for first, the others in what is left; of several that match at the
// leftmost place the longest wins; a match that single_word rejects is passed over whole.
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
  // A token with empty content is left out, as Hugging Face does. `normalizer`: what is done to the
  // text, and so to tokens that are normalized, before these are looked for.
  explicit AddedVocabulary(std::vector<std::pair<AddedToken, TokenId>> tokens = {},
                           const Normalizer& normalizer = {});

  const std::vector<std::pair<AddedToken, TokenId>>& tokens() const { return tokens_; }

  // Call text_piece(view) and added(view, id) from left to right; the views lie in `text`.
  template <typename TextPiece, typename Added>
  void split(std::string_view text, const TextPiece& text_piece, const Added& added) const {
    split_text(
        text, [&](std::string_view piece) { split_normalized(piece, text_piece, added); }, added);
  }
  // The two passes of split(), for who normalizes what the first leaves.
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
    std::string text;  // what is looked for
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
          if (match.begin >= match.end) continue;  // the token before has swallowed it
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
    // A token may be a space itself: no space is passed more than a few times.
    struct Spaces {
      std::size_t begin = 0, end = 0;  // a run of them, where the last one was looked for
    };
    static std::size_t left_of_spaces(std::string_view text, std::size_t at, std::size_t done);
    static std::size_t right_of_spaces(std::string_view text, std::size_t at, Spaces& spaces);

    static constexpr std::uint32_t kNone = UINT32_MAX;
    std::vector<Entry> entries_;              // by their texts, each of which is there once
    std::vector<std::uint32_t> shorter_;      // of an entry: the longest other one it begins with
    std::array<std::uint32_t, 257> first_{};  // entries of byte b: [first_[b], first_[b + 1])
    int only_byte_ = -1;                      // the first byte of all entries, if it is one
  };

  std::vector<std::pair<AddedToken, TokenId>> tokens_;
  std::array<Pass, 2> passes_;  // not normalized, normalized
};

}  // namespace shoal
