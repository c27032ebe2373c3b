#include "shoal/train/data/tokenizer/bpe_model.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <queue>
#include <utility>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/shortened.h"
#include "shoal/train/data/tokenizer/unicode_classes.h"

namespace shoal {
namespace {

std::string utf8_of(std::uint32_t c) {
  if (c < 0x80) return std::string(1, static_cast<char>(c));
  return {static_cast<char>(0xC0 | (c >> 6)), static_cast<char>(0x80 | (c & 0x3F))};
}

struct Alphabet {
  std::array<std::string, 256> characters;
  std::array<std::int16_t, 512> bytes;  // code point -> byte, or -1

  Alphabet() {
    bytes.fill(-1);
    std::uint32_t next = 256;
    for (std::uint32_t b = 0; b < 256; ++b) {
      const bool itself = (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
      const std::uint32_t c = itself ? b : next++;
      characters[b] = utf8_of(c);
      bytes[c] = static_cast<std::int16_t>(b);
    }
  }
};

const Alphabet& alphabet() {
  static const Alphabet table;
  return table;
}

// Above this many symbols, the quadratic search for the lowest rank is slower than a heap.
constexpr std::size_t kShortWord = 48;

constexpr std::string_view kMark = "\u2581";  // SentencePiece's mark for a space
constexpr std::uint32_t kMarkCharacter = 0x2581;

}  // namespace

const std::array<std::string, 256>& byte_level_alphabet() { return alphabet().characters; }

std::optional<std::string> bytes_of_token(std::string_view token) {
  std::string bytes;
  for (std::size_t at = 0; at < token.size();) {
    const unicode::CodePoint c = unicode::decode(token.data() + at);
    if (c.value >= 512 || alphabet().bytes[c.value] < 0) return std::nullopt;
    bytes += static_cast<char>(alphabet().bytes[c.value]);
    at += c.bytes;
  }
  return bytes;
}

std::string token_of_bytes(std::string_view bytes) {
  std::string token;
  for (const char b : bytes) token += alphabet().characters[static_cast<std::uint8_t>(b)];
  return token;
}

void MergeTable::reserve(std::size_t merges) {
  const std::size_t size = std::bit_ceil(std::max<std::size_t>(2 * merges, 2));
  slots_.assign(size, Slot{});
  mask_ = size - 1;
  shift_ = 64 - std::countr_zero(size);
}

void MergeTable::set(TokenId left, TokenId right, Merge merge) {
  const std::uint64_t key = key_of(left, right);
  std::size_t slot = slot_of(key);
  while (slots_[slot].key != kEmpty && slots_[slot].key != key) slot = (slot + 1) & mask_;
  slots_[slot] = {key, merge};
}

BpeModel::BpeModel(std::vector<std::optional<std::string>> tokens,
                   const std::vector<std::pair<std::string, std::string>>& merges,
                   BpeModelOptions options, const std::string& source)
    : tokens_(std::move(tokens)), options_(std::move(options)) {
  ids_.reserve(tokens_.size());
  for (std::size_t id = 0; id < tokens_.size(); ++id) {
    if (!tokens_[id]) continue;
    ++size_;
    if (!ids_.emplace(*tokens_[id], static_cast<TokenId>(id)).second)
      throw_error(ErrorCode::corrupt_data, "{}: the token '{}' stands twice in the vocabulary",
                  source, shortened(*tokens_[id]));
  }
  if (merges.size() >= MergeTable::kNone)
    throw_error(ErrorCode::corrupt_data, "{}: {} merges are too many", source, merges.size());
  table_.reserve(merges.size());
  merge_list_.reserve(merges.size());
  for (std::size_t rank = 0; rank < merges.size(); ++rank) {
    const auto& [left, right] = merges[rank];
    const auto need = [&](const std::string& token) {
      const auto found = ids_.find(token);
      if (found == ids_.end())
        throw_error(ErrorCode::corrupt_data,
                    "{}: merge {} ('{}' '{}') needs the token '{}', which the vocabulary lacks",
                    source, rank, shortened(left), shortened(right), shortened(token));
      return found->second;
    };
    const TokenId a = need(left), b = need(right), merged = need(left + right);
    merge_list_.emplace_back(a, b);
    table_.set(a, b, {static_cast<std::uint32_t>(rank), merged});
  }
  for (std::size_t b = 0; b < 256; ++b)
    byte_ids_[b] =
        find(options_.characters ? fmt::format("<0x{:02X}>", b) : alphabet().characters[b])
            .value_or(-1);
  if (options_.unk_token) {
    const auto found = ids_.find(*options_.unk_token);
    if (found == ids_.end())
      throw_error(ErrorCode::corrupt_data, "{}: the vocabulary lacks the unk_token '{}'", source,
                  shortened(*options_.unk_token));
    unk_ = found->second;
  }
  if (!options_.characters) return;
  find_characters();
  find_parts();
}

void BpeModel::find_characters() {
  for (std::size_t id = 0; id < tokens_.size(); ++id) {
    if (!tokens_[id] || tokens_[id]->empty()) continue;
    const auto c = unicode::decode(tokens_[id]->data());
    if (c.bytes != tokens_[id]->size()) continue;
    if (c.value >= character_ids_.size()) character_ids_.resize(c.value + 1, -1);
    character_ids_[c.value] = static_cast<TokenId>(id);
  }
}

// A space mark begins a part if no merge joins it to the preceding character. It suffices to search
// the texts of merged tokens for marks, unless merges use tokens for unknown characters.
void BpeModel::find_parts() {
  const auto stands_for_unknown = [&](TokenId id) {
    return id == unk_ || std::find(byte_ids_.begin(), byte_ids_.end(), id) != byte_ids_.end();
  };
  has_parts_ = !options_.ignore_merges && character_id(kMarkCharacter) >= 0;
  for (const auto& [left, right] : merge_list_) {
    has_parts_ = has_parts_ && !stands_for_unknown(left) && !stands_for_unknown(right);
    const std::string made =
        *tokens_[static_cast<std::size_t>(left)] + *tokens_[static_cast<std::size_t>(right)];
    for (std::size_t at = 1; (at = made.find(kMark, at)) != std::string::npos; ++at)
      joined_to_mark_.push_back(unicode::decode(made.data() + unicode::previous(made, at)).value);
  }
  std::sort(joined_to_mark_.begin(), joined_to_mark_.end());
  joined_to_mark_.erase(std::unique(joined_to_mark_.begin(), joined_to_mark_.end()),
                        joined_to_mark_.end());
}

std::size_t BpeModel::part_end(std::string_view word, std::size_t from) const {
  if (!has_parts_) return word.size();
  for (std::size_t at = from; (at = word.find(kMark, at + 1)) != std::string_view::npos;) {
    const auto before = unicode::decode(word.data() + unicode::previous(word, at)).value;
    if (!std::binary_search(joined_to_mark_.begin(), joined_to_mark_.end(), before)) return at;
  }
  return word.size();
}

std::optional<TokenId> BpeModel::find(std::string_view token) const {
  const auto found = ids_.find(token);
  if (found == ids_.end()) return std::nullopt;
  return found->second;
}

// As merge_word in models/bpe/model.rs: unknown characters are held back until a known one follows,
// while byte tokens are added at once.
void BpeModel::first_characters(std::string_view word, std::vector<Symbol>& symbols) const {
  std::uint32_t unknown_bytes = 0;
  const auto add_unknown = [&] {
    if (unknown_bytes > 0) symbols.push_back({unk_, std::exchange(unknown_bytes, 0)});
  };
  for (std::size_t at = 0; at < word.size();) {
    const auto c = unicode::decode(word.data() + at);
    const std::string_view bytes = word.substr(at, c.bytes);
    at += c.bytes;
    const auto byte_id = [&](char b) { return byte_ids_[static_cast<std::uint8_t>(b)]; };
    if (const TokenId id = character_id(c.value); id >= 0) {
      add_unknown();
      symbols.push_back({id, c.bytes});
    } else if (options_.byte_fallback &&
               std::all_of(bytes.begin(), bytes.end(), [&](char b) { return byte_id(b) >= 0; })) {
      for (const char b : bytes) symbols.push_back({byte_id(b), 1});
    } else if (unk_ >= 0) {
      if (!options_.fuse_unk) add_unknown();
      unknown_bytes += c.bytes;
    }
  }
  add_unknown();
}

void BpeModel::first_symbols(std::string_view word, std::vector<Symbol>& symbols) const {
  symbols.clear();
  if (options_.characters) return first_characters(word, symbols);
  bool after_unknown = false;
  for (const char c : word) {
    const TokenId id = byte_ids_[static_cast<std::uint8_t>(c)];
    if (id >= 0) {
      symbols.push_back({id, 1});
      after_unknown = false;
    } else if (unk_ >= 0) {
      if (after_unknown && options_.fuse_unk)
        ++symbols.back().bytes;
      else
        symbols.push_back({unk_, 1});
      after_unknown = true;
    }
  }
}

void BpeModel::tokenize(std::string_view word, std::vector<Symbol>& symbols) const {
  if (options_.ignore_merges) {
    if (const auto id = options_.characters ? find(word) : find(token_of_bytes(word))) {
      symbols.assign(1, {*id, static_cast<std::uint32_t>(word.size())});
      return;
    }
  }
  first_symbols(word, symbols);
  if (symbols.size() <= kShortWord)
    merge_short(symbols);
  else
    merge_long(symbols);
}

void BpeModel::merge_short(std::vector<Symbol>& symbols) const {
  std::array<MergeTable::Merge, kShortWord> pairs;  // pairs[i]: merge of symbols i and i + 1
  std::size_t count = symbols.size();
  if (count < 2) return;
  for (std::size_t i = 0; i + 1 < count; ++i)
    pairs[i] = table_.find(symbols[i].id, symbols[i + 1].id);
  for (;;) {
    std::size_t best = 0;
    for (std::size_t i = 1; i + 1 < count; ++i)
      if (pairs[i].rank < pairs[best].rank) best = i;
    if (count < 2 || pairs[best].rank == MergeTable::kNone) break;
    symbols[best] = {pairs[best].id, symbols[best].bytes + symbols[best + 1].bytes};
    --count;
    for (std::size_t i = best + 1; i < count; ++i) symbols[i] = symbols[i + 1];
    for (std::size_t i = best + 1; i + 1 < count; ++i) pairs[i] = pairs[i + 1];
    if (best + 1 < count) pairs[best] = table_.find(symbols[best].id, symbols[best + 1].id);
    if (best > 0) pairs[best - 1] = table_.find(symbols[best - 1].id, symbols[best].id);
  }
  symbols.resize(count);
}

void BpeModel::merge_long(std::vector<Symbol>& symbols) const {
  // O(n log n): a heap of candidate merges over a linked list. A candidate is dropped when popped
  // if its pair has changed in the meantime.
  struct Candidate {
    std::uint32_t rank;
    std::uint32_t at;
    TokenId id;
    bool operator>(const Candidate& other) const {
      return rank != other.rank ? rank > other.rank : at > other.at;
    }
  };
  SHOAL_CHECK(symbols.size() < std::numeric_limits<std::uint32_t>::max(),
              "a word of {} bytes is too long to tokenize", symbols.size());
  const auto count = static_cast<std::uint32_t>(symbols.size());
  constexpr std::uint32_t kEnd = std::numeric_limits<std::uint32_t>::max();
  std::vector<std::uint32_t> next(count), previous(count);
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> heap;
  const auto consider = [&](std::uint32_t at) {
    const auto merge = table_.find(symbols[at].id, symbols[next[at]].id);
    if (merge.rank != MergeTable::kNone) heap.push({merge.rank, at, merge.id});
  };
  for (std::uint32_t i = 0; i < count; ++i) {
    next[i] = i + 1 < count ? i + 1 : kEnd;
    previous[i] = i > 0 ? i - 1 : kEnd;
  }
  for (std::uint32_t i = 0; i + 1 < count; ++i) consider(i);
  while (!heap.empty()) {
    const Candidate top = heap.top();
    heap.pop();
    const std::uint32_t right = next[top.at];
    if (symbols[top.at].bytes == 0 || right == kEnd) continue;
    if (table_.find(symbols[top.at].id, symbols[right].id).id != top.id) continue;
    symbols[top.at] = {top.id, symbols[top.at].bytes + symbols[right].bytes};
    symbols[right].bytes = 0;  // merged into the left symbol
    next[top.at] = next[right];
    if (next[right] != kEnd) previous[next[right]] = top.at;
    if (next[top.at] != kEnd) consider(top.at);
    if (previous[top.at] != kEnd) consider(previous[top.at]);
  }
  std::erase_if(symbols, [](const Symbol& symbol) { return symbol.bytes == 0; });
}

}  // namespace shoal
