// Gathers a unit's parameters when it computes and drops them afterwards (ZeRO 3; FSDP, Zhao et
// al., VLDB 2023). At levels 1 and 2 it only waits for the last step's gathers.
//
// A unit's values are dropped when the next unit begins. So the last unit's forward and backward
// share one gather, as do a recomputation and the backward after it. While a unit computes, the
// next unit's values are gathered, up to a total of sdp_max_live_parameters whole elements.
#pragma once

#include <vector>

#include "shoal/nn/layers/chain.h"
#include "shoal/parallel/shard/sharded_values.h"

namespace shoal::parallel {

// The parameters that each unit of the whole chain reads, for make_shard_layout().
std::vector<std::vector<nn::Parameter*>> parameters_of_units(const nn::Chain& chain);

struct ShardedUnitsStatistics {
  std::int64_t gathers = 0;     // gathers of units' buckets
  std::int64_t prefetched = 0;  // gathers begun while another unit computed
  std::int64_t most_live_elements = 0;
};

class ShardedUnits final : public nn::UnitObserver {
 public:
  // For forward_units() on this chain. Both arguments must outlive the object; it must outlive the
  // tapes.
  ShardedUnits(const nn::Chain& chain, ShardedValues& values);

  void before_forward(int unit, int next) override { begin(unit, next); }
  void after_forward(int unit) noexcept override { end(unit); }
  void before_backward(int unit, int next) override { begin(unit, next); }
  void after_backward(int unit) noexcept override { end(unit); }
  // Drops values that no unit computes with, e.g. after an evaluation. A step's publish() does so
  // too.
  void drop_idle();
  const ShardedUnitsStatistics& statistics() const { return statistics_; }

 private:
  void begin(int unit, int next);
  void end(int unit) noexcept;
  void bring(int bucket);
  const std::vector<int>& buckets(int unit) const {
    return buckets_[static_cast<std::size_t>(unit)];
  }

  ShardedValues& values_;
  std::vector<std::vector<int>> buckets_;  // by unit: all buckets that hold its parameters
  ShardedUnitsStatistics statistics_;
};

}  // namespace shoal::parallel
