// The options of generation: how they are read, what they refuse, and what no golden file has.
#include <limits>
#include <set>

#include "fixture.h"
#include "support/error_text.h"
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "shoal/nn/models/generate.h"
#include "shoal/nn/models/generation/read_options.h"
#include "shoal/nn/models/generation/scores.h"
#include "shoal/runtime/base/error.h"

namespace shoal::nn {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Tokens = std::vector<std::int32_t>;

GenerationOptions read(const nlohmann::json& fields, std::int64_t context = 1) {
  GenerationOptions options;
  read_options(fields, "generation_config.json", context, options);
  return options;
}

TEST(GenerationOptions, AreReadAsTransformersReadsThem) {
  const GenerationOptions none = read({{"num_beams", nullptr}, {"use_cache", true}});
  EXPECT_EQ(none.max_new_tokens, 20);
  EXPECT_EQ(none.num_beams, 1);
  EXPECT_EQ(read({{"max_length", 30}}).max_new_tokens, 29);
  EXPECT_EQ(read({{"max_length", 30}}, 12).max_new_tokens, 18);
  EXPECT_EQ(read({{"max_length", 30}, {"max_new_tokens", 7}}, 12).max_new_tokens, 7);
  const GenerationOptions least = read({{"min_length", 9}, {"min_new_tokens", 3}});
  EXPECT_EQ(least.min_length, 0);
  EXPECT_EQ(least.min_new_tokens, 3);
  EXPECT_THAT(read({{"eos_token_id", 4}}).stop_tokens, ElementsAre(4));
  EXPECT_THAT(read({{"eos_token_id", {4, 9}}}).stop_tokens, ElementsAre(4, 9));
  EXPECT_EQ(read({{"early_stopping", "never"}}).early_stopping, EarlyStopping::never);
  EXPECT_EQ(read({{"early_stopping", true}}).early_stopping, EarlyStopping::immediately);
  EXPECT_EQ(read({{"forced_bos_token_id", 0}}).forced_bos_token_id, 0);
  EXPECT_EQ(read({{"forced_eos_token_id", {3}}}).forced_eos_token_id, 3);
}

TEST(GenerationOptions, RefuseWhatWouldChangeTheText) {
  const auto refusal = [](const nlohmann::json& fields) {
    return test::error_text([&] { read(fields, 5); });
  };
  EXPECT_THAT(refusal({{"typical_p", 0.9}}), HasSubstr("typical_p: 0.9, which is not supported"));
  EXPECT_THAT(refusal({{"num_beam_groups", 2}}), HasSubstr("num_beam_groups: 2"));
  EXPECT_THAT(refusal({{"renormalize_logits", true}}), HasSubstr("renormalize_logits"));
  EXPECT_THAT(refusal({{"sequence_bias", {1}}}), HasSubstr("sequence_bias"));
  EXPECT_THAT(refusal({{"max_length", 5}}), HasSubstr("give max_new_tokens"));
  EXPECT_THAT(refusal({{"early_stopping", "soon"}}), HasSubstr("true, false or \"never\""));
  EXPECT_THAT(refusal({{"eos_token_id", "</s>"}}), HasSubstr("token ids"));
  EXPECT_EQ(refusal({{"typical_p", 1.0}, {"num_beam_groups", 1}, {"penalty_alpha", nullptr}}),
            "nothing was thrown");
}

TEST(GenerationOptions, RefuseImpossibleValues) {
  const auto refusal = [](const GenerationOptions& options) {
    return test::error_text([&] { options.check(10); });
  };
  EXPECT_EQ(refusal({}), "nothing was thrown");
  EXPECT_THAT(refusal({.do_sample = true, .num_beams = 2}),
              HasSubstr("num_beams 2 with do_sample"));
  EXPECT_THAT(refusal({.num_beams = 2, .num_return_sequences = 3}),
              HasSubstr("num_return_sequences 3 with num_beams 2"));
  EXPECT_THAT(refusal({.num_beams = 0}), HasSubstr("num_beams 0 is not"));
  EXPECT_THAT(refusal({.repetition_penalty = 0}), HasSubstr("repetition_penalty 0"));
  EXPECT_THAT(refusal({.min_p = 1.5}), HasSubstr("min_p 1.5"));
  EXPECT_THAT(refusal({.forced_bos_token_id = 10}), HasSubstr("forced_bos_token_id: 10"));
  EXPECT_THAT(refusal({.bad_words_ids = {{3, -1}}}), HasSubstr("bad_words_ids: -1"));
  EXPECT_THAT(refusal({.bad_words_ids = {{}}}), HasSubstr("empty list"));
}

TEST(GenerationScores, BestTokensAreSortedAndTheLowerIdWinsATie) {
  const std::vector<float> scores = {1, 5, 3, 5, -2, 3};
  std::vector<std::int32_t> best;
  for (const ScoredToken& one : best_tokens(scores, 4)) best.push_back(one.token);
  EXPECT_THAT(best, ElementsAre(1, 3, 2, 5));
  EXPECT_EQ(best_tokens(scores, 9).size(), 6U);
  EXPECT_TRUE(best_tokens(scores, 0).empty());
}

// An eos_token_id of a larger vocabulary bans nothing.
TEST(GenerationScores, StopTokensOutsideTheVocabularyAreSkipped) {
  std::vector<float> scores = {1, 2, 3};
  process_scores({.stop_tokens = {2, 50256}, .min_new_tokens = 1}, Tokens{0}, 0, scores);
  EXPECT_THAT(scores, ElementsAre(1, 2, -std::numeric_limits<float>::infinity()));
}

struct Generation : ::testing::Test {
  Generation() : model(config()) { model.materialize(room.context, DType::f32); }
  static DecoderConfig config() {
    DecoderConfig config = DecoderConfig::of("llama");
    config.vocab_size = 40;
    config.max_position_embeddings = 32;
    config.hidden_size = 16;
    config.intermediate_size = 24;
    config.num_hidden_layers = 2;
    config.num_attention_heads = 2;
    config.initializer_range = 0.3;
    return config;
  }
  Fixture room{false, 1};
  CausalLm model;
  const std::vector<Tokens> prompts = {{5, 6, 7}, {8}, {9, 10, 11, 12}};
};

// A text does not depend on the batch that it is in, nor on what its other samples draw.
TEST_F(Generation, SamplesAreThoseOfEachPromptAlone) {
  const GenerationOptions options{
      .max_new_tokens = 8, .do_sample = true, .stop_tokens = {3, 4}, .num_return_sequences = 3};
  const auto together =
      generate_batch(room.context, model, prompts, options, {.first = 5, .stride = 2});
  EXPECT_EQ(together.size(), 9U);
  EXPECT_GT(std::set<Tokens>(together.begin(), together.end()).size(), 6U);
  std::vector<Tokens> alone;
  for (std::size_t i = 0; i < prompts.size(); ++i)
    for (Tokens& tokens : generate_batch(room.context, model, {prompts[i]}, options,
                                         {.first = 5 + 2 * static_cast<std::uint32_t>(i)}))
      alone.push_back(std::move(tokens));
  EXPECT_EQ(together, alone);
  EXPECT_NE(together, generate_batch(room.context, model, prompts, options, {.first = 6}));
}

TEST_F(Generation, EndsAreAskedOfEverySequence) {
  for (const std::int64_t beams : {1, 3}) {
    GenerationOptions options{.max_new_tokens = 8, .num_beams = beams};
    const auto whole = generate_batch(room.context, model, prompts, options);
    for (const Tokens& tokens : whole) EXPECT_EQ(tokens.size(), 8U);
    options.ends = [](std::span<const std::int32_t> tokens) { return tokens.size() == 4; };
    for (const Tokens& tokens : generate_batch(room.context, model, prompts, options))
      EXPECT_EQ(tokens.size(), 4U);
  }
}

}  // namespace
}  // namespace shoal::nn
