#include "shoal/nn/models/llama/model.h"

#include <nlohmann/json.hpp>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/io/files.h"

namespace shoal::nn {
namespace {

float std_of(const LlamaConfig& config) { return static_cast<float>(config.initializer_range); }

std::unique_ptr<NormLike> norm_of(const LlamaConfig& config) {
  return std::make_unique<RmsNorm>(config.hidden_size, static_cast<float>(config.rms_norm_eps));
}

std::unique_ptr<HeadLoss> make_head(const LlamaConfig& config, std::shared_ptr<Parameter> table) {
  if (config.tie_word_embeddings) return std::make_unique<LmHead>(std::move(table));
  return std::make_unique<LmHead>(config.vocab_size, config.hidden_size, std_of(config));
}

}  // namespace

LlamaBlock::LlamaBlock(const LlamaConfig& config, std::shared_ptr<RotaryTable> rotary)
    : self_attn(*this, "self_attn",
                std::make_unique<GroupedSelfAttention>(GroupedSelfAttentionConfig{
                    .channels = config.hidden_size,
                    .heads = config.num_attention_heads,
                    .key_heads = config.key_heads(),
                    .head_dim = config.head_channels(),
                    .max_positions = config.max_position_embeddings,
                    .attention_dropout = static_cast<float>(config.attention_dropout),
                    .std = std_of(config),
                    .bias = config.attention_bias,
                    .rotary = std::move(rotary)})),
      mlp(*this, "mlp",
          std::make_unique<GatedMlp>(GatedMlpConfig{.channels = config.hidden_size,
                                                    .inner = config.intermediate_size,
                                                    .std = std_of(config),
                                                    .bias = config.mlp_bias})),
      input_layernorm(*this, "input_layernorm", norm_of(config)),
      post_attention_layernorm(*this, "post_attention_layernorm", norm_of(config)) {}

ResidualStream LlamaBlock::forward(Context& context, ResidualStream stream,
                                   const AttentionInput& input) {
  // Each norm adds the branch before it; handles are dropped as soon as they were used.
  {
    const Value normed = stream.norm(context, *input_layernorm);
    stream.branch = self_attn->forward(context, normed, input);
  }
  const Value normed = stream.norm(context, *post_attention_layernorm);
  stream.branch = mlp->forward(context, normed);
  return stream;
}

Llama::Llama(const LlamaConfig& config)
    : embed_tokens(*this, "model.embed_tokens",
                   [&] {
                     config.check();
                     return std::make_unique<Embedding>(config.vocab_size, config.hidden_size,
                                                        std_of(config),
                                                        config.pad_token_id.value_or(-1));
                   }()),
      layers([&] {
        const auto rotary = std::make_shared<RotaryTable>(config.rotary_frequencies());
        std::deque<Slot<LlamaBlock>> blocks;
        for (std::int64_t layer = 0; layer < config.num_hidden_layers; ++layer)
          blocks.emplace_back(*this, fmt::format("model.layers.{}", layer),
                              std::make_unique<LlamaBlock>(config, rotary));
        return blocks;
      }()),
      norm(*this, "model.norm", norm_of(config)),
      lm_head(*this, "lm_head", make_head(config, embed_tokens->weight())),
      config_(config) {
  name_tree();
}

std::string Llama::describe() const {
  return fmt::format(
      "llama, {} layers of width {}, {} heads on {} key heads, vocabulary {}, {} positions",
      config_.num_hidden_layers, config_.hidden_size, config_.num_attention_heads,
      config_.key_heads(), config_.vocab_size, config_.max_position_embeddings);
}

std::string Llama::unit_name(int unit) const {
  if (unit == 0) return "embeddings";
  return unit == units() - 1 ? "head" : fmt::format("layers.{}", unit - 1);
}

std::vector<Module*> Llama::unit_modules(int unit) const {
  if (unit == 0) return {&*embed_tokens};
  if (unit == units() - 1) return {&*norm, &*lm_head};
  return {&*layers[static_cast<std::size_t>(unit - 1)]};
}

Value Llama::embed(Context& context, const Tensor& ids) {
  SHOAL_CHECK(ids.shape().rank() == 2 && ids.shape()[1] <= config_.max_position_embeddings,
              "Llama takes ids [B, T], not {}, of at most {} positions; shorten the sequence",
              to_string(ids.shape()), config_.max_position_embeddings);
  return embed_tokens->forward(context, ids);
}

ResidualStream Llama::forward_unit(Context& context, int unit, ResidualStream stream,
                                   const ChainInput& input) {
  if (unit == 0) return {embed(context, input.ids), std::nullopt, {}};
  return layers[static_cast<std::size_t>(unit - 1)]->forward(context, std::move(stream),
                                                             {input.key_mask, nullptr});
}

LossOutput Llama::forward_head(Context& context, ResidualStream stream, const ChainInput& input) {
  const Value hidden = stream.norm(context, *norm);
  return lm_head->forward(context, hidden, input.targets, input.loss);
}

Tensor Llama::head_logits(Context& context, ResidualStream stream) {
  return lm_head->logits(context, stream.norm(context, *norm).tensor);
}

Value Llama::hidden_states(Context& context, const Tensor& ids, const Tensor& key_mask,
                           DecoderCache* cache) {
  SHOAL_CHECK(!cache || cache->size() == layers.size(), "{} caches for {} blocks",
              cache ? cache->size() : 0, layers.size());
  ResidualStream stream{embed(context, ids), std::nullopt, {}};
  for (std::size_t layer = 0; layer < layers.size(); ++layer)
    stream = layers[layer]->forward(context, std::move(stream),
                                    {key_mask, cache ? &(*cache)[layer] : nullptr});
  return stream.norm(context, *norm);
}

LoadReport Llama::load(const std::string& directory, const AssignParameter& assign) {
  constexpr std::string_view kPrefix = "model.";
  return load_weights(directory, *this,
                      {.candidates =
                           [=](const std::string& parameter) {
                             std::vector<std::string> names{parameter};
                             if (parameter.starts_with(kPrefix))
                               names.push_back(parameter.substr(kPrefix.size()));
                             return names;
                           },
                       .ignored =
                           [tied = config_.tie_word_embeddings](std::string_view tensor) {
                             return tensor.ends_with("rotary_emb.inv_freq") ||
                                    (tied && tensor == "lm_head.weight");
                           },
                       .may_be_new = {}},
                      assign);
}

std::vector<std::string> Llama::save_config(const std::string& directory, DType dtype) const {
  nlohmann::ordered_json generation{{"_from_model_config", true}};
  if (config_.bos_token_id) generation["bos_token_id"] = *config_.bos_token_id;
  if (config_.eos_token_id) generation["eos_token_id"] = *config_.eos_token_id;
  if (config_.pad_token_id) generation["pad_token_id"] = *config_.pad_token_id;
  write_file_atomically(directory + "/config.json",
                        config_.to_json(torch_name(dtype)).dump(2) + "\n");
  write_file_atomically(directory + "/generation_config.json", generation.dump(2) + "\n");
  return {"config.json", "generation_config.json"};
}

}  // namespace shoal::nn
