// What is trained: a module tree, its loss, and its files.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "shoal/nn/autograd/context.h"
#include "shoal/nn/layers/module.h"
#include "shoal/train/data/batch.h"

namespace shoal {

// Not thread-safe, except where said. A task knows nothing of ranks.
class Task {
 public:
  virtual ~Task() = default;

  virtual nn::Module& module() = 0;
  virtual std::string describe() const = 0;  // "GPT-2: 12 layers, width 768, ..."

  // Positions of `batch` that have a loss: counted before the forward, because the ranks agree on
  // the global number before backward (decision 11).
  virtual std::int64_t count_targets(const Batch& batch) const = 0;
  // Forward: loss_scale × sum over valid targets. Bad ids: invalid_argument with the numbers.
  virtual nn::LossOutput loss(nn::Context& context, const Batch& batch, float loss_scale) = 0;

  // Values for the module's parameters from a Hugging Face directory; returns when all are set.
  // not_found and invalid_argument name the tensor.
  using Assign = std::function<void(nn::Parameter&, ConstView f32_or_other)>;
  virtual void load(const std::string& directory, const Assign& assign) const = 0;

  // Writes a Hugging Face directory's files into `directory`, which exists. `value` gives each
  // parameter's numbers in f32 or the dtype they are kept in. May run on the checkpoint writer's
  // thread while training goes on: it reads nothing of the module but names and shapes.
  using ValueOf = std::function<ConstView(const nn::Parameter&)>;
  virtual void save(const std::string& directory, const ValueOf& value) const = 0;
};

}  // namespace shoal
