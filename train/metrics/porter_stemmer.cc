#include "shoal/train/metrics/porter_stemmer.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

namespace shoal {
namespace {

// Words with stems of their own.
constexpr std::array<std::pair<std::string_view, std::string_view>, 16> kIrregular = {
    {{"sky", "sky"},
     {"skies", "sky"},
     {"dying", "die"},
     {"lying", "lie"},
     {"tying", "tie"},
     {"news", "news"},
     {"innings", "inning"},
     {"inning", "inning"},
     {"outings", "outing"},
     {"outing", "outing"},
     {"cannings", "canning"},
     {"canning", "canning"},
     {"howe", "howe"},
     {"proceed", "proceed"},
     {"exceed", "exceed"},
     {"succeed", "succeed"}}};

// True for each consonant. A y is one at the start and after a vowel.
std::vector<bool> consonants_of(std::string_view word) {
  std::vector<bool> flags;
  for (const char c : word) {
    const bool vowel = std::string_view("aeiou").find(c) != std::string_view::npos;
    flags.push_back(c == 'y' ? flags.empty() || !flags.back() : !vowel);
  }
  return flags;
}

// The paper's m: how often a consonant follows a vowel.
int measure(std::string_view stem) {
  const std::vector<bool> consonant = consonants_of(stem);
  int count = 0;
  for (std::size_t i = 1; i < consonant.size(); ++i)
    count += !consonant[i - 1] && consonant[i] ? 1 : 0;
  return count;
}

bool has_vowel(std::string_view stem) { return std::ranges::count(consonants_of(stem), false) > 0; }

bool ends_in_double_consonant(std::string_view word) {
  return word.size() >= 2 && word.back() == word[word.size() - 2] && consonants_of(word).back();
}

// Consonant, vowel, consonant other than w, x and y; or a word of a vowel and a consonant.
bool ends_in_cvc(std::string_view word) {
  const std::vector<bool> consonant = consonants_of(word);
  const std::size_t n = word.size();
  if (n == 2) return !consonant[0] && consonant[1];
  return n >= 3 && consonant[n - 3] && !consonant[n - 2] && consonant[n - 1] &&
         std::string_view("wxy").find(word.back()) == std::string_view::npos;
}

struct Rule {
  std::string_view suffix, replacement;
};

// Applies the first rule whose suffix the word has, if the stem's measure is at least `least`.
std::string replaced(std::string_view word, std::span<const Rule> rules, int least) {
  for (const auto& [suffix, replacement] : rules) {
    if (!word.ends_with(suffix)) continue;
    const std::string_view stem = word.substr(0, word.size() - suffix.size());
    return measure(stem) >= least ? std::string(stem).append(replacement) : std::string(word);
  }
  return std::string(word);
}

// Plurals.
std::string step_1a(std::string_view word) {
  constexpr std::array kRules = {Rule{"sses", "ss"}, Rule{"ies", "i"}, Rule{"ss", "ss"},
                                 Rule{"s", ""}};
  if (word.ends_with("ies") && word.size() == 4) return std::string(word.substr(0, 3));
  return replaced(word, kRules, 0);
}

// -ed and -ing.
std::string step_1b(std::string_view word) {
  const auto without = [&](std::size_t count) { return word.substr(0, word.size() - count); };
  if (word.ends_with("ied")) return std::string(without(word.size() == 4 ? 1 : 2));
  if (word.ends_with("eed")) return std::string(measure(without(3)) > 0 ? without(1) : word);
  std::string_view stem;
  if (word.ends_with("ed"))
    stem = without(2);
  else if (word.ends_with("ing"))
    stem = without(3);
  if (!has_vowel(stem)) return std::string(word);
  for (const char* ending : {"at", "bl", "iz"})
    if (stem.ends_with(ending)) return std::string(stem) + "e";
  if (ends_in_double_consonant(stem)) {
    const bool keeps = std::string_view("lsz").find(stem.back()) != std::string_view::npos;
    return std::string(keeps ? stem : stem.substr(0, stem.size() - 1));
  }
  return std::string(stem) + (measure(stem) == 1 && ends_in_cvc(stem) ? "e" : "");
}

// -y after a consonant.
std::string step_1c(std::string word) {
  if (word.ends_with('y') && word.size() > 2 && consonants_of(word)[word.size() - 2])
    word.back() = 'i';
  return word;
}

std::string step_2(std::string_view word) {
  constexpr std::array kRules = {
      Rule{"ational", "ate"}, Rule{"tional", "tion"}, Rule{"enci", "ence"},
      Rule{"anci", "ance"},   Rule{"izer", "ize"},    Rule{"bli", "ble"},
      Rule{"alli", "al"},     Rule{"entli", "ent"},   Rule{"eli", "e"},
      Rule{"ousli", "ous"},   Rule{"ization", "ize"}, Rule{"ation", "ate"},
      Rule{"ator", "ate"},    Rule{"alism", "al"},    Rule{"iveness", "ive"},
      Rule{"fulness", "ful"}, Rule{"ousness", "ous"}, Rule{"aliti", "al"},
      Rule{"iviti", "ive"},   Rule{"biliti", "ble"},  Rule{"fulli", "ful"}};
  if (word.ends_with("alli") && measure(word.substr(0, word.size() - 4)) > 0)
    return step_2(word.substr(0, word.size() - 2));
  // The measure includes the l.
  if (word.ends_with("logi"))
    return std::string(
        measure(word.substr(0, word.size() - 3)) > 0 ? word.substr(0, word.size() - 1) : word);
  return replaced(word, kRules, 1);
}

std::string step_3(std::string_view word) {
  constexpr std::array kRules = {Rule{"icate", "ic"}, Rule{"ative", ""},  Rule{"alize", "al"},
                                 Rule{"iciti", "ic"}, Rule{"ical", "ic"}, Rule{"ful", ""},
                                 Rule{"ness", ""}};
  return replaced(word, kRules, 1);
}

std::string step_4(std::string_view word) {
  constexpr std::array kFirst = {Rule{"al", ""},   Rule{"ance", ""}, Rule{"ence", ""},
                                 Rule{"er", ""},   Rule{"ic", ""},   Rule{"able", ""},
                                 Rule{"ible", ""}, Rule{"ant", ""},  Rule{"ement", ""},
                                 Rule{"ment", ""}, Rule{"ent", ""}};
  constexpr std::array kLast = {Rule{"ou", ""},  Rule{"ism", ""}, Rule{"ate", ""}, Rule{"iti", ""},
                                Rule{"ous", ""}, Rule{"ive", ""}, Rule{"ize", ""}};
  const auto ends = [&](const Rule& rule) { return word.ends_with(rule.suffix); };
  if (std::ranges::any_of(kFirst, ends)) return replaced(word, kFirst, 2);
  if (word.ends_with("ion")) {
    const std::string_view stem = word.substr(0, word.size() - 3);
    return std::string(measure(stem) > 1 && (stem.back() == 's' || stem.back() == 't') ? stem
                                                                                       : word);
  }
  return replaced(word, kLast, 2);
}

// A last -e, and one l of -ll.
std::string step_5(std::string word) {
  if (word.ends_with('e')) {
    const std::string_view stem = std::string_view(word).substr(0, word.size() - 1);
    const int m = measure(stem);
    if (m > 1 || (m == 1 && !ends_in_cvc(stem))) word.pop_back();
  }
  if (word.ends_with("ll") && measure(word.substr(0, word.size() - 1)) > 1) word.pop_back();
  return word;
}

}  // namespace

std::string porter_stem(std::string_view word) {
  for (const auto& [irregular, stem] : kIrregular)
    if (word == irregular) return std::string(stem);
  if (word.size() <= 2) return std::string(word);
  return step_5(step_4(step_3(step_2(step_1c(step_1b(step_1a(word)))))));
}

}  // namespace shoal
