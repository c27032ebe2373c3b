// Biases of attention by relative position (Raffel et al., "Exploring the Limits of Transfer
// Learning with a Unified Text-to-Text Transformer", 2020). All layers of a stack share one table.
#pragma once

#include <memory>
#include <vector>

#include "shoal/nn/layers/kinds.h"

namespace shoal::nn {

struct RelativePositionsConfig {
  std::int64_t heads = 1;
  // Half of the buckets hold one distance each. The others widen logarithmically up to
  // max_distance; the last one holds everything beyond.
  std::int64_t buckets = 32, max_distance = 128;
  bool bidirectional = true;  // half of the buckets are for later keys; false: there are none
  float std = 0.02f;
};

// weight [buckets, heads]
class RelativePositions final : public Module {
 public:
  explicit RelativePositions(const RelativePositionsConfig& config);
  std::string_view kind() const override { return "RelativePositions"; }
  const std::shared_ptr<Parameter>& weight() const { return weight_; }
  // AttentionOptions::relative_bias, where the last query has the last key's position. It is as
  // small as an embedding of queries + keys positions, so each layer makes its own.
  Value bias(Context& context, std::int64_t queries, std::int64_t keys);
  // The bucket of a key's position minus the query's.
  std::int64_t bucket(std::int64_t distance) const;

 private:
  // Buckets of the distances (-positions, positions), i32, on the kernels' device.
  const Tensor& table(const Context& context, std::int64_t positions);

  RelativePositionsConfig config_;
  std::shared_ptr<Parameter> weight_;
  // As in RotaryTable: own memory, and earlier tables stay for captured steps.
  std::shared_ptr<MemoryResource> memory_;
  std::vector<Tensor> tables_;
};

}  // namespace shoal::nn
