// Ids, offsets and decoded text against Hugging Face's (tools/golden/make_tokenizer_cases.py).
#include "support/golden.h"

#include "golden_cases.h"
#include <gtest/gtest.h>

#include "shoal/runtime/io/byte_source.h"
#include "shoal/train/data/tokenizer/load.h"
#include "shoal/train/data/tokenizer/sha256.h"

namespace shoal {
namespace {

using testing::expect_cases;

nlohmann::json read_golden(const std::string& name) { return testing::read_tokenizer_golden(name); }

class TokenizerGolden : public ::testing::TestWithParam<const char*> {};

TEST_P(TokenizerGolden, EqualsHuggingFace) {
  const std::string name = GetParam();
  const auto tokenizer = load_tokenizer(testing::golden_path("tokenizer/" + name + ".json"));
  expect_cases(*tokenizer, read_golden("texts.json"), read_golden(name + ".cases.json"));
}

// A tokenizer that Shoal writes and reads again must be the same tokenizer.
TEST_P(TokenizerGolden, SurvivesItsOwnJson) {
  const std::string name = GetParam();
  const std::string path = testing::golden_path("tokenizer/" + name + ".json");
  const auto first = tokenizer_from_json(read_text_file(path), path);
  const auto second = tokenizer_from_json(first->to_json(), "again");
  EXPECT_EQ(first->hash(), second->hash());
  expect_cases(*second, read_golden("texts.json"), read_golden(name + ".cases.json"));
}

INSTANTIATE_TEST_SUITE_P(Variants, TokenizerGolden,
                         ::testing::Values("plain", "roberta", "trimmed", "llama", "unknown",
                                           "unknown_fused", "split_removed", "split_previous",
                                           "split_next", "split_contiguous"),
                         [](const auto& variant) { return std::string(variant.param); });

TEST(TokenizerGpt2, EqualsHuggingFace) {
  SHOAL_SHARED_DATA_OR_SKIP(vocab, "gpt2-vocab.json");
  SHOAL_SHARED_DATA_OR_SKIP(merges, "gpt2-merges.txt");
  const auto tokenizer = load_vocab_and_merges(vocab, merges);
  EXPECT_EQ(tokenizer->vocab_size(), 50257);
  EXPECT_EQ(tokenizer->max_id(), 50256);
  EXPECT_EQ(tokenizer->roles().eos, 50256);
  expect_cases(*tokenizer, read_golden("texts.json"), read_golden("gpt2.cases.json"));
}

TEST(TokenizerGpt2, WikitextHasHuggingFacesIdsAndDecodesToItself) {
  SHOAL_SHARED_DATA_OR_SKIP(vocab, "gpt2-vocab.json");
  SHOAL_SHARED_DATA_OR_SKIP(merges, "gpt2-merges.txt");
  SHOAL_SHARED_DATA_OR_SKIP(text_path, "wikitext2-valid.txt");
  const auto tokenizer = load_vocab_and_merges(vocab, merges);
  const std::string text = read_text_file(text_path);
  std::vector<TokenId> ids;
  tokenizer->append_ids(text, ids);
  // SHA-256 of Hugging Face's ids for the same text, as little-endian 32-bit integers.
  EXPECT_EQ(ids.size(), 258659u);
  EXPECT_EQ(to_hex(sha256({reinterpret_cast<const char*>(ids.data()), 4 * ids.size()})),
            "9c87f1a0a64b3a69ad7f2f71b97326a29db8035b6a1ffb4147dabde3709ef775");
  EXPECT_TRUE(tokenizer->decode(ids) == text);
}

}  // namespace
}  // namespace shoal
