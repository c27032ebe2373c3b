#include "shoal/nn/models/llama/model.h"

#include <nlohmann/json.hpp>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/io/files.h"

namespace shoal::nn {
namespace {

std::unique_ptr<HeadLoss> make_head(const LlamaConfig& config, std::shared_ptr<Parameter> table) {
  if (config.tie_word_embeddings) return std::make_unique<LmHead>(std::move(table));
  return std::make_unique<LmHead>(config.vocab_size, config.hidden_size,
                                  static_cast<float>(config.initializer_range));
}

}  // namespace

Llama::Llama(const LlamaConfig& config)
    : trunk(*this, config),
      lm_head(*this, "lm_head", make_head(config, trunk.embed_tokens->weight())) {
  name_tree();
}

std::vector<Module*> Llama::unit_modules(int unit) const {
  return trunk.unit_modules(unit, *lm_head);
}

ResidualStream Llama::forward_unit(Context& context, int unit, ResidualStream stream,
                                   const ChainInput& input) {
  return trunk.forward_unit(context, unit, std::move(stream), input);
}

LossOutput Llama::forward_head(Context& context, ResidualStream stream, const ChainInput& input) {
  const Value hidden = stream.norm(context, *trunk.norm);
  return lm_head->forward(context, hidden, input.targets, input.loss);
}

Tensor Llama::head_logits(Context& context, ResidualStream stream, const ChainInput& /*input*/) {
  return lm_head->logits(context, stream.norm(context, *trunk.norm).tensor);
}

Value Llama::hidden_states(Context& context, const Tensor& ids, const Tensor& key_mask,
                           DecoderCache* cache) {
  SHOAL_CHECK(!cache || cache->size() == trunk.layers.size(), "{} caches for {} blocks",
              cache ? cache->size() : 0, trunk.layers.size());
  ResidualStream stream{trunk.embed(context, ids), std::nullopt, {}};
  for (std::size_t layer = 0; layer < trunk.layers.size(); ++layer)
    stream = trunk.layers[layer]->forward(context, std::move(stream),
                                          {key_mask, cache ? &(*cache)[layer] : nullptr});
  return stream.norm(context, *trunk.norm);
}

LoadReport Llama::load(const std::string& directory, const AssignParameter& assign) {
  return trunk.load(*this, directory, assign, false);
}

std::vector<std::string> Llama::save_config(const std::string& directory, DType dtype) const {
  nlohmann::ordered_json generation{{"_from_model_config", true}};
  if (config().bos_token_id) generation["bos_token_id"] = *config().bos_token_id;
  if (config().eos_token_id) generation["eos_token_id"] = *config().eos_token_id;
  if (config().pad_token_id) generation["pad_token_id"] = *config().pad_token_id;
  write_file_atomically(directory + "/config.json",
                        config().to_json(torch_name(dtype)).dump(2) + "\n");
  write_file_atomically(directory + "/generation_config.json", generation.dump(2) + "\n");
  return {"config.json", "generation_config.json"};
}

}  // namespace shoal::nn
