// The real program on --task span-corruption and denoising: a tiny T5 and a tiny BART learn to
// restore text in which each word follows the one before it in a fixed cycle.
#include "apps/piece_tokenizer.h"
#include "apps/shoal_task_fixture.h"
#include <gmock/gmock.h>

namespace shoal {
namespace {

using ::testing::HasSubstr;
using Words = std::vector<std::string>;

const Words kCycle = {"red", "blue", "sun", "sea", "old", "new",
                      "cat", "dog",  "one", "two", "yes", "no"};

class ShoalCorruption : public ShoalOnTasks {
 protected:
  void SetUp() override {
    Words words = kCycle;
    words.emplace_back(".");
    Words sentinels;
    for (int i = 9; i >= 0; --i) sentinels.push_back("<extra_id_" + std::to_string(i) + ">");
    write_piece_tokenizer(tokenizer("t5"), words, sentinels);
    write_piece_tokenizer(tokenizer("bart"), words, {"<mask>"}, true);
    write_text("train.txt", 400, 5);
    write_text("test.txt", 60, 77);
  }
  std::string tokenizer(const std::string& type) const { return mine_ / type; }

  // Two sentences a line, each of some words of the cycle.
  void write_text(const std::string& name, int lines, unsigned seed) const {
    std::ofstream file(mine_ / name);
    unsigned x = seed;
    const auto draw = [&x](unsigned bound) {
      x = x * 1664525U + 1013904223U;
      return (x >> 16U) % bound;
    };
    for (int line = 0; line < lines; ++line) {
      for (int sentence = 0; sentence < 2; ++sentence) {
        const unsigned begin = draw(12), count = 6 + draw(6);
        for (unsigned i = 0; i < count; ++i) file << kCycle[(begin + i) % kCycle.size()] << " ";
        file << (sentence == 0 ? ". " : ".\n");
      }
    }
  }

  Words learns(const std::string& type, const Words& more) const {
    const std::string sizes =
        type == "t5"
            ? "d_model=48,d_kv=12,d_ff=96,num_layers=2,num_heads=4,dropout_rate=0,"
              "relative_attention_num_buckets=8,relative_attention_max_distance=16"
            : "d_model=48,encoder_layers=2,decoder_layers=2,encoder_ffn_dim=96,decoder_ffn_dim=96,"
              "encoder_attention_heads=4,decoder_attention_heads=4,max_position_embeddings=64,"
              "dropout=0,init_std=0.1";
    return overlaid(
        words_of({"--model_type", type, "--config_overrides", sizes},
                 {"--task", type == "t5" ? "span-corruption" : "denoising", "--tokenizer_name",
                  tokenizer(type), "--train_file", mine_ / "train.txt", "--validation_file",
                  mine_ / "test.txt", "--block_size", "32", "--pad_to_multiple_of", "4"}),
        more);
  }
};

TEST_F(ShoalCorruption, ModelsLearnToRestoreText) {
  for (const std::string type : {"t5", "bart"}) {
    SCOPED_TRACE(type);
    const auto trained = shoal(
        learns(type, {"--max_steps", "300", "--warmup_steps", "20", "--per_device_train_batch_size",
                      "16", "--output_dir", mine_ / (type + "-out")}));
    ASSERT_EQ(trained.status, 0) << trained.err;
    const std::vector<double> all = losses(mine_ / (type + "-out"));
    ASSERT_EQ(all.size(), 300U);
    EXPECT_GT(all.front(), 2.0);
    EXPECT_LT(all.back(), 0.5 * all.front());
    const nlohmann::json results = json_of(mine_ / (type + "-out") + "/eval_results.json");
    EXPECT_LT(results["eval_loss"], 0.5 * all.front());

    // The saved model has the same loss alone, with the same hidden tokens.
    const std::string task = type == "t5" ? "span-corruption" : "denoising", made = type + "-out";
    EXPECT_THAT(trained.out, HasSubstr(" --task " + task + " FILE` uses the model"));
    const auto again =
        shoal(words_of({"--model_name_or_path", mine_ / made},
                       {"--task", task, "--do_train", "false", "--validation_file",
                        mine_ / "test.txt", "--block_size", "32", "--pad_to_multiple_of", "4",
                        "--output_dir", mine_ / (type + "-again")}));
    ASSERT_EQ(again.status, 0) << again.err;
    EXPECT_EQ(json_of(mine_ / (type + "-again") + "/eval_results.json")["eval_loss"],
              results["eval_loss"]);
    const auto measured = shoal({"evaluate", "-m", mine_ / made, mine_ / "test.txt", "--json",
                                 "--task", task, "--max_seq_length", "32"});
    ASSERT_EQ(measured.status, 0) << measured.err;
    EXPECT_NEAR(nlohmann::json::parse(measured.out)["eval_loss"], results["eval_loss"], 0.5)
        << "another seed hides other tokens";
    const auto more = shoal({"evaluate", "-m", mine_ / made, mine_ / "test.txt", "--json", "--task",
                             task, "--max_seq_length", "32", "--mlm_probability", "0.5"});
    ASSERT_EQ(more.status, 0) << more.err;
    EXPECT_NE(nlohmann::json::parse(more.out)["eval_loss"],
              nlohmann::json::parse(measured.out)["eval_loss"]);
  }
}

// With noise on the embeddings of both stacks, too, which depends on the length that a batch is
// padded to.
TEST_F(ShoalCorruption, RanksLearnAsOneDoes) {
  for (const std::string type : {"t5", "bart"}) {
    SCOPED_TRACE(type);
    expect_ranks_as_one(
        learns(type, {"--max_steps", "8", "--do_eval", "false", "--neftune_noise_alpha", "20",
                      "--pad_to_max_length", "true"}),
        {});
  }
}

TEST_F(ShoalCorruption, AResumedRunHidesTheSameTokens) {
  for (const std::string type : {"t5", "bart"})
    for (const char* streaming : {"false", "true"}) {
      SCOPED_TRACE(type + " streaming " + streaming);
      const Words words =
          learns(type, {"--max_steps", "12", "--save_strategy", "steps", "--save_steps", "6",
                        "--do_eval", "false", "--streaming", streaming, "--output_dir", out(),
                        "--overwrite_output_dir", "true"});
      const auto whole = shoal(words);
      ASSERT_EQ(whole.status, 0) << whole.err;
      const std::vector<double> expected = losses(out());
      ASSERT_EQ(expected.size(), 12U);
      const auto rest = shoal(overlaid(words, {"--resume_from_checkpoint", out() + "/checkpoint-6",
                                               "--output_dir", mine_ / (type + streaming)}));
      ASSERT_EQ(rest.status, 0) << rest.err;
      EXPECT_EQ(losses(mine_ / (type + streaming)),
                std::vector<double>(expected.begin() + 6, expected.end()));
    }
}

TEST_F(ShoalCorruption, RefuseWhatCannotBeDone) {
  const auto refusal = [&](const std::string& type, const Words& more) {
    const auto run = shoal(learns(type, overlaid({"--output_dir", out()}, more)));
    EXPECT_NE(run.status, 0);
    return run.err;
  };
  EXPECT_THAT(refusal("t5", {"--tokenizer_name", tokenizer("bart")}),
              HasSubstr("hidden spans, but the tokenizer 0 sentinels"));
  EXPECT_THAT(refusal("bart", {"--tokenizer_name", tokenizer("t5")}),
              HasSubstr("the tokenizer has no mask token"));
  EXPECT_THAT(refusal("t5", {"--block_size", "512"}),
              HasSubstr("has 28 hidden spans, but the tokenizer 10 sentinels"));
  EXPECT_THAT(refusal("t5", {"--mlm_probability", "0.6"}), HasSubstr("at most 0.5"));
  EXPECT_THAT(refusal("t5", {"--poisson_lambda", "2"}),
              HasSubstr("poisson_lambda is given, but the task is span-corruption"));
  EXPECT_THAT(shoal(overlaid(learns("t5", {"--output_dir", out()}), tiny_bert())).err,
              HasSubstr("has no head for span-corruption"));
}

}  // namespace
}  // namespace shoal
