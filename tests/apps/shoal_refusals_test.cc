// The real program on data, models, memory and disks that it cannot use.
#include <algorithm>
#include <filesystem>
#include <fstream>

#include "apps/shoal_fixture.h"
#include <gmock/gmock.h>

namespace shoal {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;

TEST_F(Shoal, RefusesDataItCannotUse) {
  expect_refused(train({"--tokenizer_name", mine_ / "none"}), "none");
  std::ofstream(mine_ / "empty.txt").flush();
  expect_refused(train({"--train_file", mine_ / "empty.txt"}), "no tokens");
  std::ofstream(mine_ / "short.txt") << "the shoal\n";
  expect_refused(train({"--train_file", mine_ / "short.txt"}), "32");
  std::ofstream(mine_ / "bytes.txt") << "good\n\xff\xfe\n";
  expect_refused(train({"--train_file", mine_ / "bytes.txt"}), "bytes.txt");
  expect_refused(train({"--per_device_train_batch_size", "100000", "--dataloader_drop_last"}),
                 "fewer than one batch");
  // The ids are from a larger vocabulary than the model's.
  ASSERT_EQ(
      shoal({"data", "prepare", "-t", *data_ / "tok", "-o", mine_ / "tokens", *data_ / "train.txt"})
          .status,
      0);
  std::string tokens;
  for (const auto& entry : fs::directory_iterator(mine_ / "tokens"))
    if (entry.path().extension() == ".shoaltok") tokens = entry.path().string();
  expect_refused(shoal({"train", "--model_type", "gpt2", "--config_overrides",
                        "n_layer=1,n_head=1,n_embd=8,n_positions=64,vocab_size=100", "--train_file",
                        tokens, "--block_size", "16", "--output_dir", out()}),
                 "100");
  auto prepared = train_words({"--train_file", tokens, "--validation_split_percentage", "5"});
  const auto held_out = std::find(prepared.begin(), prepared.end(), "--validation_file");
  prepared.erase(held_out, held_out + 2);
  expect_refused(shoal(prepared), "--validation-fraction");
  fs::resize_file(tokens, fs::file_size(tokens) - 10);
  expect_refused(train({"--train_file", tokens}), "shoaltok");
}

TEST_F(Shoal, FindsWhatFitsIntoItsMemory) {
  const std::vector<std::string> words = {
      "--memory_limit_mb", "6", "--per_device_train_batch_size", "64", "--save_strategy", "no"};
  const auto refused = train(words);
  expect_refused(refused, "of 6.0 MiB are available (memory_limit_mb)");
  EXPECT_EQ(refused.status, 4);
  EXPECT_THAT(refused.err, HasSubstr("auto_find_batch_size, gradient_checkpointing"));
  auto finds = words;
  finds.emplace_back("--auto_find_batch_size");
  const auto found = train(finds);
  EXPECT_EQ(found.status, 0) << found.err;
  EXPECT_THAT(found.out, AllOf(HasSubstr("auto_find_batch_size: 64 samples a device do not fit"),
                               HasSubstr(" instead of 64\n"),
                               HasSubstr("tensors of a rank may take 6.00 MiB (memory_limit_mb)")));
}

TEST_F(Shoal, RefusesModelsItCannotRead) {
  ASSERT_EQ(train({"--save_strategy", "no"}).status, 0);
  const auto generate = [&] {
    return shoal({"generate", "-m", out(), "-p", "the", "--max-new-tokens", "1"});
  };
  ASSERT_EQ(generate().status, 0);
  const auto size = fs::file_size(model_file());
  fs::resize_file(model_file(), size / 2);
  expect_refused(generate(), "model.safetensors");
  std::ofstream(model_file(), std::ios::binary)
      << std::string("\xff\xff\xff\xff\xff\xff\xff\x7f{}");
  expect_refused(generate(), "model.safetensors");
  std::ofstream(model_file(), std::ios::binary)
      << std::string("\x40\0\0\0\0\0\0\0", 8)
      << R"({"w":{"dtype":"F32","shape":[1099511627776,1099511627776],"data_offsets":[0,4]}})";
  expect_refused(generate(), "model.safetensors");
  expect_refused(shoal({"generate", "-m", mine_ / "none", "-p", "x"}), "no such directory");
  expect_refused(shoal({"generate", "-m", mine_.path(), "-p", "x"}), "config.json");
}

TEST_F(Shoal, AFullDiskWhileSavingLeavesTheEarlierCheckpoint) {
  ASSERT_EQ(train({"--max_steps", "3"}).status, 0);
  ProgramOptions options;
  options.file_size_limit = 20000;
  const auto full = train({"--resume_from_checkpoint", "true"}, options);
  expect_refused(full, "model.safetensors");
  EXPECT_TRUE(fs::exists(out() + "/checkpoint-3/COMPLETE"));
  EXPECT_FALSE(fs::exists(out() + "/checkpoint-6"));
  const auto rest = train({"--resume_from_checkpoint", "true"});
  EXPECT_EQ(rest.status, 0) << rest.err;
  EXPECT_TRUE(fs::exists(out() + "/checkpoint-6/COMPLETE"));
}

TEST_F(Shoal, RefusesAnOutputItCannotWrite) {
  std::ofstream(mine_ / "file") << "x";
  expect_refused(train({"--output_dir", mine_ / "file" + "/out"}), "file");
  ASSERT_EQ(train().status, 0);
  expect_refused(train(), "--resume_from_checkpoint true");
}

}  // namespace
}  // namespace shoal
