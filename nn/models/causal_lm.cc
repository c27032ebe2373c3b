#include "shoal/nn/models/causal_lm.h"

#include <nlohmann/json.hpp>

#include "shoal/nn/models/gpt2/config.h"
#include "shoal/nn/models/gpt2/model.h"
#include "shoal/nn/models/inference.h"
#include "shoal/nn/models/llama/config.h"
#include "shoal/nn/models/llama/model.h"
#include "shoal/runtime/base/error.h"

namespace shoal::nn {
namespace {

// A family of decoders: the line that another one adds.
struct Family {
  std::string_view model_type;
  std::unique_ptr<CausalLm> (*make)(const nlohmann::json& config, std::string_view source);
  nlohmann::json (*complete)(const nlohmann::json& config, std::string_view source);
};

template <class Model, class Config>
Family family(std::string_view model_type) {
  return {model_type,
          [](const nlohmann::json& config, std::string_view source) -> std::unique_ptr<CausalLm> {
            return std::make_unique<Model>(Config::from_json(config, source));
          },
          [](const nlohmann::json& config, std::string_view source) -> nlohmann::json {
            return Config::from_json(config, source).to_json("float32");
          }};
}

const std::vector<Family>& families() {
  static const std::vector<Family> all = {family<Gpt2, Gpt2Config>("gpt2"),
                                          family<Llama, LlamaConfig>("llama")};
  return all;
}

const Family& family_of(const nlohmann::json& config, std::string_view source) {
  const nlohmann::json type =
      config.is_object() ? config.value("model_type", nlohmann::json("gpt2")) : nlohmann::json();
  for (const Family& one : families())
    if (type.is_string() && type.get_ref<const std::string&>() == one.model_type) return one;
  throw_error(ErrorCode::invalid_argument,
              "{} has model_type {}, which is no causal language model that Shoal knows; {} are",
              source, type.dump(), fmt::format("{}", fmt::join(causal_lm_types(), " and ")));
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
  return family_of(config, source).complete(config, source);
}

LossOutput CausalLm::forward(Context& context, const Tensor& ids, const Tensor& targets,
                             const LossOptions& options, const Tensor& key_mask) {
  context.begin_forward();
  const ChainInput input{ids, targets, key_mask, options};
  return forward_head(
      context,
      forward_units(context, *this, 0, units() - 1, {}, input, gradient_checkpointing_ ? 1 : 0),
      input);
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
    layer.entries = context.empty({batch, capacity, 2 * key_width()}, dtype);
  return cache;
}

}  // namespace shoal::nn
