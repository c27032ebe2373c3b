#include "shoal/nn/models/encoder/config.h"

#include <algorithm>
#include <array>
#include <iterator>

#include <nlohmann/json.hpp>

#include "shoal/nn/models/config_reader.h"
#include "shoal/nn/models/encoder/family.h"
#include "shoal/nn/models/model_type.h"
#include "shoal/nn/models/written_config.h"
#include "shoal/runtime/base/shortened.h"
#include "shoal/runtime/io/json.h"
#include "shoal/runtime/io/ordered_fields.h"

namespace shoal::nn {
namespace {

std::string_view class_suffix(EncoderTask task) {
  switch (task) {
    case EncoderTask::masked_lm:
      return "ForMaskedLM";
    case EncoderTask::sequence_classification:
      return "ForSequenceClassification";
    case EncoderTask::question_answering:
      return "ForQuestionAnswering";
    case EncoderTask::token_classification:
      return "ForTokenClassification";
  }
  throw_error(ErrorCode::internal, "unknown task {}", static_cast<int>(task));
}

void check_rotary(const EncoderConfig& config) {
  SHOAL_CHECK(config.hidden_size / config.num_attention_heads % 2 == 0,
              "hidden_size {} of {} heads: rotary positions turn pairs of channels",
              config.hidden_size, config.num_attention_heads);
  SHOAL_CHECK(config.hidden_size / config.num_attention_heads <= kMostHeadWidth,
              "heads of {} channels are beyond reason",
              config.hidden_size / config.num_attention_heads);
  SHOAL_CHECK(config.rope_theta > 0 && config.rope_local_theta > 0,
              "global_rope_theta {} or local_rope_theta {} is not above 0", config.rope_theta,
              config.rope_local_theta);
  SHOAL_CHECK(config.local_attention > 0 && config.global_every > 0,
              "local_attention {} or global_attn_every_n_layers {} is not above 0",
              config.local_attention, config.global_every);
  SHOAL_CHECK(config.pooling == "cls" || config.pooling == "mean",
              "classifier_pooling '{}' is not supported; cls and mean are",
              shortened(config.pooling));
  const std::vector<std::string>& types = config.layer_types;
  SHOAL_CHECK(types.empty() || std::ssize(types) == config.num_hidden_layers,
              "layer_types has {} entries for {} layers", types.size(), config.num_hidden_layers);
  for (const std::string& type : types)
    SHOAL_CHECK(type == "full_attention" || type == "sliding_attention",
                "layer type '{}' is not supported; full_attention and sliding_attention are",
                shortened(type));
}

// Two unnamed labels are transformers' default, so they are not written.
void name_labels(const EncoderConfig& config, nlohmann::ordered_json& json) {
  if (config.num_labels == 2) return;
  OrderedFields by_id, by_name;
  for (std::int64_t i = 0; i < config.num_labels; ++i) {
    const std::string name = fmt::format("LABEL_{}", i);
    by_id[std::to_string(i)] = name;
    by_name[name] = i;
  }
  json["id2label"] = std::move(by_id).json();
  json["label2id"] = std::move(by_name).json();
}

// Those of each family.
const std::vector<EncoderField>& common_fields() {
  static const std::vector<EncoderField> fields = {
      {"vocab_size", &EncoderConfig::vocab_size},
      {"max_position_embeddings", &EncoderConfig::max_position_embeddings},
      {"initializer_range", &EncoderConfig::initializer_range},
      {"pad_token_id", &EncoderConfig::pad_token_id},
      {"tie_word_embeddings", &EncoderConfig::tie_word_embeddings}};
  return fields;
}

}  // namespace

std::string_view to_string(EncoderTask task) {
  switch (task) {
    case EncoderTask::masked_lm:
      return "masked language modelling";
    case EncoderTask::sequence_classification:
      return "sequence classification";
    case EncoderTask::question_answering:
      return "question answering";
    case EncoderTask::token_classification:
      return "token classification";
  }
  throw_error(ErrorCode::internal, "unknown task {}", static_cast<int>(task));
}

const std::vector<const EncoderFamily*>& encoder_families() {
  static const std::vector<const EncoderFamily*> all = {
      &bert_family(),        &roberta_family(), &distilbert_family(), &albert_family(),
      &xlm_roberta_family(), &electra_family(), &modernbert_family()};
  return all;
}

std::string encoder_types() {
  std::vector<std::string_view> types;
  for (const EncoderFamily* family : encoder_families()) types.push_back(family->model_type);
  return fmt::format("{}", fmt::join(types, ", "));
}

const EncoderFamily& encoder_family(std::string_view model_type) {
  for (const EncoderFamily* family : encoder_families())
    if (family->model_type == model_type) return *family;
  throw_error(ErrorCode::invalid_argument, "model_type '{}' is no encoder that Shoal knows; {} are",
              shortened(model_type), encoder_types());
}

EncoderConfig EncoderConfig::of(std::string_view model_type) {
  return encoder_family(model_type).defaults;
}

EncoderConfig EncoderConfig::from_json(const nlohmann::json& json, std::string_view name) {
  const ConfigReader read(json, name);
  const std::string type = model_type_of(json, name);
  EncoderConfig config;
  try {
    config = of(type);
  } catch (const Error& error) {
    read.fail(fmt::format("cannot be read: {}", error.message()));
  }
  const EncoderFamily& family = encoder_family(type);
  read_fields(read, common_fields(), config);
  read.integer("num_labels", config.num_labels);
  if (const nlohmann::json* names = read.find("id2label"); names && names->is_object())
    config.num_labels = std::ssize(*names);
  read.text("problem_type", config.problem_type);
  read_fields(read, family.fields, config);
  if (family.read != nullptr) family.read(read, config);
  read.refuse_true("is_decoder");
  read.refuse_true("add_cross_attention");
  read.refuse_filled("quantization_config");
  read.refuse_filled("pruned_heads");
  std::string positions = "absolute";
  read.text("position_embedding_type", positions);
  if (positions != "absolute")
    read.fail(fmt::format("has position_embedding_type {}, where absolute is known",
                          shortened(positions)));
  try {
    config.check();
  } catch (const Error& error) {
    read.fail(fmt::format("does not describe a {}: {}", shortened(type), error.message()));
  }
  config.source = json.dump();
  return config;
}

EncoderConfig EncoderConfig::from_file(const std::string& path) {
  return from_json(read_json_file(path), path);
}

nlohmann::ordered_json EncoderConfig::known_fields() const {
  nlohmann::ordered_json out = nlohmann::ordered_json::object();
  out["model_type"] = model_type;
  write_fields(common_fields(), *this, out);
  if (!problem_type.empty()) out["problem_type"] = problem_type;
  const EncoderFamily& family = encoder_family(model_type);
  write_fields(family.fields, *this, out);
  if (family.write != nullptr) family.write(*this, out);
  name_labels(*this, out);
  return out;
}

nlohmann::ordered_json EncoderConfig::to_json(EncoderTask task, std::string_view dtype) const {
  const nlohmann::ordered_json now = known_fields();
  const nlohmann::ordered_json before =
      source.empty() ? now
                     : from_json(parse_json(source, "config.json"), "config.json").known_fields();
  nlohmann::ordered_json out = written_config(
      {.read = source,
       .architecture = encoder_family(model_type).class_prefix + std::string(class_suffix(task)),
       .dtype = dtype},
      before, now);
  // transformers 5 has both bases in an object, which has priority.
  for (const char* base : {"global_rope_theta", "local_rope_theta"})
    if (now.contains(base) && before[base] != now[base]) {
      out.erase("rope_parameters");
      for (const char* each : {"global_rope_theta", "local_rope_theta"}) out[each] = now[each];
    }
  return out;
}

void EncoderConfig::check() const {
  const EncoderFamily& family = encoder_family(model_type);
  constexpr std::int64_t kLimit = std::int64_t{1} << 31;  // ids are i32
  for (const auto& [name, value, least] : {std::tuple{"vocab_size", vocab_size, 1},
                                           {"hidden_size", hidden_size, 1},
                                           {"num_hidden_layers", num_hidden_layers, 0},
                                           {"intermediate_size", intermediate_size, 1},
                                           {"num_attention_heads", num_attention_heads, 1},
                                           {"max_position_embeddings", max_position_embeddings, 1},
                                           {"type_vocab_size", type_vocab_size, 0},
                                           {"embedding_size", embedding_size, 0},
                                           {"num_hidden_groups", num_hidden_groups, 0},
                                           {"inner_group_num", inner_group_num, 1},
                                           {"num_labels", num_labels, 1}})
    SHOAL_CHECK(value >= least && value < kLimit, "{} {} is out of range", name, value);
  SHOAL_CHECK(num_hidden_layers <= kMostLayers && num_labels <= kMostLabels,
              "num_hidden_layers {} or num_labels {} is beyond reason", num_hidden_layers,
              num_labels);
  SHOAL_CHECK(inner_group_num <= kMostLayers / std::max<std::int64_t>(num_hidden_layers, 1),
              "inner_group_num {} for each of {} layers is beyond reason", inner_group_num,
              num_hidden_layers);
  SHOAL_CHECK(
      hidden_size <= kMostWidth && intermediate_size <= kMostWidth && embedding_size <= kMostWidth,
      "hidden_size {}, intermediate_size {} or embedding_size {} is beyond reason", hidden_size,
      intermediate_size, embedding_size);
  check_parameters(trunk_parameters());
  SHOAL_CHECK(hidden_size % num_attention_heads == 0,
              "hidden_size {} is not a multiple of num_attention_heads {}", hidden_size,
              num_attention_heads);
  SHOAL_CHECK(num_hidden_groups <= num_hidden_layers, "{} groups for {} layers", num_hidden_groups,
              num_hidden_layers);
  SHOAL_CHECK(!pad_token_id || (*pad_token_id >= 0 && *pad_token_id < vocab_size),
              "pad_token_id {} in a vocabulary of {}", *pad_token_id, vocab_size);
  SHOAL_CHECK(!family.positions_from_ids || pad_token_id,
              "{} counts positions from pad_token_id, which is null", model_type);
  constexpr std::array kActivations{"gelu", "gelu_new", "gelu_pytorch_tanh", "relu"};
  for (const std::string& name : {hidden_act, head_act.empty() ? hidden_act : head_act})
    SHOAL_CHECK(std::find(kActivations.begin(), kActivations.end(), name) != kActivations.end(),
                "activation '{}' is not supported; {} are", shortened(name),
                fmt::join(kActivations, ", "));
  SHOAL_CHECK(problem_type.empty() || problem_type == "regression" ||
                  problem_type == "single_label_classification",
              "problem_type '{}' is not supported; regression and single_label_classification are",
              shortened(problem_type));
  for (const double probability : {hidden_dropout_prob, attention_probs_dropout_prob, mlp_dropout,
                                   sequence_dropout, token_dropout, question_dropout})
    SHOAL_CHECK(probability >= 0 && probability < 1, "a dropout probability {} is not in [0, 1)",
                probability);
  SHOAL_CHECK(layer_norm_eps > 0 && initializer_range >= 0,
              "layer_norm_eps {}, initializer_range {}", layer_norm_eps, initializer_range);
  if (family.rotary) check_rotary(*this);
}

bool EncoderConfig::slides(std::int64_t layer) const {
  if (local_attention == 0) return false;
  if (layer_types.empty()) return layer % global_every != 0;
  return layer_types[static_cast<std::size_t>(layer)] == "sliding_attention";
}

std::int64_t EncoderConfig::window(std::int64_t layer) const {
  // A window of all positions changes nothing, and fewer kernels know windows.
  const std::int64_t side = local_attention / 2 + 1;
  return slides(layer) && side < max_position_embeddings ? side : 0;
}

double EncoderConfig::trunk_parameters() const {
  const EncoderFamily& family = encoder_family(model_type);
  const double h = static_cast<double>(hidden_size),
               f = static_cast<double>(intermediate_size) * (family.gated ? 1.5 : 1);
  const auto rows = static_cast<double>(vocab_size + (family.rotary ? 0 : max_position_embeddings) +
                                        type_vocab_size);
  const std::int64_t blocks =
      (num_hidden_groups > 0 ? num_hidden_groups : num_hidden_layers) * inner_group_num;
  return rows * static_cast<double>(embedding()) +
         static_cast<double>(blocks) * (4 * h + 2 * f) * h;
}

bool EncoderConfig::regression() const {
  return problem_type.empty() ? num_labels == 1 : problem_type == "regression";
}

}  // namespace shoal::nn
