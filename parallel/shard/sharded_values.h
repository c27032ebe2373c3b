// Values and f32 masters of the parameters: stores this rank's shard and gathers whole values.
//
// Whole buckets (levels 1 and 2; level 3 for small parameters) lie in one flat memory in the
// compute dtype, so gathering them is in place. For a unit's bucket (level 3), only this rank's
// part is kept permanently. gather() allocates its parameters' storage and release() frees it;
// reading a value while released throws. Gathers are all_gathers of the shard group: every rank
// makes the same calls in the same order. One thread.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "shoal/kernels/kernels.h"
#include "shoal/nn/optim/optimizer.h"
#include "shoal/parallel/shard/shard_layout.h"
#include "shoal/parallel/shard/sharded_gradients.h"

namespace shoal::parallel {

class ShardedValues {
 public:
  // The layout's parameters hold f32 values (initialised or loaded), the same on every rank; their
  // memory is freed one by one. Values are MemoryTag::parameters, in symmetric memory. Masters are
  // f32, MemoryTag::optimizer; with compute f32 a rank's part of the values is its master. Frozen
  // parameters become whole copies in the compute dtype.
  //
  // `rounding_seed` (bf16): no masters, as in nn::MasterWeights; a rank updates its part of the
  // values. `masters`: pinned host memory for the masters, which device kernels read and write in
  // place; null: `memory`. All arguments must outlive the object. The shard group must also outlive
  // the parameters' values, which lie in its memory.
  //
  // If a parameter has no value yet, `fill` sets it just before it is sharded (delayed parameter
  // initialisation: nn::materialize(context, {&parameter}, DType::f32)). Then with level 3 no rank
  // ever holds more than its shard and one parameter.
  using Fill = std::function<void(nn::Parameter&)>;
  ShardedValues(const ShardLayout& layout, DType compute, kernels::Kernels& kernels,
                MemoryResource& memory, const Fill& fill = {},
                std::optional<std::uint64_t> rounding_seed = {}, MemoryResource* masters = nullptr);
  ~ShardedValues();  // waits for gathers; during unwinding it aborts the group
  ShardedValues(const ShardedValues&) = delete;
  ShardedValues& operator=(const ShardedValues&) = delete;

  const ShardLayout& layout() const { return layout_; }
  // For an Optimizer: one per entry of layout().segments, in that order.
  std::vector<nn::Segment> segments(const ShardedGradients* gradients) const;
  // For checkpoints: this rank's masters, or its values if there are none, in the same order.
  std::vector<nn::NamedTensor> masters() const;
  // Call after writing into masters(): rounds them into the values and gathers. Blocks.
  void refresh();

  // Call after this rank's parts were updated. Starts to gather whole buckets in the order in which
  // a forward needs them, and drops units' buckets (none may be pinned).
  void publish();
  // Waits until the host's kernels, or work queued later on the device, may read the parameter's
  // value. wait() and wait_for_bucket() wait likewise. Level 3: gathers.
  void wait_for(const nn::Parameter& parameter);
  void wait();  // waits for every started gather
  // Forgets a step whose capture failed: none of its gathers has begun. Nothing is pinned
  // afterwards.
  void abandon_step();

  // --- buckets, for ShardedUnits ---------------------------------------------------------------
  bool is_unit_bucket(int bucket) const { return bucket < layout_.plan.unit_buckets; }
  void gather(int bucket);  // starts a gather unless the bucket is present, being gathered or whole
  void wait_for_bucket(int bucket);
  // A pinned bucket is in use: release() is refused.
  void pin(int bucket) { ++at(bucket).pins; }
  void unpin(int bucket) noexcept { --at(bucket).pins; }
  int pins(int bucket) const { return buckets_[static_cast<std::size_t>(bucket)].pins; }
  bool present(int bucket) const;                       // or being gathered
  void release(int bucket);                             // waits for a running gather first
  std::int64_t live_elements() const { return live_; }  // in present unit buckets

 private:
  struct Bucket {
    std::shared_ptr<Storage> storage;  // null if the bucket is not a unit's
    collectives::WorkPtr work;         // running gather
    int pins = 0;
  };
  Bucket& at(int bucket) { return buckets_[static_cast<std::size_t>(bucket)]; }
  void take_over(int parameter, std::span<const ShardSegment* const> mine, const Fill& fill);
  Tensor part(int bucket) const;
  Tensor within_part(const ShardSegment& segment) const;
  Tensor master_of(const ShardSegment& segment) const;
  std::size_t bytes_of(int bucket) const;

  const ShardLayout& layout_;
  DType compute_;
  std::optional<std::uint64_t> rounding_seed_;
  kernels::Kernels& kernels_;
  Tensor whole_;       // [flat.count - unit_count()]: all whole buckets
  Tensor unit_shard_;  // [unit_count() / shards]: this rank's parts of units' buckets
  Tensor masters_;     // f32 [shard_count()]; undefined with compute f32
  std::vector<Bucket> buckets_;
  std::int64_t live_ = 0;
};

}  // namespace shoal::parallel
