#include "shoal/train/metrics/bleu.h"

#include <algorithm>
#include <cmath>
#include <unordered_map>
#include <vector>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/white_space.h"

namespace shoal {
namespace {

// Calls `take` with each code point of the UTF-8 text and the bytes that it has.
template <typename Take>
void each_character(std::string_view text, const Take& take) {
  while (!text.empty()) {
    const auto byte = [&](std::size_t i) {
      return static_cast<std::uint32_t>(static_cast<unsigned char>(text[i]));
    };
    const std::uint32_t lead = byte(0);
    const std::size_t wanted = lead < 0xC0 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    const std::size_t size = std::min(wanted, text.size());
    std::uint32_t c = wanted == 1 ? lead : lead & (0xFFU >> (wanted + 1));
    for (std::size_t i = 1; i < size; ++i) c = c << 6 | (byte(i) & 0x3F);
    take(c, text.substr(0, size));
    text.remove_prefix(size);
  }
}

// Python's str.split().
std::vector<std::string> split_at_spaces(std::string_view text) {
  std::vector<std::string> words;
  bool within = false;
  each_character(text, [&](std::uint32_t c, std::string_view bytes) {
    const bool space = is_python_space(c);
    if (!space && !within) words.emplace_back();
    if (!space) words.back() += bytes;
    within = !space;
  });
  return words;
}

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  for (auto at = text.find(from); at != text.npos; at = text.find(from, at + to.size()))
    text.replace(at, from.size(), to);
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_point(char c) { return c == '.' || c == ','; }
bool is_symbol(char c) {
  const auto within = [c](char first, char last) { return c >= first && c <= last; };
  return within('{', '~') || within('[', '`') || within(' ', '&') || within('(', '+') ||
         within(':', '@') || c == '/';
}

// Puts spaces into pairs of characters that `matches`, as a regular expression replaces matches: a
// character belongs to one pair.
template <typename Matches>
std::string with_spaces(std::string_view text, const Matches& matches, std::string_view before,
                        std::string_view between, std::string_view after) {
  std::string result;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (i + 1 == text.size() || !matches(text[i], text[i + 1])) {
      result += text[i];
      continue;
    }
    result.append(before).append(1, text[i]).append(between).append(1, text[i + 1]).append(after);
    ++i;
  }
  return result;
}

using GramCounts = std::unordered_map<std::string, std::int64_t>;

struct Matches {
  std::int64_t said = 0, wanted = 0, shared = 0;
};

void add(Matches& sum, const GramCounts& said, const GramCounts& wanted, bool counts_unmatched) {
  for (const auto& [run, count] : said) {
    if (counts_unmatched || !wanted.empty()) sum.said += count;
    if (const auto found = wanted.find(run); found != wanted.end())
      sum.shared += std::min(count, found->second);
  }
  for (const auto& [run, count] : wanted) sum.wanted += count;
}

// Runs of `length` parts, joined by `between`.
GramCounts runs_of(const std::vector<std::string>& parts, std::size_t length,
                   std::string_view between) {
  GramCounts counts;
  for (std::size_t i = 0; i + length <= parts.size(); ++i) {
    std::string run = parts[i];
    for (std::size_t k = 1; k < length; ++k) run.append(between).append(parts[i + k]);
    ++counts[run];
  }
  return counts;
}

std::vector<std::string> characters_of(std::string_view text) {
  std::vector<std::string> characters;
  each_character(text, [&](std::uint32_t c, std::string_view bytes) {
    if (!is_python_space(c)) characters.emplace_back(bytes);
  });
  return characters;
}

void check_sizes_of_corpus(std::span<const std::string> predictions,
                           std::span<const std::string> references) {
  SHOAL_CHECK(predictions.size() == references.size(), "{} predictions for {} references",
              predictions.size(), references.size());
}

double share(std::int64_t part, std::int64_t whole) {
  return static_cast<double>(part) / static_cast<double>(whole);
}

}  // namespace

std::string tokenized_13a(std::string_view text) {
  std::string line(without_spaces_behind(text, is_python_space));
  replace_all(line, "<skipped>", "");
  replace_all(line, "-\n", "");
  std::ranges::replace(line, '\n', ' ');
  for (const auto& [entity, character] :
       {std::pair{"&quot;", "\""}, {"&amp;", "&"}, {"&lt;", "<"}, {"&gt;", ">"}})
    replace_all(line, entity, character);
  std::string spaced = " ";
  for (const char c : line)
    if (is_symbol(c))
      spaced.append(1, ' ').append(1, c).append(1, ' ');
    else
      spaced += c;
  spaced += ' ';
  // A point or a comma is a word of its own, except between digits.
  spaced =
      with_spaces(spaced, [](char a, char b) { return !is_digit(a) && is_point(b); }, "", " ", " ");
  spaced =
      with_spaces(spaced, [](char a, char b) { return is_point(a) && !is_digit(b); }, " ", " ", "");
  spaced =
      with_spaces(spaced, [](char a, char b) { return is_digit(a) && b == '-'; }, "", " ", " ");
  std::string result;
  for (const std::string& word : split_at_spaces(spaced)) {
    if (!result.empty()) result += ' ';
    result += word;
  }
  return result;
}

Bleu bleu(std::span<const std::string> predictions, std::span<const std::string> references) {
  check_sizes_of_corpus(predictions, references);
  Bleu result;
  std::array<Matches, 4> matches{};
  for (std::size_t i = 0; i < predictions.size(); ++i) {
    const auto said = split_at_spaces(tokenized_13a(predictions[i])),
               wanted = split_at_spaces(tokenized_13a(references[i]));
    result.length += std::ssize(said);
    result.reference_length += std::ssize(wanted);
    for (std::size_t n = 1; n <= matches.size(); ++n)
      add(matches[n - 1], runs_of(said, n, " "), runs_of(wanted, n, " "), true);
  }
  if (result.length < result.reference_length)
    result.brevity_penalty =
        result.length > 0 ? std::exp(1 - share(result.reference_length, result.length)) : 0;
  if (std::ranges::all_of(matches, [](const Matches& one) { return one.shared == 0; }))
    return result;
  double smoothing = 1, logarithms = 0;
  for (std::size_t n = 0; n < matches.size(); ++n) {
    const auto& [said, wanted, shared] = matches[n];
    if (said == 0) return result;  // a precision of 0, and so a score of 0
    if (shared == 0) smoothing *= 2;
    result.precisions[n] =
        shared > 0 ? 100 * share(shared, said) : 100 / (smoothing * static_cast<double>(said));
    logarithms += std::log(result.precisions[n]);
  }
  result.score = result.brevity_penalty * std::exp(logarithms / 4);
  return result;
}

double chrf(std::span<const std::string> predictions, std::span<const std::string> references) {
  check_sizes_of_corpus(predictions, references);
  constexpr double kFactor = 4;  // the square of the weight of recall
  std::array<Matches, 6> matches{};
  for (std::size_t i = 0; i < predictions.size(); ++i) {
    const auto said = characters_of(predictions[i]), wanted = characters_of(references[i]);
    for (std::size_t n = 1; n <= matches.size(); ++n)
      add(matches[n - 1], runs_of(said, n, ""), runs_of(wanted, n, ""), false);
  }
  double precision = 0, recall = 0, orders = 0;
  for (const auto& [said, wanted, shared] : matches) {
    if (said == 0 || wanted == 0) continue;
    precision += share(shared, said);
    recall += share(shared, wanted);
    ++orders;
  }
  if (precision + recall == 0) return 0;
  precision /= orders;
  recall /= orders;
  return 100 * (1 + kFactor) * precision * recall / (kFactor * precision + recall);
}

}  // namespace shoal
