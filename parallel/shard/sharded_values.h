// The parameters' values and f32 masters: what every rank holds, what its shard is, and how the
// whole comes back.
//
// Whole buckets (levels 1 and 2; level 3 for small parameters) lie in one flat memory in the
// compute dtype, so that gathering them is in place. A unit's bucket (level 3) persists as this
// rank's part only: gather() gives its parameters' storage bytes, release() takes them; reading a
// value between throws. Gathers are all_gathers of the shard group: every rank makes the same calls
// in the same order. One thread.
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
  // memory is given back one by one. Masters are f32, MemoryTag::optimizer; with compute f32 a
  // rank's part of the values is its master. Values are MemoryTag::parameters, in symmetric memory.
  // `rounding_seed`, of bf16: no masters, as nn::MasterWeights; a rank's part of the values is its
  // own. `masters`: where they lie, if not in `memory`: pinned memory of the host, which a device's
  // kernels read and write in place. Frozen parameters become whole copies in the compute dtype.
  // All arguments outlive the object; the shard group outlives the parameters' values too, which
  // lie in its memory. A parameter that has no value yet gets one from `fill` just before it is cut
  // (delayed parameter initialisation: nn::materialize(context, {&parameter}, DType::f32)): with
  // level 3 no rank ever holds more than its shard and one parameter.
  using Fill = std::function<void(nn::Parameter&)>;
  ShardedValues(const ShardLayout& layout, DType compute, kernels::Kernels& kernels,
                MemoryResource& memory, const Fill& fill = {},
                std::optional<std::uint64_t> rounding_seed = {}, MemoryResource* masters = nullptr);
  ~ShardedValues();  // waits for gathers; where an exception ends the step it aborts the group
  ShardedValues(const ShardedValues&) = delete;
  ShardedValues& operator=(const ShardedValues&) = delete;

  const ShardLayout& layout() const { return layout_; }
  // For an Optimizer: one for each of layout().segments, in that order.
  std::vector<nn::Segment> segments(const ShardedGradients* gradients) const;
  // This rank's masters, or where there are none its values, in the same order: what a checkpoint
  // holds and loads into.
  std::vector<nn::NamedTensor> masters() const;
  // After somebody wrote into masters(): rounds them into the values and gathers. Waits.
  void refresh();

  // After this rank's parts have been updated: starts to gather whole buckets, in the order in
  // which a forward asks for them; units' buckets are dropped (none may be pinned).
  void publish();
  // Until its value may be read by the host's kernels, or by what is queued on a device's from now
  // on; so wait() and wait_for_bucket(). Level 3: gathers.
  void wait_for(const nn::Parameter& parameter);
  void wait();  // for whatever was started
  // Of a step that was to be captured and could not be, so that no gather of it has begun: forgets
  // them. Nothing is pinned afterwards.
  void abandon_step();

  // --- buckets, for ShardedUnits ---------------------------------------------------------------
  bool is_unit_bucket(int bucket) const { return bucket < layout_.plan.unit_buckets; }
  void gather(int bucket);  // starts; nothing where it is present, on its way, or whole
  void wait_for_bucket(int bucket);
  // A pinned bucket is in use: release() is refused.
  void pin(int bucket) { ++at(bucket).pins; }
  void unpin(int bucket) noexcept { --at(bucket).pins; }
  int pins(int bucket) const { return buckets_[static_cast<std::size_t>(bucket)].pins; }
  bool present(int bucket) const;                       // or on its way
  void release(int bucket);                             // waits for a gather that is on its way
  std::int64_t live_elements() const { return live_; }  // of units' buckets that are present

 private:
  struct Bucket {
    std::shared_ptr<Storage> storage;  // a unit's
    collectives::WorkPtr work;         // a gather on its way
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
  Tensor whole_;       // [flat.count - unit_count()], every whole bucket
  Tensor unit_shard_;  // [unit_count() / shards], this rank's parts of units' buckets
  Tensor masters_;     // f32 [shard_count()]; undefined with compute f32
  std::vector<Bucket> buckets_;
  std::int64_t live_ = 0;
};

}  // namespace shoal::parallel
