// SentencePiece's unigram model (Kudo 2018): of all ways to spell a word with tokens, the one whose
// scores add up to most. Internal to this room.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shoal/train/data/tokenizer/tokenizer.h"

namespace shoal {

class UnigramModel {
 public:
  struct Symbol {
    TokenId id;
    std::uint32_t begin, end;  // bytes of the word; several tokens may stand for the same ones
  };
  // The best way to spell the bytes up to here. Kept between calls.
  struct Node {
    double score = 0;
    std::uint32_t begin = 0;  // of the last token
    TokenId id = kNone;
  };

  // `tokens` and `scores` by id, as Hugging Face's Unigram takes them: where a token occurs twice,
  // the later id wins. `unknown`: the token for what no other spells, absent if there is none.
  UnigramModel(const std::vector<std::optional<std::string>>& tokens,
               const std::vector<double>& scores, std::optional<TokenId> unknown,
               bool byte_fallback);

  // Replaces `symbols`. `word`: well-formed UTF-8 of less than 4 GiB. Neighbouring unknown
  // characters become one token, or with byte_fallback the tokens of their bytes. invalid_argument
  // where a character is unknown and there is no token for that.
  void tokenize(std::string_view word, std::vector<Node>& nodes,
                std::vector<Symbol>& symbols) const;
  std::optional<TokenId> find(std::string_view token) const;

 private:
  static constexpr TokenId kNone = -1;
  struct Trie {
    std::uint32_t first = 0, children = 0;  // children stand side by side, by rising byte
    TokenId id = kNone;
  };

  void build(const std::vector<std::optional<std::string>>& tokens);
  // The child by that byte, or 0.
  std::uint32_t child(std::uint32_t node, char byte) const;
  void spell(std::string_view word, std::vector<Node>& nodes) const;
  void unknown_piece(std::string_view word, std::uint32_t begin, std::uint32_t end,
                     std::vector<Symbol>& symbols) const;

  std::vector<Trie> trie_;
  std::vector<char> bytes_;  // of each node: by which it is reached
  std::array<std::uint32_t, 256> root_{};
  const std::vector<double> scores_;
  std::optional<TokenId> unknown_;
  double unknown_score_ = 0;
  bool byte_fallback_;
  std::array<TokenId, 256> byte_tokens_{};
};

}  // namespace shoal
