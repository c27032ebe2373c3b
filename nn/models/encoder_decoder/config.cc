#include "shoal/nn/models/encoder_decoder/config.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include <nlohmann/json.hpp>

#include "shoal/nn/models/config_reader.h"
#include "shoal/nn/models/encoder_decoder/family.h"
#include "shoal/nn/models/model_type.h"
#include "shoal/nn/models/written_config.h"
#include "shoal/runtime/base/shortened.h"
#include "shoal/runtime/io/json.h"

namespace shoal::nn {
namespace {

using Config = EncoderDecoderConfig;

nlohmann::json fields_json(const Config& config) {
  nlohmann::json known = {{"model_type", config.model_type}, {"is_encoder_decoder", true}};
  write_fields(config.family().fields, config, known);
  return known;
}

void check_sizes_of(const Config& config) {
  constexpr std::int64_t kIds = (std::int64_t{1} << 31) - 1;  // ids are i32
  for (const auto& [name, value, least, most] :
       {std::tuple{"vocab_size", config.vocab_size, 1, kIds},
        {"d_model", config.d_model, 1, kMostWidth},
        {"encoder's width of MLP", config.inner(false), 1, kMostWidth},
        {"decoder's width of MLP", config.inner(true), 1, kMostWidth},
        {"encoder's number of layers", config.layers(false), 0, kMostLayers},
        {"decoder's number of layers", config.layers(true), 0, kMostLayers},
        {"encoder's number of heads", config.heads(false), 1, kMostWidth},
        {"decoder's number of heads", config.heads(true), 1, kMostWidth},
        {"max_position_embeddings", config.max_position_embeddings, 1, kIds - 2},
        {"size of a head", config.head_dim, 0, kMostHeadWidth},
        {"number of relative positions", config.relative_buckets, 4, kMostWidth},
        {"distance of relative positions", config.relative_distance, 1, kIds}})
    SHOAL_CHECK(value >= least && value <= most, "{} {} is beyond reason", name, value);
  check_parameters(config.trunk_parameters());
  for (const bool decoder : {false, true})
    SHOAL_CHECK(config.head_dim > 0 || config.d_model % config.heads(decoder) == 0,
                "d_model {} is not a multiple of {} heads", config.d_model, config.heads(decoder));
  for (const auto& id : {config.pad_token_id, config.decoder_start_token_id})
    SHOAL_CHECK(!id || (*id >= 0 && *id < config.vocab_size), "id {} in a vocabulary of {}", *id,
                config.vocab_size);
}

}  // namespace

const std::vector<const EncoderDecoderFamily*>& encoder_decoder_families() {
  static const std::vector<const EncoderDecoderFamily*> all = {&t5_family(), &bart_family(),
                                                               &mbart_family()};
  return all;
}

bool is_encoder_decoder_type(std::string_view model_type) {
  return std::ranges::any_of(encoder_decoder_families(), [&](const EncoderDecoderFamily* family) {
    return family->model_type == model_type;
  });
}

const EncoderDecoderFamily& encoder_decoder_family(std::string_view model_type,
                                                   std::string_view source) {
  std::vector<std::string_view> known;
  for (const EncoderDecoderFamily* family : encoder_decoder_families()) {
    if (family->model_type == model_type) return *family;
    known.push_back(family->model_type);
  }
  throw_error(ErrorCode::invalid_argument,
              "{} has model_type \"{}\", which is no encoder-decoder that Shoal knows; {} are",
              source, shortened(model_type), fmt::join(known, ", "));
}

const StackHead& EncoderDecoderFamily::place_of(DecoderHead head) const {
  const auto found = std::ranges::find(heads, head, &StackHead::head);
  SHOAL_CHECK(found != heads.end(), "{} for {} cannot be saved: transformers has no such class",
              title, to_string(head));
  return *found;
}

Config Config::of(std::string_view model_type) {
  return encoder_decoder_family(model_type, "the configuration").defaults;
}

Config Config::from_json(const nlohmann::json& object, std::string_view name) {
  const ConfigReader read(object, name);
  const EncoderDecoderFamily& family = encoder_decoder_family(model_type_of(object, name), name);
  Config config = family.defaults;
  read_fields(read, family.fields, config);
  config.labels = DecoderLabels::read(read, false, config.labels.num_labels);
  config.labels.token_dropout.reset();  // classifier_dropout is a field
  // transformers 5 writes T5 1.1, whose head has its own weight, with tie_word_embeddings: true.
  bool scaled = config.tie_word_embeddings;
  if (family.scales_tied_head) read.boolean("scale_decoder_outputs", scaled);
  config.tie_word_embeddings = config.tie_word_embeddings && scaled;
  if (scaled && !config.tie_word_embeddings)
    read.fail(
        "has scale_decoder_outputs: true without tie_word_embeddings, which is not supported");
  for (const char* key : {"encoder_layerdrop", "decoder_layerdrop"}) {
    double share = 0;
    read.number(key, share);
    if (share != 0) read.fail(fmt::format("has {}: {}, which is not supported", key, share));
  }
  read.refuse_true("is_decoder");
  read.refuse_filled("quantization_config");
  try {
    config.check();
  } catch (const Error& error) {
    read.fail(fmt::format("does not describe a {}: {}", family.title, error.message()));
  }
  config.source = object.dump();
  return config;
}

Config Config::from_file(const std::string& path) { return from_json(read_json_file(path), path); }

nlohmann::ordered_json Config::known_fields(DecoderHead head) const {
  nlohmann::ordered_json known = fields_json(*this);
  labels.write(head, known);
  return known;
}

nlohmann::ordered_json Config::to_json(std::string_view dtype, DecoderHead head) const {
  const nlohmann::ordered_json now = known_fields(head);
  return written_config(
      {.read = source,
       .architecture = fmt::format(
           "{}{}", family().class_prefix,
           head == DecoderHead::causal_lm ? "ForConditionalGeneration" : class_suffix(head)),
       .dtype = dtype},
      source.empty()
          ? now
          : from_json(parse_json(source, "config.json"), "config.json").known_fields(head),
      now);
}

const EncoderDecoderFamily& Config::family() const {
  return encoder_decoder_family(model_type, "the configuration");
}

void Config::check() const {
  check_sizes_of(*this);
  const auto& known = family().activations;
  SHOAL_CHECK(std::ranges::count(known, activation) > 0, "activation '{}' is not supported; {} are",
              shortened(activation), fmt::join(known, ", "));
  labels.check();
  for (const double probability :
       {dropout, attention_dropout, activation_dropout, classifier_dropout})
    SHOAL_CHECK(probability >= 0 && probability < 1, "a dropout probability {} is not in [0, 1)",
                probability);
  SHOAL_CHECK(norm_eps > 0 && initializer >= 0, "the norms' epsilon {}, initial weights of {}",
              norm_eps, initializer);
}

kernels::Activation Config::activation_function() const {
  if (activation.ends_with("relu")) return kernels::Activation::relu;
  return activation == "gelu" ? kernels::Activation::gelu_erf : kernels::Activation::gelu_tanh;
}

double Config::trunk_parameters() const {
  const auto width = static_cast<double>(d_model);
  double sum = static_cast<double>(vocab_size) * width;
  if (!family().relative_positions) sum += 2 * static_cast<double>(max_position_embeddings) * width;
  for (const bool decoder : {false, true}) {
    const auto heads_width =
        static_cast<double>(heads(decoder)) * static_cast<double>(head_channels(decoder));
    const auto mlp = static_cast<double>(inner(decoder)) * (gated() ? 3 : 2);
    sum += static_cast<double>(layers(decoder)) * width * ((decoder ? 8 : 4) * heads_width + mlp);
  }
  return sum;
}

}  // namespace shoal::nn
