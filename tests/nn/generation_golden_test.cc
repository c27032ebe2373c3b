// Generation compared with transformers, token by token (tools/golden/make_generation.py).
#include <algorithm>
#include <limits>

#include "fixture.h"
#include "parameter_values.h"
#include "support/golden.h"
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "shoal/nn/models/encoder_decoder/generate.h"
#include "shoal/nn/models/generate.h"
#include "shoal/nn/models/generation/read_options.h"
#include "shoal/nn/models/generation/scores.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/io/json.h"

namespace shoal::nn {
namespace {

using Tokens = std::vector<std::int32_t>;

const nlohmann::json& golden() {
  static const nlohmann::json read = read_json_file(testing::golden_path("generation.json"));
  return read;
}

GenerationOptions options_of(const nlohmann::json& fields) {
  GenerationOptions options;
  read_options(fields, "generation.json", 1, options);
  return options;
}

// The golden prompts [first, first + count), as a batch: prompts of different lengths.
std::vector<Tokens> generated(Fixture& room, EncoderDecoder& model,
                              const std::vector<Tokens>& prompts,
                              const GenerationOptions& options) {
  std::size_t longest = 0;
  for (const Tokens& prompt : prompts) longest = std::max(longest, prompt.size());
  Tokens ids;
  std::vector<std::uint8_t> mask;
  for (const Tokens& prompt : prompts)
    for (std::size_t i = 0; i < longest; ++i) {
      ids.push_back(i < prompt.size() ? prompt[i] : 0);
      mask.push_back(i < prompt.size());
    }
  const Shape shape = {std::ssize(prompts), static_cast<std::int64_t>(longest)};
  return generate(room.context, model, room.ids(shape, ids),
                  room.context.upload(mask.data(), shape, DType::u8), options);
}
std::vector<Tokens> generated(Fixture& room, CausalLm& model, const std::vector<Tokens>& prompts,
                              const GenerationOptions& options) {
  return generate_batch(room.context, model, prompts, options);
}

template <typename Model>
void expect_golden(Model& model, Fixture& room, const nlohmann::json& wanted) {
  model.materialize(room.context, DType::f32);
  EXPECT_EQ(describe(model.load(testing::golden_path(wanted.at("directory").get<std::string>()),
                                assign_values(room.context))),
            "");
  const auto prompts = wanted.at("prompts").get<std::vector<Tokens>>();
  ASSERT_EQ(prompts.size(), 50U);
  for (const nlohmann::json& one : wanted.at("cases")) {
    const GenerationOptions options = options_of(one.at("options"));
    const auto theirs = one.at("tokens").get<std::vector<std::vector<Tokens>>>();
    for (const std::size_t batch : {7U, 50U}) {
      std::vector<Tokens> ours;
      for (std::size_t first = 0; first < prompts.size(); first += batch) {
        const auto begin = prompts.begin() + static_cast<std::ptrdiff_t>(first);
        const auto some = std::min(batch, prompts.size() - first);
        for (Tokens& tokens :
             generated(room, model, {begin, begin + static_cast<std::ptrdiff_t>(some)}, options))
          ours.push_back(std::move(tokens));
      }
      const auto sequences = static_cast<std::size_t>(options.num_return_sequences);
      ASSERT_EQ(ours.size(), prompts.size() * sequences);
      for (std::size_t prompt = 0; prompt < prompts.size(); ++prompt) {
        const auto begin = ours.begin() + static_cast<std::ptrdiff_t>(prompt * sequences);
        EXPECT_EQ(std::vector<Tokens>(begin, begin + static_cast<std::ptrdiff_t>(sequences)),
                  theirs[prompt])
            << one.at("options") << ", prompt " << prompt << ", batches of " << batch;
      }
    }
  }
}

class GenerationGolden : public ::testing::TestWithParam<const char*> {};

TEST_P(GenerationGolden, TokensAreTransformers) {
  const nlohmann::json& wanted = golden().at(GetParam());
  const std::string config =
      testing::golden_path(wanted.at("directory").get<std::string>()) + "/config.json";
  Fixture room(false, 1, FixtureMemory::device);
  if (wanted.at("encodes").get<bool>()) {
    EncoderDecoder model(EncoderDecoderConfig::from_file(config));
    expect_golden(model, room, wanted);
  } else {
    CausalLm model(DecoderConfig::from_file(config));
    expect_golden(model, room, wanted);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, GenerationGolden, ::testing::Values("t5", "bart", "gpt2", "llama"),
                         [](const auto& test) { return std::string(test.param); });

TEST(GenerationWarpers, KeepTransformersTokensAndProbabilities) {
  std::vector<float> scores;
  for (const nlohmann::json& score : golden().at("warpers").at("scores"))
    scores.push_back(score.is_null() ? -std::numeric_limits<float>::infinity()
                                     : score.get<float>());
  for (const nlohmann::json& one : golden().at("warpers").at("cases")) {
    const auto kept = likely_tokens(options_of(one.at("options")), scores);
    const nlohmann::json& wanted = one.at("probabilities");
    EXPECT_EQ(kept.size(), wanted.size()) << one;
    double total = 0;
    for (const TokenWeight& token : kept) total += token.weight;
    for (const TokenWeight& token : kept) {
      const std::string key = std::to_string(token.token);
      ASSERT_TRUE(wanted.contains(key)) << one << ", token " << key;
      EXPECT_NEAR(token.weight / total, wanted.at(key).get<double>(), 1e-6) << one << ", " << key;
    }
  }
}

}  // namespace
}  // namespace shoal::nn
