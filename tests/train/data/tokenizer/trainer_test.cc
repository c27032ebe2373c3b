#include <filesystem>

#include "support/golden.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/io/byte_source.h"
#include "shoal/runtime/io/files.h"
#include "shoal/train/data/tokenizer/bpe_trainer.h"
#include "shoal/train/data/tokenizer/load.h"

namespace shoal {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

std::string genesis() { return testing::golden_path("tokenizer/genesis.txt"); }

class Folder {
 public:
  Folder()
      : path_(fs::path(::testing::TempDir()) / ("shoal_tokenizer_" + std::to_string(getpid()))) {
    fs::remove_all(path_);
    fs::create_directories(path_);
  }
  ~Folder() { fs::remove_all(path_); }
  std::string operator/(const std::string& name) const { return (path_ / name).string(); }

 private:
  fs::path path_;
};

// ByteLevelBPETokenizer.train made plain.json from the same text.
TEST(BpeTrainer, LearnsWhatHuggingFaceLearns) {
  const std::string golden = testing::golden_path("tokenizer/plain.json");
  for (const int threads : {1, 3}) {
    BpeTrainer trainer({.vocab_size = 500, .threads = threads});
    trainer.add_file(genesis());
    EXPECT_EQ(json::parse(trainer.train()->to_json()), json::parse(read_text_file(golden)));
  }
}

TEST(BpeTrainer, TextsAndFilesCountTheSameWords) {
  BpeTrainer by_file({.vocab_size = 400}), by_line({.vocab_size = 400});
  by_file.add_file(genesis());
  const std::string text = read_text_file(genesis());
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = text.find('\n', at) + 1;
    by_line.add_text(std::string_view(text).substr(at, end - at));
    at = end;
  }
  EXPECT_EQ(by_file.distinct_words(), by_line.distinct_words());
  EXPECT_EQ(by_file.train()->hash(), by_line.train()->hash());
}

TEST(BpeTrainer, StopsIfNothingIsLeftToMerge) {
  BpeTrainer trainer({.vocab_size = 1000, .min_frequency = 2, .special_tokens = {"<s>", "</s>"}});
  trainer.add_text("aaaa aaaa");
  const auto tokenizer = trainer.train();
  EXPECT_EQ(tokenizer->id_to_token(0), "<s>");
  EXPECT_EQ(tokenizer->id_to_token(1), "</s>");
  EXPECT_EQ(tokenizer->id_to_token(2), "!");
  EXPECT_EQ(tokenizer->vocab_size(), 260);  // 2 + 256 + "aa" + "aaaa"; " aaaa" occurs once
  EXPECT_EQ(tokenizer->roles().eos, 1);
}

TEST(BpeTrainer, NothingToLearnFromGivesTheBytes) {
  BpeTrainer trainer({.vocab_size = 300});
  const auto tokenizer = trainer.train();
  EXPECT_EQ(tokenizer->vocab_size(), 257);
  EXPECT_EQ(tokenizer->decode(tokenizer->encode("any \xC3\xA9").ids), "any \xC3\xA9");
}

TEST(BpeTrainer, MaxTokenLengthHolds) {
  BpeTrainer trainer({.vocab_size = 500, .min_frequency = 1, .max_token_length = 5});
  trainer.add_file(genesis());
  const auto tokenizer = trainer.train();
  for (TokenId id = 257; id <= tokenizer->max_id(); ++id)
    EXPECT_LE(tokenizer->decode_bytes(std::vector<TokenId>{id}).size(), 5u);
}

TEST(BpeTrainer, RefusesOptionsThatCannotBe) {
  EXPECT_THROW(BpeTrainer({.vocab_size = 256}), Error);
  EXPECT_THROW(BpeTrainer({.min_frequency = -1}), Error);
  EXPECT_THROW(BpeTrainer({.special_tokens = {""}}), Error);
  BpeTrainer trainer({.vocab_size = 300});
  EXPECT_THROW(trainer.add_text("\xFF"), Error);
  EXPECT_THROW(trainer.add_file("/no/such/file"), Error);
}

TEST(BpeTrainer, ProgressMayCancel) {
  BpeTrainerOptions options{.vocab_size = 500};
  options.progress = [](std::string_view stage, std::int64_t, std::int64_t) {
    if (stage == "merge") throw Error(ErrorCode::aborted, "enough");
  };
  BpeTrainer trainer(options);
  trainer.add_file(genesis());
  EXPECT_THROW(trainer.train(), Error);
}

TEST(SaveTokenizer, LoadsAgainFromEitherForm) {
  const Folder folder;
  BpeTrainer trainer({.vocab_size = 400, .special_tokens = {"<|endoftext|>", "<pad>"}});
  trainer.add_file(genesis());
  const auto tokenizer = trainer.train();
  save_tokenizer(*tokenizer, folder / "saved", 1024);
  const std::string text = "In the beginning<|endoftext|> <pad>x";
  const auto whole = load_tokenizer(folder / "saved");
  EXPECT_EQ(whole->hash(), tokenizer->hash());
  EXPECT_EQ(whole->roles().pad, 1);
  fs::remove(folder / "saved/tokenizer.json");
  const auto parts = load_tokenizer(folder / "saved");
  EXPECT_EQ(parts->encode(text).ids, tokenizer->encode(text).ids);
  EXPECT_EQ(parts->roles().eos, 0);
  EXPECT_EQ(parts->roles().pad, 1);
  fs::remove(folder / "saved/tokenizer_config.json");
  fs::remove(folder / "saved/special_tokens_map.json");
  EXPECT_EQ(load_tokenizer(folder / "saved")->encode(text).ids, tokenizer->encode(text).ids);
}

TEST(LoadTokenizer, SaysWhatIsMissing) {
  const Folder folder;
  EXPECT_THROW(load_tokenizer(folder / "nothing"), Error);
  try {
    load_tokenizer(folder / "");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::not_found);
    EXPECT_THAT(error.what(), ::testing::HasSubstr("holds no tokenizer.json, no vocab.json"));
  }
}

// transformers does the same.
TEST(LoadTokenizer, ARolesTokenThatIsMissingGetsTheNextId) {
  const Folder folder;
  write_file_atomically(folder / "tokenizer.json",
                        read_text_file(testing::golden_path("tokenizer/plain.json")));
  write_file_atomically(folder / "tokenizer_config.json", R"({"eos_token": "<nope>"})");
  const auto plain = load_tokenizer(testing::golden_path("tokenizer/plain.json"));
  const auto tokenizer = load_tokenizer(folder / "");
  EXPECT_EQ(tokenizer->roles().eos, plain->max_id() + 1);
  EXPECT_EQ(tokenizer->id_to_token(plain->max_id() + 1), "<nope>");
}

}  // namespace
}  // namespace shoal
