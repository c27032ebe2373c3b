#include "shoal/train/data/tokenizer/unigram_trainer.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/parallel_for.h"
#include "shoal/train/data/tokenizer/make_tokenizer.h"
#include "shoal/train/data/tokenizer/pre_tokenizer.h"
#include "shoal/train/data/tokenizer/spiece_proto.h"
#include "shoal/train/data/tokenizer/unicode_classes.h"
#include "shoal/train/data/tokenizer/unigram_model.h"

namespace shoal {
namespace {

// SentencePiece's defaults.
constexpr int kLongest = 16;                   // characters of a piece
constexpr std::size_t kMostSeeds = 1'000'000;  // substrings to start with
constexpr double kKeptEachRound = 0.75;        // share of the pieces that a round keeps
constexpr double kSpare = 1.1;                 // the last round keeps this much of the vocabulary
constexpr double kLeastExpected = 0.5;         // rarer pieces are removed after each fit
constexpr int kFits = 2;                       // in each round
constexpr std::array<const char*, 3> kSpecial = {"<pad>", "</s>", "<unk>"};

constexpr double kNever = -std::numeric_limits<double>::infinity();

double log_sum(double a, double b) {
  const double high = std::max(a, b);
  return high == kNever ? kNever : high + std::log1p(std::exp(std::min(a, b) - high));
}

// The derivative of log(gamma(x)), x > 0.
double digamma(double x) {
  double result = 0;
  for (; x < 7; ++x) result -= 1 / x;
  x -= 0.5;
  const double square = 1 / (x * x);
  return result + std::log(x) +
         square * (1.0 / 24 - square * (7.0 / 960 - square * (31.0 / 8064 - square * 127 / 30720)));
}

struct ScoredPiece {
  std::string text;
  double score = 0;  // log probability
  bool is_character = false;
};

struct Word {
  std::string_view text;
  std::int64_t count;
};

std::size_t bytes_of_character(std::string_view text, std::size_t at) {
  return unicode::decode(text.data() + at).bytes;
}

// True if the characters after a mark are all letters, all digits or all others, as in
// SentencePiece's pieces: "end." is two of them.
bool is_of_one_kind(std::string_view text) {
  const std::uint8_t* const classes = unicode::classes();
  const std::string mark = Metaspace{}.replacement;
  std::optional<int> first;
  for (std::size_t at = text.starts_with(mark) ? mark.size() : 0; at < text.size();) {
    const auto [value, bytes] = unicode::decode(text.data() + at);
    const bool is_number = (classes[value] & unicode::kKind) == unicode::number;
    const int kind = is_number ? 2 : (classes[value] & unicode::kWord) != 0 ? 1 : 0;
    if (first.value_or(kind) != kind) return false;
    first = kind;
    at += bytes;
  }
  return true;
}

// The most frequent characters, at most `most`, with their counts.
std::map<std::string, std::int64_t> characters_of(const std::vector<Word>& words,
                                                  std::size_t most) {
  std::map<std::string, std::int64_t> counts;
  for (const Word& word : words)
    for (std::size_t at = 0; at < word.text.size();) {
      const std::size_t bytes = bytes_of_character(word.text, at);
      counts[std::string(word.text.substr(at, bytes))] += word.count;
      at += bytes;
    }
  std::vector<std::pair<std::int64_t, std::string>> ranks;
  for (const auto& [character, count] : counts) ranks.emplace_back(-count, character);
  std::ranges::sort(ranks);
  for (std::size_t i = most; i < ranks.size(); ++i) counts.erase(ranks[i].second);
  return counts;
}

// Parts of the words between characters that are not in `characters`.
std::vector<Word> without_other_characters(const std::vector<Word>& words,
                                           const std::map<std::string, std::int64_t>& characters) {
  std::vector<Word> parts;
  for (const auto& [text, count] : words) {
    std::size_t begin = 0, at = 0;
    const auto close = [&] {
      if (at > begin) parts.push_back({text.substr(begin, at - begin), count});
    };
    while (at < text.size()) {
      const std::size_t bytes = bytes_of_character(text, at);
      const bool known = characters.contains(std::string(text.substr(at, bytes)));
      if (!known) close();
      at += bytes;
      if (!known) begin = at;
    }
    close();
  }
  return parts;
}

// The substrings of at least two characters, all of one kind, that repeat and that no single
// character continues everywhere. Found in the sorted list of all suffixes of the words.
class Seeds {
 public:
  explicit Seeds(const std::vector<Word>& words) {
    for (const Word& word : words)
      for (std::size_t at = 0; at < word.text.size(); at += bytes_of_character(word.text, at))
        suffixes_.push_back({word.text.substr(at), word.count});
    for (Word& suffix : suffixes_) suffix.text = suffix.text.substr(0, bytes(suffix.text));
    std::ranges::sort(suffixes_, {}, &Word::text);
    counts_.resize(suffixes_.size() + 1);
    for (std::size_t i = 0; i < suffixes_.size(); ++i)
      counts_[i + 1] = counts_[i] + suffixes_[i].count;
  }

  // By falling weight: the number of characters in all occurrences.
  std::vector<std::pair<std::int64_t, std::string_view>> find(std::size_t most) {
    struct Open {
      std::size_t bytes, first;  // suffixes from `first` on have this many bytes in common
    };
    std::vector<Open> open = {{0, 0}};
    for (std::size_t i = 0; i < suffixes_.size(); ++i) {
      const std::size_t before = common(i), after = common(i + 1);
      if (suffixes_[i].text.size() > std::max(before, after)) add(suffixes_[i].text, i, i + 1);
      std::size_t first = i;
      while (open.back().bytes > after) {
        first = open.back().first;
        add(suffixes_[i].text.substr(0, open.back().bytes), first, i + 1);
        open.pop_back();
      }
      if (open.back().bytes < after) open.push_back({after, first});
    }
    std::ranges::sort(found_, [](const auto& a, const auto& b) {
      return a.first != b.first ? a.first > b.first : a.second < b.second;
    });
    found_.resize(std::min(found_.size(), most));
    return std::move(found_);
  }

 private:
  // Of the first kLongest characters.
  static std::size_t bytes(std::string_view text) {
    std::size_t at = 0;
    for (int i = 0; i < kLongest && at < text.size(); ++i) at += bytes_of_character(text, at);
    return at;
  }
  // Bytes of the characters that the suffixes i - 1 and i begin with.
  std::size_t common(std::size_t i) const {
    if (i == 0 || i == suffixes_.size()) return 0;
    const std::string_view a = suffixes_[i - 1].text, b = suffixes_[i].text;
    auto same = static_cast<std::size_t>(std::ranges::mismatch(a, b).in1 - a.begin());
    while (same > 0 && same < a.size() && unicode::is_continuation(a[same])) --same;
    return same;
  }
  void add(std::string_view text, std::size_t first, std::size_t end) {
    const std::int64_t count = counts_[end] - counts_[first];
    const auto characters =
        std::ranges::count_if(text, [](char c) { return !unicode::is_continuation(c); });
    if (count > 1 && characters > 1 && is_of_one_kind(text))
      found_.emplace_back(count * characters, text);
  }

  std::vector<Word> suffixes_;
  std::vector<std::int64_t> counts_;  // of the suffixes before each place
  std::vector<std::pair<std::int64_t, std::string_view>> found_;
};

// Fits the pieces' probabilities to the words, and removes pieces.
class Fitter {
 public:
  Fitter(std::vector<Word> words, std::vector<ScoredPiece> pieces, int threads)
      : words_(std::move(words)), pieces_(std::move(pieces)), threads_(threads) {}

  std::size_t size() const { return pieces_.size(); }
  void fit();
  // Keeps `goal` pieces, or all that are not spelled better by others if they are fewer.
  void prune(std::size_t goal);
  // All characters and the best other pieces, `goal` together, by falling score.
  std::vector<ScoredPiece> best(std::size_t goal) const;

 private:
  struct Edge {
    std::size_t begin, end;
    TokenId id;
  };
  struct Spelling {
    double score = kNever;
    std::vector<TokenId> ids;
  };
  double score(TokenId id) const { return pieces_[static_cast<std::size_t>(id)].score; }
  UnigramModel model() const;
  void expect(const UnigramModel& model, const Word& word, std::vector<double>& expected) const;
  std::vector<std::int64_t> used(const UnigramModel& model) const;
  Spelling without_itself(const UnigramModel& model, TokenId id) const;

  // Sums of the words by parts whose number does not depend on the number of threads.
  template <typename Number, typename Add>
  std::vector<Number> sum(const Add& add) const {
    constexpr std::int64_t kParts = 8;
    std::vector<std::vector<Number>> sums(kParts, std::vector<Number>(pieces_.size()));
    const auto count = static_cast<std::int64_t>(words_.size());
    parallel_for(threads_, kParts, 1, [&](std::int64_t first, std::int64_t end) {
      for (std::int64_t part = first; part < end; ++part)
        for (std::int64_t i = count * part / kParts; i < count * (part + 1) / kParts; ++i)
          add(words_[static_cast<std::size_t>(i)], sums[static_cast<std::size_t>(part)]);
    });
    for (std::size_t part = 1; part < sums.size(); ++part)
      std::ranges::transform(sums[0], sums[part], sums[0].begin(), std::plus<>());
    return std::move(sums[0]);
  }

  std::vector<Word> words_;
  std::vector<ScoredPiece> pieces_;
  int threads_;
};

UnigramModel Fitter::model() const {
  std::vector<std::optional<std::string>> tokens;
  std::vector<double> scores;
  for (const ScoredPiece& piece : pieces_) {
    tokens.emplace_back(piece.text);
    scores.push_back(piece.score);
  }
  return {tokens, scores, std::nullopt, false, "vocabulary to train"};
}

// Adds the number of times that each piece is expected in the word (forward and backward sums).
void Fitter::expect(const UnigramModel& model, const Word& word,
                    std::vector<double>& expected) const {
  thread_local std::vector<Edge> edges;
  thread_local std::vector<double> forward, backward;
  const std::size_t size = word.text.size();
  edges.clear();
  forward.assign(size + 1, kNever);
  backward.assign(size + 1, kNever);
  forward[0] = backward[size] = 0;
  for (std::size_t begin = 0; begin < size; begin += bytes_of_character(word.text, begin))
    model.each_token(word.text, begin, [&](std::size_t end, TokenId id) {
      edges.push_back({begin, end, id});
      forward[end] = log_sum(forward[end], forward[begin] + score(id));
    });
  for (auto edge = edges.rbegin(); edge != edges.rend(); ++edge)
    backward[edge->begin] = log_sum(backward[edge->begin], backward[edge->end] + score(edge->id));
  for (const auto& [begin, end, id] : edges)
    expected[static_cast<std::size_t>(id)] +=
        static_cast<double>(word.count) *
        std::exp(forward[begin] + score(id) + backward[end] - forward[size]);
}

void Fitter::fit() {
  const UnigramModel now = model();
  const auto expected =
      sum<double>([&](const Word& word, std::vector<double>& sums) { expect(now, word, sums); });
  std::vector<ScoredPiece> kept;
  double total = 0;
  for (std::size_t id = 0; id < pieces_.size(); ++id) {
    if (expected[id] < kLeastExpected && !pieces_[id].is_character) continue;
    kept.push_back(std::move(pieces_[id]));
    kept.back().score = std::max(expected[id], kLeastExpected);
    total += kept.back().score;
  }
  for (ScoredPiece& piece : kept) piece.score = digamma(piece.score) - digamma(total);
  pieces_ = std::move(kept);
}

// How often the best spellings of the words have each piece.
std::vector<std::int64_t> Fitter::used(const UnigramModel& model) const {
  return sum<std::int64_t>([&](const Word& word, std::vector<std::int64_t>& sums) {
    thread_local std::vector<UnigramModel::Node> nodes;
    thread_local std::vector<UnigramModel::Symbol> symbols;
    model.tokenize(word.text, nodes, symbols);
    for (const auto& symbol : symbols) sums[static_cast<std::size_t>(symbol.id)] += word.count;
  });
}

// The best spelling of a piece by others.
Fitter::Spelling Fitter::without_itself(const UnigramModel& model, TokenId id) const {
  const std::string_view text = pieces_[static_cast<std::size_t>(id)].text;
  struct Best {
    double score = kNever;
    std::size_t begin = 0;
    TokenId id = 0;
  };
  std::vector<Best> best(text.size() + 1);
  best[0].score = 0;
  for (std::size_t begin = 0; begin < text.size(); begin += bytes_of_character(text, begin))
    model.each_token(text, begin, [&](std::size_t end, TokenId other) {
      const double sum = best[begin].score + score(other);
      if (other != id && sum > best[end].score) best[end] = {sum, begin, other};
    });
  Spelling spelling{best.back().score, {}};
  if (spelling.score == kNever) return spelling;
  for (std::size_t end = text.size(); end > 0; end = best[end].begin)
    spelling.ids.push_back(best[end].id);
  return spelling;
}

// As SentencePiece's PruneSentencePieces: the loss of a piece is that of the likelihood if its best
// spelling by others replaces it.
void Fitter::prune(std::size_t goal) {
  const UnigramModel now = model();
  const std::vector<std::int64_t> counts = used(now);
  const auto total =
      static_cast<double>(std::accumulate(counts.begin(), counts.end(), std::int64_t{0}));
  std::vector<char> keep(pieces_.size());
  std::vector<std::pair<double, std::size_t>> losses;
  std::size_t kept = 0;
  for (std::size_t id = 0; id < pieces_.size(); ++id) {
    const Spelling other = without_itself(now, static_cast<TokenId>(id));
    if (pieces_[id].is_character) {
      keep[id] = 1;
      ++kept;
    } else if (counts[id] > 0 && other.score < pieces_[id].score) {
      const auto count = static_cast<double>(counts[id]);
      const double log_total =
          std::log(total + count * (static_cast<double>(other.ids.size()) - 1));
      double instead = 0;
      for (const TokenId part : other.ids)
        instead += std::log(static_cast<double>(counts[static_cast<std::size_t>(part)]) + count) -
                   log_total;
      losses.emplace_back(count * (std::log(count) - std::log(total) - instead), id);
    }
  }
  std::ranges::sort(losses, std::greater<>());
  losses.resize(std::min(losses.size(), goal - std::min(kept, goal)));
  for (const auto& [loss, id] : losses) keep[id] = 1;
  std::vector<ScoredPiece> pieces;
  for (std::size_t id = 0; id < pieces_.size(); ++id)
    if (keep[id]) pieces.push_back(std::move(pieces_[id]));
  pieces_ = std::move(pieces);
}

std::vector<ScoredPiece> Fitter::best(std::size_t goal) const {
  std::vector<ScoredPiece> list = pieces_;
  const auto by_score = [](const ScoredPiece& a, const ScoredPiece& b) {
    return a.score != b.score ? a.score > b.score : a.text < b.text;
  };
  std::ranges::sort(list, [&](const ScoredPiece& a, const ScoredPiece& b) {
    return a.is_character != b.is_character ? a.is_character : by_score(a, b);
  });
  list.resize(std::min(list.size(), goal));
  std::ranges::sort(list, by_score);
  return list;
}

// Words as T5's pre-tokenizers cut them.
void count_words(WordCounts& counts, std::string_view line) {
  const std::uint8_t* const classes = unicode::classes();
  std::string word;
  const std::string mark = Metaspace{}.replacement;
  const auto close = [&] {
    if (!word.empty()) count_word(counts, mark + word);
    word.clear();
  };
  for (std::size_t at = 0; at < line.size();) {
    const auto [value, bytes] = unicode::decode(line.data() + at);
    const std::string_view character = line.substr(at, bytes);
    if ((classes[value] & unicode::kKind) == unicode::space || character == mark)
      close();
    else
      word += character;
    at += bytes;
  }
  close();
}

}  // namespace

UnigramTrainer::UnigramTrainer(UnigramTrainerOptions options) : options_(std::move(options)) {
  const std::int64_t least = 256 + static_cast<std::int64_t>(kSpecial.size()) + options_.extra_ids;
  SHOAL_CHECK(options_.extra_ids >= 0, "extra_ids is {}", options_.extra_ids);
  SHOAL_CHECK(options_.vocab_size >= least && options_.vocab_size <= std::int64_t{1} << 26,
              "a T5 vocabulary of {} is not between {} ({} special tokens, {} extra ids, 256 "
              "pieces) and 2^26",
              options_.vocab_size, least, kSpecial.size(), options_.extra_ids);
}

void UnigramTrainer::add_file(const std::string& path) {
  count_file(path, options_.threads, count_words, options_.progress, counts_);
}

std::shared_ptr<const ComposedTokenizer> UnigramTrainer::train() const {
  SHOAL_CHECK(!counts_.empty(), "the text to train on has no words");
  std::vector<Word> words;
  for (const auto& [word, count] : counts_) words.push_back({word, count});
  std::ranges::sort(words, {}, &Word::text);
  const std::size_t goal = static_cast<std::size_t>(options_.vocab_size) - kSpecial.size() -
                           static_cast<std::size_t>(options_.extra_ids);
  const auto characters = characters_of(words, goal / 4);
  words = without_other_characters(words, characters);

  std::vector<ScoredPiece> pieces;
  double total = 0;
  const auto add = [&](std::string_view text, std::int64_t weight, bool is_character) {
    pieces.push_back({std::string(text), static_cast<double>(weight), is_character});
    total += pieces.back().score;
  };
  for (const auto& [character, count] : characters) add(character, count, true);
  for (const auto& [weight, text] : Seeds(words).find(kMostSeeds)) add(text, weight, false);
  for (ScoredPiece& piece : pieces) piece.score = std::log(piece.score / total);

  Fitter fitter(std::move(words), std::move(pieces), options_.threads);
  const std::size_t enough = static_cast<std::size_t>(kSpare * static_cast<double>(goal));
  const std::size_t seeds = fitter.size();
  for (;;) {
    for (int i = 0; i < kFits; ++i) fitter.fit();
    if (options_.progress)
      options_.progress("fit", static_cast<std::int64_t>(seeds - fitter.size()),
                        static_cast<std::int64_t>(seeds - std::min(seeds, enough)));
    if (fitter.size() <= enough) break;
    fitter.prune(std::max(
        enough, static_cast<std::size_t>(kKeptEachRound * static_cast<double>(fitter.size()))));
  }

  SpieceModel model;
  for (const char* token : kSpecial) {
    model.tokens.emplace_back(token);
    model.scores.push_back(0);
    model.added.push_back({.content = token});
  }
  for (ScoredPiece& piece : fitter.best(goal)) {
    model.tokens.emplace_back(std::move(piece.text));
    model.scores.push_back(piece.score);
  }
  model.pad = 0;
  model.eos = 1;
  model.unknown = 2;
  model.bos = -1;
  const std::string source = "trained tokenizer";
  const SpieceOptions options{.family = SpieceOptions::Family::t5,
                              .do_lower_case = {},
                              .extra_ids = options_.extra_ids,
                              .special_tokens = {}};
  const RoleNames roles = names_of(unigram_special_tokens(model, source, options));
  return make_composed_tokenizer(spiece_definition(std::move(model), source, options), source,
                                 roles);
}

}  // namespace shoal
