#include "shoal/train/metrics/squad.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <vector>

#include <unicode/locid.h>
#include <unicode/uchar.h>
#include <unicode/unistr.h>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/white_space.h"

namespace shoal {
namespace {

// True for word characters as \b in Python's regular expressions sees them.
bool is_word(UChar32 c) {
  return u_isalnum(c) || u_getNumericValue(c) != U_NO_NUMERIC_VALUE || c == '_';
}

bool is_ascii_punctuation(UChar32 c) { return c < 0x80 && std::ispunct(static_cast<int>(c)) != 0; }

bool is_article(const icu::UnicodeString& word) {
  return word == u"a" || word == u"an" || word == u"the";
}

std::string utf8(const icu::UnicodeString& text) {
  std::string result;
  text.toUTF8String(result);
  return result;
}

// Replaces each article by a space and then splits at spaces. An article is a run of word
// characters; its neighbours may be any other characters, not only spaces.
std::vector<std::string> words_of(std::string_view text) {
  icu::UnicodeString lower =
      icu::UnicodeString::fromUTF8(
          icu::StringPiece(text.data(), static_cast<std::int32_t>(text.size())))
          .toLower(icu::Locale::getRoot());
  icu::UnicodeString bare, without_articles, run;
  for (std::int32_t at = 0; at < lower.length(); at = lower.moveIndex32(at, 1))
    if (!is_ascii_punctuation(lower.char32At(at))) bare.append(lower.char32At(at));
  const auto finish_run = [&] {
    if (is_article(run))
      without_articles.append(u' ');
    else
      without_articles.append(run);
    run.remove();
  };
  for (std::int32_t at = 0; at < bare.length(); at = bare.moveIndex32(at, 1)) {
    const UChar32 c = bare.char32At(at);
    if (is_word(c)) {
      run.append(c);
    } else {
      finish_run();
      without_articles.append(c);
    }
  }
  finish_run();
  std::vector<std::string> words;
  icu::UnicodeString word;
  const auto finish_word = [&] {
    if (!word.isEmpty()) words.push_back(utf8(word));
    word.remove();
  };
  for (std::int32_t at = 0; at < without_articles.length();
       at = without_articles.moveIndex32(at, 1)) {
    const UChar32 c = without_articles.char32At(at);
    if (is_python_space(static_cast<std::uint32_t>(c)))  // str.split()
      finish_word();
    else
      word.append(c);
  }
  finish_word();
  return words;
}

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + word;
  return text;
}

double f1_of(const std::vector<std::string>& prediction, const std::vector<std::string>& accepted) {
  std::map<std::string_view, std::int64_t> left;
  for (const std::string& word : accepted) ++left[word];
  std::int64_t shared = 0;
  for (const std::string& word : prediction)
    if (const auto found = left.find(word); found != left.end() && found->second-- > 0) ++shared;
  if (shared == 0) return 0;
  const double precision = static_cast<double>(shared) / static_cast<double>(prediction.size());
  const double recall = static_cast<double>(shared) / static_cast<double>(accepted.size());
  return 2 * precision * recall / (precision + recall);
}

}  // namespace

std::string normalize_answer(std::string_view text) { return joined(words_of(text)); }

AnswerScore score_answer(std::string_view prediction, std::span<const std::string> accepted) {
  if (accepted.empty())
    throw_error(ErrorCode::invalid_argument, "a question without an accepted answer");
  const std::vector<std::string> words = words_of(prediction);
  AnswerScore best;
  for (const std::string& answer : accepted) {
    const std::vector<std::string> wanted = words_of(answer);
    best.exact_match = std::max(best.exact_match, words == wanted ? 1.0 : 0.0);
    best.f1 = std::max(best.f1, f1_of(words, wanted));
  }
  return best;
}

}  // namespace shoal
