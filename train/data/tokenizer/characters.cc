#include "shoal/train/data/tokenizer/characters.h"

#include <algorithm>
#include <optional>
#include <utility>

#include <unicode/normalizer2.h>
#include <unicode/uchar.h>
#include <unicode/unistr.h>
#include <unicode/utf8.h>

#include "shoal/runtime/base/error.h"
#include "shoal/train/data/tokenizer/bert_unicode.h"
#include "shoal/train/data/tokenizer/graphemes.h"
#include "shoal/train/data/tokenizer/unicode_classes.h"

namespace shoal {
namespace {

// Hugging Face's decomposition, canonical order and marks use Unicode 9, which has no data on newer
// characters.
bool is_newer_than_theirs(UChar32 c) {
  UVersionInfo age;
  u_charAge(c, age);
  return age[0] > 9;
}

// Characters below this code point do not decompose and are starters.
constexpr std::uint32_t kFirstDecomposed = 0xA0;

const icu::Normalizer2& normalizer(bool compatible) {
  UErrorCode status = U_ZERO_ERROR;
  const icu::Normalizer2* found = compatible ? icu::Normalizer2::getNFKDInstance(status)
                                             : icu::Normalizer2::getNFDInstance(status);
  SHOAL_CHECK(U_SUCCESS(status), "ICU has no {}: {}", compatible ? "NFKD" : "NFD",
              u_errorName(status));
  return *found;
}

struct Part {
  std::uint32_t value;
  std::uint8_t order;  // the canonical combining class
  bool is_first;       // first part of its character
};

class Decomposer {
 public:
  explicit Decomposer(bool compatible) : normalizer_(normalizer(compatible)) {}

  std::vector<Part> parts_of(const std::vector<Character>& characters) {
    parts_.reserve(characters.size());
    icu::UnicodeString decomposed;
    for (const Character& character : characters) {
      const auto value = static_cast<UChar32>(character.value);
      if (character.value < kFirstDecomposed || is_newer_than_theirs(value) ||
          !normalizer_.getDecomposition(value, decomposed)) {
        add(character.value, true);
        continue;
      }
      for (std::int32_t at = 0; at < decomposed.length(); at += U16_LENGTH(decomposed.char32At(at)))
        add(static_cast<std::uint32_t>(decomposed.char32At(at)), at == 0);
    }
    sort();
    return std::move(parts_);
  }

 private:
  void add(std::uint32_t value, bool is_first) {
    const auto c = static_cast<UChar32>(value);
    const std::uint8_t order = value < kFirstDecomposed || is_newer_than_theirs(c)
                                   ? std::uint8_t{0}
                                   : normalizer_.getCombiningClass(c);
    if (order == 0) sort();
    parts_.push_back({value, order, is_first});
    if (order == 0) sorted_ = parts_.size();
  }
  void sort() {
    std::stable_sort(parts_.begin() + static_cast<std::ptrdiff_t>(sorted_), parts_.end(),
                     [](const Part& a, const Part& b) { return a.order < b.order; });
    sorted_ = parts_.size();
  }

  const icu::Normalizer2& normalizer_;
  std::vector<Part> parts_;
  std::size_t sorted_ = 0;  // parts before this index are in order
};

std::optional<std::uint32_t> composed_of(std::uint32_t first, std::uint32_t second) {
  if (second < kFirstDecomposed) return std::nullopt;
  static const icu::Normalizer2* const composer = [] {
    UErrorCode status = U_ZERO_ERROR;
    const icu::Normalizer2* found = icu::Normalizer2::getNFCInstance(status);
    SHOAL_CHECK(U_SUCCESS(status), "ICU has no NFC: {}", u_errorName(status));
    return found;
  }();
  const UChar32 composed =
      composer->composePair(static_cast<UChar32>(first), static_cast<UChar32>(second));
  if (composed < 0 || is_newer_than_theirs(composed)) return std::nullopt;
  return static_cast<std::uint32_t>(composed);
}

}  // namespace

void append_characters(std::string_view text, std::size_t base,
                       std::vector<Character>& characters) {
  for (std::size_t at = 0; at < text.size();) {
    const auto c = unicode::decode(text.data() + at);
    characters.push_back(
        {c.value,
         {static_cast<std::uint32_t>(base + at), static_cast<std::uint32_t>(base + at + c.bytes)}});
    at += c.bytes;
  }
}

void append_utf8(std::string& text, std::uint32_t value) {
  char bytes[U8_MAX_LENGTH];
  std::int32_t length = 0;
  U8_APPEND_UNSAFE(bytes, length, value);
  text.append(bytes, static_cast<std::size_t>(length));
}

void decompose(std::vector<Character>& characters, bool compatible) {
  const std::vector<Part> parts = Decomposer(compatible).parts_of(characters);
  const std::vector<Character> from = std::exchange(characters, {});
  characters.reserve(parts.size());
  std::size_t next = 0;
  for (const Part& part : parts) {
    if (part.is_first) ++next;
    characters.push_back(
        {part.value, next > 0 ? from[next - 1].origin : NormalizedText::Origin{0, 0}});
  }
}

std::size_t transform(std::vector<Character>& characters, const std::vector<Change>& changes) {
  const std::vector<Character> from = std::exchange(characters, {});
  characters.reserve(changes.size());
  std::size_t at = 0;
  for (const Change& change : changes) {
    const bool added = change.change > 0;
    characters.push_back({change.value, added && at == 0 ? NormalizedText::Origin{0, 0}
                                                         : from[added ? at - 1 : at].origin});
    if (!added) at += static_cast<std::size_t>(1 - change.change);
  }
  return at;
}

// As recompose.rs of unicode-normalization-alignments: a starter composes with later characters,
// even past marks of a lower order, which are held in `marks`.
void compose(std::vector<Character>& characters, bool compatible) {
  const std::vector<Part> parts = Decomposer(compatible).parts_of(characters);
  std::vector<Change> changes, marks;
  changes.reserve(parts.size());
  std::optional<Change> starter;
  std::uint8_t last_order = 0;  // of marks.back()
  const auto finish = [&] {
    if (starter) changes.push_back(*starter);
    changes.insert(changes.end(), marks.begin(), marks.end());
    marks.clear();
    starter.reset();
  };
  for (const Part& part : parts) {
    const Change change{part.value, part.is_first ? 0 : 1};
    const bool blocked = !marks.empty() && last_order >= part.order;
    const auto composed = starter && !blocked ? composed_of(starter->value, part.value)
                                              : std::optional<std::uint32_t>();
    if (composed) {
      starter = Change{*composed, starter->change + change.change - 1};
    } else if (part.order == 0) {
      finish();
      starter = change;
    } else if (!starter) {
      changes.push_back(change);
    } else {
      marks.push_back(change);
      last_order = part.order;
    }
  }
  finish();
  transform(characters, changes);
}

bool is_combining_mark(std::uint32_t character) {
  return unicode::grapheme_classes()[character] & unicode::stripped_mark;
}

void lower_case(std::vector<Character>& characters) {
  constexpr std::uint32_t kDottedI = 0x130;  // the only letter whose lower case is two characters
  bool has_dotted = false;
  for (Character& character : characters) {
    std::uint32_t& value = character.value;
    if (value < 0x80) {
      if (value >= 'A' && value <= 'Z') value += 'a' - 'A';
    } else if (value != kDottedI) {
      value = unicode::lower_case(value);
    } else {
      has_dotted = true;
    }
  }
  if (!has_dotted) return;
  for (const Character& character : std::exchange(characters, {})) {
    const bool dotted = character.value == kDottedI;
    characters.push_back({dotted ? std::uint32_t{'i'} : character.value, character.origin});
    if (dotted) characters.push_back({0x307, character.origin});
  }
}

}  // namespace shoal
