// BPE merges: turns a word into token ids, from its bytes (GPT-2) or its characters
// (SentencePiece). Internal to this folder.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "shoal/train/data/tokenizer/tokenizer.h"

namespace shoal {

// GPT-2's reversible map from bytes to printable characters. '!'..'~', 0xA1..0xAC and 0xAE..0xFF
// map to themselves, the others, in order, to U+0100 and up.
const std::array<std::string, 256>& byte_level_alphabet();  // UTF-8 of each byte's character
// The bytes of a byte-level token; nullopt if a character is not in the alphabet.
std::optional<std::string> bytes_of_token(std::string_view token);
std::string token_of_bytes(std::string_view bytes);

struct StringHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view text) const {
    return std::hash<std::string_view>{}(text);
  }
};
using StringIds = std::unordered_map<std::string, TokenId, StringHash, std::equal_to<>>;

// Map (left id, right id) -> (rank, merged id), with open addressing, at most half full.
class MergeTable {
 public:
  struct Merge {
    std::uint32_t rank = kNone;
    TokenId id = -1;
  };
  static constexpr std::uint32_t kNone = ~std::uint32_t{0};

  void reserve(std::size_t merges);
  void set(TokenId left, TokenId right, Merge merge);  // a later rank replaces an earlier one
  Merge find(TokenId left, TokenId right) const {
    const std::uint64_t key = key_of(left, right);
    for (std::size_t slot = slot_of(key);; slot = (slot + 1) & mask_) {
      if (slots_[slot].key == key) return slots_[slot].merge;
      if (slots_[slot].key == kEmpty) return {};
    }
  }

 private:
  static constexpr std::uint64_t kEmpty = ~std::uint64_t{0};
  struct Slot {
    std::uint64_t key = kEmpty;
    Merge merge;
  };
  static std::uint64_t key_of(TokenId left, TokenId right) {
    return std::uint64_t{static_cast<std::uint32_t>(left)} << 32 |
           static_cast<std::uint32_t>(right);
  }
  std::size_t slot_of(std::uint64_t key) const {
    return static_cast<std::size_t>((key * 0x9E3779B97F4A7C15u) >> shift_);
  }
  std::vector<Slot> slots_ = std::vector<Slot>(2);
  std::size_t mask_ = 1;
  int shift_ = 63;
};

struct BpeModelOptions {
  std::optional<std::string> unk_token;
  bool fuse_unk = false;
  bool ignore_merges = false;
  // true: tokens are text, and symbols are a word's characters. false: tokens use the byte-level
  // alphabet, and symbols are a word's bytes.
  bool characters = false;
  bool byte_fallback = false;  // with `characters`: byte tokens <0x..> for unknown ones
};

class BpeModel {
 public:
  // tokens[id] is empty for gaps in the vocabulary. Merges are ordered by rank. corrupt_data with
  // `source` and the token if a merge needs a missing token.
  BpeModel(std::vector<std::optional<std::string>> tokens,
           const std::vector<std::pair<std::string, std::string>>& merges, BpeModelOptions options,
           const std::string& source);

  struct Symbol {
    TokenId id;
    std::uint32_t bytes;  // bytes of the word that it covers
  };
  TokenId unknown() const { return unk_; }  // id of unk_token; -1: none
  // Thread-safe. Replaces `symbols`. O(n log n). A byte or character missing from the vocabulary
  // becomes unk_token or, without one, is dropped, as in Hugging Face.
  void tokenize(std::string_view word, std::vector<Symbol>& symbols) const;
  // End of the part of `word` that begins at `from` and can be tokenized separately: the part ends
  // before a space mark that no merge joins to the preceding character. For Llama a whole line is
  // one word; its parts recur and can be cached.
  std::size_t part_end(std::string_view word, std::size_t from) const;

  const std::vector<std::optional<std::string>>& tokens() const { return tokens_; }
  const std::vector<std::pair<TokenId, TokenId>>& merges() const { return merge_list_; }
  const BpeModelOptions& options() const { return options_; }
  std::int64_t size() const { return size_; }  // tokens, without gaps
  std::optional<TokenId> find(std::string_view token) const;

 private:
  void merge_short(std::vector<Symbol>& symbols) const;
  void merge_long(std::vector<Symbol>& symbols) const;
  void first_symbols(std::string_view word, std::vector<Symbol>& symbols) const;
  void first_characters(std::string_view word, std::vector<Symbol>& symbols) const;
  TokenId character_id(std::uint32_t character) const {
    return character < character_ids_.size() ? character_ids_[character] : -1;
  }
  void find_characters();
  void find_parts();

  std::vector<std::optional<std::string>> tokens_;
  std::vector<std::pair<TokenId, TokenId>> merge_list_;
  BpeModelOptions options_;
  std::int64_t size_ = 0;
  StringIds ids_;
  MergeTable table_;
  std::array<TokenId, 256> byte_ids_{};  // -1: not in the vocabulary
  std::vector<TokenId> character_ids_;   // by code point; -1 or out of range: missing
  bool has_parts_ = false;
  // sorted: characters that merges join to a following mark
  std::vector<std::uint32_t> joined_to_mark_;
  TokenId unk_ = -1;
};

}  // namespace shoal
