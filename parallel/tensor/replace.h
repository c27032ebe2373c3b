// Turns a model built for one rank into this rank's part of a tensor-parallel model.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "shoal/nn/layers/module.h"
#include "shoal/parallel/tensor/tensor_parallel.h"

namespace shoal::parallel {

// Maps replaced parameters to their parts, for modules that share them (tied weights).
class ReplacedParameters {
 public:
  // Throws if `whole` was replaced before: the module that shares it should have used part_of().
  void add(std::shared_ptr<nn::Parameter> whole, std::shared_ptr<nn::Parameter> part);
  std::shared_ptr<nn::Parameter> part_of(const nn::Parameter& whole) const;  // null: none yet
  const std::vector<std::pair<std::shared_ptr<nn::Parameter>, std::shared_ptr<nn::Parameter>>>&
  all() const {
    return all_;
  }

 private:
  std::vector<std::pair<std::shared_ptr<nn::Parameter>, std::shared_ptr<nn::Parameter>>> all_;
};

// Returns the replacement of `original`, which may be moved into it, or null if only its children
// were changed (with column_parallel() and row_parallel()). Throws if shapes do not divide.
using TensorParallelMaker = std::function<std::unique_ptr<nn::Module>(
    std::unique_ptr<nn::Module>& original, const TensorParallel& group,
    ReplacedParameters& parameters)>;

// Maps Module::kind() to a maker. Users add their own modules with add(). Such a module must
// compute between enter() and leave() what the original computes. Its parameters are parts
// (Parameter::set_part), and it draws random numbers under GroupCoordinates.
class TensorParallelRegistry {
 public:
  // Makers for CausalSelfAttention, SelfAttention, GroupedSelfAttention, Mlp, GatedMlp,
  // FeedForward, Embedding and LmHead (tied or not); SampleHead is not split.
  static TensorParallelRegistry defaults();
  void add(const std::string& kind, TensorParallelMaker maker);  // replaces an earlier maker
  void remove(const std::string& kind);  // modules of this kind then stay unsplit
  const TensorParallelMaker* find(std::string_view kind) const;

 private:
  std::map<std::string, TensorParallelMaker, std::less<>> makers_;
};

// Call before materialize(), with equal arguments on every rank of the group. Changes nothing if tp
// has one rank. Throws if a shape does not divide, or if another module still uses a replaced
// parameter. Under `sequence` also throws if an attention, an embedding or a head would see only a
// part of the positions.
void apply_tensor_parallelism(
    nn::Module& root, const TensorParallel& group,
    const TensorParallelRegistry& registry = TensorParallelRegistry::defaults());

}  // namespace shoal::parallel
