#include "ddp_models.h"

#include <fmt/format.h>

#include "shoal/nn/models/causal_lm.h"
#include "shoal/nn/models/gpt2/presets.h"
#include "shoal/runtime/base/error.h"

namespace shoal::bench {
namespace {

DdpModel gpt2() {
  auto model = std::make_shared<nn::CausalLm>(nn::gpt2_preset("gpt2"));
  DdpModel made{"gpt2", {}, model->parameters(), model};
  const auto with_prefix = [&](const std::string& prefix) {
    DdpModel::Layer layer{prefix, {}};
    for (nn::Parameter* parameter : made.parameters)
      if (parameter->name().starts_with("transformer." + prefix))
        layer.parameters.push_back(parameter);
    return layer;
  };
  made.layers.push_back(with_prefix("ln_f"));  // includes the head, which shares wte's table
  for (std::int64_t layer = model->config().num_hidden_layers; layer-- > 0;)
    made.layers.push_back(with_prefix(fmt::format("h.{}.", layer)));
  DdpModel::Layer embedding = with_prefix("wte");
  embedding.name = "embedding";
  for (nn::Parameter* position : with_prefix("wpe").parameters)
    embedding.parameters.push_back(position);
  made.layers.push_back(std::move(embedding));
  return made;
}

DdpModel albert() {
  constexpr std::int64_t kVocabulary = 30000, kPositions = 512, kEmbedding = 128, kHidden = 768;
  constexpr std::int64_t kInner = 3072;
  constexpr int kLayers = 12;
  auto owned = std::make_shared<std::vector<std::unique_ptr<nn::Parameter>>>();
  DdpModel made{"albert", {}, {}, owned};
  const auto add = [&](DdpModel::Layer& layer, std::string name, Shape shape) {
    owned->push_back(std::make_unique<nn::Parameter>(layer.name + "." + std::move(name), shape,
                                                     nn::Initializer{}));
    layer.parameters.push_back(owned->back().get());
    made.parameters.push_back(owned->back().get());
  };
  const auto linear = [&](DdpModel::Layer& layer, const std::string& name, std::int64_t in,
                          std::int64_t out) {
    add(layer, name + ".weight", {in, out});
    add(layer, name + ".bias", {out});
  };
  const auto norm = [&](DdpModel::Layer& layer, const std::string& name, std::int64_t size) {
    add(layer, name + ".weight", {size});
    add(layer, name + ".bias", {size});
  };
  DdpModel::Layer embeddings{"embeddings", {}}, shared{"layer", {}}, pooler{"pooler", {}};
  add(embeddings, "word", {kVocabulary, kEmbedding});
  add(embeddings, "position", {kPositions, kEmbedding});
  add(embeddings, "token_type", {2, kEmbedding});
  norm(embeddings, "norm", kEmbedding);
  linear(embeddings, "mapping", kEmbedding, kHidden);
  for (const char* name : {"query", "key", "value", "dense"})
    linear(shared, name, kHidden, kHidden);
  norm(shared, "attention_norm", kHidden);
  linear(shared, "ffn", kHidden, kInner);
  linear(shared, "ffn_output", kInner, kHidden);
  norm(shared, "output_norm", kHidden);
  linear(pooler, "dense", kHidden, kHidden);
  made.layers.push_back(std::move(pooler));
  for (int use = kLayers - 1; use > 0; --use)
    made.layers.push_back({fmt::format("layer, use {}", use), {}});
  made.layers.push_back(std::move(shared));
  made.layers.push_back(std::move(embeddings));
  return made;
}

}  // namespace

DdpModel make_ddp_model(std::string_view name) {
  if (name == "gpt2") return gpt2();
  if (name == "albert") return albert();
  throw Error(ErrorCode::invalid_argument, fmt::format("there is no model '{}'", name),
              "choose gpt2 or albert");
}

}  // namespace shoal::bench
