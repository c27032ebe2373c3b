#include "shoal/nn/models/causal_lm.h"

#include <optional>
#include <utility>

#include <nlohmann/json.hpp>

#include "shoal/kernels/kernels.h"
#include "shoal/nn/layers/lm_head.h"
#include "shoal/nn/models/gpt2/config.h"
#include "shoal/nn/models/gpt2/model.h"
#include "shoal/nn/models/headed_decoder.h"
#include "shoal/nn/models/inference.h"
#include "shoal/nn/models/llama/config.h"
#include "shoal/nn/models/llama/model.h"
#include "shoal/nn/models/model_type.h"
#include "shoal/nn/models/written_config.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/shortened.h"

namespace shoal::nn {
namespace {

// A family of decoders. A new family adds one entry to families().
struct Family {
  std::string_view model_type;
  std::unique_ptr<CausalLm> (*make)(const nlohmann::json& config, std::string_view source);
  std::unique_ptr<DecoderTrunk> (*make_trunk)(const nlohmann::json& config,
                                              std::string_view source);
  nlohmann::json (*known)(const nlohmann::json& config, std::string_view source, DecoderHead head);
  double (*trunk_parameters)(const nlohmann::json& config, std::string_view source);
  void (*spell_plainly)(nlohmann::json& config);  // null: each known field has only one name
};

template <class Model, class Trunk, class Config>
Family family(std::string_view model_type) {
  return {
      model_type,
      [](const nlohmann::json& config, std::string_view source) -> std::unique_ptr<CausalLm> {
        return std::make_unique<Model>(Config::from_json(config, source));
      },
      [](const nlohmann::json& config, std::string_view source) -> std::unique_ptr<DecoderTrunk> {
        return std::make_unique<Trunk>(Config::from_json(config, source));
      },
      [](const nlohmann::json& config, std::string_view source, DecoderHead head)
          -> nlohmann::json { return Config::from_json(config, source).known_fields(head); },
      [](const nlohmann::json& config, std::string_view source) {
        return Config::from_json(config, source).trunk_parameters();
      },
      [] {
        if constexpr (requires(nlohmann::json& json) { Config::spell_plainly(json); })
          return &Config::spell_plainly;
        else
          return nullptr;
      }()};
}

const std::vector<Family>& families() {
  static const std::vector<Family> all = {family<Gpt2, Gpt2Transformer, Gpt2Config>("gpt2"),
                                          family<Llama, LlamaTrunk, LlamaConfig>("llama")};
  return all;
}

const Family& family_of(const nlohmann::json& config, std::string_view source) {
  const std::string type = model_type_of(config, source);
  for (const Family& one : families())
    if (type == one.model_type) return one;
  throw_error(
      ErrorCode::invalid_argument,
      "{} has model_type \"{}\", which is no causal language model that Shoal knows; {} are",
      source, shortened(type), fmt::format("{}", fmt::join(causal_lm_types(), " and ")));
}

}  // namespace

const std::vector<std::string_view>& causal_lm_types() {
  static const std::vector<std::string_view> types = [] {
    std::vector<std::string_view> names;
    for (const Family& one : families()) names.push_back(one.model_type);
    return names;
  }();
  return types;
}

std::unique_ptr<CausalLm> make_causal_lm(const nlohmann::json& config, std::string_view source) {
  return family_of(config, source).make(config, source);
}

nlohmann::json complete_causal_lm_config(const nlohmann::json& config, std::string_view source) {
  const Family& family = family_of(config, source);
  nlohmann::json plain = config;
  if (family.spell_plainly != nullptr) family.spell_plainly(plain);
  return completed_config(std::move(plain), family.known(config, source, DecoderHead::causal_lm));
}

nlohmann::json known_decoder_fields(const nlohmann::json& config, std::string_view source,
                                    DecoderHead head) {
  return family_of(config, source).known(config, source, head);
}

double decoder_trunk_parameters(const nlohmann::json& config, std::string_view source) {
  return family_of(config, source).trunk_parameters(config, source);
}

std::unique_ptr<HeadedDecoder> make_headed_decoder(const nlohmann::json& config,
                                                   std::string_view source, DecoderHead head) {
  return std::make_unique<HeadedDecoder>(family_of(config, source).make_trunk(config, source),
                                         head);
}

std::unique_ptr<HeadLoss> CausalLm::make_head(const DecoderTrunk& trunk,
                                              std::shared_ptr<Parameter> table) {
  if (trunk.tied()) return std::make_unique<LmHead>(std::move(table));
  return std::make_unique<LmHead>(trunk.vocabulary(), trunk.channels(), trunk.initial_std());
}

LossOutput CausalLm::forward(Context& context, const Tensor& ids, const Tensor& targets,
                             const LossOptions& options, const Tensor& key_mask) {
  return run(context, {ids, targets, key_mask, options});
}

LossOutput CausalLm::forward_head(Context& context, ResidualStream stream,
                                  const ChainInput& input) {
  const Value hidden = stream.norm(context, trunk().last_norm());
  return head().forward(context, hidden, input.targets, input.loss);
}

Tensor CausalLm::head_logits(Context& context, ResidualStream stream, const ChainInput& /*input*/) {
  return head().logits(context, stream.norm(context, trunk().last_norm()).tensor);
}

Value CausalLm::hidden_states(Context& context, const Tensor& ids, const Tensor& key_mask,
                              DecoderCache* cache) {
  const int blocks = trunk().blocks();
  SHOAL_CHECK(!cache || std::ssize(*cache) == blocks, "{} caches for {} blocks",
              cache ? cache->size() : 0, blocks);
  const std::int64_t first = cache && !cache->empty() ? cache->front().length : 0;
  ResidualStream stream{trunk().embed(context, ids, first, {}), std::nullopt, {}};
  for (int block = 0; block < blocks; ++block)
    stream = trunk().forward_block(
        context, block, std::move(stream),
        {key_mask, cache ? &(*cache)[static_cast<std::size_t>(block)] : nullptr, {}, {}});
  return stream.norm(context, trunk().last_norm());
}

Tensor CausalLm::logits(Context& context, const Tensor& ids, const Tensor& key_mask) {
  const Inference inference(context);
  return head().logits(context, hidden_states(context, ids, key_mask, nullptr).tensor);
}

Tensor CausalLm::decode(Context& context, const Tensor& ids, DecoderCache& cache) {
  const Inference inference(context);
  SHOAL_CHECK(ids.shape().rank() == 2 && ids.shape()[1] > 0, "decode takes ids [B, t > 0], not {}",
              to_string(ids.shape()));
  const Tensor hidden = hidden_states(context, ids, {}, &cache).tensor;
  const std::int64_t batch = ids.shape()[0], length = ids.shape()[1], width = hidden.shape()[2];
  if (length == 1) return head().logits(context, hidden.reshaped({batch, width}));
  const Tensor last = context.empty({batch, width}, hidden.dtype());
  for (std::int64_t b = 0; b < batch; ++b)
    context.kernels().elementwise().cast(
        hidden.narrowed(0, b, 1).narrowed(1, length - 1, 1).reshaped({1, width}),
        last.narrowed(0, b, 1).view(), context.stream);
  return head().logits(context, last);
}

DecoderCache CausalLm::make_cache(Context& context, std::int64_t batch, std::int64_t capacity) {
  SHOAL_CHECK(batch > 0 && capacity > 0 && capacity <= positions(),
              "a key-value cache of {} positions for a batch of {}; the model has {} positions",
              capacity, batch, positions());
  DecoderCache cache(static_cast<std::size_t>(units() - 2));
  const DType dtype = head().weight()->value.dtype();
  for (KeyValueCache& layer : cache)
    layer.entries = context.empty({batch, capacity, 2 * trunk().key_width()}, dtype);
  return cache;
}

}  // namespace shoal::nn
