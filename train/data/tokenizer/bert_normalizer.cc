#include "shoal/train/data/tokenizer/bert_normalizer.h"

#include "shoal/runtime/base/error.h"
#include "shoal/train/data/tokenizer/bert_unicode.h"
#include "shoal/train/data/tokenizer/characters.h"
#include "shoal/train/data/tokenizer/unicode_classes.h"

namespace shoal {

using unicode::BertClass;

void BertNormalizer::normalize(std::string_view text, std::size_t base, bool origins,
                               NormalizedText& result) const {
  SHOAL_CHECK(base + text.size() <= UINT32_MAX, "a text of {} bytes", base + text.size());
  result.text.clear();
  result.origins.clear();
  result.text.reserve(text.size() + 16);
  const std::uint8_t* classes = unicode::bert_classes();
  std::vector<Character> run;  // adjacent non-ASCII characters
  const auto finish_run = [&] {
    if (options_.strip_accents) {
      decompose(run, false);
      std::erase_if(run, [&](const Character& c) {
        return c.value >= 0x80 && (classes[c.value] & BertClass::bert_mark);
      });
    }
    if (options_.lowercase) lower_case(run);
    for (const Character& character : run) append(result, character, origins);
    run.clear();
  };
  for (std::size_t at = 0; at < text.size();) {
    const auto c = unicode::decode(text.data() + at);
    const NormalizedText::Origin origin = {static_cast<std::uint32_t>(base + at),
                                           static_cast<std::uint32_t>(base + at + c.bytes)};
    at += c.bytes;
    const std::uint8_t kind = classes[c.value];
    if (options_.clean_text && (kind & BertClass::bert_removed)) continue;
    std::uint32_t value = options_.clean_text && (kind & BertClass::bert_blank) ? ' ' : c.value;
    if (value < 0x80) {
      if (!run.empty()) finish_run();
      if (options_.lowercase && value >= 'A' && value <= 'Z') value += 'a' - 'A';
      append(result, {value, origin}, origins);
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
