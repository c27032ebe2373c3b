#include "shoal/nn/models/decoder/family.h"

#include "shoal/nn/models/config_reader.h"

namespace shoal::nn {

const std::vector<const DecoderFamily*>& decoder_families() {
  static const std::vector<const DecoderFamily*> all = {
      &gpt2_family(),     &llama_family(), &mistral_family(), &qwen2_family(), &qwen3_family(),
      &gpt_neox_family(), &gemma_family(), &gemma2_family(),  &gemma3_family()};
  return all;
}

const DecoderFamily* find_decoder_family(std::string_view model_type) {
  for (const DecoderFamily* family : decoder_families())
    if (family->model_type == model_type) return family;
  return nullptr;
}

const DecoderFamily& decoder_family(std::string_view model_type, std::string_view source) {
  if (const DecoderFamily* const family = find_decoder_family(model_type)) return *family;
  std::vector<std::string_view> known;
  for (const DecoderFamily* family : decoder_families()) known.push_back(family->model_type);
  throw_error(
      ErrorCode::invalid_argument,
      "{} has model_type \"{}\", which is no causal language model that Shoal knows; {} are",
      source, shortened(model_type), fmt::join(known, ", "));
}

std::vector<ConfigField> llama_fields(const std::vector<ConfigField>& more) {
  return joined({{"vocab_size", &DecoderConfig::vocab_size},
                 {"hidden_size", &DecoderConfig::hidden_size},
                 {"intermediate_size", &DecoderConfig::intermediate_size},
                 {"num_hidden_layers", &DecoderConfig::num_hidden_layers},
                 {"num_attention_heads", &DecoderConfig::num_attention_heads},
                 {"num_key_value_heads", &DecoderConfig::num_key_value_heads},
                 {"head_dim", &DecoderConfig::head_dim},
                 {"max_position_embeddings", &DecoderConfig::max_position_embeddings},
                 {"hidden_act", &DecoderConfig::hidden_act},
                 {"rms_norm_eps", &DecoderConfig::norm_eps},
                 {"initializer_range", &DecoderConfig::initializer_range},
                 {"attention_dropout", &DecoderConfig::attention_dropout},
                 {"rope_theta", &DecoderConfig::rope_theta},
                 {"tie_word_embeddings", &DecoderConfig::tie_word_embeddings},
                 {"bos_token_id", &DecoderConfig::bos_token_id},
                 {"eos_token_id", &DecoderConfig::eos_token_id},
                 {"pad_token_id", &DecoderConfig::pad_token_id}},
                more);
}

}  // namespace shoal::nn
