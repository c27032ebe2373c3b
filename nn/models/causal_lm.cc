#include "shoal/nn/models/causal_lm.h"

#include <optional>
#include <utility>

#include <nlohmann/json.hpp>

#include "shoal/kernels/kernels.h"
#include "shoal/nn/layers/lm_head.h"
#include "shoal/nn/models/decoder/family.h"
#include "shoal/nn/models/inference.h"
#include "shoal/nn/models/written_config.h"
#include "shoal/runtime/base/error.h"

namespace shoal::nn {

const std::vector<std::string_view>& causal_lm_types() {
  static const std::vector<std::string_view> types = [] {
    std::vector<std::string_view> names;
    for (const DecoderFamily* family : decoder_families()) names.push_back(family->model_type);
    return names;
  }();
  return types;
}

std::unique_ptr<CausalLm> make_causal_lm(const nlohmann::json& config, std::string_view source) {
  return std::make_unique<CausalLm>(DecoderConfig::from_json(config, source));
}

nlohmann::json complete_causal_lm_config(const nlohmann::json& config, std::string_view source) {
  nlohmann::json plain = config;
  spell_plainly(plain);
  return completed_config(std::move(plain),
                          known_decoder_fields(config, source, DecoderHead::causal_lm));
}

nlohmann::json known_decoder_fields(const nlohmann::json& config, std::string_view source,
                                    DecoderHead head) {
  return DecoderConfig::from_json(config, source).known_fields(head);
}

double decoder_trunk_parameters(const nlohmann::json& config, std::string_view source) {
  return DecoderConfig::from_json(config, source).trunk_parameters();
}

CausalLm::CausalLm(const DecoderConfig& config)
    : base(*this, std::string(config.family().base), std::make_unique<DecoderTrunk>(config)),
      lm_head(*this, std::string(config.family().language_head),
              std::make_unique<LmHead>(LmHeadConfig{
                  .vocabulary = config.vocab_size,
                  .channels = config.hidden_size,
                  .std = base->initial_std(),
                  .tied = config.tie_word_embeddings ? base->embedding().weight() : nullptr,
                  .soft_cap = static_cast<float>(config.logit_soft_cap.value_or(0))})) {
  name_tree();
}

LossOutput CausalLm::forward(Context& context, const Tensor& ids, const Tensor& targets,
                             const LossOptions& options, const Tensor& key_mask) {
  return run(context, {ids, targets, key_mask, options});
}

LossOutput CausalLm::forward_head(Context& context, ResidualStream stream,
                                  const ChainInput& input) {
  const Value hidden = stream.norm(context, trunk().last_norm());
  return lm_head->forward(context, hidden, input.targets, input.loss);
}

Tensor CausalLm::head_logits(Context& context, ResidualStream stream, const ChainInput& /*input*/) {
  return lm_head->logits(context, stream.norm(context, trunk().last_norm()).tensor);
}

Value CausalLm::hidden_states(Context& context, const Tensor& ids, const Tensor& key_mask,
                              DecoderCache* cache, const Tensor& positions) {
  const int blocks = trunk().blocks();
  SHOAL_CHECK(!cache || std::ssize(*cache) == blocks, "{} caches for {} blocks",
              cache ? cache->size() : 0, blocks);
  const std::int64_t first = cache && !cache->empty() ? cache->front().length : 0;
  ResidualStream stream{trunk().embed(context, ids, first, positions), std::nullopt, {}};
  for (int block = 0; block < blocks; ++block)
    stream = trunk().forward_block(
        context, block, std::move(stream),
        {key_mask, cache ? &(*cache)[static_cast<std::size_t>(block)] : nullptr, {}, positions});
  return stream.norm(context, trunk().last_norm());
}

Tensor CausalLm::logits(Context& context, const Tensor& ids, const Tensor& key_mask) {
  const Inference inference(context);
  return lm_head->logits(context, hidden_states(context, ids, key_mask, nullptr).tensor);
}

Tensor CausalLm::decode(Context& context, const Tensor& ids, DecoderCache& cache,
                        const Tensor& key_mask, const Tensor& positions) {
  const Inference inference(context);
  context.begin_forward();
  SHOAL_CHECK(ids.shape().rank() == 2 && ids.shape()[1] > 0, "decode takes ids [B, t > 0], not {}",
              to_string(ids.shape()));
  const Tensor hidden = hidden_states(context, ids, key_mask, &cache, positions).tensor;
  const std::int64_t batch = ids.shape()[0], length = ids.shape()[1], width = hidden.shape()[2];
  if (length == 1) return lm_head->logits(context, hidden.reshaped({batch, width}));
  const Tensor last = context.empty({batch, width}, hidden.dtype());
  for (std::int64_t b = 0; b < batch; ++b)
    context.kernels().elementwise().cast(
        hidden.narrowed(0, b, 1).narrowed(1, length - 1, 1).reshaped({1, width}),
        last.narrowed(0, b, 1).view(), context.stream);
  return lm_head->logits(context, last);
}

DecoderCache CausalLm::make_cache(std::int64_t capacity) const {
  SHOAL_CHECK(capacity > 0 && capacity <= positions(),
              "a key-value cache of {} positions; the model has {} positions", capacity,
              positions());
  DecoderCache cache(static_cast<std::size_t>(units() - 2));
  for (KeyValueCache& layer : cache) layer.capacity = capacity;
  return cache;
}

}  // namespace shoal::nn
