// A model built for one rank becomes this rank's part of a tensor-parallel one.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "shoal/nn/layers/module.h"
#include "shoal/parallel/tensor/tensor_parallel.h"

namespace shoal::parallel {

// Which part took the place of a parameter that modules may share (tied weights).
class ReplacedParameters {
 public:
  // Throws where `whole` was replaced before: then its sharer ought to have taken part_of() it.
  void add(std::shared_ptr<nn::Parameter> whole, std::shared_ptr<nn::Parameter> part);
  std::shared_ptr<nn::Parameter> part_of(const nn::Parameter& whole) const;  // null: none yet
  const std::vector<std::pair<std::shared_ptr<nn::Parameter>, std::shared_ptr<nn::Parameter>>>&
  all() const {
    return all_;
  }

 private:
  std::vector<std::pair<std::shared_ptr<nn::Parameter>, std::shared_ptr<nn::Parameter>>> all_;
};

// Gives what takes `original`'s place, or null where it changed its children only
// (column_parallel() and row_parallel() are what they become). Throws where shapes do not divide.
using TensorParallelMaker = std::function<std::unique_ptr<nn::Module>(
    nn::Module& original, const TensorParallel& group, ReplacedParameters& parameters)>;

// Module::kind() -> maker. A user's module joins by add(); it must do between its own enter() and
// leave() what the original does, with parameters that are parts (Parameter::set_part), and draw
// random numbers under GroupCoordinates.
class TensorParallelRegistry {
 public:
  // CausalSelfAttention, SelfAttention, GroupedSelfAttention, Mlp, GatedMlp, Embedding and LmHead
  // (tied or not); SampleHead stays whole.
  static TensorParallelRegistry defaults();
  void add(const std::string& kind, TensorParallelMaker maker);  // replaces an earlier one
  void remove(const std::string& kind);                          // such modules stay as they are
  const TensorParallelMaker* find(std::string_view kind) const;

 private:
  std::map<std::string, TensorParallelMaker, std::less<>> makers_;
};

// Before materialize(), alike on every rank of the group. Nothing changes where tp has one rank.
// Throws where a shape does not divide, where a replaced parameter is still used by another module,
// and under `sequence` where an attention, an embedding or a head would see a part of the positions
// only.
void apply_tensor_parallelism(
    nn::Module& root, const TensorParallel& group,
    const TensorParallelRegistry& registry = TensorParallelRegistry::defaults());

}  // namespace shoal::parallel
