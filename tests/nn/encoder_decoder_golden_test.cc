// T5, T5 1.1, BART and mBART compared with transformers (tools/golden/make_encoder_decoders.py),
// and saved as directories.
#include <algorithm>

#include "fixture.h"
#include "golden_model.h"
#include "parameter_values.h"
#include "support/golden.h"
#include "support/temporary_directory.h"
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "shoal/nn/autograd/tape.h"
#include "shoal/nn/layers/decoding.h"
#include "shoal/nn/models/encoder_decoder/generate.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/io/json.h"
#include "shoal/runtime/io/sharded_safetensors.h"

namespace shoal::nn {
namespace {

// A model with the golden weights and the golden batch.
struct Golden {
  explicit Golden(const std::string& name, DType dtype = DType::f32,
                  FixtureMemory where = FixtureMemory::shared)
      : room(false, 2, where),
        directory(testing::golden_path("encoder_decoders/" + name)),
        model(EncoderDecoderConfig::from_file(directory + "/config.json")),
        file(SafetensorsFile::open(directory + "/case.safetensors")) {
    model.materialize(room.context, dtype);
    EXPECT_EQ(describe(model.load(directory, assign_values(room.context))), "");
    allocate_gradients(room.context, model.parameters());
    input.ids = room.cast(file->tensor("input_ids"), DType::i32);
    input.key_mask = room.cast(file->tensor("attention_mask"), DType::u8);
    input.targets = room.cast(file->tensor("labels"), DType::i32);
    const Tensor targets = testing::on_host(input.targets);
    for (std::int64_t i = 0; i < targets.count(); ++i)
      valid += targets.const_data<std::int32_t>()[i] >= 0;
    input.decoder_ids = room.reachable(shifted_right(targets, model.config(), *host));
  }
  // Computes the mean loss and its gradients.
  double step() {
    for (Parameter* parameter : model.parameters()) parameter->clear_gradient();
    input.loss.loss_scale = 1.0f / static_cast<float>(valid);
    Tape tape;
    room.context.tape = &tape;
    const LossOutput out = model.forward(room.context, input);
    room.context.tape = nullptr;
    EXPECT_EQ(out.targets, input.targets.device().is_cpu() ? valid : -1);
    tape.backward(room.context, out.loss);
    for (const Parameter* parameter : model.parameters()) EXPECT_EQ(parameter->uses(), 0);
    return room.context.read(out.loss_sum) / static_cast<double>(valid);
  }

  std::unique_ptr<MemoryResource> host = make_host_memory();
  Fixture room;
  std::string directory;
  EncoderDecoder model;
  std::shared_ptr<SafetensorsFile> file;
  ChainInput input;
  std::int64_t valid = 0;
};

class EncoderDecoderGolden : public ::testing::TestWithParam<const char*> {};

TEST_P(EncoderDecoderGolden, LossLogitsAndGradients) {
  Golden golden(GetParam(), DType::f32, FixtureMemory::device);
  EXPECT_TRUE(close_in_norm("logits", golden.model.logits(golden.room.context, golden.input),
                            golden.file->tensor("logits"), 5e-6));
  expect_golden_step(golden);
}

TEST_P(EncoderDecoderGolden, InBf16) {
  Golden golden(GetParam(), DType::bf16, FixtureMemory::device);
  for (Tensor* tensor : golden.input.tensors())
    if (tensor->defined()) *tensor = testing::on_host(*tensor);
  // PyTorch's own gradients in bf16 are up to 5 % apart from those in float64.
  expect_golden_step_in_bf16(golden, 2e-2, 7e-2);
}

// The number of keys of each sample instead of a mask changes nothing.
TEST_P(EncoderDecoderGolden, KeyLengthsAreAMask) {
  Golden golden(GetParam());
  golden.input.key_mask = golden.room.ids({3}, {15, 9, 4});
  EXPECT_TRUE(close_in_norm("logits", golden.model.logits(golden.room.context, golden.input),
                            golden.file->tensor("logits"), 5e-6));
}

// Saved directories have transformers' names and can be opened again, also with the names of a
// model without a head and of a table's readers.
TEST_P(EncoderDecoderGolden, DirectoriesAreWrittenAndRead) {
  Golden golden(GetParam());
  const testing::TemporaryDirectory made;
  EXPECT_THAT(golden.model.save_config(made.path(), DType::f32),
              ::testing::ElementsAre("config.json", "generation_config.json"));
  save_weights(made.path(), golden.model, parameter_values(), 5000);
  const ShardedSafetensors theirs = ShardedSafetensors::open(golden.directory),
                           ours = ShardedSafetensors::open(made.path());
  EXPECT_EQ(ours.names(), theirs.names());
  EXPECT_GT(ours.files().size(), 1U);
  const auto config = read_json_file(made.path() + "/config.json");
  EXPECT_EQ(config, read_json_file(golden.directory + "/config.json"));
  EXPECT_EQ(read_json_file(made.path() + "/generation_config.json"),
            read_json_file(golden.directory + "/generation_config.json"));
  EncoderDecoder again(EncoderDecoderConfig::from_json(config, "config.json"));
  again.materialize(golden.room.context, DType::f32);
  const auto expect_loads = [&](const std::string& directory) {
    EXPECT_EQ(describe(again.load(directory, assign_values(golden.room.context))), "");
    EXPECT_TRUE(close_in_norm("logits", again.logits(golden.room.context, golden.input),
                              golden.file->tensor("logits"), 5e-6));
  };
  expect_loads(made.path());

  std::vector<Tensor> kept;
  std::vector<NamedView> renamed;
  for (std::string name : theirs.names()) {
    kept.push_back(theirs.tensor(name));
    if (name.starts_with("model.")) name = name.substr(6);
    if (name == "shared.weight") name = "encoder.embed_tokens.weight";
    renamed.push_back({name, kept.back().const_view()});
  }
  kept.push_back(golden.room.random({3}, 1));
  renamed.push_back({"decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",
                     kept.back().const_view()});
  const testing::TemporaryDirectory older;
  write_sharded_safetensors(older.path(), renamed);
  expect_loads(older.path());
}

// A batch of padded texts, token by token. transformers pads what has ended and begins with the
// start id.
TEST_P(EncoderDecoderGolden, GeneratesWhatTransformersDoes) {
  Golden golden(GetParam());
  const EncoderDecoderConfig& config = golden.model.config();
  const Tensor theirs = golden.room.cast(golden.file->tensor("generated"), DType::i32);
  const auto ours = generate(
      golden.room.context, golden.model, golden.input.ids, golden.input.key_mask,
      {.max_new_tokens = 12, .stop_tokens = {static_cast<std::int32_t>(*config.eos_token_id)}});
  const std::int64_t length = theirs.shape()[1];
  for (std::size_t sample = 0; sample < ours.size(); ++sample) {
    std::vector<std::int32_t> row = {theirs.const_data<std::int32_t>()[0]};
    row.insert(row.end(), ours[sample].begin(), ours[sample].end());
    row.resize(static_cast<std::size_t>(length), static_cast<std::int32_t>(*config.pad_token_id));
    const auto* const want =
        theirs.const_data<std::int32_t>() + static_cast<std::int64_t>(sample) * length;
    EXPECT_EQ(row, std::vector<std::int32_t>(want, want + length)) << "sample " << sample;
  }
}

// One id at a time with the cache gives the scores of whole sequences. The encoder runs once: NaN
// in its blocks does not matter later.
TEST_P(EncoderDecoderGolden, DecodesAsItComputesWholeSequences) {
  Golden golden(GetParam());
  Context& context = golden.room.context;
  const Tensor whole = golden.model.logits(context, golden.input);  // [3, 14, 37]
  Decoding decoding{.capacity = 14};
  ChainInput input = golden.input;
  input.decoding = &decoding;
  for (std::int64_t t = 0; t < 14; ++t) {
    std::vector<std::int32_t> ids;
    for (int b = 0; b < 3; ++b)
      ids.push_back(golden.input.decoder_ids.const_data<std::int32_t>()[b * 14 + t]);
    input.decoder_ids = golden.room.ids({3, 1}, ids);
    if (decoding.encoded) input.ids = input.decoder_ids;
    const Tensor last = golden.model.logits(context, input);
    decoding.encoded = true;
    ++decoding.position;
    for (Parameter* parameter : golden.model.encoder->block(0).parameters())
      golden.room.context.kernels().elementwise().fill(parameter->value.view(), std::nanf(""),
                                                       context.stream);
    for (int b = 0; b < 3; ++b)
      EXPECT_TRUE(close_in_norm("logits", last.narrowed(0, b, 1).reshaped({37}),
                                whole.narrowed(0, b, 1).narrowed(1, t, 1).reshaped({37}), 1e-5));
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, EncoderDecoderGolden,
                         ::testing::Values("t5", "t5_v1_1", "bart", "bart_scaled", "mbart"),
                         [](const auto& test) { return std::string(test.param); });

TEST(EncoderDecoderConfig, RefusesWhatChangesTheNumbers) {
  const auto message_of = [](const nlohmann::json& config) -> std::string {
    try {
      (void)EncoderDecoderConfig::from_json(config, "config.json");
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  using ::testing::HasSubstr;
  EXPECT_THAT(message_of({{"model_type", "t5"}, {"feed_forward_proj", "gated-silu"}}),
              HasSubstr("activation 'gated-silu' is not supported"));
  EXPECT_THAT(message_of({{"model_type", "bart"}, {"encoder_layerdrop", 0.1}}),
              HasSubstr("has encoder_layerdrop: 0.1, which is not supported"));
  EXPECT_THAT(message_of({{"model_type", "bart"}, {"d_model", 30}}),
              HasSubstr("d_model 30 is not a multiple of 16 heads"));
  EXPECT_THAT(message_of({{"model_type", "bert"}}), HasSubstr("no encoder-decoder"));
  EXPECT_EQ(message_of({{"model_type", "t5"}}), "");
}

// The fields that checkpoints on Hugging Face's Hub have, and their published sizes.
TEST(EncoderDecoderConfig, PublishedCheckpointsHaveTheirNumberOfParameters) {
  const nlohmann::json all = read_json_file(testing::golden_path("checkpoint_configs.json"));
  int counted = 0;
  for (const auto& [name, one] : all.items()) {
    if (!is_encoder_decoder_type(one["config"]["model_type"].get<std::string>())) continue;
    ++counted;
    const EncoderDecoder model(EncoderDecoderConfig::from_json(one["config"], name));
    std::int64_t count = 0;
    for (const Parameter* parameter : model.parameters())
      if (parameter->name() != model.config().family().logits_bias)  // a buffer in transformers
        count += parameter->shape().count();
    EXPECT_EQ(count, one["parameters"].get<std::int64_t>()) << name;
    nlohmann::json expected = one["config"];
    expected["architectures"] = {
        fmt::format("{}ForConditionalGeneration", model.config().family().class_prefix)};
    expected["torch_dtype"] = "float32";
    EXPECT_EQ(nlohmann::json(model.config().to_json("float32")), expected) << name;
  }
  EXPECT_EQ(counted, 6);
}

}  // namespace
}  // namespace shoal::nn
