#include "shoal/train/metrics/rouge.h"

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include <unicode/locid.h>
#include <unicode/unistr.h>

#include "shoal/runtime/base/error.h"
#include "shoal/train/metrics/porter_stemmer.h"

namespace shoal {
namespace {

using Words = std::vector<std::string>;

Words words_of(std::string_view text, const RougeOptions& options) {
  std::string lower;
  icu::UnicodeString::fromUTF8(
      icu::StringPiece(text.data(), static_cast<std::int32_t>(text.size())))
      .toLower(icu::Locale::getRoot())
      .toUTF8String(lower);
  Words words;
  std::string word;
  const auto finish = [&] {
    if (word.empty()) return;
    if (options.use_stemmer && word.size() > 3) word = porter_stem(word);
    if (!word.empty()) words.push_back(std::move(word));
    word.clear();
  };
  for (const char c : lower)
    if ((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'))
      word += c;
    else
      finish();
  finish();
  return words;
}

double f_measure(double hits, double predicted, double wanted) {
  if (predicted == 0 || wanted == 0) return 0;
  const double precision = hits / predicted, recall = hits / wanted;
  return precision + recall > 0 ? 2 * precision * recall / (precision + recall) : 0;
}

std::map<Words, std::int64_t> runs_of(const Words& words, std::size_t length) {
  std::map<Words, std::int64_t> counts;
  for (std::size_t i = 0; i + length <= words.size(); ++i) {
    const auto first = words.begin() + static_cast<std::ptrdiff_t>(i);
    ++counts[Words(first, first + static_cast<std::ptrdiff_t>(length))];
  }
  return counts;
}

double of_runs(const Words& prediction, const Words& reference, std::size_t length) {
  const auto said = runs_of(prediction, length), wanted = runs_of(reference, length);
  std::int64_t hits = 0, all_said = 0, all_wanted = 0;
  for (const auto& [run, count] : wanted) {
    all_wanted += count;
    if (const auto found = said.find(run); found != said.end())
      hits += std::min(count, found->second);
  }
  for (const auto& [run, count] : said) all_said += count;
  return f_measure(static_cast<double>(hits), static_cast<double>(all_said),
                   static_cast<double>(all_wanted));
}

// Lengths of the longest common subsequences of all pairs of beginnings.
class CommonLengths {
 public:
  CommonLengths(const Words& reference, const Words& prediction)
      : reference_(reference),
        prediction_(prediction),
        columns_(prediction.size() + 1),
        lengths_((reference.size() + 1) * columns_, 0) {
    for (std::size_t i = 1; i <= reference.size(); ++i)
      for (std::size_t j = 1; j <= prediction.size(); ++j)
        at(i, j) = reference[i - 1] == prediction[j - 1] ? at(i - 1, j - 1) + 1
                                                         : std::max(at(i - 1, j), at(i, j - 1));
  }
  std::int64_t longest() const { return lengths_.back(); }
  // Adds the positions in the reference of one longest subsequence.
  void add_positions(std::set<std::size_t>& positions) {
    std::size_t i = reference_.size(), j = prediction_.size();
    while (i > 0 && j > 0) {
      if (reference_[i - 1] == prediction_[j - 1]) {
        positions.insert(--i);
        --j;
      } else if (at(i, j - 1) > at(i - 1, j)) {
        --j;
      } else {
        --i;
      }
    }
  }

 private:
  std::int64_t& at(std::size_t i, std::size_t j) { return lengths_[i * columns_ + j]; }
  const Words &reference_, &prediction_;
  std::size_t columns_;
  std::vector<std::int64_t> lengths_;
};

double of_subsequence(const Words& prediction, const Words& reference) {
  return f_measure(static_cast<double>(CommonLengths(reference, prediction).longest()),
                   static_cast<double>(prediction.size()), static_cast<double>(reference.size()));
}

std::vector<Words> sentences_of(std::string_view text, const RougeOptions& options) {
  std::vector<Words> sentences;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    if (end > 0) sentences.push_back(words_of(text.substr(0, end), options));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return sentences;
}

// For each sentence of the reference, the union of its common subsequences with all predicted
// sentences. Each word of the prediction counts once.
double of_sentences(const std::vector<Words>& prediction, const std::vector<Words>& reference) {
  std::map<std::string_view, std::int64_t> said, wanted;
  std::int64_t all_said = 0, all_wanted = 0, hits = 0;
  const auto count = [](const std::vector<Words>& sentences, auto& counts, std::int64_t& all) {
    for (const Words& sentence : sentences)
      for (const std::string& word : sentence) ++counts[word], ++all;
  };
  count(prediction, said, all_said);
  count(reference, wanted, all_wanted);
  for (const Words& sentence : reference) {
    std::set<std::size_t> common;
    for (const Words& other : prediction) CommonLengths(sentence, other).add_positions(common);
    for (const std::size_t position : common) {
      std::int64_t &left = said[sentence[position]], &right = wanted[sentence[position]];
      if (left == 0 || right == 0) continue;
      ++hits, --left, --right;
    }
  }
  return f_measure(static_cast<double>(hits), static_cast<double>(all_said),
                   static_cast<double>(all_wanted));
}

}  // namespace

RougeScores rouge_of(std::string_view prediction, std::string_view reference,
                     const RougeOptions& options) {
  const Words said = words_of(prediction, options), wanted = words_of(reference, options);
  return {.rouge1 = of_runs(said, wanted, 1),
          .rouge2 = of_runs(said, wanted, 2),
          .rouge_l = of_subsequence(said, wanted),
          .rouge_lsum =
              of_sentences(sentences_of(prediction, options), sentences_of(reference, options))};
}

RougeScores rouge(std::span<const std::string> predictions, std::span<const std::string> references,
                  const RougeOptions& options) {
  SHOAL_CHECK(predictions.size() == references.size(), "{} predictions for {} references",
              predictions.size(), references.size());
  RougeScores sum;
  for (std::size_t i = 0; i < predictions.size(); ++i) {
    const RougeScores one = rouge_of(predictions[i], references[i], options);
    sum.rouge1 += one.rouge1;
    sum.rouge2 += one.rouge2;
    sum.rouge_l += one.rouge_l;
    sum.rouge_lsum += one.rouge_lsum;
  }
  const auto count = static_cast<double>(std::max<std::size_t>(predictions.size(), 1));
  return {.rouge1 = sum.rouge1 / count,
          .rouge2 = sum.rouge2 / count,
          .rouge_l = sum.rouge_l / count,
          .rouge_lsum = sum.rouge_lsum / count};
}

}  // namespace shoal
