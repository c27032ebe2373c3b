// Decoders' heads for sequences, tokens and answers compared with transformers
// (tools/golden/make_decoder_heads.py), and saved as directories.
#include <algorithm>
#include <optional>

#include "fixture.h"
#include "golden_head.h"
#include "parameter_values.h"
#include "support/golden.h"
#include "support/temporary_directory.h"
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "shoal/nn/autograd/tape.h"
#include "shoal/nn/models/causal_lm.h"
#include "shoal/nn/models/headed_decoder.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/io/json.h"
#include "shoal/runtime/io/sharded_safetensors.h"

namespace shoal::nn {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Names = std::vector<std::string>;

std::string directory_of(const std::string& name) {
  return testing::golden_path("decoders/" + name);
}

struct Golden : GoldenHead<HeadedDecoder> {
  explicit Golden(const std::string& name, DType dtype = DType::f32,
                  FixtureMemory where = FixtureMemory::shared)
      : GoldenHead(name, directory_of(name),
                   make_headed_decoder(read_json_file(directory_of(name) + "/config.json"),
                                       "config.json", golden_head(name)),
                   dtype, where) {}
};

class DecoderHeadGolden : public ::testing::TestWithParam<const char*> {};

TEST_P(DecoderHeadGolden, LossScoresAndGradients) {
  Golden golden(GetParam(), DType::f32, FixtureMemory::device);
  EXPECT_TRUE(close_in_norm("logits", golden.logits(), golden.file->tensor("logits"), 5e-6));
  expect_golden_step(golden);
}

TEST_P(DecoderHeadGolden, InBf16) {
  Golden golden(GetParam(), DType::bf16, FixtureMemory::device);
  // Inputs are in host memory; each operation copies its own to the device.
  for (Tensor* tensor : golden.input.tensors()) *tensor = testing::on_host(*tensor);
  expect_golden_step_in_bf16(golden, 5e-2);
}

// Saved directories have transformers' names and classes, and can be opened again.
TEST_P(DecoderHeadGolden, DirectoriesAreWrittenAndRead) {
  Golden golden(GetParam());
  const testing::TemporaryDirectory made;
  EXPECT_THAT(golden.model.save_config(made.path(), DType::f32),
              ::testing::ElementsAre("config.json"));
  save_weights(made.path(), golden.model, parameter_values());
  EXPECT_EQ(ShardedSafetensors::open(made.path()).names(),
            ShardedSafetensors::open(golden.directory).names());
  const auto config = read_json_file(made.path() + "/config.json"),
             theirs = read_json_file(golden.directory + "/config.json");
  for (const char* name : {"architectures", "problem_type", "id2label", "label2id",
                           "classifier_dropout", "pad_token_id"})
    EXPECT_EQ(config.value(name, nlohmann::json()), theirs.value(name, nlohmann::json())) << name;
  const auto again = make_headed_decoder(config, "config.json", golden_head(GetParam()));
  again->materialize(golden.room.context, DType::f32);
  EXPECT_EQ(describe(again->load(made.path(), assign_values(golden.room.context))), "");
  EXPECT_TRUE(close_in_norm("logits", again->logits(golden.room.context, golden.input),
                            golden.file->tensor("logits"), 5e-6));
}

// Padding on the right changes no bit of the scores before it.
TEST_P(DecoderHeadGolden, PaddingChangesNoScore) {
  Golden golden(GetParam());
  const Tensor padded = golden.logits();  // [3, labels], or [3, 11, ...]
  const std::int32_t* const ids = golden.input.ids.const_data<std::int32_t>();
  for (const auto& [row, length] : {std::pair<std::int64_t, std::int64_t>{1, 8}, {2, 3}}) {
    ChainInput alone;
    alone.ids = golden.room.ids({1, length}, {ids + row * 11, ids + row * 11 + length});
    const Tensor own = golden.model.logits(golden.room.context, alone);
    Tensor same = padded.narrowed(0, row, 1);
    if (same.shape().rank() == 3) same = same.narrowed(1, 0, length);
    EXPECT_TRUE(close_in_norm("a row alone", own, same, 2e-6)) << row;
  }
  std::vector<std::int32_t> other(ids, ids + kGoldenTexts * 11);
  std::fill(other.begin() + 22 + 3, other.end(), 9);
  golden.input.ids = golden.room.ids({kGoldenTexts, 11}, other);
  const Tensor filled = golden.logits();
  const Tensor before = padded.narrowed(0, 2, 1), after = filled.narrowed(0, 2, 1);
  const std::int64_t compared = before.shape().rank() == 3 ? 3 * before.shape()[2] : before.count();
  EXPECT_TRUE(std::equal(before.const_data<float>(), before.const_data<float>() + compared,
                         after.const_data<float>()));
}

INSTANTIATE_TEST_SUITE_P(
    Cases, DecoderHeadGolden,
    ::testing::Values("gpt2_classes", "gpt2_numbers", "gpt2_tokens", "gpt2_answers",
                      "llama_classes", "llama_numbers", "llama_tokens", "llama_answers",
                      "mistral_classes", "mistral_numbers", "mistral_tokens", "mistral_answers",
                      "qwen2_classes", "qwen2_numbers", "qwen2_tokens", "qwen2_answers",
                      "qwen3_classes", "qwen3_numbers", "qwen3_tokens", "qwen3_answers",
                      "gpt_neox_classes", "gpt_neox_numbers", "gpt_neox_tokens", "gpt_neox_answers",
                      "gemma_classes", "gemma_numbers", "gemma_tokens", "gemma2_classes",
                      "gemma2_numbers", "gemma2_tokens", "gemma3_text_classes",
                      "gemma3_text_numbers"),
    [](const auto& test) { return std::string(test.param); });

class DecoderDirectories : public ::testing::TestWithParam<const char*> {};

// A language model's directory, opened for each head. The reported missing and unexpected weights
// are those that transformers reports. The exception is question answering: transformers
// looks for the trunk under another name and leaves it random, while Shoal finds it.
TEST_P(DecoderDirectories, AreReportedAsTransformersDoes) {
  const std::string name = GetParam(), family = name.substr(0, name.rfind('_'));
  const nlohmann::json reports = read_json_file(directory_of("reports.json"));
  const nlohmann::json& report = reports.at(name);
  Fixture room;
  nlohmann::json config = read_json_file(directory_of(family + "_classes") + "/config.json");
  config["tie_word_embeddings"] = name.ends_with("_tied");
  const testing::TemporaryDirectory made;
  const auto language_model = make_causal_lm(config, "config.json");
  language_model->materialize(room.context, DType::f32);
  save_weights(made.path(), *language_model, parameter_values());
  EXPECT_EQ(ShardedSafetensors::open(made.path()).names(), report["names"].get<Names>());
  for (const char* head : {"classes", "numbers", "tokens", "answers"}) {
    if (!report.contains(head)) {
      EXPECT_THROW((void)make_headed_decoder(config, "config.json", golden_head(head)), Error)
          << head;
      continue;
    }
    const auto model = make_headed_decoder(config, "config.json", golden_head(head));
    model->materialize(room.context, DType::f32);
    LoadReport ours = model->load(made.path(), assign_values(room.context));
    std::ranges::sort(ours.missing);
    Names missing = report[head]["missing"], unexpected = report[head]["unexpected"];
    if (family != "gpt2" && golden_head(head) == DecoderHead::question_answering) {
      std::erase_if(missing, [](const auto& one) { return one.starts_with("transformer."); });
      std::erase_if(unexpected, [](const auto& one) { return one.starts_with("model."); });
    }
    EXPECT_EQ(ours.missing, missing) << head;
    EXPECT_EQ(ours.unexpected, unexpected) << head;
  }
}
INSTANTIATE_TEST_SUITE_P(Models, DecoderDirectories,
                         ::testing::Values("gpt2_tied", "gpt2_untied", "llama_tied", "llama_untied",
                                           "mistral_tied", "qwen2_tied", "qwen3_tied",
                                           "qwen3_untied", "gpt_neox_tied", "gpt_neox_untied",
                                           "gemma_tied", "gemma_untied", "gemma2_tied",
                                           "gemma2_untied", "gemma3_text_tied",
                                           "gemma3_text_untied"),
                         [](const auto& test) { return std::string(test.param); });

// Without `ends`, samples end with their row. A position beyond the row is refused.
TEST(DecoderHead, EndsAreChecked) {
  Golden golden("gpt2_classes");
  const Tensor scores = golden.logits();
  golden.input.ends = {};
  const Tensor last = golden.logits();
  EXPECT_TRUE(
      close_in_norm("of a whole row", last.narrowed(0, 0, 1), scores.narrowed(0, 0, 1), 1e-6));
  EXPECT_FALSE(
      close_in_norm("of a padded row", last.narrowed(0, 2, 1), scores.narrowed(0, 2, 1), 1e-3));
  golden.input.ends = golden.room.ids({kGoldenTexts}, {10, 11, 2});
  EXPECT_THROW((void)golden.logits(), Error);
}

// Only the token classifier has dropout: classifier_dropout, else hidden_dropout, else 0.1.
TEST(DecoderHead, TokensAreDroppedOut) {
  const auto loss = [](const nlohmann::json& changes, const char* name = "llama_tokens") {
    Golden golden(name);
    nlohmann::json config = read_json_file(golden.directory + "/config.json");
    if (!changes.is_null()) config.update(changes);
    const auto model =
        make_headed_decoder(config, "config.json", DecoderHead::token_classification);
    model->materialize(golden.room.context, DType::f32);
    model->load(golden.directory, assign_values(golden.room.context));
    golden.room.context.mode = Mode::train;
    return golden.room.context.read(model->forward(golden.room.context, golden.input).loss_sum);
  };
  const double quarter = loss({}), tenth = loss({{"classifier_dropout", nullptr}});
  EXPECT_NE(quarter, tenth);
  EXPECT_EQ(tenth, loss({{"classifier_dropout", 0.1}}));
  EXPECT_EQ(quarter, loss({{"classifier_dropout", nullptr}, {"hidden_dropout", 0.25}}));
  EXPECT_EQ(quarter, loss({{"hidden_dropout", 0.5}}));
  // GPT-NeoX's hidden_dropout is the blocks'.
  const auto of_neox = [&](const nlohmann::json& dropout) {
    return loss({{"classifier_dropout", dropout}, {"hidden_dropout", 0.4}}, "gpt_neox_tokens");
  };
  EXPECT_EQ(of_neox(nullptr), of_neox(0.1));
  EXPECT_NE(of_neox(nullptr), of_neox(0.4));
}

TEST(DecoderHead, ErrorsAreOneClearLine) {
  const auto refusal = [](const char* family, const nlohmann::json& changes) -> std::string {
    nlohmann::json config =
        read_json_file(directory_of(std::string(family) + "_tokens/config.json"));
    if (!changes.is_null()) config.update(changes);
    try {
      (void)make_headed_decoder(config, "config.json", DecoderHead::token_classification);
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_EQ(refusal("gpt2", {}), "no error");
  for (const char* family : {"gpt2", "llama"}) {
    EXPECT_THAT(
        refusal(family, {{"classifier_dropout", 1.0}}),
        AllOf(HasSubstr("config.json"), HasSubstr("classifier_dropout 1 is not in [0, 1)")));
    EXPECT_THAT(refusal(family, {{"problem_type", "multi_label_classification"}}),
                HasSubstr("problem_type 'multi_label_classification' is not supported"));
    EXPECT_THAT(refusal(family, {{"classifier_dropout", "0.1"}}),
                HasSubstr("a number is expected"));
  }
  EXPECT_THAT(refusal("llama", {{"token_classification_bias", false}}),
              HasSubstr("token_classification_bias: false, which is not supported"));
  EXPECT_THAT(refusal("gpt2", {{"model_type", "bert"}}), HasSubstr("gpt2, llama, mistral"));
}

}  // namespace
}  // namespace shoal::nn
