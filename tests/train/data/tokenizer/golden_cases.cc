#include "golden_cases.h"

#include "support/golden.h"
#include "support/temporary_directory.h"
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sentencepiece_trainer.h>

#include "shoal/runtime/io/byte_source.h"
#include "shoal/train/data/tokenizer/characters.h"
#include "shoal/train/data/tokenizer/sha256.h"
#include "shoal/train/data/tokenizer/spiece_proto.h"
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

// -
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
    for (int pass = 0; pass < 2; ++pass) {  // the second pass finds its words in the cache
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

std::string digest(std::string_view bytes) { return to_hex(sha256(bytes)).substr(0, 16); }

std::string digest(const std::vector<std::int32_t>& numbers) {
  return digest({reinterpret_cast<const char*>(numbers.data()), 4 * numbers.size()});
}

std::vector<std::int32_t> character_offsets(const Encoding& encoding) {
  const std::vector<std::int64_t> wide = flat(encoding.characters);
  return {wide.begin(), wide.end()};
}

void expect_pairs(const Tokenizer& tokenizer, const json& pairs) {
  const SequenceTemplate& sequence = tokenizer.sequence_template();
  for (const json& pair : pairs) {
    const EncodeOptions options = {.add_special_tokens = false, .offsets = true};
    const Encoding a = tokenizer.encode(pair["a"].get<std::string>(), options);
    const Encoding b = tokenizer.encode(pair["b"].get<std::string>(), options);
    const Encoding joined = join(sequence, a, &b);
    EXPECT_EQ(joined.ids, pair["ids"].get<std::vector<TokenId>>()) << pair;
    EXPECT_EQ(joined.types, pair["types"].get<std::vector<std::uint8_t>>()) << pair;
    EXPECT_EQ(joined.special, pair["special"].get<std::vector<std::uint8_t>>()) << pair;
    EXPECT_EQ(flat(joined.characters), pair["offsets"].get<std::vector<std::int64_t>>()) << pair;
    EXPECT_EQ(static_cast<std::size_t>(sequence.special_tokens(true)),
              joined.ids.size() - a.ids.size() - b.ids.size());
  }
}

void expect_characters(const Tokenizer& tokenizer,
                       const std::function<std::string(std::string_view)>& normalize,
                       const json& blocks) {
  std::uint32_t first = 0;
  for (const json& expected : blocks) {
    SCOPED_TRACE(fmt::format("from U+{:X}", first));
    std::string text;
    for (const std::uint32_t end = first + 0x2000; first < end; ++first) {
      if (first >= 0xD800 && first < 0xE000) continue;
      text += 'a';
      append_utf8(text, first);
      text += "b\n";
    }
    EXPECT_EQ(digest(normalize(text)), expected[0].get<std::string>());
    const Encoding encoding =
        tokenizer.encode(text, {.add_special_tokens = false, .offsets = true});
    std::vector<std::int32_t> numbers = encoding.ids;
    const auto offsets = character_offsets(encoding);
    numbers.insert(numbers.end(), offsets.begin(), offsets.end());
    EXPECT_EQ(digest(numbers), expected[1].get<std::string>());
  }
  EXPECT_EQ(first, 0x110000u);
}

std::optional<std::string> nmt_nfkc() {
  const TemporaryDirectory folder;
  const auto status = sentencepiece::SentencePieceTrainer::Train(
      fmt::format("--input={} --model_prefix={} --vocab_size=300 --num_threads=1 --minloglevel=2",
                  golden_path("tokenizer/genesis.txt"), folder / "model"));
  EXPECT_TRUE(status.ok()) << status.ToString();
  const std::string path = folder / "model.model";
  std::string map = read_spiece_model(read_text_file(path), path).charsmap;
  const json golden = read_tokenizer_golden("sentence_piece/nmt_nfkc.cases.json");
  if (to_hex(sha256(map)) != golden["sha256"].get<std::string>()) return std::nullopt;
  return map;
}

void expect_file(const Tokenizer& tokenizer, const std::string& path, const json& expected) {
  SCOPED_TRACE(path);
  const std::string text = read_text_file(path);
  std::vector<std::int32_t> ids, appended, offsets;
  std::size_t lines = 0;
  for (std::string_view rest = text;; ++lines) {
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    const std::string_view line = rest.substr(0, end);
    const Encoding encoding =
        tokenizer.encode(line, {.add_special_tokens = false, .offsets = true});
    ids.insert(ids.end(), encoding.ids.begin(), encoding.ids.end());
    const auto spans = character_offsets(encoding);
    offsets.insert(offsets.end(), spans.begin(), spans.end());
    tokenizer.append_ids(line, appended);
    if (end == rest.size()) break;
    rest.remove_prefix(end + 1);
  }
  EXPECT_EQ(lines + 1, expected["lines"].get<std::size_t>());
  EXPECT_EQ(digest(ids), expected["ids"].get<std::string>());
  EXPECT_EQ(digest(offsets), expected["offsets"].get<std::string>());
  EXPECT_EQ(appended, ids);
}

}  // namespace shoal::testing
