// A trainable task: a module tree, its loss, and its files.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

#include "shoal/nn/layers/chain.h"
#include "shoal/nn/models/huggingface.h"
#include "shoal/train/data/batch.h"

namespace shoal {

namespace nn {
class CausalLm;
class EncoderDecoder;
}  // namespace nn

// Not thread-safe unless stated. A task does not depend on ranks.
class Task {
 public:
  virtual ~Task() = default;

  virtual nn::Module& module() = 0;
  // The module as a chain of units, which pipelines and sharding need; null: it is no chain.
  virtual nn::Chain* chain() { return nullptr; }
  // The model that generates text for a batch's input (nn/models/encoder_decoder/generate.h); null:
  // the task has scores.
  virtual nn::EncoderDecoder* generator() { return nullptr; }
  // The model that continues prompts (nn/models/generate.h); null: the task continues none.
  virtual nn::CausalLm* causal_lm() { return nullptr; }
  virtual std::string describe() const = 0;  // "gpt2, 12 layers of width 768, ..."
  // The fields of config.json that the model knows, with their values. Null: not known, so a
  // resumed run compares only tensors.
  virtual nlohmann::json configuration() const;
  // The same for another config.json of this kind of model; `source` names it in messages.
  virtual nlohmann::json configuration_of(const nlohmann::json& config,
                                          std::string_view source) const;
  virtual std::int64_t vocabulary() const = 0;
  virtual std::int64_t positions() const = 0;  // length limit of a sample
  // True if exp(loss) is a perplexity.
  virtual bool predicts_tokens() const { return true; }

  // Positions of `batch` that have a loss. Counted before the forward, because the ranks agree on
  // the global number before backward (decision 11).
  virtual std::int64_t count_targets(const Batch& batch) const = 0;
  // The model's input for a batch, without its LossOptions. `memory` is host memory. Bad ids throw
  // invalid_argument with the numbers.
  virtual nn::ChainInput chain_input(const Batch& batch, MemoryResource& memory) const = 0;
  // Labels that mean "no target", for `rows` rows of `length` positions.
  virtual Tensor no_targets(std::int64_t rows, std::int64_t length, MemoryResource& memory) const;
  // Runs the forward on chain_input() or a copy of it in the kernels' memory. The loss is
  // loss_scale × sum over valid targets.
  virtual nn::LossOutput loss(nn::Context& context, const nn::ChainInput& input) = 0;

  // Calls `assign` with the whole value of each parameter from a Hugging Face directory, in the
  // floating dtype of its file. Before it assigns anything, it throws not_found or invalid_argument
  // with the names of tensors that are missing or have another shape. A head's tensors may be
  // missing: those parameters keep their values. Returns the missing tensors and those that the
  // model does not use.
  using Assign = std::function<void(nn::Parameter&, const ConstView&)>;
  virtual nn::LoadReport load(const std::string& directory, const Assign& assign) = 0;
  // Makes save() also write the directory's other files (generation_config.json) unchanged. load()
  // implies this.
  virtual void keep_files_of(const std::string& /*directory*/) {}

  // Writes the files of a Hugging Face directory into `directory`, which must exist. `value`
  // returns a parameter's whole value, which must stay valid until the next call of `value`. May
  // run on the checkpoint writer's thread during training: it reads only names and shapes from the
  // module.
  using ValueOf = std::function<ConstView(const nn::Parameter&)>;
  virtual void save(const std::string& directory, const ValueOf& value) const = 0;
  // Writes the same files as save() for f32, but without the weights. For a checkpoint in parts.
  virtual void save_setup(const std::string& directory) const = 0;
};

}  // namespace shoal
