#include "step_model.h"

#include <algorithm>
#include <utility>

#include "shoal/kernels/kernels.h"
#include "shoal/nn/models/causal_lm.h"
#include "shoal/nn/models/encoder/huggingface.h"
#include "shoal/nn/models/gpt2/presets.h"
#include "shoal/runtime/base/error.h"

namespace shoal::bench {
namespace {

Tensor i32(const Shape& shape, MemoryResource& memory,
           const std::function<std::int32_t(std::int64_t)>& value) {
  Tensor made = Tensor::empty(shape, DType::i32, memory, MemoryTag::data);
  for (std::int64_t i = 0; i < made.count(); ++i) made.data<std::int32_t>()[i] = value(i);
  return made;
}

std::uint64_t random_at(std::uint32_t site, std::int64_t i) {
  return kernels::random_bits({.seed = 1, .site = site}, 0, static_cast<std::uint64_t>(i));
}

std::int32_t random_token(std::int64_t vocabulary, std::int64_t i) {
  return static_cast<std::int32_t>(random_at(7, i) % static_cast<std::uint64_t>(vocabulary));
}

void replace(std::int64_t& field, std::int64_t given) {
  if (given > 0) field = given;
}

double attention_flops(const StepModel& m, const Shape& ids, std::int64_t width) {
  return 12.0 * static_cast<double>(m.layers * width * ids[1]) * static_cast<double>(ids.count());
}

// The target of each position is the next token.
template <class Model>
StepModel causal(std::unique_ptr<Model> model, const StepModelOptions& o, MemoryResource& memory) {
  StepModel made;
  Model* const own = model.get();
  made.chain = std::move(model);
  made.vocabulary = own->vocabulary();
  made.layers = own->trunk().blocks();
  made.channels = own->channels();
  const Shape shape{o.batch, o.length};
  made.input.ids =
      i32(shape, memory, [&](std::int64_t i) { return random_token(made.vocabulary, i); });
  made.input.targets =
      i32(shape, memory, [&](std::int64_t i) { return random_token(made.vocabulary, i + 1); });
  made.targets = shape.count();
  double weights = 0;
  for (const nn::Parameter* parameter : own->parameters())
    weights += static_cast<double>(parameter->shape().count());
  made.flops = 6 * weights * static_cast<double>(shape.count());
  made.loss = [own](nn::Context& context, const nn::ChainInput& input) {
    return own->forward(context, input.ids, input.targets, input.loss);
  };
  made.checkpoint_layers = [own] { own->set_gradient_checkpointing(true); };
  made.save = [own](const std::string& directory, const nn::ParameterValue& value) {
    own->save_config(directory, DType::f32);
    nn::save_weights(directory, *own, value);
  };
  return made;
}

StepModel gpt2(const StepModelOptions& o, MemoryResource& memory) {
  nn::DecoderConfig config = nn::gpt2_preset(o.model);
  replace(config.num_hidden_layers, o.layers);
  replace(config.num_attention_heads, o.heads);
  replace(config.hidden_size, o.channels);
  replace(config.vocab_size, o.vocabulary);
  config.max_position_embeddings = std::max(config.max_position_embeddings, o.length);
  config.hidden_dropout = config.embedding_dropout = config.attention_dropout = o.dropout;
  StepModel made = causal(std::make_unique<nn::CausalLm>(config), o, memory);
  made.flops += attention_flops(made, made.input.ids.shape(), made.channels);
  return made;
}

StepModel llama(const StepModelOptions& o, MemoryResource& memory) {
  nn::DecoderConfig config = nn::DecoderConfig::of("llama");
  config.vocab_size = 128256;
  config.hidden_size = 2048;
  config.intermediate_size = 8192;
  config.num_hidden_layers = 16;
  config.num_attention_heads = 32;
  config.num_key_value_heads = 8;
  config.rope_theta = 500000;
  config.norm_eps = 1e-5;
  config.tie_word_embeddings = true;
  replace(config.num_hidden_layers, o.layers);
  replace(config.vocab_size, o.vocabulary);
  if (o.channels > 0) {
    config.intermediate_size = config.intermediate_size * o.channels / config.hidden_size;
    config.hidden_size = o.channels;
  }
  if (o.heads > 0) {
    config.num_key_value_heads = std::max<std::int64_t>(o.heads / 4, 1);
    config.num_attention_heads = o.heads;
  }
  config.max_position_embeddings = std::max<std::int64_t>(2048, o.length);
  config.bos_token_id = config.eos_token_id = 0;
  StepModel made = causal(std::make_unique<nn::CausalLm>(config), o, memory);
  made.flops += attention_flops(made, made.input.ids.shape(),
                                config.num_attention_heads * config.head_channels());
  return made;
}

StepModel bert(const StepModelOptions& o, MemoryResource& memory) {
  nn::EncoderConfig config = nn::EncoderConfig::of("bert");
  if (o.model == "bert-large") {
    config.hidden_size = 1024;
    config.num_hidden_layers = 24;
    config.num_attention_heads = 16;
  }
  replace(config.hidden_size, o.channels);
  config.intermediate_size = 4 * config.hidden_size;
  replace(config.num_hidden_layers, o.layers);
  replace(config.num_attention_heads, o.heads);
  replace(config.vocab_size, o.vocabulary);
  config.max_position_embeddings = std::max(config.max_position_embeddings, o.length);
  config.hidden_dropout_prob = config.attention_probs_dropout_prob = o.dropout;
  StepModel made;
  auto model = std::make_unique<nn::Encoder>(config, nn::EncoderTask::masked_lm);
  nn::Encoder* const own = model.get();
  made.chain = std::move(model);
  made.layers = config.num_hidden_layers;
  made.channels = config.hidden_size;
  made.vocabulary = config.vocab_size;
  // As in pretraining: 15 % of the tokens are masked, and the model sees them as [MASK] (103).
  const Shape shape{o.batch, o.length};
  const auto masked = [](std::int64_t i) { return random_at(8, i) % 100 < 15 || i == 0; };
  const auto mask = static_cast<std::int32_t>(std::min<std::int64_t>(103, config.vocab_size - 1));
  made.input.ids = i32(shape, memory, [&](std::int64_t i) {
    return masked(i) ? mask : random_token(config.vocab_size, i);
  });
  made.input.targets = i32(shape, memory, [&](std::int64_t i) {
    return masked(i) ? random_token(config.vocab_size, i) : -100;
  });
  made.input.token_types =
      i32(shape, memory, [&](std::int64_t i) { return i % o.length < o.length / 2 ? 0 : 1; });
  for (std::int64_t i = 0; i < shape.count(); ++i) made.targets += masked(i) ? 1 : 0;
  made.input.target_rows = nn::rows_with_targets(
      made.input.targets, nn::target_rows_granularity(made.input.targets), memory);
  const std::int64_t c = config.hidden_size, layer = 4 * c * c + 2 * c * config.intermediate_size;
  made.flops =
      6.0 * static_cast<double>(made.layers * layer) * static_cast<double>(shape.count()) +
      6.0 * static_cast<double>(c * (c + config.vocab_size)) * static_cast<double>(made.targets) +
      attention_flops(made, shape, c);
  made.loss = [own](nn::Context& context, const nn::ChainInput& input) {
    return own->forward(context, input);
  };
  made.checkpoint_layers = [own] { own->set_gradient_checkpointing(true); };
  made.save = [own](const std::string& directory, const nn::ParameterValue& value) {
    nn::save_encoder(directory, *own, value);
  };
  return made;
}

}  // namespace

const std::vector<std::string>& step_models() {
  static const std::vector<std::string> names = {
      "gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl", "bert-base", "bert-large", "llama-1b"};
  return names;
}

StepModel make_step_model(const StepModelOptions& options, MemoryResource& memory) {
  if (options.model.starts_with("bert")) return bert(options, memory);
  if (options.model.starts_with("llama")) return llama(options, memory);
  return gpt2(options, memory);
}

}  // namespace shoal::bench
