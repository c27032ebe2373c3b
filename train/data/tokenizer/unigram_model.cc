#include "shoal/train/data/tokenizer/unigram_model.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <utility>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/shortened.h"
#include "shoal/train/data/tokenizer/unicode_classes.h"

namespace shoal {
namespace {

constexpr double kUnknownPenalty = 10;  // subtracted from the lowest score, as in SentencePiece
// Limit of the bytes of tokens that are compared, per byte of a word. SentencePiece's trainer by
// default makes tokens of at most 16 characters, or 64 bytes. Each word has its own limit, because
// cached words take no steps.
constexpr std::size_t kStepsOfAByte = 72;

}  // namespace

UnigramModel::UnigramModel(const std::vector<std::optional<std::string>>& tokens,
                           const std::vector<double>& scores, std::optional<TokenId> unknown,
                           bool byte_fallback, std::string source)
    : scores_(scores),
      unknown_(unknown),
      byte_fallback_(byte_fallback),
      source_(std::move(source)) {
  SHOAL_CHECK(tokens.size() == scores.size(), "{} tokens and {} scores", tokens.size(),
              scores.size());
  build(tokens);
  if (!scores.empty())
    unknown_score_ = *std::min_element(scores.begin(), scores.end()) - kUnknownPenalty;
  for (unsigned byte = 0; byte < 256; ++byte)
    byte_tokens_[byte] = find(fmt::format("<0x{:02X}>", byte)).value_or(kNone);
}

// Breadth first over the sorted tokens, so that a node's children are adjacent.
void UnigramModel::build(const std::vector<std::optional<std::string>>& tokens) {
  std::vector<std::pair<std::string_view, TokenId>> sorted;
  for (std::size_t id = 0; id < tokens.size(); ++id)
    if (tokens[id]) sorted.emplace_back(*tokens[id], static_cast<TokenId>(id));
  std::sort(sorted.begin(), sorted.end());
  struct Range {
    std::size_t begin, end;  // tokens that start with this node's bytes
    std::size_t depth;
  };
  std::deque<Range> ranges = {{0, sorted.size(), 0}};  // ranges of the nodes from `node` on
  trie_.emplace_back();
  bytes_.push_back(0);
  for (std::size_t node = 0; !ranges.empty(); ++node) {
    auto [begin, end, depth] = ranges.front();
    ranges.pop_front();
    for (; begin < end && sorted[begin].first.size() == depth; ++begin)
      if (depth > 0) trie_[node].id = sorted[begin].second;  // the last of duplicates
    trie_[node].first = static_cast<std::uint32_t>(trie_.size());
    while (begin < end) {
      const char byte = sorted[begin].first[depth];
      std::size_t next = begin;
      while (next < end && sorted[next].first[depth] == byte) ++next;
      if (node == 0)
        root_[static_cast<std::uint8_t>(byte)] = static_cast<std::uint32_t>(trie_.size());
      ++trie_[node].children;
      trie_.emplace_back();
      bytes_.push_back(byte);
      ranges.push_back({begin, next, depth + 1});
      begin = next;
    }
  }
}

std::uint32_t UnigramModel::child(std::uint32_t node, char byte) const {
  const Trie& from = trie_[node];
  if (from.children == 0) return 0;
  const char* labels = bytes_.data() + from.first;
  const void* found = std::memchr(labels, byte, from.children);
  if (found == nullptr) return 0;
  return from.first + static_cast<std::uint32_t>(static_cast<const char*>(found) - labels);
}

std::optional<TokenId> UnigramModel::find(std::string_view token) const {
  if (token.empty()) return std::nullopt;
  std::uint32_t node = root_[static_cast<std::uint8_t>(token[0])];
  for (std::size_t at = 1; at < token.size() && node != 0; ++at) node = child(node, token[at]);
  return node == 0 || trie_[node].id == kNone ? std::nullopt : std::optional(trie_[node].id);
}

// As models/unigram/model.rs: of equal sums, the first found wins. Sums are formed in the same
// order, so that they round identically.
void UnigramModel::spell(std::string_view word, std::vector<Node>& nodes) const {
  nodes.assign(word.size() + 1, Node{});
  const auto offer = [&](std::size_t begin, std::size_t end, TokenId id, double score) {
    Node& node = nodes[end];
    const double sum = score + nodes[begin].score;
    if (node.id != kNone && !(sum > node.score)) return;
    node = {sum, static_cast<std::uint32_t>(begin), id};
  };
  std::size_t left = kStepsOfAByte * word.size();
  for (std::size_t begin = 0; begin < word.size();) {
    const std::size_t character = unicode::decode(word.data() + begin).bytes;
    bool has_character = false;
    const std::size_t end = each_token(word, begin, [&](std::size_t stop, TokenId id) {
      offer(begin, stop, id, scores_[static_cast<std::size_t>(id)]);
      has_character |= stop == begin + character;
    });
    if (end - begin > left)
      throw Error(
          ErrorCode::invalid_argument,
          fmt::format("{}: the unigram model takes too many steps on '{}', a word of {} bytes",
                      source_, shortened(word, 80), word.size()),
          "use a model without such long tokens");
    left -= end - begin;
    if (!has_character) {
      if (!unknown_)
        throw Error(ErrorCode::invalid_argument,
                    fmt::format("U+{:04X} in '{}' is in no token, and the tokenizer has no token "
                                "for what is unknown",
                                unicode::decode(word.data() + begin).value, shortened(word, 80)),
                    "name one by unk_id in tokenizer.json");
      offer(begin, begin + character, *unknown_, unknown_score_);
    }
    begin += character;
  }
}

void UnigramModel::unknown_piece(std::string_view word, std::uint32_t begin, std::uint32_t end,
                                 std::vector<Symbol>& symbols) const {
  const std::string_view piece = word.substr(begin, end - begin);
  if (const auto id = find(piece)) return symbols.push_back({*id, begin, end});
  const auto byte_token = [&](char c) { return byte_tokens_[static_cast<std::uint8_t>(c)]; };
  const bool spelled = byte_fallback_ && std::all_of(piece.begin(), piece.end(), [&](char c) {
                         return byte_token(c) != kNone;
                       });
  if (!spelled) return symbols.push_back({*unknown_, begin, end});
  for (const char c : piece) symbols.push_back({byte_token(c), begin, end});
}

void UnigramModel::tokenize(std::string_view word, std::vector<Node>& nodes,
                            std::vector<Symbol>& symbols) const {
  symbols.clear();
  if (word.empty()) return;
  spell(word, nodes);
  for (auto end = static_cast<std::uint32_t>(word.size()); end > 0;) {
    const auto [score, begin, id] = nodes[end];
    if (id == unknown_ && !symbols.empty() && symbols.back().id == id)
      symbols.back().begin = begin;
    else
      symbols.push_back({id, begin, end});
    end = begin;
  }
  std::reverse(symbols.begin(), symbols.end());
  const auto is_unknown = [&](const Symbol& symbol) { return symbol.id == unknown_; };
  if (std::none_of(symbols.begin(), symbols.end(), is_unknown)) return;
  for (const Symbol& symbol : std::exchange(symbols, {})) {
    if (is_unknown(symbol))
      unknown_piece(word, symbol.begin, symbol.end, symbols);
    else
      symbols.push_back(symbol);
  }
}

}  // namespace shoal
