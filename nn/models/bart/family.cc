// BART (Lewis et al., "BART: Denoising Sequence-to-Sequence Pre-training", 2020), and mBART (Liu et
// al., "Multilingual Denoising Pre-training for Neural Machine Translation", 2020): norms before
// attention and MLP, and texts of the decoder that begin with their language.
#include "shoal/nn/models/encoder_decoder/family.h"

namespace shoal::nn {

const EncoderDecoderFamily& bart_family() {
  using Config = EncoderDecoderConfig;
  static const EncoderDecoderFamily family = [] {
    EncoderDecoderFamily made;
    made.model_type = "bart";
    made.title = "BART";
    made.class_prefix = "Bart";
    made.activations = {"gelu", "gelu_new", "gelu_pytorch_tanh", "relu"};
    made.defaults.labels.num_labels = 3;
    made.fields = {{"vocab_size", &Config::vocab_size},
                   {"max_position_embeddings", &Config::max_position_embeddings},
                   {"d_model", &Config::d_model},
                   {"encoder_layers", &Config::encoder_layers},
                   {"encoder_ffn_dim", &Config::encoder_inner},
                   {"encoder_attention_heads", &Config::encoder_heads},
                   {"decoder_layers", &Config::decoder_layers},
                   {"decoder_ffn_dim", &Config::decoder_inner},
                   {"decoder_attention_heads", &Config::decoder_heads},
                   {"activation_function", &Config::activation},
                   {"dropout", &Config::dropout},
                   {"attention_dropout", &Config::attention_dropout},
                   {"activation_dropout", &Config::activation_dropout},
                   {"classifier_dropout", &Config::classifier_dropout},
                   {"init_std", &Config::initializer},
                   {"scale_embedding", &Config::scale_embedding},
                   {"tie_word_embeddings", &Config::tie_word_embeddings},
                   {"pad_token_id", &Config::pad_token_id},
                   {"bos_token_id", &Config::bos_token_id},
                   {"eos_token_id", &Config::eos_token_id},
                   {"decoder_start_token_id", &Config::decoder_start_token_id},
                   {"forced_bos_token_id", &Config::forced_bos_token_id},
                   {"forced_eos_token_id", &Config::forced_eos_token_id}};
    return made;
  }();
  return family;
}

const EncoderDecoderFamily& mbart_family() {
  static const EncoderDecoderFamily family = [] {
    EncoderDecoderFamily made = bart_family();
    made.model_type = made.defaults.model_type = "mbart";
    made.title = "mBART";
    made.class_prefix = "MBart";
    made.pre_norm = true;
    made.begins_with_last = true;
    made.last_norm = "layer_norm";
    made.defaults.decoder_start_token_id = std::nullopt;
    made.defaults.labels.num_labels = 2;
    return made;
  }();
  return family;
}

}  // namespace shoal::nn
