// The differences between encoder-decoders, as data: pieces, module names, config.json fields. The
// defaults are BART's. Each family has a row in encoder_decoder_families() and a family.cc.
#pragma once

#include <string_view>
#include <vector>

#include "shoal/nn/models/config_fields.h"
#include "shoal/nn/models/encoder_decoder/config.h"

namespace shoal::nn {

// Children of a block of the encoder or of the decoder. The encoder has no cross-attention.
struct StackBlockNames {
  std::string_view self, self_norm, cross, cross_norm, mlp, mlp_norm;
};

// Where a head sits in transformers' class for it.
struct StackHead {
  DecoderHead head = DecoderHead::causal_lm;
  std::string_view base{};  // of the trunk below the head, or empty
  bool decodes = true;      // false: the head reads the encoder's states
};

struct EncoderDecoderFamily {
  std::string_view model_type;    // "bart"
  std::string_view title;         // "BART", for messages
  std::string_view class_prefix;  // "Bart": its class is BartForConditionalGeneration
  // Other heads than the language model's, which transformers has classes for.
  std::vector<StackHead> heads = {{DecoderHead::sequence_classification, "model"},
                                  {DecoderHead::question_answering, "model"}};

  // Pieces.
  bool rms_norms = false;           // false: LayerNorm
  bool pre_norm = false;            // norms before attention and MLP, and at the end of a stack
  bool embedding_norm = true;       // a norm of the sum of embeddings
  bool relative_positions = false;  // false: learned ones, from row position_offset on
  std::int64_t position_offset = 2;
  bool biases = true;               // of attention and MLP
  bool scaled_scores = true;        // attention scores / sqrt(head size)
  bool drops_states = false;        // dropout at the end of a stack
  bool one_dropout = false;         // config.dropout is also that of attention and activation
  bool padding_is_cold = true;      // the embedding of pad_token_id gets no gradient
  bool scales_tied_head = false;    // a tied head gets hidden states / sqrt(d_model)
  bool scales_initializer = false;  // initial weights are scaled by their sizes
  bool begins_with_last = false;    // the decoder's ids begin with the last target, a language

  // Module names. `base`: of the trunk below the head, or empty. Below it: `shared`, encoder and
  // decoder. Below these: positions, embedding_norm, layers.N, last_norm.
  std::string_view base = "model", positions = "embed_positions",
                   embedding_norm_name = "layernorm_embedding", layers = "layers", last_norm{};
  StackBlockNames encoder = {"self_attn", "self_attn_layer_norm", "", "", "", "final_layer_norm"};
  StackBlockNames decoder = {
      "self_attn", "self_attn_layer_norm", "encoder_attn", "encoder_attn_layer_norm",
      "",          "final_layer_norm"};
  std::string_view query = "q_proj", key = "k_proj", value = "v_proj", output = "out_proj";
  std::string_view mlp_in = "fc1", gated_in{}, gate{}, mlp_out = "fc2";  // gated_in: mlp_in's name
  std::string_view relative = {};                                        // below the first block
  std::string_view logits_bias = "final_logits_bias";  // a constant; empty: there is none

  // config.json.
  std::vector<std::string_view> activations;
  EncoderDecoderConfig defaults{};
  std::vector<FieldOf<EncoderDecoderConfig>> fields{};

  // Throws invalid_argument if there is no such head.
  const StackHead& place_of(DecoderHead head) const;
};

const EncoderDecoderFamily& t5_family();
const EncoderDecoderFamily& bart_family();
const EncoderDecoderFamily& mbart_family();
const std::vector<const EncoderDecoderFamily*>& encoder_decoder_families();
bool is_encoder_decoder_type(std::string_view model_type);
// Throws invalid_argument, naming `source` and the known types.
const EncoderDecoderFamily& encoder_decoder_family(std::string_view model_type,
                                                   std::string_view source);

}  // namespace shoal::nn
