// Patterns of Split and Replace: empty matches against Hugging Face's
// (tools/golden/make_empty_matches.py), and the work that one call may do.
#include "shoal/train/data/tokenizer/split_pattern.h"

#include "golden_cases.h"
#include "support/budget.h"
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shoal/runtime/base/error.h"
#include "shoal/train/data/tokenizer/load.h"
#include "shoal/train/data/tokenizer/tokenizer_base.h"

namespace shoal {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using testing::within_budget;

TEST(EmptyMatches, EqualHuggingFaces) {
  const json golden = testing::read_tokenizer_golden("empty_matches.json");
  for (const json& expected : golden.at("cases")) {
    SCOPED_TRACE(expected.at("part").dump());
    json file = golden.at("base");
    file.update(expected.at("part"));
    const auto tokenizer = tokenizer_from_json(file.dump(), "f");
    for (std::size_t i = 0; i < golden.at("texts").size(); ++i) {
      const auto text = golden.at("texts")[i].get<std::string>();
      SCOPED_TRACE(text);
      const json& result = expected.at("results")[i];
      const Encoding encoding = tokenizer->encode(text, {.offsets = true});
      EXPECT_EQ(json(encoding.ids), result.at("ids"));
      EXPECT_EQ(json(testing::flat(encoding.characters)), result.at("offsets"));
      EXPECT_EQ(tokenizer->decode(encoding.ids), result.at("decoded").get<std::string>());
    }
  }
}

// A tokenizer that splits texts with each pattern in turn.
std::shared_ptr<const TokenizerBase> cutting_by(const std::vector<const char*>& patterns) {
  json file = testing::read_tokenizer_golden("empty_matches.json").at("base"), steps;
  for (const char* pattern : patterns)
    steps.push_back({{"type", "Split"},
                     {"pattern", {{"Regex", pattern}}},
                     {"behavior", "Isolated"},
                     {"invert", false}});
  file["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", steps}};
  return tokenizer_from_json(file.dump(), "tokenizer.json");
}

std::string repeated(const std::string& text, int times) {
  std::string result;
  for (int i = 0; i < times; ++i) result += text;
  return result;
}

constexpr const char* kHostile[] = {"(?:a+)+b", "(?:a|a|a|a)*b",       "a*a*a*a*a*a*b",
                                    "(?:a*)*b", "(?:(?:a?){100}){9}b", "(?=(?:a+)+b)a"};

// A pattern's budget once began anew with each piece: the first of these took 4 seconds.
TEST(PatternBudget, ManyShortPiecesShareIt) {
  for (const char* pattern : kHostile)
    for (const std::size_t letters : {3U, 8U, 12U, 15U, 40U}) {
      const auto tokenizer = cutting_by({" ", pattern});
      const std::string text =
          repeated(std::string(letters, 'a') + ' ', static_cast<int>(32'000 / (letters + 1)));
      const std::string problem = within_budget(
          text.size(), fmt::format("{} on {}", pattern, letters), [&] { tokenizer->encode(text); });
      if (letters >= 15) {
        EXPECT_THAT(problem,
                    HasSubstr(fmt::format("the pattern '{}' takes too many steps on a text "
                                          "of {} bytes",
                                          pattern, letters)));
      }
    }
}

// The length of a text determines its allowance.
TEST(PatternBudget, EachOfManyShortDocuments) {
  for (const char* pattern : kHostile)
    for (const std::size_t letters : {1U, 3U, 6U, 10U, 15U, 40U}) {
      const auto tokenizer = cutting_by({pattern});
      const std::string text(letters, 'a');
      within_budget(letters, fmt::format("{} on {}", pattern, letters), [&] {
        std::vector<TokenId> ids;
        tokenizer->append_ids(text, ids);
      });
    }
}

// Each document could once use 8 ms, so 2,000 documents of 16 bytes took 8 s.
TEST(PatternBudget, ManyShortDocumentsShareALoan) {
  const auto documents = [](const std::string& text, std::size_t bytes) {
    std::vector<std::string_view> parts;
    for (std::size_t at = 0; at < text.size(); at += bytes)
      parts.push_back(std::string_view(text).substr(at, bytes));
    return parts;
  };
  const auto tokenizer = cutting_by({"(?:a+)+b"});
  const std::string hostile(30'000, 'a');
  EXPECT_THAT(within_budget(hostile.size() + 10'000, "documents",
                            [&] { encode_batch(*tokenizer, documents(hostile, 15), {}, 1); }),
              HasSubstr("takes too many steps on texts of 30000 bytes together"));
  EXPECT_THROW(encode_batch(*tokenizer, documents(hostile, 15), {}, 3), Error);
  EXPECT_NO_THROW(encode_batch(*tokenizer, documents(hostile.substr(0, 15), 15), {}, 1));
  // Numbers of 60 digits without other text, and of 100 digits within text.
  const std::string numbers(60'000, '7');
  std::string text;
  for (int i = 0; i < 500; ++i) text += repeated("of ", 50) + std::string(100, '7');
  for (const char* pattern :
       {R"((?=(\d{3})+(?!\d)))", R"(\p{N}{1,3}(?=(?:\p{N}{3})*(?:\P{N}|$)))"}) {
    const auto by_digits = cutting_by({pattern});
    EXPECT_NO_THROW(encode_batch(*by_digits, documents(numbers, 60), {}, 1)) << pattern;
    EXPECT_NO_THROW(encode_batch(*by_digits, documents(text, 250), {}, 1)) << pattern;
  }
}

// Patterns that group digits from the right look ahead past each digit. They take quadratic time,
// and must handle the longest numbers of ordinary texts.
TEST(PatternBudget, LetsDigitsBeGroupedFromTheRight) {
  for (const char* pattern :
       {R"((?=(\d{3})+(?!\d)))", R"(\p{N}{1,3}(?=(?:\p{N}{3})*(?:\P{N}|$)))"}) {
    const auto tokenizer = cutting_by({pattern});
    for (const std::size_t digits : {20U, 100U, 300U, 617U}) {  // RSA-2048 has 617
      std::vector<TokenId> ids;
      EXPECT_NO_THROW(tokenizer->append_ids(std::string(digits, '7'), ids)) << pattern << digits;
    }
  }
}

TEST(PatternBudget, ManyTokensToDecode) {
  json file = testing::read_tokenizer_golden("empty_matches.json").at("base");
  file["decoder"] = {
      {"type", "Replace"}, {"pattern", {{"Regex", "(?:a|a|aa)*c"}}}, {"content", "x"}};
  const std::string token(14, 'a');
  const auto id = static_cast<TokenId>(file["model"]["vocab"].size());
  file["model"]["vocab"][token] = id;
  const auto tokenizer = tokenizer_from_json(file.dump(), "tokenizer.json");
  const std::vector<TokenId> ids(2'000, id);
  EXPECT_THAT(
      within_budget(ids.size() * token.size(), "decoding", [&] { (void)tokenizer->decode(ids); }),
      HasSubstr("takes too many steps"));
}

// The outcome is the same each time, and does not depend on earlier texts.
TEST(PatternBudget, DependsOnlyOnTheText) {
  const auto tokenizer = cutting_by({"(?:a+)+b"});
  std::size_t longest = 0;
  for (int round = 0; round < 3; ++round) {
    std::size_t letters = 1;
    try {
      for (std::vector<TokenId> ids; letters < 30; ++letters)
        tokenizer->append_ids(std::string(letters, 'a'), ids);
    } catch (const Error& limit) {
      EXPECT_THAT(limit.what(), ::testing::HasSubstr("too many steps"));
    }
    if (round == 0) longest = letters;
    EXPECT_EQ(letters, longest);
  }
  EXPECT_LT(longest, 30U);
}

}  // namespace
}  // namespace shoal
