#include "shoal/train/data/tokenizer/unigram_trainer.h"

#include <algorithm>
#include <cctype>
#include <fstream>

#include "golden_cases.h"
#include "support/golden.h"
#include "support/temporary_directory.h"
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/io/byte_source.h"
#include "shoal/train/data/tokenizer/load.h"

namespace shoal {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string genesis() { return testing::golden_path("tokenizer/genesis.txt"); }

std::shared_ptr<const Tokenizer> trained(UnigramTrainerOptions options) {
  UnigramTrainer trainer(std::move(options));
  trainer.add_file(genesis());
  return trainer.train();
}

TEST(UnigramTrainer, HasTheFormOfT5) {
  const auto tokenizer = trained({.vocab_size = 500});
  EXPECT_EQ(tokenizer->vocab_size(), 500);
  EXPECT_EQ(tokenizer->roles().pad, 0);
  EXPECT_EQ(tokenizer->roles().eos, 1);
  EXPECT_EQ(tokenizer->roles().unk, 2);
  EXPECT_EQ(tokenizer->token_to_id("<extra_id_0>"), 499);
  EXPECT_EQ(tokenizer->token_to_id("<extra_id_99>"), 400);
  std::vector<TokenId> ids;
  tokenizer->append_ids("the \u4e2d", ids, true);
  EXPECT_THAT(ids, ElementsAre(tokenizer->token_to_id("\u2581the").value(),
                               tokenizer->token_to_id("\u2581").value(), 2, 1));
  const json file = json::parse(dynamic_cast<const TokenizerBase&>(*tokenizer).to_json());
  const json t5 = testing::read_tokenizer_golden("sentence_piece/t5.json");
  EXPECT_EQ(file["normalizer"], nullptr);
  for (const char* part : {"pre_tokenizer", "decoder", "post_processor"})
    EXPECT_EQ(file[part], t5[part]) << part;
  EXPECT_EQ(file["added_tokens"].size(), t5["added_tokens"].size());
  double before = 0;
  for (std::size_t id = 3; id < 400; ++id) {
    const double score = file["model"]["vocab"][id][1];
    EXPECT_LE(score, before);
    before = score;
  }
}

TEST(UnigramTrainer, ThreadsDoNotChangeTheResult) {
  EXPECT_EQ(trained({.vocab_size = 400, .extra_ids = 10, .threads = 3})->hash(),
            trained({.vocab_size = 400, .extra_ids = 10})->hash());
}

// SentencePiece's own trainer for the same text and number of pieces.
TEST(UnigramTrainer, NeedsAsFewTokensAsSentencePiece) {
  for (const int size : {300, 600}) {
    const testing::TemporaryDirectory folder;
    const auto status = sentencepiece::SentencePieceTrainer::Train(fmt::format(
        "--input={} --model_prefix={} --vocab_size={} --hard_vocab_limit=false "
        "--character_coverage=1 --normalization_rule_name=identity --num_threads=1 --minloglevel=2",
        genesis(), folder / "model", size));
    ASSERT_TRUE(status.ok()) << status.ToString();
    sentencepiece::SentencePieceProcessor theirs;
    ASSERT_TRUE(theirs.Load(folder / "model.model").ok());
    const auto ours = trained({.vocab_size = theirs.GetPieceSize(), .extra_ids = 0});
    const std::string text = read_text_file(genesis());
    EXPECT_LE(static_cast<double>(ours->encode(text, {.add_special_tokens = false}).ids.size()),
              1.02 * static_cast<double>(theirs.EncodeAsIds(text).size()))
        << theirs.GetPieceSize() << " pieces";
  }
}

TEST(UnigramTrainer, JoinsNoPunctuationOrDigitsToLetters) {
  const auto tokenizer = trained({.vocab_size = 500});
  for (TokenId id = 3; id < 400; ++id) {
    std::string piece = tokenizer->id_to_token(id).value();
    if (piece.starts_with("\u2581")) piece.erase(0, 3);
    const auto letters = std::ranges::count_if(
        piece, [](char c) { return std::isalpha(static_cast<unsigned char>(c)) != 0; });
    EXPECT_TRUE(letters == 0 || letters == std::ssize(piece)) << piece;
  }
}

TEST(UnigramTrainer, LeavesRareCharactersUnknown) {
  const testing::TemporaryDirectory folder;
  std::ofstream file(folder / "text.txt");
  for (int c = 0x4e00; c < 0x4f00; ++c) {
    std::string word = "aa bb ab";
    word += static_cast<char>(0xE0 | c >> 12);
    word += static_cast<char>(0x80 | (c >> 6 & 0x3F));
    word += static_cast<char>(0x80 | (c & 0x3F));
    file << word << "ba\n";
  }
  file.close();
  UnigramTrainer trainer({.vocab_size = 300, .extra_ids = 0});
  trainer.add_file(folder / "text.txt");
  const auto tokenizer = trainer.train();
  EXPECT_LE(tokenizer->vocab_size(), 300);
  EXPECT_TRUE(tokenizer->token_to_id("\u4e00").has_value());
  EXPECT_FALSE(tokenizer->token_to_id("\u4eff").has_value());
  const auto ids = tokenizer->encode("ab\u4effba", {.add_special_tokens = false}).ids;
  EXPECT_EQ(std::ranges::count(ids, 2), 1);
}

TEST(UnigramTrainer, RefusesOptionsThatCannotBe) {
  EXPECT_THROW(UnigramTrainer({.vocab_size = 300}), Error);
  EXPECT_THROW(UnigramTrainer({.vocab_size = 300, .extra_ids = -1}), Error);
  UnigramTrainer trainer({.vocab_size = 300, .extra_ids = 0});
  EXPECT_THROW(trainer.add_file("/no/such/file"), Error);
  try {
    trainer.train();
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("has no words"));
  }
}

TEST(UnigramTrainer, ProgressMayCancel) {
  UnigramTrainerOptions options{.vocab_size = 400, .extra_ids = 0};
  options.progress = [](std::string_view stage, std::int64_t, std::int64_t) {
    if (stage == "fit") throw Error(ErrorCode::aborted, "enough");
  };
  EXPECT_THROW(trained(options), Error);
}

}  // namespace
}  // namespace shoal
