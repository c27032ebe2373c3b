// SentencePiece's tokenizers, unigram and BPE, against Hugging Face's
// (tools/golden/make_composed_tokenizer_cases.py).
#include "golden_cases.h"
#include "support/golden.h"
#include "support/temporary_directory.h"
#include <gtest/gtest.h>

#include "shoal/runtime/io/byte_source.h"
#include "shoal/runtime/io/files.h"
#include "shoal/train/data/tokenizer/composed_tokenizer.h"
#include "shoal/train/data/tokenizer/definition.h"
#include "shoal/train/data/tokenizer/load.h"

namespace shoal {
namespace {

using nlohmann::json;
using testing::digest;

json golden(const std::string& name) {
  return testing::read_tokenizer_golden("sentence_piece/" + name);
}

std::string path_of(const std::string& name) {
  return testing::golden_path("tokenizer/sentence_piece/" + name);
}

// The digest that the script writes for a case: ids, offsets and the results of decode() without
// and with special tokens.
std::string digest_of(const Tokenizer& tokenizer, const std::string& text) {
  const Encoding encoding = tokenizer.encode(text, {.offsets = true});
  testing::expect_spans_agree(text, encoding);
  std::vector<TokenId> appended;
  tokenizer.append_ids(text, appended, true);
  EXPECT_EQ(appended, encoding.ids);
  std::vector<std::int32_t> numbers = encoding.ids;
  const auto offsets = testing::character_offsets(encoding);
  numbers.insert(numbers.end(), offsets.begin(), offsets.end());
  std::string bytes(reinterpret_cast<const char*>(numbers.data()), 4 * numbers.size());
  bytes += tokenizer.decode(encoding.ids, true) + "|" + tokenizer.decode(encoding.ids, false);
  return digest(bytes);
}

void expect_single(const Tokenizer& tokenizer, const json& cases) {
  const json texts = golden("texts.json");
  ASSERT_EQ(texts.size(), cases.size());
  if (!cases[0].is_string()) return testing::expect_cases(tokenizer, texts, cases);
  for (std::size_t i = 0; i < texts.size(); ++i)
    EXPECT_EQ(digest_of(tokenizer, texts[i]), cases[i].get<std::string>())
        << "text " << i << ": " << texts[i];
}

void expect_characters(const Tokenizer& tokenizer, const json& file, const json& blocks) {
  const PieceNormalizer normalizer(parse_composed(file, "golden").normalize);
  testing::expect_characters(
      tokenizer,
      [&](std::string_view text) {
        NormalizedText normalized;
        normalizer.normalize(text, 0, false, normalized);
        return normalized.text;
      },
      blocks);
}

std::string tokenizer_json(const Tokenizer& tokenizer) {
  for (const auto& file : tokenizer.files())
    if (file.name == "tokenizer.json") return file.text;
  return {};
}

class SentencePieceGolden : public ::testing::TestWithParam<const char*> {
 protected:
  std::string name() const { return GetParam(); }
  std::string path() const { return path_of(name() + ".json"); }
  json cases() const { return golden(name() + ".cases.json"); }
};

TEST_P(SentencePieceGolden, EqualsHuggingFace) {
  const auto tokenizer = load_tokenizer(path());
  expect_single(*tokenizer, cases()["single"]);
  testing::expect_pairs(*tokenizer, cases()["pair"]);
}

TEST_P(SentencePieceGolden, SurvivesItsOwnFiles) {
  const auto first = load_tokenizer(path());
  const testing::TemporaryDirectory folder;
  save_tokenizer(*first, folder.path());
  const auto second = load_tokenizer(folder.path());
  EXPECT_EQ(first->hash(), second->hash());
  EXPECT_EQ(json::parse(tokenizer_json(*first)), json::parse(read_text_file(path())));
  expect_single(*second, cases()["single"]);
}

class SentencePieceCharacters : public SentencePieceGolden {};

TEST_P(SentencePieceCharacters, AreNormalizedAsHuggingFaceDoes) {
  expect_characters(*load_tokenizer(path()), json::parse(read_text_file(path())),
                    cases()["characters"]);
}

INSTANTIATE_TEST_SUITE_P(Variants, SentencePieceCharacters,
                         ::testing::Values("albert", "albert_cased", "old_t5", "never", "llama",
                                           "generic", "some_bytes"),
                         [](const auto& variant) { return std::string(variant.param); });

INSTANTIATE_TEST_SUITE_P(Variants, SentencePieceGolden,
                         ::testing::Values("albert", "albert_cased", "t5", "xlnet", "byte_fallback",
                                           "old_t5", "never", "whole", "words", "llama",
                                           "llama_legacy", "llama_bare", "gemma", "llama_4",
                                           "whole_first", "generic", "spaces", "unknown", "fused",
                                           "dropped", "some_bytes"),
                         [](const auto& variant) { return std::string(variant.param); });

class SpieceModel : public ::testing::TestWithParam<const char*> {};

// A directory's spiece.model or tokenizer.model becomes the tokenizer.json that
// transformers writes. transformers reads "spaces" without its normalization; the script
// says what is expected there.
TEST_P(SpieceModel, BecomesWhatTransformersMakesOfIt) {
  const std::string name = GetParam();
  const auto tokenizer = load_tokenizer(path_of(name));
  json ours = json::parse(tokenizer_json(*tokenizer));
  const json theirs = golden(name + ".json");
  EXPECT_EQ(ours, theirs) << json::diff(theirs, ours).dump().substr(0, 2000);
  expect_single(*tokenizer, golden(name + ".cases.json")["single"]);
  testing::expect_pairs(*tokenizer, golden(name + ".cases.json")["pair"]);
}

INSTANTIATE_TEST_SUITE_P(Families, SpieceModel,
                         ::testing::Values("albert", "albert_cased", "t5", "xlnet", "llama",
                                           "llama_legacy", "llama_bare", "gemma", "spaces"),
                         [](const auto& family) { return std::string(family.param); });

TEST(SpieceModel, NeedsNoOtherFileWhereItIsAlberts) {
  const testing::TemporaryDirectory folder;
  const std::string model = read_text_file(path_of("albert/spiece.model"));
  write_file_atomically(folder / "spiece.model", model);
  for (const std::string& place : {folder.path(), folder / "spiece.model"}) {
    const auto tokenizer = load_tokenizer(place);
    EXPECT_EQ(tokenizer->hash(), load_tokenizer(path_of("albert"))->hash());
    EXPECT_EQ(tokenizer->roles().pad, 0);
    EXPECT_EQ(tokenizer->roles().unk, 1);
    EXPECT_EQ(tokenizer->roles().cls, 2);
    EXPECT_EQ(tokenizer->roles().sep, 3);
    EXPECT_EQ(tokenizer->roles().mask, 4);
  }
}

TEST(SpieceModel, LlamasModelNeedsNoOtherFile) {
  const testing::TemporaryDirectory folder;
  write_file_atomically(folder / "tokenizer.model",
                        read_text_file(path_of("llama/tokenizer.model")));
  for (const std::string& place : {folder.path(), folder / "tokenizer.model"}) {
    const auto tokenizer = load_tokenizer(place);
    EXPECT_EQ(tokenizer->hash(), load_tokenizer(path_of("llama"))->hash());
    EXPECT_EQ(tokenizer->roles().unk, 0);
    EXPECT_EQ(tokenizer->roles().bos, 1);
    EXPECT_EQ(tokenizer->roles().eos, 2);
    EXPECT_EQ(tokenizer->roles().pad, std::nullopt);
  }
}

class SentencePieceData : public ::testing::TestWithParam<const char*> {};

TEST_P(SentencePieceData, EqualsHuggingFaceOnEveryText) {
  const std::string name = GetParam();
  const auto tokenizer = load_tokenizer(path_of(name));
  const json files = golden(name + ".cases.json").at("files");
  EXPECT_EQ(files.size(), 7u);
  for (const auto& [file, expected] : files.items()) {
    SHOAL_SHARED_DATA_OR_SKIP(path, file);
    testing::expect_file(*tokenizer, path, expected);
  }
}

INSTANTIATE_TEST_SUITE_P(Families, SentencePieceData, ::testing::Values("albert", "llama"),
                         [](const auto& family) { return std::string(family.param); });

}  // namespace
}  // namespace shoal
