// WordPiece against Hugging Face's (tools/golden/make_tokenizer_cases.py).
#include "shoal/train/data/tokenizer/word_piece.h"

#include "golden_cases.h"
#include "support/golden.h"
#include "support/temporary_directory.h"
#include <gtest/gtest.h>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/io/byte_source.h"
#include "shoal/runtime/io/json.h"
#include "shoal/train/data/tokenizer/bert_normalizer.h"
#include "shoal/train/data/tokenizer/load.h"
#include "shoal/train/data/tokenizer/sha256.h"

namespace shoal {
namespace {

using nlohmann::json;
using testing::expect_cases;
using testing::flat;
using testing::read_tokenizer_golden;

std::string digest(const void* data, std::size_t bytes) {
  return to_hex(sha256({static_cast<const char*>(data), bytes})).substr(0, 16);
}

std::string digest(const std::vector<std::int32_t>& numbers) {
  return digest(numbers.data(), 4 * numbers.size());
}

std::vector<std::int32_t> offsets_of(const Encoding& encoding) {
  const std::vector<std::int64_t> wide = flat(encoding.characters);
  return {wide.begin(), wide.end()};
}

void append_utf8(std::string& text, std::uint32_t c) {
  const auto put = [&](std::uint32_t byte) { text.push_back(static_cast<char>(byte)); };
  if (c < 0x80) return put(c);
  if (c < 0x800) {
    put(0xC0 | c >> 6);
  } else if (c < 0x10000) {
    put(0xE0 | c >> 12);
    put(0x80 | (c >> 6 & 0x3F));
  } else {
    put(0xF0 | c >> 18);
    put(0x80 | (c >> 12 & 0x3F));
    put(0x80 | (c >> 6 & 0x3F));
  }
  put(0x80 | (c & 0x3F));
}

class WordPieceGolden : public ::testing::TestWithParam<const char*> {
 protected:
  std::string name() const { return GetParam(); }
  std::string path() const { return testing::golden_path("tokenizer/" + name() + ".json"); }
  json golden(const char* part) const {
    return read_tokenizer_golden(name() + ".cases.json").at(part);
  }
};

TEST_P(WordPieceGolden, EqualsHuggingFace) {
  expect_cases(*load_tokenizer(path()), read_tokenizer_golden("word_piece.texts.json"),
               golden("single"));
}

TEST_P(WordPieceGolden, SurvivesItsOwnFiles) {
  const auto first = load_tokenizer(path());
  const testing::TemporaryDirectory folder;
  save_tokenizer(*first, folder.path());
  const auto second = load_tokenizer(folder.path());
  EXPECT_EQ(first->hash(), second->hash());
  expect_cases(*second, read_tokenizer_golden("word_piece.texts.json"), golden("single"));
}

TEST_P(WordPieceGolden, JoinsPairs) {
  const auto tokenizer = load_tokenizer(path());
  for (const json& pair : golden("pair")) {
    const EncodeOptions options = {.add_special_tokens = false, .offsets = true};
    const Encoding a = tokenizer->encode(pair["a"].get<std::string>(), options);
    const Encoding b = tokenizer->encode(pair["b"].get<std::string>(), options);
    const Encoding joined = join(tokenizer->sequence_template(), a, &b);
    EXPECT_EQ(joined.ids, pair["ids"].get<std::vector<TokenId>>()) << pair;
    EXPECT_EQ(joined.types, pair["types"].get<std::vector<std::uint8_t>>()) << pair;
    EXPECT_EQ(joined.special, pair["special"].get<std::vector<std::uint8_t>>()) << pair;
    EXPECT_EQ(flat(joined.characters), pair["offsets"].get<std::vector<std::int64_t>>()) << pair;
    EXPECT_EQ(static_cast<std::size_t>(tokenizer->sequence_template().special_tokens(true)),
              joined.ids.size() - a.ids.size() - b.ids.size());
  }
}

// Every character between two letters: normalized text, ids and offsets.
TEST_P(WordPieceGolden, KnowsEveryCharacter) {
  const auto tokenizer = load_tokenizer(path());
  const json normalizer = json::parse(read_text_file(path())).at("normalizer");
  const bool lowercase = normalizer["lowercase"];
  const BertNormalizer normalize({.clean_text = normalizer["clean_text"],
                                  .handle_chinese_chars = normalizer["handle_chinese_chars"],
                                  .strip_accents = normalizer["strip_accents"].is_null()
                                                       ? lowercase
                                                       : normalizer["strip_accents"].get<bool>(),
                                  .lowercase = lowercase});
  std::uint32_t first = 0;
  for (const json& expected : golden("characters")) {
    SCOPED_TRACE(fmt::format("from U+{:X}", first));
    std::string text;
    for (const std::uint32_t end = first + 0x2000; first < end; ++first) {
      if (first >= 0xD800 && first < 0xE000) continue;
      text += 'a';
      append_utf8(text, first);
      text += "b\n";
    }
    NormalizedText normalized;
    normalize.normalize(text, 0, false, normalized);
    EXPECT_EQ(digest(normalized.text.data(), normalized.text.size()), expected[0]);
    const Encoding encoding =
        tokenizer->encode(text, {.add_special_tokens = false, .offsets = true});
    std::vector<std::int32_t> numbers = encoding.ids;
    const auto offsets = offsets_of(encoding);
    numbers.insert(numbers.end(), offsets.begin(), offsets.end());
    EXPECT_EQ(digest(numbers), expected[1]);
  }
  EXPECT_EQ(first, 0x110000u);
}

INSTANTIATE_TEST_SUITE_P(Variants, WordPieceGolden,
                         ::testing::Values("word_piece", "word_piece_cased", "word_piece_odd"),
                         [](const auto& variant) { return std::string(variant.param); });

TEST(WordPieceBert, EqualsHuggingFaceOnEveryText) {
  SHOAL_SHARED_DATA_OR_SKIP(vocab, "bert-base-uncased-vocab.txt");
  const auto tokenizer = load_tokenizer(vocab);
  EXPECT_EQ(tokenizer->vocab_size(), 30522);
  EXPECT_EQ(tokenizer->roles().mask, 103);
  const json golden = read_tokenizer_golden("bert.cases.json");
  expect_cases(*tokenizer, read_tokenizer_golden("word_piece.texts.json"), golden["single"]);
  for (const auto& [name, expected] : golden["files"].items()) {
    SHOAL_SHARED_DATA_OR_SKIP(path, name);
    const std::string text = read_text_file(path);
    std::vector<std::int32_t> ids, appended, offsets;
    std::size_t lines = 0;
    for (std::string_view rest = text;; ++lines) {
      const std::size_t end = std::min(rest.find('\n'), rest.size());
      const std::string_view line = rest.substr(0, end);
      const Encoding encoding =
          tokenizer->encode(line, {.add_special_tokens = false, .offsets = true});
      ids.insert(ids.end(), encoding.ids.begin(), encoding.ids.end());
      const auto spans = offsets_of(encoding);
      offsets.insert(offsets.end(), spans.begin(), spans.end());
      tokenizer->append_ids(line, appended);
      if (end == rest.size()) break;
      rest.remove_prefix(end + 1);
    }
    EXPECT_EQ(lines + 1, expected["lines"]) << name;
    EXPECT_EQ(digest(ids), expected["ids"]) << name;
    EXPECT_EQ(digest(offsets), expected["offsets"]) << name;
    EXPECT_EQ(appended, ids) << name;
  }
}

TEST(WordPiece, RefusesWhatItCannotDo) {
  const std::string path = testing::golden_path("tokenizer/word_piece.json");
  const json good = json::parse(read_text_file(path));
  const auto refused = [&](const std::function<void(json&)>& change) -> std::string {
    json file = good;
    change(file);
    try {
      WordPiece::from_json(file.dump(), "t.json");
    } catch (const Error& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_EQ(refused([](json&) {}), "accepted");
  const auto expect = [&](const std::function<void(json&)>& change, const char* says) {
    EXPECT_NE(refused(change).find(says), std::string::npos) << refused(change);
  };
  expect([](json& f) { f["model"]["unk_token"] = "[NO]"; }, "lacks its unk_token '[NO]'");
  expect([](json& f) { f["model"].erase("unk_token"); }, "model lacks 'unk_token'");
  expect([](json& f) { f["model"]["max_input_chars_per_word"] = -1; }, "max_input_chars_per_word");
  expect([](json& f) { f["normalizer"]["type"] = "NFC"; }, "the normalizer 'NFC'");
  expect([](json& f) { f["pre_tokenizer"]["type"] = "Whitespace"; },
         "the pre_tokenizer 'Whitespace'");
  expect([](json& f) { f["decoder"] = nullptr; }, "WordPiece without WordPiece");
  expect([](json& f) { f["model"]["novelty"] = 1; }, "'novelty' in model");
  expect(
      [](json& f) {
        f["post_processor"]["pair"].erase(0);
        f["post_processor"]["pair"].erase(0);
      },
      "a TemplateProcessing.pair other than one A and one B");
  expect([](json& f) { f["post_processor"]["special_tokens"]["[SEP]"]["ids"] = {100000}; },
         "adds the id 100000");
  EXPECT_THROW(WordPiece::from_vocab("a\nb\n", "v.txt"), Error);  // no [CLS]
}

}  // namespace
}  // namespace shoal
