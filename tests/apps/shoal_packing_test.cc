// The real program with documents that share blocks (--packing).
#include <filesystem>
#include <fstream>

#include "apps/shoal_fixture.h"
#include <gmock/gmock.h>

namespace shoal {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::Not;

// Documents (here lines) share blocks but do not attend to each other.
TEST_F(Shoal, PacksDocuments) {
  const auto loss = [this](const std::string& more, const std::vector<std::string>& options) {
    auto words = options;
    words.insert(words.end(), {"--save_strategy", "no", "--output_dir", mine_ / more});
    const auto trained = train(words);
    EXPECT_EQ(trained.status, 0) << trained.err;
    EXPECT_THAT(trained.out, HasSubstr("eval_loss"));
    return trained.out;
  };
  const std::string whole =
      loss("bfd", {"--packing", "true", "--block_size", "64", "--max_steps", "3"});
  EXPECT_THAT(whole, HasSubstr("packing bfd: 300 documents in "));
  EXPECT_THAT(whole, HasSubstr("packing bfd: 30 documents in "));
  EXPECT_THAT(whole, HasSubstr("% is padding"));
  const std::string wrapped = loss("wrapped", {"--packing", "true", "--packing_strategy", "wrapped",
                                               "--eval_packing", "false", "--max_steps", "3"});
  EXPECT_THAT(wrapped, HasSubstr("packing wrapped: 300 documents in "));
  EXPECT_THAT(wrapped, HasSubstr("are cut into sequences of their own"));
  EXPECT_THAT(wrapped, Not(HasSubstr("30 documents in")));
  EXPECT_THAT(loss("plain", {"--max_steps", "3"}), Not(HasSubstr("packing")));
}

// The blocks hold other documents, or have another size: a position in the epoch then
// means something else.
TEST_F(Shoal, WarnsIfARunResumesWithOtherBlocks) {
  const auto said = [this](const std::vector<std::string>& options) {
    auto words = options;
    words.insert(words.end(), {"--save_steps", "2", "--do_eval", "false"});
    const auto trained = train(words);
    EXPECT_EQ(trained.status, 0) << trained.err;
    return trained.out;
  };
  EXPECT_THAT(said({"--packing", "true", "--max_steps", "2"}), Not(HasSubstr("warning: ")));
  const std::string from = mine_ / "from";
  fs::rename(out(), from);
  const auto resumed = [&](std::vector<std::string> options) {
    options.insert(options.end(), {"--max_steps", "3", "--resume_from_checkpoint",
                                   from + "/checkpoint-2", "--output_dir", out()});
    return said(options);
  };
  EXPECT_THAT(resumed({"--packing", "true"}),
              AllOf(HasSubstr("the number of steps was 2"), Not(HasSubstr("this epoch"))));
  EXPECT_THAT(resumed({"--max_train_samples", "50"}),
              AllOf(HasSubstr("warning: packing was true in " + from +
                              "/checkpoint-2 and is false "
                              "now: from sample"),
                    HasSubstr("warning: max_train_samples was null in"),
                    HasSubstr("warning: packing_strategy was \"bfd\" in"),
                    HasSubstr("--ignore_data_skip true"), Not(HasSubstr("train_file was"))));
  std::ofstream(mine_ / "train.txt") << sentences(299);
  EXPECT_THAT(resumed({"--packing", "true", "--packing_strategy", "wrapped", "--block_size", "48",
                       "--train_file", mine_ / "train.txt"}),
              AllOf(HasSubstr("warning: packing_strategy was \"bfd\" in"),
                    HasSubstr("and is \"wrapped\" now"), HasSubstr("warning: block_size was 32 in"),
                    HasSubstr("warning: train_file was \"train.txt, "),
                    Not(HasSubstr("training set had"))));
}

// The file was rewritten under its name, and by chance with the same length.
TEST_F(Shoal, WarnsIfARunResumesWithAnotherFileOfTheSameNameAndSize) {
  const std::string text = sentences(300), file = mine_ / "train.txt", from = mine_ / "from";
  const auto said = [&](std::vector<std::string> options) {
    options.insert(options.end(),
                   {"--train_file", file, "--save_steps", "2", "--do_eval", "false"});
    const auto trained = train(options);
    EXPECT_EQ(trained.status, 0) << trained.err;
    return trained.out;
  };
  std::ofstream(file) << text;
  said({"--max_steps", "2"});
  fs::rename(out(), from);
  const auto resumed = [&] {
    return said({"--max_steps", "3", "--resume_from_checkpoint", from + "/checkpoint-2"});
  };
  EXPECT_THAT(resumed(), Not(HasSubstr("warning: train_file")));
  std::string other = text;
  std::swap_ranges(other.begin(), other.begin() + 3, other.begin() + 10);
  ASSERT_NE(other, text);
  std::ofstream(file) << other;
  EXPECT_THAT(resumed(),
              AllOf(HasSubstr("warning: train_file_content was \"sha256:"),
                    HasSubstr("--ignore_data_skip true"), Not(HasSubstr("train_file was"))));
}

TEST_F(Shoal, RefusesPackingThatCannotBe) {
  expect_refused(train({"--packing", "true", "--streaming", "true"}),
                 "packing needs to know all documents");
  expect_refused(train({"--packing_strategy", "wrapped"}), "but packing is false");
  expect_refused(train({"--packing", "true", "--packing_strategy", "ffd"}), "bfd_split");
  expect_refused(train({"--packing", "true", "--block_size", "128"}), "the model has 64 positions");
  expect_refused(train({"--padding_free", "true"}), "packing keeps the documents of a block apart");
  expect_refused(
      train({"--model_type", "bert", "--task", "masked-lm", "--config_overrides",
             "hidden_size=32,num_attention_heads=2,intermediate_size=32", "--packing", "true"}),
      "packing is given, but the task is masked-lm");
  std::ofstream(mine_ / "short.txt") << "\n\n\n";
  expect_refused(train({"--packing", "true", "--train_file", mine_ / "short.txt"}),
                 "which fill no block of 32");
}

}  // namespace
}  // namespace shoal
