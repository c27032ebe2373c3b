#include "golden_cases.h"

#include "support/golden.h"
#include <gtest/gtest.h>

#include "shoal/runtime/io/byte_source.h"
#include "shoal/train/data/tokenizer/unicode_classes.h"

namespace shoal::testing {

using nlohmann::json;

json read_tokenizer_golden(const std::string& name) {
  return json::parse(read_text_file(golden_path("tokenizer/" + name)));
}

std::vector<std::int64_t> flat(const std::vector<TextSpan>& spans) {
  std::vector<std::int64_t> list;
  for (const TextSpan& span : spans) list.insert(list.end(), {span.begin, span.end});
  return list;
}

// A byte span must hold exactly the characters of its character span.
void expect_spans_agree(std::string_view text, const Encoding& encoding) {
  const auto characters = [&](std::int64_t bytes) {
    std::int64_t count = 0;
    for (std::int64_t i = 0; i < bytes; ++i)
      count += !unicode::is_continuation(text[static_cast<std::size_t>(i)]);
    return count;
  };
  for (std::size_t i = 0; i < encoding.ids.size(); ++i) {
    if (encoding.special[i]) continue;
    EXPECT_EQ(characters(encoding.bytes[i].begin), encoding.characters[i].begin) << i;
    EXPECT_EQ(characters(encoding.bytes[i].end), encoding.characters[i].end) << i;
  }
}

void expect_cases(const Tokenizer& tokenizer, const json& texts, const json& cases) {
  ASSERT_EQ(texts.size(), cases.size());
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const std::string text = texts[i];
    SCOPED_TRACE("text " + std::to_string(i) + ": " + text);
    const auto ids = cases[i].at("ids").get<std::vector<TokenId>>();
    for (int pass = 0; pass < 2; ++pass) {  // the second finds its words in the cache
      const Encoding encoding = tokenizer.encode(text, {.offsets = true});
      EXPECT_EQ(encoding.ids, ids) << "pass " << pass;
      EXPECT_EQ(flat(encoding.characters), cases[i].at("offsets").get<std::vector<std::int64_t>>())
          << "pass " << pass;
      expect_spans_agree(text, encoding);
      std::vector<TokenId> appended;
      tokenizer.append_ids(text, appended, true);
      EXPECT_EQ(appended, ids) << "pass " << pass;
    }
    EXPECT_EQ(tokenizer.decode(ids, true), cases[i].value("decoded", text));
    EXPECT_EQ(tokenizer.decode(ids, false), cases[i].value("decoded_all", text));
  }
}

}  // namespace shoal::testing
