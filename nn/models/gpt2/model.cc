#include "shoal/nn/models/gpt2/model.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include <nlohmann/json.hpp>

#include "shoal/runtime/base/error.h"

namespace shoal::nn {
namespace {

float projection_std(const Gpt2Config& config) {
  return static_cast<float>(config.initializer_range /
                            std::sqrt(2.0 * static_cast<double>(config.n_layer)));
}

kernels::Activation activation(const Gpt2Config& config) {
  return config.activation_function == "gelu" ? kernels::Activation::gelu_erf
                                              : kernels::Activation::gelu_tanh;
}

float attention_scale(const Gpt2Config& config, std::int64_t layer) {
  double scale = 1;
  if (config.scale_attn_weights) {
    const std::int64_t head_dim = config.n_embd / config.n_head;
    scale /= std::sqrt(static_cast<double>(head_dim));
  }
  if (config.scale_attn_by_inverse_layer_idx) scale /= static_cast<double>(layer + 1);
  return static_cast<float>(scale);
}

}  // namespace

Gpt2Block::Gpt2Block(const Gpt2Config& config, std::int64_t layer)
    : ln_1(*this, "ln_1",
           std::make_unique<LayerNorm>(config.n_embd,
                                       static_cast<float>(config.layer_norm_epsilon))),
      attn(*this, "attn",
           std::make_unique<CausalSelfAttention>(
               CausalSelfAttentionConfig{.channels = config.n_embd,
                                         .heads = config.n_head,
                                         .max_positions = config.n_positions,
                                         .scale = attention_scale(config, layer),
                                         .attention_dropout = static_cast<float>(config.attn_pdrop),
                                         .std = static_cast<float>(config.initializer_range),
                                         .projection_std = projection_std(config)})),
      ln_2(*this, "ln_2",
           std::make_unique<LayerNorm>(config.n_embd,
                                       static_cast<float>(config.layer_norm_epsilon))),
      mlp(*this, "mlp",
          std::make_unique<Mlp>(MlpConfig{.channels = config.n_embd,
                                          .inner = config.inner(),
                                          .activation = activation(config),
                                          .std = static_cast<float>(config.initializer_range),
                                          .projection_std = projection_std(config)})),
      attn_resid_dropout(*this, "attn.resid_dropout",
                         std::make_unique<Dropout>(static_cast<float>(config.resid_pdrop))),
      mlp_dropout(*this, "mlp.dropout",
                  std::make_unique<Dropout>(static_cast<float>(config.resid_pdrop))) {}

ResidualStream Gpt2Block::forward(Context& context, ResidualStream stream,
                                  const AttentionInput& input) {
  // Each norm adds the preceding branch. Values leave scope right after their use, so that memory
  // that backward does not need is freed here.
  {
    const Value normed = stream.norm(context, *ln_1);
    stream.branch = attn->forward(context, normed, input);
    stream.dropout = attn_resid_dropout->site();
  }
  const Value normed = stream.norm(context, *ln_2);
  stream.branch = mlp->forward(context, normed);
  stream.dropout = mlp_dropout->site();
  return stream;
}

Gpt2Transformer::Gpt2Transformer(const Gpt2Config& config)
    : wte(*this, "wte",
          [&] {
            config.check();
            return std::make_unique<Embedding>(config.vocab_size, config.n_embd,
                                               static_cast<float>(config.initializer_range));
          }()),
      wpe(*this, "wpe",
          std::make_unique<PositionEmbedding>(config.n_positions, config.n_embd,
                                              static_cast<float>(config.initializer_range))),
      drop(*this, "drop", std::make_unique<Dropout>(static_cast<float>(config.embd_pdrop))),
      h([&] {
        std::deque<Slot<Gpt2Block>> blocks;
        for (std::int64_t layer = 0; layer < config.n_layer; ++layer)
          blocks.emplace_back(*this, fmt::format("h.{}", layer),
                              std::make_unique<Gpt2Block>(config, layer));
        return blocks;
      }()),
      ln_f(*this, "ln_f",
           std::make_unique<LayerNorm>(config.n_embd,
                                       static_cast<float>(config.layer_norm_epsilon))),
      config_(config) {}

std::string Gpt2Transformer::describe() const {
  return fmt::format("{} layers of width {}, {} heads, vocabulary {}, {} positions",
                     config_.n_layer, config_.n_embd, config_.n_head, config_.vocab_size,
                     config_.n_positions);
}

nlohmann::ordered_json Gpt2Transformer::known_fields(DecoderHead head) const {
  return config_.known_fields(head);
}

nlohmann::ordered_json Gpt2Transformer::to_json(std::string_view dtype, DecoderHead head) const {
  return config_.to_json(dtype, head);
}

// Causal-mask buffers of older versions: h.N.attn.bias, h.N.attn.masked_bias, and the same for
// cross-attention, which is not used.
bool Gpt2Transformer::is_buffer(std::string_view bare) const {
  if (!bare.starts_with("h.")) return false;
  const std::string_view rest = bare.substr(2);
  const std::size_t digits = std::min(rest.find_first_not_of("0123456789"), rest.size());
  const std::string_view tail = rest.substr(digits);
  constexpr std::array kTails = {".attn.bias", ".attn.masked_bias", ".crossattention.bias",
                                 ".crossattention.masked_bias"};
  return digits > 0 && std::ranges::count(kTails, tail) > 0;
}

Value Gpt2Transformer::embed(Context& context, const Tensor& ids, std::int64_t first_position,
                             const Tensor& positions) {
  SHOAL_CHECK(ids.shape().rank() == 2, "GPT-2 takes ids [B, T], not {}", to_string(ids.shape()));
  return drop->forward(
      context, wpe->forward(context, wte->forward(context, ids), first_position, positions));
}

Gpt2::Gpt2(const Gpt2Config& config)
    : transformer(*this, "transformer", std::make_unique<Gpt2Transformer>(config)),
      lm_head(*this, "lm_head", make_head(*transformer, transformer->wte->weight())) {
  name_tree();
}

}  // namespace shoal::nn
