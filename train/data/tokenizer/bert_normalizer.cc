#include "shoal/train/data/tokenizer/bert_normalizer.h"

#include <algorithm>
#include <memory>
#include <utility>

#include <unicode/normalizer2.h>
#include <unicode/uchar.h>
#include <unicode/unistr.h>
#include <unicode/utf8.h>

#include "shoal/runtime/base/error.h"
#include "shoal/train/data/tokenizer/bert_unicode.h"
#include "shoal/train/data/tokenizer/unicode_classes.h"

namespace shoal {
namespace {

using unicode::BertClass;

using Origin = NormalizedText::Origin;

struct Character {
  std::uint32_t value;
  Origin origin;
};

const icu::Normalizer2& canonical() {
  UErrorCode status = U_ZERO_ERROR;
  const icu::Normalizer2* found = icu::Normalizer2::getNFDInstance(status);
  SHOAL_CHECK(U_SUCCESS(status), "ICU has no NFD: {}", u_errorName(status));
  return *found;
}

// Hugging Face's canonical decomposition and order are those of Unicode 9: newer characters have
// neither.
bool is_newer_than_theirs(UChar32 c) {
  UVersionInfo age;
  u_charAge(c, age);
  return age[0] > 9;
}

// Decomposes and brings marks into canonical order. As in Hugging Face, origins go by place, not by
// character: where marks change places, their origins stay.
class Decomposer {
 public:
  void decompose(std::vector<Character>& characters) {
    parts_.clear();
    std::size_t sorted = 0;  // parts before this one are in order
    const auto sort = [&] {
      std::stable_sort(parts_.begin() + static_cast<std::ptrdiff_t>(sorted), parts_.end(),
                       [](const Part& a, const Part& b) { return a.order < b.order; });
      sorted = parts_.size();
    };
    const auto add = [&](std::uint32_t value, bool is_first) {
      const auto c = static_cast<UChar32>(value);
      const std::uint8_t order = is_newer_than_theirs(c) ? 0 : nfd_.getCombiningClass(c);
      if (order == 0) sort();
      parts_.push_back({value, order, is_first});
      if (order == 0) sorted = parts_.size();
    };
    icu::UnicodeString decomposed;
    for (const Character& character : characters) {
      const auto value = static_cast<UChar32>(character.value);
      if (is_newer_than_theirs(value) || !nfd_.getDecomposition(value, decomposed)) {
        add(character.value, true);
        continue;
      }
      for (std::int32_t at = 0; at < decomposed.length(); at += U16_LENGTH(decomposed.char32At(at)))
        add(static_cast<std::uint32_t>(decomposed.char32At(at)), at == 0);
    }
    sort();
    place(characters);
  }

 private:
  struct Part {
    std::uint32_t value;
    std::uint8_t order;  // the canonical combining class
    bool is_first;       // of its character
  };

  void place(std::vector<Character>& characters) {
    const std::vector<Character> from = std::exchange(characters, {});
    std::size_t next = 0;
    for (const Part& part : parts_) {
      if (part.is_first) ++next;
      characters.push_back({part.value, next > 0 ? from[next - 1].origin : Origin{0, 0}});
    }
  }

  const icu::Normalizer2& nfd_ = canonical();
  std::vector<Part> parts_;
};

void append_utf8(std::string& text, std::uint32_t value) {
  char bytes[U8_MAX_LENGTH];
  std::int32_t length = 0;
  U8_APPEND_UNSAFE(bytes, length, value);
  text.append(bytes, static_cast<std::size_t>(length));
}

}  // namespace

void BertNormalizer::normalize(std::string_view text, std::size_t base, bool origins,
                               NormalizedText& result) const {
  SHOAL_CHECK(base + text.size() <= UINT32_MAX, "a text of {} bytes", base + text.size());
  result.text.clear();
  result.origins.clear();
  result.text.reserve(text.size() + 16);
  const std::uint8_t* classes = unicode::bert_classes();
  const auto emit = [&](std::uint32_t value, Origin origin) {
    const std::size_t before = result.text.size();
    if (value < 0x80)
      result.text.push_back(static_cast<char>(value));
    else
      append_utf8(result.text, value);
    if (origins) result.origins.insert(result.origins.end(), result.text.size() - before, origin);
  };
  std::vector<Character> run;  // characters beyond ASCII that stand together
  std::unique_ptr<Decomposer> decomposer;
  const auto finish_run = [&] {
    if (options_.strip_accents) {
      if (!decomposer) decomposer = std::make_unique<Decomposer>();
      decomposer->decompose(run);
      std::erase_if(run, [&](const Character& c) {
        return c.value >= 0x80 && (classes[c.value] & BertClass::bert_mark);
      });
    }
    for (const Character& character : run) {
      if (!options_.lowercase) {
        emit(character.value, character.origin);
      } else if (character.value == 0x130) {  // the one letter whose lower case is two characters
        emit('i', character.origin);
        emit(0x307, character.origin);
      } else {
        emit(unicode::lower_case(character.value), character.origin);
      }
    }
    run.clear();
  };
  for (std::size_t at = 0; at < text.size();) {
    const auto c = unicode::decode(text.data() + at);
    const Origin origin = {static_cast<std::uint32_t>(base + at),
                           static_cast<std::uint32_t>(base + at + c.bytes)};
    at += c.bytes;
    const std::uint8_t kind = classes[c.value];
    if (options_.clean_text && (kind & BertClass::bert_removed)) continue;
    std::uint32_t value = options_.clean_text && (kind & BertClass::bert_blank) ? ' ' : c.value;
    if (value < 0x80) {
      if (!run.empty()) finish_run();
      if (options_.lowercase && value >= 'A' && value <= 'Z') value += 'a' - 'A';
      emit(value, origin);
      continue;
    }
    const bool apart = options_.handle_chinese_chars && (kind & BertClass::bert_ideograph);
    if (apart) run.push_back({' ', origin});
    run.push_back({value, origin});
    if (apart) run.push_back({' ', origin});
  }
  if (!run.empty()) finish_run();
}

}  // namespace shoal
