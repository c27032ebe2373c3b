// Prompts for the texts that a run generates while it trains.
#include "shoal/train/command/sample_texts.h"

#include <memory>
#include <string>
#include <vector>

#include "support/error_text.h"
#include "support/golden.h"
#include <gmock/gmock.h>

#include "shoal/train/command/generation_choice.h"
#include "shoal/train/data/tokenizer/load.h"
#include "shoal/train/tasks/causal_lm.h"

namespace shoal::command {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr std::int64_t kPositions = 40;
constexpr const char* kNothing = "nothing was thrown";

RunArguments run_with(std::int64_t texts, const std::vector<std::string>& prompts = {}) {
  RunArguments run;
  run.data.train_file = "train.txt";
  run.data.validation_file = "validation.txt";
  run.training.sample_prompts = prompts;
  run.training.sample_texts = texts;
  return run;
}

// Blocks of given ids and starts of documents.
struct Blocks final : Dataset {
  explicit Blocks(std::vector<Sample> given) : samples(std::move(given)) {}
  std::int64_t size() const override { return std::ssize(samples); }
  Sample get(std::int64_t index) const override {
    return samples.at(static_cast<std::size_t>(index));
  }
  std::vector<Sample> samples;
};

RunSetup language_model() {
  RunSetup setup;
  setup.kind = TaskKind::causal_lm;
  setup.tokenizer = load_tokenizer(testing::golden_path("tokenizer/sentence_piece/llama"));
  nn::DecoderConfig config = nn::DecoderConfig::of("llama");
  config.vocab_size = setup.tokenizer->max_id() + 1;
  config.max_position_embeddings = kPositions;
  config.hidden_size = 8;
  config.num_attention_heads = 2;
  setup.task = std::make_unique<CausalLmTask>(config);
  return setup;
}

SampleTexts texts_of(const RunArguments& run, RunSetup& setup) {
  setup.sample_texts = sample_prompts(run, setup);
  return with_texts_of_set(run, setup);
}

TEST(SampleTexts, PromptsHaveTheTokensOfShoalGenerate) {
  RunSetup setup = language_model();
  const SampleTexts texts = texts_of(run_with(0, {"In the beginning", "God, said"}), setup);
  ASSERT_THAT(texts.prompts, SizeIs(2));
  EXPECT_EQ(texts.prompts[1].text, "God, said");
  EXPECT_EQ(texts.prompts[1].ids, prompt_ids(*setup.tokenizer, "God, said", false));
  EXPECT_EQ(texts.prompts[1].ids.front(), *setup.tokenizer->roles().bos);
  EXPECT_EQ(texts.prompts[1].reference, "");
  EXPECT_EQ(texts.options.stop_tokens, std::vector<std::int32_t>({*setup.tokenizer->roles().eos}));
  EXPECT_TRUE(texts.options.do_sample);
  std::vector<TokenId> more;
  setup.tokenizer->append_ids("the earth", more);
  EXPECT_EQ(texts.text_of(texts.prompts[0].ids, more), " the earth");  // with the space in front
}

TEST(SampleTexts, TheValidationSetsTextsBeginBlocksAndEndWithTheirDocument) {
  RunSetup setup = language_model();
  std::vector<TokenId> ids;
  setup.tokenizer->append_ids(
      "in the beginning god created the heaven and the earth and the earth was without form and "
      "void and darkness was upon the face of the deep",
      ids);
  ASSERT_GT(ids.size(), 36U);
  ids.resize(36);
  const auto text = [&](std::size_t begin, std::size_t end) {
    return text_after(*setup.tokenizer, {}, std::span(ids).subspan(begin, end - begin));
  };
  setup.eval_dataset =
      std::make_shared<Blocks>(std::vector<Sample>{{.input_ids = ids},
                                                   {.input_ids = ids, .sequences = {0, 10, 36}},
                                                   {.input_ids = ids, .sequences = {0, 1}},
                                                   {.input_ids = {ids[0]}}});
  RunArguments run = run_with(9);
  run.training.sample_max_new_tokens = 12;
  const SampleTexts texts = texts_of(run, setup);
  ASSERT_THAT(texts.prompts, SizeIs(4));
  EXPECT_THAT(texts.prompts[0].ids, SizeIs(16));
  EXPECT_EQ(texts.prompts[0].text + texts.prompts[0].reference, text(0, 28));
  EXPECT_THAT(texts.prompts[1].ids, SizeIs(5));
  EXPECT_EQ(texts.prompts[1].text + texts.prompts[1].reference, text(0, 10));
  for (const int i : {2, 3}) {
    EXPECT_THAT(texts.prompts[static_cast<std::size_t>(i)].ids, SizeIs(1));
    EXPECT_EQ(texts.prompts[static_cast<std::size_t>(i)].reference, "");
  }
  EXPECT_EQ(texts.options.max_new_tokens, 12);
  // Prompts of the user come first. All texts fit into the model.
  run = run_with(1, {"God"});
  run.training.sample_max_new_tokens = 1000;
  const SampleTexts both = texts_of(run, setup);
  ASSERT_THAT(both.prompts, SizeIs(2));
  EXPECT_EQ(both.prompts[0].text, "God");
  EXPECT_EQ(both.options.max_new_tokens, kPositions - 16);
}

TEST(SampleTexts, EvaluationsThatGenerateShowFourTexts) {
  RunSetup setup = language_model();
  setup.kind = TaskKind::translation;
  setup.generation.emplace();
  setup.eval_dataset = std::make_shared<Blocks>(std::vector<Sample>(7));
  RunArguments run = run_with(0);
  EXPECT_EQ(texts_of(run, setup).first_of_set, 0);
  run.training.sample_texts = std::nullopt;
  EXPECT_EQ(texts_of(run, setup).first_of_set, 4);
  run.training.sample_texts = 9;
  EXPECT_EQ(texts_of(run, setup).first_of_set, 7);
  run.training.do_train = false;
  EXPECT_FALSE(texts_of(run, setup).any());
  // Without an option a language model generates nothing.
  RunSetup silent = language_model();
  silent.eval_dataset = setup.eval_dataset;
  run = run_with(0);
  run.training.sample_texts = std::nullopt;
  EXPECT_FALSE(texts_of(run, silent).any());
}

TEST(SampleTexts, OptionsThatTheRunCannotFollowAreRefused) {
  const auto problem = [](const RunArguments& run, TaskKind kind = TaskKind::causal_lm) {
    return test::error_text([&] { check_sample_options(run, kind); });
  };
  RunArguments run = run_with(0, {"God"});
  EXPECT_EQ(problem(run), kNothing);
  run.training.save_strategy = Interval::no;
  EXPECT_EQ(problem(run), kNothing);  // the evaluation after training
  run.training.do_eval = false;
  EXPECT_THAT(problem(run), HasSubstr("the run has neither; set eval_strategy or save_strategy"));
  run = run_with(2);
  run.data.validation_file = "";
  EXPECT_THAT(problem(run), HasSubstr("give validation_file, validation_split_percentage, or "));
  run = run_with(0);
  run.training.sample_max_new_tokens = 5;
  EXPECT_THAT(problem(run), HasSubstr("neither sample_prompts nor sample_texts"));
  run = run_with(2);
  EXPECT_THAT(problem(run, TaskKind::summarization), HasSubstr("predict_with_generate is false"));
  run.training.predict_with_generate = true;
  EXPECT_EQ(problem(run, TaskKind::summarization), kNothing);

  RunSetup setup = language_model();
  const auto refused = [&](const std::string& prompt) {
    return test::error_text([&] { texts_of(run_with(0, {prompt}), setup); });
  };
  std::string long_prompt;
  for (int i = 0; i < 50; ++i) long_prompt += "God ";
  EXPECT_THAT(refused(long_prompt), HasSubstr("which fill all 40 positions of the model"));
  setup.tokenizer = nullptr;
  EXPECT_THAT(refused("God"), HasSubstr("need a tokenizer; give tokenizer_name"));
}

}  // namespace
}  // namespace shoal::command
