// The differences between decoders, as data: pieces, module names, config.json fields. The defaults
// are Llama's. Each family has a row in decoder_families() and a family.cc.
#pragma once

#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "shoal/kernels/activation.h"
#include "shoal/nn/models/config_fields.h"
#include "shoal/nn/models/decoder/config.h"

namespace shoal::nn {

using ConfigField = FieldOf<DecoderConfig>;
// The fields that Llama and its relatives share, and `more`.
std::vector<ConfigField> llama_fields(const std::vector<ConfigField>& more);

// Children of a block, by their use.
enum class BlockPart : std::uint8_t {
  attention_norm,
  attention,
  attention_output_norm,  // of the attention's result
  attention_dropout,      // of the attention's result
  mlp_norm,
  mlp,
  mlp_output_norm,
  mlp_dropout,
};

struct DecoderFamily {
  std::string_view model_type;    // "llama"
  std::string_view title;         // "Llama", for messages
  std::string_view class_prefix;  // "Llama": its classes are LlamaForSequenceClassification, ...
  std::string_view language_model{};        // empty: class_prefix + "ForCausalLM"
  std::vector<DecoderHead> absent_heads{};  // transformers has no classes with these

  // Pieces.
  enum class Attention : std::uint8_t {
    grouped,  // GroupedSelfAttention: rotary positions, groups of heads with a key head
    fused,    // CausalSelfAttention: one projection, learned positions added to the embeddings
  } attention = Attention::grouped;
  // Of `grouped`: the name of the Linear of queries, keys and values (empty: three Linears).
  std::string_view projections{}, attention_output = "o_proj";
  bool rms_norms = true;          // false: LayerNorm
  float norm_offset = 0;          // RmsNorm's
  bool scaled_embedding = false;  // the embedding's rows are multiplied by sqrt(hidden_size)
  enum class Mlp : std::uint8_t {
    gated,   // GatedMlp; FeedForward for GELU
    plain,   // nn::Mlp, with biases
    conv1d,  // the same, of Conv1D
  } mlp = Mlp::gated;
  std::string_view mlp_in = "c_fc", mlp_out = "c_proj";  // names of the Linears of nn::Mlp
  bool query_biases = false;     // q_proj, k_proj and v_proj have biases, whatever attention_bias
  bool query_norms = false;      // norms of each head's queries and keys
  bool padding_is_cold = true;   // the embedding of pad_token_id gets no gradient
  bool scaled_residual = false;  // std of a branch's last layer is divided by sqrt(2 · layers)

  // Module names. `base` is the trunk's name below a head, `answers_base` below that of question
  // answering. Below the base: `embedding`, `positions` and `dropout` (empty: none), `layers`.N,
  // `norm`. In a block: its children in the order of their parameters.
  std::string_view base = "model", answers_base = "transformer";
  std::string_view embedding = "embed_tokens", positions{}, dropout{}, layers = "layers",
                   norm = "norm";
  std::vector<std::pair<BlockPart, std::string_view>> block = {
      {BlockPart::attention, "self_attn"},
      {BlockPart::mlp, "mlp"},
      {BlockPart::attention_norm, "input_layernorm"},
      {BlockPart::mlp_norm, "post_attention_layernorm"}};
  std::string_view language_head = "lm_head", token_head = "score";  // the heads' Linears
  // Ends of the names of buffers that older versions saved.
  std::vector<std::string_view> buffers = {"rotary_emb.inv_freq"};

  // config.json.
  std::vector<std::string_view> activations = {"silu"};
  kernels::Activation gelu = kernels::Activation::gelu_erf;  // the meaning of "gelu"
  DecoderConfig defaults{};
  std::vector<ConfigField> fields{};
  nlohmann::json constants = {{"use_cache", true}};  // written, not read
};

const DecoderFamily& gpt2_family();
const DecoderFamily& llama_family();
const DecoderFamily& mistral_family();
const DecoderFamily& qwen2_family();
const DecoderFamily& qwen3_family();
const DecoderFamily& gpt_neox_family();
const DecoderFamily& gemma_family();
const DecoderFamily& gemma2_family();
const DecoderFamily& gemma3_family();
const std::vector<const DecoderFamily*>& decoder_families();
// Null if there is no such family.
const DecoderFamily* find_decoder_family(std::string_view model_type);
// Throws invalid_argument, naming `source` and the known types.
const DecoderFamily& decoder_family(std::string_view model_type, std::string_view source);

}  // namespace shoal::nn
