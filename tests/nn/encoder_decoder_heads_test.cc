// The heads of T5, BART and mBART for sequences, tokens and answers compared with transformers
// (tools/golden/make_encoder_decoder_heads.py), and saved as directories.
#include <algorithm>

#include "fixture.h"
#include "golden_head.h"
#include "parameter_values.h"
#include "support/error_text.h"
#include "support/golden.h"
#include "support/temporary_directory.h"
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "shoal/nn/autograd/tape.h"
#include "shoal/nn/models/encoder_decoder/headed.h"
#include "shoal/nn/models/encoder_decoder/model.h"
#include "shoal/runtime/io/json.h"
#include "shoal/runtime/io/sharded_safetensors.h"

namespace shoal::nn {
namespace {

using Names = std::vector<std::string>;

std::string golden_directory(const std::string& name) {
  return testing::golden_path("encoder_decoder_heads/" + name);
}

EncoderDecoderConfig golden_config(const std::string& name) {
  return EncoderDecoderConfig::from_file(golden_directory(name) + "/config.json");
}

struct Golden : GoldenHead<HeadedEncoderDecoder> {
  explicit Golden(const std::string& name, DType dtype = DType::f32,
                  FixtureMemory where = FixtureMemory::shared)
      : GoldenHead(name, golden_directory(name),
                   std::make_unique<HeadedEncoderDecoder>(golden_config(name), golden_head(name)),
                   dtype, where) {
    input.decoder_ids =
        room.reachable(shifted_right(testing::on_host(input.ids), model.config(), *host));
  }
};

class EncoderDecoderHeadGolden : public ::testing::TestWithParam<const char*> {};

TEST_P(EncoderDecoderHeadGolden, LossScoresAndGradients) {
  Golden golden(GetParam(), DType::f32, FixtureMemory::device);
  EXPECT_TRUE(close_in_norm("logits", golden.logits(), golden.file->tensor("logits"), 5e-6));
  expect_golden_step(golden);
}

TEST_P(EncoderDecoderHeadGolden, InBf16) {
  Golden golden(GetParam(), DType::bf16, FixtureMemory::device);
  for (Tensor* tensor : golden.input.tensors())
    if (tensor->defined()) *tensor = testing::on_host(*tensor);
  expect_golden_step_in_bf16(golden, 5e-2, 7e-2);
}

// Saved directories have transformers' names and classes, and can be opened again.
TEST_P(EncoderDecoderHeadGolden, DirectoriesAreWrittenAndRead) {
  Golden golden(GetParam());
  const testing::TemporaryDirectory made;
  EXPECT_THAT(golden.model.save_config(made.path(), DType::f32),
              ::testing::ElementsAre("config.json"));
  save_weights(made.path(), golden.model, parameter_values());
  EXPECT_EQ(ShardedSafetensors::open(made.path()).names(),
            ShardedSafetensors::open(golden.directory).names());
  const auto config = read_json_file(made.path() + "/config.json");
  EXPECT_EQ(config, read_json_file(golden.directory + "/config.json"));
  HeadedEncoderDecoder again(EncoderDecoderConfig::from_json(config, "config.json"),
                             golden.model.head_kind());
  again.materialize(golden.room.context, DType::f32);
  EXPECT_EQ(describe(again.load(made.path(), assign_values(golden.room.context))), "");
  EXPECT_TRUE(close_in_norm("logits", again.logits(golden.room.context, golden.input),
                            golden.file->tensor("logits"), 5e-6));
}

// A new model's config.json, without a file that was read, describes the same model.
TEST_P(EncoderDecoderHeadGolden, ConfigurationsWithoutAFileAreComplete) {
  const EncoderDecoderConfig read = golden_config(GetParam());
  const DecoderHead head = golden_head(GetParam());
  EncoderDecoderConfig fresh = read;
  fresh.source.clear();
  const nlohmann::json written = fresh.to_json("float32", head);
  const auto again = EncoderDecoderConfig::from_json(written, "config.json");
  EXPECT_EQ(again.known_fields(head), read.known_fields(head));
  const auto theirs = read_json_file(golden_directory(GetParam()) + "/config.json");
  for (const char* name : {"architectures", "problem_type", "id2label", "label2id", "pad_token_id"})
    EXPECT_EQ(written.value(name, nlohmann::json()), theirs.value(name, nlohmann::json())) << name;
}

// Padding on the right changes no score before it.
TEST_P(EncoderDecoderHeadGolden, PaddingChangesNoScore) {
  Golden golden(GetParam());
  const Tensor padded = golden.logits();  // [3, labels], or [3, 11, ...]
  const std::int32_t* const ids = golden.input.ids.const_data<std::int32_t>();
  for (const auto& [row, length] : {std::pair<std::int64_t, std::int64_t>{1, 8}, {2, 3}}) {
    ChainInput alone;
    alone.ids = golden.room.ids({1, length}, {ids + row * 11, ids + row * 11 + length});
    alone.decoder_ids = shifted_right(alone.ids, golden.model.config(), *golden.host);
    const Tensor own = golden.model.logits(golden.room.context, alone);
    Tensor same = padded.narrowed(0, row, 1);
    if (same.shape().rank() == 3) same = same.narrowed(1, 0, length);
    EXPECT_TRUE(close_in_norm("a row alone", own, same, 2e-6)) << row;
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, EncoderDecoderHeadGolden,
                         ::testing::Values("bart_classes", "bart_numbers", "bart_answers",
                                           "mbart_classes", "t5_classes", "t5_numbers", "t5_tokens",
                                           "t5_answers", "t5_v1_1_tokens"),
                         [](const auto& test) { return std::string(test.param); });

class EncoderDecoderDirectories : public ::testing::TestWithParam<const char*> {};

// A language model's directory opened for each head, and back.
TEST_P(EncoderDecoderDirectories, AreReportedAsTransformersDoes) {
  const std::string family = GetParam();
  const nlohmann::json reports = read_json_file(golden_directory("reports.json"));
  const nlohmann::json& report = reports.at(family);
  const EncoderDecoderConfig config = golden_config(family + "_classes");
  Fixture room;
  EncoderDecoder language_model(config);
  language_model.materialize(room.context, DType::f32);
  const testing::TemporaryDirectory made, headed;
  save_weights(made.path(), language_model, parameter_values());
  EXPECT_EQ(ShardedSafetensors::open(made.path()).names(), report["names"].get<Names>());
  for (const char* head : {"classes", "numbers", "tokens", "answers"}) {
    if (!report.contains(head)) {
      EXPECT_THAT(
          test::error_text([&] { const HeadedEncoderDecoder none(config, golden_head(head)); }),
          ::testing::HasSubstr("for token classification cannot be saved: transformers has no"));
      continue;
    }
    HeadedEncoderDecoder model(config, golden_head(head));
    model.materialize(room.context, DType::f32);
    LoadReport ours = model.load(made.path(), assign_values(room.context));
    std::ranges::sort(ours.missing);
    EXPECT_EQ(ours.missing, report[head]["missing"].get<Names>()) << head;
    EXPECT_EQ(ours.unexpected, report[head]["unexpected"].get<Names>()) << head;
    if (!model.decoder) continue;
    save_weights(headed.path(), model, parameter_values());
    LoadReport back = language_model.load(headed.path(), assign_values(room.context));
    std::ranges::sort(back.unexpected);
    EXPECT_EQ(back.missing, Names()) << head;
    EXPECT_EQ(back.unexpected, report[head]["missing"].get<Names>()) << head;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, EncoderDecoderDirectories,
                         ::testing::Values("bart", "mbart", "t5"),
                         [](const auto& test) { return std::string(test.param); });

// classifier_dropout is drawn before the first and before the last layer of a text's classifier.
TEST(EncoderDecoderHead, StatesAreDroppedOut) {
  const auto loss = [](double dropout) {
    Golden golden("bart_classes");
    EncoderDecoderConfig config = golden.model.config();
    config.dropout = 0;
    config.classifier_dropout = dropout;
    HeadedEncoderDecoder model(config, DecoderHead::sequence_classification);
    model.materialize(golden.room.context, DType::f32);
    model.load(golden.directory, assign_values(golden.room.context));
    golden.room.context.mode = Mode::train;
    return golden.room.context.read(model.forward(golden.room.context, golden.input).loss_sum);
  };
  Golden evaluated("bart_classes");
  EXPECT_NEAR(loss(0), evaluated.step() * static_cast<double>(evaluated.valid), 1e-5);
  EXPECT_NE(loss(0.25), loss(0));
  EXPECT_NE(loss(0.25), loss(0.5));
}

}  // namespace
}  // namespace shoal::nn
