// Generation on two tensor-parallel ranks compared with one rank, without and with adapters.
#include "parallel/tensor/parts.h"
#include <gmock/gmock.h>

#include "shoal/nn/layers/lora.h"
#include "shoal/nn/models/encoder_decoder/generate.h"
#include "shoal/nn/models/generate.h"
#include "shoal/parallel/tensor/replace.h"

namespace shoal::parallel {
namespace {

using Texts = std::vector<std::vector<std::int32_t>>;

constexpr std::int64_t kVocabulary = 61;  // not divisible by 2

std::unique_ptr<nn::CausalLm> decoder(const char* family) {
  nn::DecoderConfig config = nn::DecoderConfig::of(family);
  config.vocab_size = kVocabulary;
  config.max_position_embeddings = 24;
  config.hidden_size = 24;
  config.intermediate_size = 40;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 4;
  config.num_key_value_heads = 2;
  config.initializer_range = 0.3;
  if (config.logit_soft_cap) config.logit_soft_cap = 2, config.attention_soft_cap = 1;
  return std::make_unique<nn::CausalLm>(config);
}

std::unique_ptr<nn::EncoderDecoder> encoder_decoder(const char* family) {
  nn::EncoderDecoderConfig config = nn::EncoderDecoderConfig::of(family);
  config.vocab_size = kVocabulary;
  config.d_model = 24;
  config.head_dim = 0;
  config.encoder_layers = 2;
  config.decoder_layers = 3;
  config.encoder_heads = 4;
  config.decoder_heads = 2;
  config.encoder_inner = 40;
  config.decoder_inner = 48;
  config.max_position_embeddings = 24;
  config.initializer = config.initializer < 1 ? 0.3 : 2;
  return std::make_unique<nn::EncoderDecoder>(config);
}

// Prompts of different lengths, which are padded, and of one length.
Texts generated(Rig& rig, nn::CausalLm& model, const nn::GenerationOptions& options) {
  Texts all = nn::generate_batch(rig.context, model, {{5, 9, 33}, {7}, {44, 2, 3, 59, 8}}, options);
  for (auto& tokens : nn::generate_batch(rig.context, model, {{5, 9}, {7, 1}}, options))
    all.push_back(std::move(tokens));
  return all;
}
Texts generated(Rig& rig, nn::EncoderDecoder& model, const nn::GenerationOptions& options) {
  const Tensor ids = rig.ids({5, 9, 33, 60, 7, 8, 1, 1, 44, 2, 3, 1}, {3, 4}),
               lengths = rig.ids({4, 2, 3}, {3});
  return nn::generate(rig.context, model, ids, lengths, options);
}

// Adapters in every linear layer. Call before tensor parallelism.
void add_adapters(nn::Module& model) {
  nn::add_lora(model, {.r = 3, .lora_alpha = 6, .target_modules = {"all-linear"}});
}
// Sets the second factor of each adapter, which would begin with zeros, by the elements' places in
// the whole factor.
void fill_adapters(const nn::Module& model) {
  for (nn::LinearLike* layer : nn::adapted_layers(model)) {
    const nn::Parameter& factor = layer->lora()->b();
    std::vector<float> values = testing::values_of<float>(factor.value);
    each_element(factor, [&](std::int64_t from, std::int64_t to) {
      values[static_cast<std::size_t>(from)] = 0.1F * static_cast<float>((7 * to + 3) % 11 - 5);
    });
    testing::set_values(factor.value, values);
  }
}

template <typename Model>
std::vector<Texts> all_kinds(Rig& rig, Model& model) {
  model.materialize(rig.context, DType::f32);
  fill_adapters(model);
  const std::vector<std::int32_t> ends = {11, 12, 13, 14};
  std::vector<Texts> all;
  for (const nn::GenerationOptions& options :
       {nn::GenerationOptions{.max_new_tokens = 10, .stop_tokens = ends},
        nn::GenerationOptions{.max_new_tokens = 10, .do_sample = true, .temperature = 1.5},
        nn::GenerationOptions{
            .max_new_tokens = 10, .stop_tokens = ends, .num_beams = 4, .num_return_sequences = 4}})
    all.push_back(generated(rig, model, options));
  return all;
}

// Returns the texts.
template <typename Make>
std::vector<Texts> expect_equal_texts(const Make& make) {
  Rig rig;
  const auto whole = make();
  const std::vector<Texts> expected = all_kinds(rig, *whole);
  EXPECT_NE(expected[0], expected[1]);
  on_group({2, ActivationSplit::none}, [&](const TensorParallel& group) {
    Rig own;
    const auto model = make();
    apply_tensor_parallelism(*model, group);
    EXPECT_EQ(all_kinds(own, *model), expected);
  });
  return expected;
}

template <typename Make>
void expect_equal_texts_with_adapters(const Make& make) {
  const std::vector<Texts> adapted = expect_equal_texts([&] {
    auto model = make();
    add_adapters(*model);
    return model;
  });
  Rig rig;
  EXPECT_NE(adapted, all_kinds(rig, *make())) << "the adapters change nothing";
}

TEST(TensorParallelGeneration, OfDecodersIsOneRanks) {
  for (const char* family : {"gpt2", "llama", "qwen3", "gemma2"})
    expect_equal_texts([&] { return decoder(family); });
}

TEST(TensorParallelGeneration, OfEncoderDecodersIsOneRanks) {
  for (const char* family : {"t5", "bart"})
    expect_equal_texts([&] { return encoder_decoder(family); });
}

TEST(TensorParallelGeneration, WithAdaptersIsOneRanks) {
  for (const char* family : {"gpt2", "qwen3", "gemma2"})
    expect_equal_texts_with_adapters([&] { return decoder(family); });
  for (const char* family : {"t5", "bart"})
    expect_equal_texts_with_adapters([&] { return encoder_decoder(family); });
}

}  // namespace
}  // namespace shoal::parallel
