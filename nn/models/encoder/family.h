// The differences between the families, as data: module names, config.json fields, variants. Each
// has a row in encoder_families() and a family.cc (XLM-RoBERTa: in RoBERTa's).
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "shoal/kernels/matmul.h"
#include "shoal/nn/models/config_fields.h"
#include "shoal/nn/models/encoder/config.h"

namespace shoal::nn {

class ConfigReader;
using EncoderField = FieldOf<EncoderConfig>;
// BERT's fields, which its relatives have too, and `more`.
std::vector<EncoderField> bert_fields(const std::vector<EncoderField>& more = {});

// Paths relative to the block.
struct BlockNames {
  // The last four are below `attention`. Without a key and a value, `query` makes all three.
  std::string attention, query, key, value, attention_output;
  std::string attention_norm;
  std::string ffn, ffn_in, ffn_out;  // the last two are below `ffn`, which may be empty
  std::string output_norm;           // if norms come first: the MLP's
};

struct EncoderFamily {
  std::string model_type;    // "bert"
  std::string class_prefix;  // "Bert": its classes are BertForMaskedLM, ...
  std::string base;          // "bert": the path of embeddings and layers
  std::string mapping{};     // the mapping from embedding to hidden_size, below the base
  bool maps_equal = true;    // the mapping exists for equal sizes, too
  BlockNames block;
  std::string words = "embeddings.word_embeddings", embedding_norm = "embeddings.LayerNorm";

  // Rotary positions instead of a table, in layers with windows by a base of their own.
  bool rotary = false;
  // Each branch reads a norm of the residual, the first one the embeddings themselves, and
  // final_norm (below the base) follows the last block.
  bool norms_first = false;
  std::string final_norm{};
  bool gated = false;            // the MLP is out(activation(a) · b), where `ffn_in` makes a and b
  bool scaled_residual = false;  // std of a branch's last layer is divided by sqrt(2 · layers)

  // Masked LM: decoder(norm(activation(dense(x)))). The decoder has a bias and may be tied.
  std::string lm_dense, lm_norm, lm_head;
  std::string lm_decoder = "weight";  // an untied decoder's weight, below lm_head
  bool lm_gelu = false;               // always use GELU (erf)
  // Every head begins with the masked language model's norm(activation(dense(x))).
  bool transforms_states = false;

  // Sequence classification: classifier(dropout(activation(dense(first position)))).
  std::string pooler, classifier;
  kernels::Activation pooling = kernels::Activation::tanh;
  bool drops_before_pooler = false;
  std::string answers = "qa_outputs";  // question answering's Linear

  // positions count from the padding id, which has a position, too
  bool positions_from_ids = false;
  bool ffn_drops = true;  // dropout at the end of a block
  // Aliases of tensors: (parameter, other name).
  std::vector<std::pair<std::string, std::string>> aliases;

  EncoderConfig defaults;
  std::vector<EncoderField> fields = bert_fields();
  // What follows from fields, or is written otherwise than it is read. May be null.
  void (*read)(const ConfigReader& reader, EncoderConfig& config) = nullptr;
  void (*write)(const EncoderConfig& config, nlohmann::ordered_json& json) = nullptr;

  // "encoder.layer.3", below the base; `inner` is the index of a block within the layer.
  std::string (*layer)(std::int64_t layer, std::int64_t inner) = nullptr;
};

const EncoderFamily& bert_family();
const EncoderFamily& roberta_family();
const EncoderFamily& distilbert_family();
const EncoderFamily& albert_family();
const EncoderFamily& xlm_roberta_family();
const EncoderFamily& electra_family();
const EncoderFamily& modernbert_family();
const std::vector<const EncoderFamily*>& encoder_families();
// "bert, roberta, ...": the model types.
std::string encoder_types();
// Looks up a family by model_type. Throws invalid_argument on an unknown one, listing all.
const EncoderFamily& encoder_family(std::string_view model_type);

// classifier_dropout, which is hidden_dropout_prob where it is null.
void read_bert_dropout(const ConfigReader& reader, EncoderConfig& config);
void write_bert_dropout(const EncoderConfig& config, nlohmann::ordered_json& json);

}  // namespace shoal::nn
