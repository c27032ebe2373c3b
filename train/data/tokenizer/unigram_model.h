// SentencePiece's unigram model (Kudo 2018): spells a word with the tokens that have the highest
// total score. Internal to this folder.
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
    std::uint32_t begin, end;  // bytes of the word; several tokens may share a range
  };
  // The best spelling of the word's bytes up to this node's position. Callers keep nodes as scratch
  // space between calls.
  struct Node {
    double score = 0;
    std::uint32_t begin = 0;  // start of the last token
    TokenId id = kNone;
  };

  // `tokens` and `scores` are indexed by id, as in Hugging Face's Unigram. Of duplicate tokens, the
  // last id wins. `unknown`: the token for characters that no token spells, if any. `source`: for
  // messages.
  UnigramModel(const std::vector<std::optional<std::string>>& tokens,
               const std::vector<double>& scores, std::optional<TokenId> unknown,
               bool byte_fallback, std::string source);

  // Replaces `symbols`. `word`: well-formed UTF-8 below 4 GiB. Adjacent unknown characters become
  // one unknown token or, with byte_fallback, byte tokens. invalid_argument if a character is
  // unknown and there is no token for it, or if the word's characters begin too many long tokens.
  void tokenize(std::string_view word, std::vector<Node>& nodes,
                std::vector<Symbol>& symbols) const;
  std::optional<TokenId> find(std::string_view token) const;
  // Calls offer(end, id) for each token word[begin, end), by rising end. Returns the end of the
  // bytes that were compared.
  template <typename Offer>
  std::size_t each_token(std::string_view word, std::size_t begin, const Offer& offer) const {
    std::uint32_t node = root_[static_cast<std::uint8_t>(word[begin])];
    std::size_t end = begin + 1;
    for (; node != 0; node = child(node, word[end++])) {
      if (const TokenId id = trie_[node].id; id != kNone) offer(end, id);
      if (end == word.size()) break;
    }
    return end;
  }

 private:
  static constexpr TokenId kNone = -1;
  struct Trie {
    std::uint32_t first = 0, children = 0;  // children are adjacent, by rising byte
    TokenId id = kNone;
  };

  void build(const std::vector<std::optional<std::string>>& tokens);
  // The child for that byte, or 0.
  std::uint32_t child(std::uint32_t node, char byte) const;
  void spell(std::string_view word, std::vector<Node>& nodes) const;
  void unknown_piece(std::string_view word, std::uint32_t begin, std::uint32_t end,
                     std::vector<Symbol>& symbols) const;

  std::vector<Trie> trie_;
  std::vector<char> bytes_;  // by node: the byte that leads to it
  std::array<std::uint32_t, 256> root_{};
  const std::vector<double> scores_;
  std::optional<TokenId> unknown_;
  double unknown_score_ = 0;
  bool byte_fallback_;
  std::string source_;
  std::array<TokenId, 256> byte_tokens_{};
};

}  // namespace shoal
