// What is trained: a module tree, its loss, and its files.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "shoal/nn/layers/kinds.h"
#include "shoal/train/data/batch.h"

namespace shoal {

// Not thread-safe, except where said. A task knows nothing of ranks.
class Task {
 public:
  virtual ~Task() = default;

  virtual nn::Module& module() = 0;
  virtual std::string describe() const = 0;  // "gpt2, 12 layers of width 768, ..."

  // Positions of `batch` that have a loss: counted before the forward, because the ranks agree on
  // the global number before backward (decision 11).
  virtual std::int64_t count_targets(const Batch& batch) const = 0;
  // Forward: options.loss_scale × sum over valid targets. Bad ids: invalid_argument with the
  // numbers.
  virtual nn::LossOutput loss(nn::Context& context, const Batch& batch,
                              const nn::LossOptions& options) = 0;

  // Calls `assign` with each parameter's numbers from a Hugging Face directory, in the floating
  // dtype of its file. Tensors that are missing or of another shape: not_found, invalid_argument,
  // with their names, before anything is assigned.
  using Assign = std::function<void(nn::Parameter&, const ConstView&)>;
  virtual void load(const std::string& directory, const Assign& assign) = 0;

  // Writes a Hugging Face directory's files into `directory`, which exists; `value` gives each
  // parameter's numbers. May run on the checkpoint writer's thread while training goes on: it
  // reads nothing of the module but names and shapes.
  using ValueOf = std::function<ConstView(const nn::Parameter&)>;
  virtual void save(const std::string& directory, const ValueOf& value) const = 0;
};

}  // namespace shoal
