// Decoders compared with transformers (tools/golden/make_decoders.py), saved as directories, and in
// generation.
#include <algorithm>

#include "fixture.h"
#include "golden_model.h"
#include "parameter_values.h"
#include "support/golden.h"
#include "support/temporary_directory.h"
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "shoal/nn/autograd/tape.h"
#include "shoal/nn/models/decoder/family.h"
#include "shoal/nn/models/generate.h"
#include "shoal/runtime/io/json.h"
#include "shoal/runtime/io/sharded_safetensors.h"

namespace shoal::nn {
namespace {

// A model with the golden weights and the golden batch.
struct Golden {
  explicit Golden(const std::string& name, DType dtype = DType::f32,
                  FixtureMemory where = FixtureMemory::shared)
      : room(false, 2, where),
        directory(testing::golden_path(name)),
        model(DecoderConfig::from_file(directory + "/config.json")),
        file(SafetensorsFile::open(directory + "/case.safetensors")) {
    model.materialize(room.context, dtype);
    const LoadReport report = model.load(directory, assign_values(room.context));
    EXPECT_EQ(describe(report), "");
    allocate_gradients(room.context, model.parameters());
    ids = room.cast(file->tensor("input_ids"), DType::i32);
    key_mask = room.cast(file->tensor("attention_mask"), DType::u8);
    const Tensor labels = testing::on_host(room.cast(file->tensor("labels"), DType::i32));
    const std::int64_t length = labels.shape()[1];
    std::vector<std::int32_t> shifted;
    for (std::int64_t i = 0; i < labels.count(); ++i) {
      shifted.push_back(i % length + 1 < length ? labels.const_data<std::int32_t>()[i + 1] : -100);
      valid += shifted.back() >= 0;
    }
    targets = room.ids(labels.shape(), shifted);
  }
  // Computes the mean loss and its gradients.
  double step() {
    for (Parameter* parameter : model.parameters()) parameter->clear_gradient();
    Tape tape;
    room.context.tape = &tape;
    const LossOutput out = model.forward(
        room.context, ids, targets, {.loss_scale = 1.0f / static_cast<float>(valid)}, key_mask);
    room.context.tape = nullptr;
    EXPECT_EQ(out.targets, targets.device().is_cpu() ? valid : -1);
    tape.backward(room.context, out.loss);
    for (const Parameter* parameter : model.parameters()) EXPECT_EQ(parameter->uses(), 0);
    return room.context.read(out.loss_sum) / static_cast<double>(valid);
  }

  // Puts the inputs into host memory, from where each operation copies them to the device.
  void take_inputs_to_the_host() {
    for (Tensor* tensor : {&ids, &key_mask, &targets}) *tensor = testing::on_host(*tensor);
  }

  Fixture room;
  std::string directory;
  CausalLm model;
  std::shared_ptr<SafetensorsFile> file;
  Tensor ids, key_mask, targets;
  std::int64_t valid = 0;
};

class DecoderGolden : public ::testing::TestWithParam<const char*> {};

TEST_P(DecoderGolden, LossLogitsAndGradients) {
  Golden golden(GetParam(), DType::f32, FixtureMemory::device);
  EXPECT_TRUE(close_in_norm("logits",
                            golden.model.logits(golden.room.context, golden.ids, golden.key_mask),
                            golden.file->tensor("logits"), 5e-6));
  expect_golden_step(golden);
}

TEST_P(DecoderGolden, InBf16) {
  Golden golden(GetParam(), DType::bf16, FixtureMemory::device);
  golden.take_inputs_to_the_host();
  expect_golden_step_in_bf16(golden, 2e-2);
}

// Saved directories have transformers' names and can be opened again, also with older names.
TEST_P(DecoderGolden, DirectoriesAreWrittenAndRead) {
  Golden golden(GetParam());
  const testing::TemporaryDirectory made;
  EXPECT_THAT(golden.model.save_config(made.path(), DType::f32),
              ::testing::ElementsAre("config.json", "generation_config.json"));
  save_weights(made.path(), golden.model, parameter_values());
  const ShardedSafetensors theirs = ShardedSafetensors::open(golden.directory);
  EXPECT_EQ(ShardedSafetensors::open(made.path()).names(), theirs.names());
  const auto config = read_json_file(made.path() + "/config.json");
  EXPECT_EQ(config, read_json_file(golden.directory + "/config.json"));
  const auto again = make_causal_lm(config, "config.json");
  again->materialize(golden.room.context, DType::f32);
  EXPECT_EQ(describe(again->load(made.path(), assign_values(golden.room.context))), "");
  EXPECT_TRUE(close_in_norm("logits",
                            again->logits(golden.room.context, golden.ids, golden.key_mask),
                            golden.file->tensor("logits"), 5e-6));

  std::vector<Tensor> kept;
  std::vector<NamedView> renamed;
  for (std::string name : theirs.names()) {
    kept.push_back(theirs.tensor(name));
    const std::string base = fmt::format("{}.", golden.model.config().family().base);
    if (name.starts_with(base)) name = name.substr(base.size());
    renamed.push_back({name, kept.back().const_view()});
  }
  kept.push_back(golden.room.random({3}, 1));
  renamed.push_back({"layers.0.self_attn.rotary_emb.inv_freq", kept.back().const_view()});
  const testing::TemporaryDirectory older;
  write_sharded_safetensors(older.path(), renamed);
  EXPECT_EQ(describe(again->load(older.path(), assign_values(golden.room.context))), "");
}

// Decoding token by token with the cache gives the same scores as whole sequences.
TEST_P(DecoderGolden, DecodesAsItComputesWholeSequences) {
  Golden golden(GetParam());
  Context& context = golden.room.context;
  const Tensor whole = golden.model.logits(context, golden.ids);  // [3, 11, 37]
  DecoderCache cache = golden.model.make_cache(11);
  std::int64_t done = 0;
  for (const std::int64_t piece : {4, 1, 1, 5}) {
    std::vector<std::int32_t> part;
    for (int b = 0; b < 3; ++b)
      for (std::int64_t t = done; t < done + piece; ++t)
        part.push_back(golden.ids.const_data<std::int32_t>()[b * 11 + t]);
    done += piece;
    const Tensor last = golden.model.decode(context, golden.room.ids({3, piece}, part), cache);
    for (int b = 0; b < 3; ++b)
      EXPECT_TRUE(close_in_norm("logits", last.narrowed(0, b, 1).reshaped({37}),
                                whole.narrowed(0, b, 1).narrowed(1, done - 1, 1).reshaped({37}),
                                1e-5));
  }
}

TEST_P(DecoderGolden, GeneratesWhatTransformersDoes) {
  Golden golden(GetParam());
  const auto theirs = read_json_file(testing::golden_path("generated.json"));
  EXPECT_EQ(
      generate(golden.room.context, golden.model, {5, 6, 7, 8, 9, 10, 11}, {.max_new_tokens = 12}),
      theirs.at(GetParam()).get<std::vector<std::int32_t>>());
}

INSTANTIATE_TEST_SUITE_P(Cases, DecoderGolden,
                         ::testing::Values("llama/tied", "llama/untied", "mistral/windows",
                                           "mistral/plain", "qwen2/tied", "qwen2/windows",
                                           "qwen3/tied", "qwen3/windows", "gpt_neox/parallel",
                                           "gpt_neox/sequential", "gemma/tied", "gemma/untied",
                                           "gemma2/windows", "gemma2/untied",
                                           "gemma3_text/windows"),
                         [](const auto& test) {
                           std::string name = test.param;
                           std::ranges::replace(name, '/', '_');
                           return name;
                         });

}  // namespace
}  // namespace shoal::nn
