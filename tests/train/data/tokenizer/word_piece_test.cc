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

namespace shoal {
namespace {

using nlohmann::json;
using testing::expect_cases;
using testing::read_tokenizer_golden;

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
  testing::expect_pairs(*load_tokenizer(path()), golden("pair"));
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
  testing::expect_characters(
      *tokenizer,
      [&](std::string_view text) {
        NormalizedText normalized;
        normalize.normalize(text, 0, false, normalized);
        return normalized.text;
      },
      golden("characters"));
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
    testing::expect_file(*tokenizer, path, expected);
  }
}

// The expected text is from Hugging Face's tokenizers 0.23.3.
TEST(WordPiece, WithoutADecoderPutsSpacesBetweenTokens) {
  json file = json::parse(read_text_file(testing::golden_path("tokenizer/word_piece.json")));
  file["decoder"] = nullptr;
  const auto tokenizer = tokenizer_from_json(file.dump(), "t.json");
  std::vector<TokenId> ids;
  tokenizer->append_ids("Hello unbelievable, worlds!", ids);
  const std::string text = "he ##ll ##o u ##n ##b ##e ##l ##i ##e ##v ##a ##b ##le , wor ##ld ##s";
  EXPECT_EQ(tokenizer->decode(ids, true), text);
  EXPECT_EQ(tokenizer_from_json(tokenizer->to_json(), "own.json")->decode(ids, true), text);
}

TEST(WordPiece, RefusesWhatItCannotDo) {
  const std::string path = testing::golden_path("tokenizer/word_piece.json");
  const json good = json::parse(read_text_file(path));
  const auto refused = [&](const std::function<void(json&)>& change) -> std::string {
    json file = good;
    change(file);
    try {
      tokenizer_from_json(file.dump(), "t.json");
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
  expect([](json& f) { f["pre_tokenizer"] = nullptr; },
         "WordPiece without the pre_tokenizer 'BertPreTokenizer'");
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
