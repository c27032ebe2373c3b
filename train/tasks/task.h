// What is trained: a module tree, its loss, and its files.
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

// Not thread-safe, except where said. A task knows nothing of ranks.
class Task {
 public:
  virtual ~Task() = default;

  virtual nn::Module& module() = 0;
  // The same as a chain of units, which pipelines and sharding need; null: it is none.
  virtual nn::Chain* chain() { return nullptr; }
  virtual std::string describe() const = 0;  // "gpt2, 12 layers of width 768, ..."
  // The fields of config.json that the model knows, each with its value; null: they are not known,
  // and runs that go on from a checkpoint compare tensors only.
  virtual nlohmann::json configuration() const;
  // The same of another config.json of this kind of model; `source` names it in messages.
  virtual nlohmann::json configuration_of(const nlohmann::json& config,
                                          std::string_view source) const;
  virtual std::int64_t vocabulary() const = 0;
  virtual std::int64_t positions() const = 0;  // of the longest sample
  // Whether exp(loss) is a perplexity.
  virtual bool predicts_tokens() const { return true; }

  // Positions of `batch` that have a loss: counted before the forward, because the ranks agree on
  // the global number before backward (decision 11).
  virtual std::int64_t count_targets(const Batch& batch) const = 0;
  // What the model is given of a batch, but for its LossOptions. `memory` is the host's. Bad ids:
  // invalid_argument with the numbers.
  virtual nn::ChainInput chain_input(const Batch& batch, MemoryResource& memory) const = 0;
  // Targets of so many rows that have none; `length` positions each.
  virtual Tensor no_targets(std::int64_t rows, std::int64_t length, MemoryResource& memory) const;
  // Forward of that, or of copies where the kernels are: loss_scale × sum over valid targets.
  virtual nn::LossOutput loss(nn::Context& context, const nn::ChainInput& input) = 0;

  // Calls `assign` with each parameter's numbers from a Hugging Face directory, whole, in the
  // floating dtype of its file. Tensors that are missing or of another shape: not_found,
  // invalid_argument, with their names, before anything is assigned; but a head's may be missing,
  // which keeps what it has. Returns which were, and which the model has no place for.
  using Assign = std::function<void(nn::Parameter&, const ConstView&)>;
  virtual nn::LoadReport load(const std::string& directory, const Assign& assign) = 0;
  // Has save() write what a Hugging Face directory has besides config.json and weights
  // (generation_config.json) as it is there. load() does so too.
  virtual void keep_files_of(const std::string& /*directory*/) {}

  // Writes a Hugging Face directory's files into `directory`, which exists; `value` gives each
  // parameter's numbers, whole, and is asked for one after the other: what it gives must stay until
  // it is asked again. May run on the checkpoint writer's thread while training goes on: it
  // reads nothing of the module but names and shapes.
  using ValueOf = std::function<ConstView(const nn::Parameter&)>;
  virtual void save(const std::string& directory, const ValueOf& value) const = 0;
  // Of these files, all but the weights (f32): what a checkpoint in parts has beside them.
  virtual void save_setup(const std::string& directory) const = 0;
};

}  // namespace shoal
