#include "shoal/train/data/tokenizer/bpe_trainer.h"

#include <algorithm>
#include <cstring>
#include <queue>
#include <unordered_map>
#include <unordered_set>

#include "shoal/runtime/base/error.h"
#include "shoal/train/data/tokenizer/definition.h"
#include "shoal/train/data/tokenizer/gpt2_scanner.h"
#include "shoal/train/data/tokenizer/make_tokenizer.h"
#include "shoal/train/data/tokenizer/utf8.h"
#include "shoal/train/data/tokenizer/word_counts.h"

namespace shoal {
namespace {

void count_words(WordCounts& counts, std::string_view text, bool add_prefix_space) {
  std::string prefixed;
  if (add_prefix_space && !text.empty() && text.front() != ' ') {
    prefixed.assign(1, ' ').append(text);
    text = prefixed;
  }
  Gpt2Scanner scanner(text);
  for (std::string_view word = scanner.next(); !word.empty(); word = scanner.next())
    count_word(counts, word);
}

using Pair = std::pair<TokenId, TokenId>;

// Map from a pair to its count and to the words to visit once the pair is pushed on the heap.
class PairTable {
 public:
  struct Entry {
    std::uint64_t key = kEmpty;
    std::int64_t count = 0;
    std::int32_t waiting = -1;  // index into Merger::waiting_, or -1
  };
  static std::uint64_t key_of(Pair pair) {
    return std::uint64_t{static_cast<std::uint32_t>(pair.first)} << 32 |
           static_cast<std::uint32_t>(pair.second);
  }
  // Valid until the next call.
  Entry& at(Pair pair) {
    if (2 * used_ >= entries_.size()) grow();
    Entry& entry = entries_[slot(key_of(pair))];
    if (entry.key == kEmpty) {
      entry.key = key_of(pair);
      ++used_;
    }
    return entry;
  }

 private:
  static constexpr std::uint64_t kEmpty = ~std::uint64_t{0};
  std::size_t slot(std::uint64_t key) const {
    const std::size_t mask = entries_.size() - 1;
    std::size_t at = static_cast<std::size_t>((key * 0x9E3779B97F4A7C15u) >> 20) & mask;
    while (entries_[at].key != kEmpty && entries_[at].key != key) at = (at + 1) & mask;
    return at;
  }
  void grow() {
    std::vector<Entry> old(2 * entries_.size());
    old.swap(entries_);
    for (const Entry& entry : old)
      if (entry.key != kEmpty) entries_[slot(entry.key)] = entry;
  }
  std::vector<Entry> entries_ = std::vector<Entry>(1 << 14);
  std::size_t used_ = 0;
};

// The loop of Hugging Face's BpeTrainer::do_train (models/bpe/trainer.rs), including its order of
// ties.
class Merger {
 public:
  Merger(const BpeTrainerOptions& options, const WordCounts& counts);
  void run();
  BpeDefinition take_definition();

 private:
  struct Word {
    std::size_t begin;
    std::uint32_t length;
    std::int64_t count;
  };
  struct Candidate {
    std::uint64_t count;
    Pair pair;
    std::vector<std::uint32_t> words;
    bool operator<(const Candidate& other) const {  // top: highest count, then lowest pair
      return count != other.count ? count < other.count : pair > other.pair;
    }
  };

  TokenId add_token(const std::string& token);
  void change(Pair pair, std::int64_t by, std::uint32_t word);
  void push_waiting();
  void merge_in_word(std::uint32_t index, Pair pair, TokenId merged);
  bool fits(TokenId a, TokenId b) const {
    return options_.max_token_length == 0 ||
           lengths_[static_cast<std::size_t>(a)] + lengths_[static_cast<std::size_t>(b)] <
               options_.max_token_length;
  }

  const BpeTrainerOptions& options_;
  std::vector<std::string> tokens_;
  std::unordered_map<std::string, TokenId> ids_;
  std::vector<std::int64_t> lengths_;  // bytes, by id
  std::vector<TokenId> symbols_;       // all words, concatenated; words only shrink in place
  std::vector<Word> words_;
  PairTable pairs_;
  std::vector<Pair> waiting_pairs_;
  std::vector<std::vector<std::uint32_t>> waiting_;
  std::vector<Candidate> heap_;
  std::vector<std::pair<Pair, TokenId>> merges_;
};

TokenId Merger::add_token(const std::string& token) {
  const auto [place, is_new] = ids_.emplace(token, static_cast<TokenId>(tokens_.size()));
  if (is_new) {
    tokens_.push_back(token);
    lengths_.push_back(1);
  }
  return place->second;
}

Merger::Merger(const BpeTrainerOptions& options, const WordCounts& counts) : options_(options) {
  for (const std::string& token : options.special_tokens) add_token(token);
  // UTF-8 byte order equals code point order.
  std::vector<std::string> alphabet(byte_level_alphabet().begin(), byte_level_alphabet().end());
  std::sort(alphabet.begin(), alphabet.end());
  for (const std::string& character : alphabet) add_token(character);

  std::array<TokenId, 256> byte_ids;
  for (std::size_t b = 0; b < 256; ++b) byte_ids[b] = ids_.at(byte_level_alphabet()[b]);
  words_.reserve(counts.size());
  for (const auto& [word, count] : counts) {
    words_.push_back({symbols_.size(), static_cast<std::uint32_t>(word.size()), count});
    for (const char c : word) symbols_.push_back(byte_ids[static_cast<std::uint8_t>(c)]);
  }
  for (std::uint32_t i = 0; i < words_.size(); ++i)
    for (std::uint32_t k = 0; k + 1 < words_[i].length; ++k)
      change({symbols_[words_[i].begin + k], symbols_[words_[i].begin + k + 1]}, 1, i);
  push_waiting();
}

void Merger::change(Pair pair, std::int64_t by, std::uint32_t word) {
  PairTable::Entry& entry = pairs_.at(pair);
  entry.count += by * words_[word].count;
  if (by < 0) return;
  if (entry.waiting < 0) {
    entry.waiting = static_cast<std::int32_t>(waiting_pairs_.size());
    waiting_pairs_.push_back(pair);
    waiting_.emplace_back();
  }
  auto& list = waiting_[static_cast<std::size_t>(entry.waiting)];
  if (list.empty() || list.back() != word) list.push_back(word);  // words arrive in sequence
}

void Merger::push_waiting() {
  for (std::size_t i = 0; i < waiting_pairs_.size(); ++i) {
    PairTable::Entry& entry = pairs_.at(waiting_pairs_[i]);
    entry.waiting = -1;
    if (entry.count <= 0) continue;
    heap_.push_back(
        {static_cast<std::uint64_t>(entry.count), waiting_pairs_[i], std::move(waiting_[i])});
    std::push_heap(heap_.begin(), heap_.end());
  }
  waiting_pairs_.clear();
  waiting_.clear();
}

void Merger::merge_in_word(std::uint32_t index, Pair pair, TokenId merged) {
  Word& word = words_[index];
  TokenId* const symbols = symbols_.data() + word.begin;
  std::uint32_t kept = 0;  // symbols[0, kept) are final
  for (std::uint32_t i = 0; i < word.length; ++i) {
    if (symbols[i] != pair.first || i + 1 >= word.length || symbols[i + 1] != pair.second) {
      symbols[kept++] = symbols[i];
      continue;
    }
    if (kept > 0) {
      change({symbols[kept - 1], pair.first}, -1, index);
      if (fits(symbols[kept - 1], merged)) change({symbols[kept - 1], merged}, 1, index);
    }
    ++i;
    symbols[kept++] = merged;
    if (i + 1 < word.length) {
      change({pair.second, symbols[i + 1]}, -1, index);
      if (fits(merged, symbols[i + 1])) change({merged, symbols[i + 1]}, 1, index);
    }
  }
  word.length = kept;
}

void Merger::run() {
  const auto goal = static_cast<std::size_t>(options_.vocab_size);
  const std::size_t tick = std::max<std::size_t>(goal / 100, 1);
  while (tokens_.size() < goal && !heap_.empty()) {
    std::pop_heap(heap_.begin(), heap_.end());
    Candidate top = std::move(heap_.back());
    heap_.pop_back();
    const auto now = static_cast<std::uint64_t>(pairs_.at(top.pair).count);
    if (top.count != now) {  // stale: push again with the current count
      top.count = now;
      heap_.push_back(std::move(top));
      std::push_heap(heap_.begin(), heap_.end());
      continue;
    }
    if (top.count < 1 || top.count < static_cast<std::uint64_t>(options_.min_frequency)) break;
    const auto a = static_cast<std::size_t>(top.pair.first);
    const auto b = static_cast<std::size_t>(top.pair.second);
    const TokenId merged = add_token(tokens_[a] + tokens_[b]);
    lengths_[static_cast<std::size_t>(merged)] = lengths_[a] + lengths_[b];
    merges_.emplace_back(top.pair, merged);
    for (const std::uint32_t word : top.words) merge_in_word(word, top.pair, merged);
    push_waiting();
    if (options_.progress && tokens_.size() % tick == 0)
      options_.progress("merge", static_cast<std::int64_t>(tokens_.size()), options_.vocab_size);
  }
}

BpeDefinition Merger::take_definition() {
  BpeDefinition definition;
  // If a pair occurs twice, keep the later rank, as Hugging Face's map from pairs to ranks does.
  std::unordered_set<std::uint64_t> seen;
  for (auto merge = merges_.rbegin(); merge != merges_.rend(); ++merge)
    if (seen.insert(PairTable::key_of(merge->first)).second)
      definition.merges.emplace_back(tokens_[static_cast<std::size_t>(merge->first.first)],
                                     tokens_[static_cast<std::size_t>(merge->first.second)]);
  std::reverse(definition.merges.begin(), definition.merges.end());
  definition.tokens.assign(tokens_.begin(), tokens_.end());
  std::vector<AddedToken> added;
  for (const std::string& token : options_.special_tokens) added.push_back({.content = token});
  add_tokens(definition, added);
  set_gpt2_parts(definition, options_.add_prefix_space, false);
  return definition;
}

}  // namespace

struct BpeTrainer::Impl {
  BpeTrainerOptions options;
  WordCounts counts;
};

BpeTrainer::BpeTrainer(BpeTrainerOptions options) : impl_(std::make_unique<Impl>()) {
  const auto least = 256 + static_cast<std::int64_t>(options.special_tokens.size());
  SHOAL_CHECK(options.vocab_size >= least,
              "a byte-level vocabulary of {} is too small: 256 bytes and {} special tokens need {}",
              options.vocab_size, options.special_tokens.size(), least);
  SHOAL_CHECK(options.vocab_size <= std::int64_t{1} << 26, "a vocabulary of {} is above 2^26",
              options.vocab_size);
  SHOAL_CHECK(options.min_frequency >= 0, "min_frequency is {}", options.min_frequency);
  SHOAL_CHECK(options.max_token_length >= 0, "max_token_length is {}", options.max_token_length);
  for (const std::string& token : options.special_tokens) {
    SHOAL_CHECK(!token.empty(), "a special token is empty");
    check_utf8(token, "special token");
  }
  impl_->options = std::move(options);
}

BpeTrainer::~BpeTrainer() = default;

void BpeTrainer::add_text(std::string_view text) {
  check_utf8(text, "text to train on");
  count_words(impl_->counts, text, impl_->options.add_prefix_space);
}

void BpeTrainer::add_file(const std::string& path) {
  const BpeTrainerOptions& options = impl_->options;
  count_file(
      path, options.threads,
      [&](WordCounts& counts, std::string_view line) {
        count_words(counts, line, options.add_prefix_space);
      },
      options.progress, impl_->counts);
}

std::int64_t BpeTrainer::distinct_words() const {
  return static_cast<std::int64_t>(impl_->counts.size());
}

std::shared_ptr<const ByteLevelBpe> BpeTrainer::train() const {
  Merger merger(impl_->options, impl_->counts);
  merger.run();
  return make_byte_level_bpe(merger.take_definition(), "trained tokenizer");
}

}  // namespace shoal
