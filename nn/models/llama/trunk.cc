#include "shoal/nn/models/llama/trunk.h"

#include <nlohmann/json.hpp>

#include "shoal/runtime/base/error.h"

namespace shoal::nn {
namespace {

float std_of(const LlamaConfig& config) { return static_cast<float>(config.initializer_range); }

std::unique_ptr<NormLike> norm_of(const LlamaConfig& config) {
  return std::make_unique<RmsNorm>(config.hidden_size, static_cast<float>(config.rms_norm_eps));
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
  // Each norm adds the preceding branch. Values leave scope right after their use.
  {
    const Value normed = stream.norm(context, *input_layernorm);
    stream.branch = self_attn->forward(context, normed, input);
  }
  const Value normed = stream.norm(context, *post_attention_layernorm);
  stream.branch = mlp->forward(context, normed);
  return stream;
}

LlamaTrunk::LlamaTrunk(const LlamaConfig& config)
    : embed_tokens(*this, "embed_tokens",
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
          blocks.emplace_back(*this, fmt::format("layers.{}", layer),
                              std::make_unique<LlamaBlock>(config, rotary));
        return blocks;
      }()),
      norm(*this, "norm", norm_of(config)),
      config_(config) {}

std::string LlamaTrunk::describe() const {
  return fmt::format("{} layers of width {}, {} heads on {} key heads, vocabulary {}, {} positions",
                     config_.num_hidden_layers, config_.hidden_size, config_.num_attention_heads,
                     config_.key_heads(), config_.vocab_size, config_.max_position_embeddings);
}

nlohmann::ordered_json LlamaTrunk::known_fields(DecoderHead head) const {
  return config_.known_fields(head);
}

nlohmann::ordered_json LlamaTrunk::to_json(std::string_view dtype, DecoderHead head) const {
  return config_.to_json(dtype, head);
}

Value LlamaTrunk::embed(Context& context, const Tensor& ids, std::int64_t /*first_position*/,
                        const Tensor& /*positions*/) {
  SHOAL_CHECK(ids.shape().rank() == 2 && ids.shape()[1] <= config_.max_position_embeddings,
              "Llama takes ids [B, T], not {}, of at most {} positions; shorten the sequence",
              to_string(ids.shape()), config_.max_position_embeddings);
  return embed_tokens->forward(context, ids);
}

}  // namespace shoal::nn
