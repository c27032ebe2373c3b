// tokenizer.json files as families of models publish them: ids, offsets and decoded text against
// Hugging Face's (tools/golden/make_tokenizer_families.py).
#include <chrono>

#include "golden_cases.h"
#include "support/golden.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shoal/runtime/base/error.h"
#include "shoal/train/data/tokenizer/byte_level_bpe.h"
#include "shoal/train/data/tokenizer/characters.h"
#include "shoal/train/data/tokenizer/composed_tokenizer.h"
#include "shoal/train/data/tokenizer/load.h"

namespace shoal {
namespace {

using nlohmann::json;

const json& golden(const std::string& name) {
  static std::map<std::string, json> files;
  const auto [place, is_new] = files.try_emplace(name);
  if (is_new) place->second = testing::read_tokenizer_golden("families/" + name + ".json");
  return place->second;
}

json file_of(const std::string& name) {
  const json& family = golden("families").at("families").at(name);
  json file = family.at("file");
  file["model"] = golden("families").at("models").at(family.at("model").get<std::string>());
  file["model"].update(family.at("options"));
  return file;
}

std::shared_ptr<const TokenizerBase> tokenizer_of(const json& file) {
  return tokenizer_from_json(file.dump(), "t.json");
}

std::vector<std::string> names() {
  std::vector<std::string> names;
  for (const auto& [name, family] : golden("families").at("families").items())
    names.push_back(name);
  return names;
}

class Family : public ::testing::TestWithParam<std::string> {};

TEST_P(Family, EqualsHuggingFace) {
  const auto tokenizer = tokenizer_of(file_of(GetParam()));
  testing::expect_cases(*tokenizer, golden("texts"), golden("cases").at(GetParam()).at("cases"));
}

TEST_P(Family, SurvivesItsOwnJson) {
  const json file = file_of(GetParam());
  const auto first = tokenizer_of(file);
  const json again = json::parse(first->to_json());
  for (const char* part : {"normalizer", "pre_tokenizer", "post_processor", "decoder"})
    EXPECT_EQ(again.at(part), file.at(part)) << part;
  EXPECT_EQ(tokenizer_of(again)->hash(), first->hash());
}

// Many short texts finish without borrowing from the shared allowance.
TEST_P(Family, ReadsManyShortTexts) {
  const auto tokenizer = tokenizer_of(file_of(GetParam()));
  std::vector<std::string> texts;
  for (const json& one : golden("texts")) texts.push_back(one.get<std::string>());
  for (const char* unit : {"a", "1", "\n", "12\n", "a.\n", "\u4e2d\n", "e\u0301", " x", "--"})
    texts.insert(texts.end(), 200, unit);
  std::vector<std::string_view> views;
  for (int round = 0; round < 10; ++round) views.insert(views.end(), texts.begin(), texts.end());
  EXPECT_NO_THROW(encode_batch(*tokenizer, views, {}, 1));
}

// Hostile texts, each many times as long as a word. Quadratic time would take minutes.
TEST_P(Family, TakesLinearTime) {
  constexpr std::size_t kBytes = 200'000;
  const auto tokenizer = tokenizer_of(file_of(GetParam()));
  const auto start = std::chrono::steady_clock::now();
  for (const std::string unit : {"a", " ", "1", "\n", "!", "\u0130", "e\u0301", "\u0301", "\u4e2d",
                                 "A", " \n a", "\u2581"}) {
    std::string text;
    while (text.size() < kBytes) text += unit;
    std::vector<TokenId> ids;
    try {
      tokenizer->append_ids(text + "x", ids);
    } catch (const Error& problem) {  // one family's pattern looks ahead across all digits
      EXPECT_EQ(unit, "1");
      EXPECT_EQ(GetParam(), "patterns");
      EXPECT_THAT(problem.what(), ::testing::HasSubstr("takes too many steps"));
    }
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
}

INSTANTIATE_TEST_SUITE_P(All, Family, ::testing::ValuesIn(names()),
                         [](const auto& family) { return family.param; });

class FamilyCharacters : public ::testing::TestWithParam<const char*> {};

TEST_P(FamilyCharacters, AreCutAndNormalizedAsHuggingFaceDoes) {
  const auto tokenizer = tokenizer_of(file_of(GetParam()));
  std::uint32_t first = 0;
  for (const json& expected : golden("cases").at(GetParam()).at("characters")) {
    SCOPED_TRACE(fmt::format("from U+{:X}", first));
    std::string text;
    for (const std::uint32_t end = first + 0x8000; first < end; ++first) {
      if (first >= 0xD800 && first < 0xE000) continue;
      text += 'a';
      append_utf8(text, first);
      text += "b\n";
    }
    const Encoding encoding =
        tokenizer->encode(text, {.add_special_tokens = false, .offsets = true});
    std::vector<std::int32_t> numbers = encoding.ids;
    const auto offsets = testing::character_offsets(encoding);
    numbers.insert(numbers.end(), offsets.begin(), offsets.end());
    EXPECT_EQ(testing::digest(numbers), expected.get<std::string>());
  }
  EXPECT_EQ(first, 0x110000u);
}

INSTANTIATE_TEST_SUITE_P(All, FamilyCharacters,
                         ::testing::Values("command_r", "falcon", "whitespace", "bert_cut"),
                         [](const auto& family) { return std::string(family.param); });

TEST(Families, FamiliesOfGpt2sFormKeepItsFastCode) {
  for (const auto& [name, is_fast] : std::initializer_list<std::pair<const char*, bool>>{
           {"llama_3", true}, {"bloom", true}, {"smollm", false}, {"qwen_2", false}}) {
    const auto tokenizer = tokenizer_of(file_of(name));
    EXPECT_EQ(dynamic_cast<const ByteLevelBpe*>(tokenizer.get()) != nullptr, is_fast) << name;
    EXPECT_EQ(dynamic_cast<const ComposedTokenizer*>(tokenizer.get()) == nullptr, is_fast) << name;
  }
}

// The error names an unsupported part wherever it occurs.
TEST(Families, UnsupportedPartsAreNamed) {
  const auto refused = [](const char* family, const char* pointer, const json& value,
                          const std::string& text) {
    json file = file_of(family);
    file[json::json_pointer(pointer)] = value;
    try {
      tokenizer_of(file);
      ADD_FAILURE() << "accepted: " << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::unavailable);
      EXPECT_THAT(error.what(), ::testing::HasSubstr(text));
    }
  };
  refused("smollm", "/pre_tokenizer/pretokenizers/0/type", "UnicodeScripts",
          "the pre-tokenizer 'UnicodeScripts'");
  refused("deberta_v3", "/normalizer/normalizers/1/type", "BertNormalizer",
          "the normalizer 'BertNormalizer'");
  refused("gemma_3", "/decoder/decoders/1/type", "CTC", "the decoder 'CTC'");
  refused("smollm", "/pre_tokenizer/pretokenizers/0/novelty", 1,
          "'novelty' in pre_tokenizer.pretokenizers[0]");
}

}  // namespace
}  // namespace shoal
