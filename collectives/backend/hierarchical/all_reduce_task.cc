// reduce_scatter in the node, all_reduce of each shard on its rail, all_gather in the node. The
// task works slice by slice, so that phases of neighbouring slices overlap, also with the next
// call's.
#include <algorithm>

#include "shoal/collectives/algorithm/shard.h"
#include "shoal/collectives/backend/hierarchical/node_task.h"
#include "shoal/collectives/backend/partial_sums.h"

namespace shoal::collectives::hierarchical {
namespace {

// Slices on a rail at a time, over all calls: enough to keep the network busy, but few enough that
// earlier calls finish first.
constexpr int kOnRail = 6;

class AllReduceTask final : public NodeTask {
 public:
  AllReduceTask(std::shared_ptr<Levels> levels, Call call, std::int64_t slice)
      : NodeTask(std::move(levels), std::move(call)),
        element_(static_cast<std::int64_t>(size_of(call_.dtype))),
        wide_(call_.dtype == DType::bf16 || call_.dtype == DType::f16),
        slices_(cut(call_.count, wide_ ? 4 : element_, slice, 16, 4 << 20)),
        parts_(static_cast<std::size_t>(slices_.number())) {}

 private:
  struct Part {
    std::vector<std::int64_t> counts;  // shards by local rank
    std::int64_t begin = 0, own = 0;   // own shard: offset in the slice, length
    Buffer wide;                       // the slice in f32
    // This node's sum of this rank's shard. It has its own buffer: in the result's memory, the
    // rails could receive only after sending the sum, and their go-ahead would queue behind all
    // data in flight.
    Buffer node_sum;
    std::shared_ptr<net::NetOperation> rail;
    bool reduced = false, summed = false;
  };

  // Each slice is one step of either lane.
  int node_steps(Lane) const override { return static_cast<int>(parts_.size()); }

  bool may_start(Lane lane, int slice) const override {
    return lane == Lane::reduce ? levels_->on_rail < kOnRail
                                : parts_[static_cast<std::size_t>(slice)].summed;
  }

  WorkPtr start(Lane lane, int slice) override {
    Part& part = parts_[static_cast<std::size_t>(slice)];
    if (lane == Lane::gather)
      return node(lane).all_gather_v(recv(slice, part.begin), recv(slice, 0), part.counts,
                                     call_.dtype, Stream{});
    share(part, slices_.at(slice).size());
    if (part.own > 0) part.node_sum = scratch(part.own * (wide_ ? 4 : element_));
    const void* from = send(slice);
    if (wide_) from = widened(part, slice);
    return node(lane).reduce_scatter_v(from, part.node_sum.data(), part.counts, dtype(),
                                       node_reduction(), Stream{});
  }

  void ended(Lane lane, int slice) override {
    Part& part = parts_[static_cast<std::size_t>(slice)];
    if (lane == Lane::gather) {
      part.wide.reset();
      return;
    }
    part.reduced = true;
    if (part.own == 0) {
      part.summed = true;
      return;
    }
    Call call;
    call.operation = Operation::all_reduce;
    call.send = part.node_sum.data();
    call.recv = sum_of(slice, part);
    call.count = part.own;
    call.dtype = dtype();
    call.op = rail_reduction();
    call.outer = outer();
    part.rail = levels_->rail->submit_locked(std::move(call));
    ++levels_->on_rail;
  }

  bool advance_rail() override {
    bool moved = false;
    for (std::size_t i = first_unsummed_; i < parts_.size() && parts_[i].reduced; ++i) {
      Part& part = parts_[i];
      if (part.rail && part.rail->done()) {
        complete(static_cast<int>(i), part);
        moved = true;
      }
      if (i == first_unsummed_ && part.summed) ++first_unsummed_;
    }
    return moved;
  }
  bool rail_over() const override { return first_unsummed_ == parts_.size(); }
  const net::NetOperation* awaited() const override {
    for (std::size_t i = first_unsummed_; i < parts_.size(); ++i)
      if (parts_[i].rail) return parts_[i].rail.get();
    return nullptr;
  }

  // Averages and rounds the sum over all ranks once it has arrived.
  void complete(int slice, Part& part) {
    void* const sum = sum_of(slice, part);
    if (call_.op == ReduceOp::avg)
      levels_->reduction->scale(dtype(), sum, 1.0 / levels_->size(), part.own, Stream{});
    if (wide_)
      narrow(call_.dtype, static_cast<const float*>(sum), recv(slice, part.begin), part.own);
    part.rail.reset();
    part.node_sum.reset();
    part.summed = true;
    --levels_->on_rail;
  }

  DType dtype() const { return wide_ ? DType::f32 : call_.dtype; }  // of sums
  Buffer scratch(std::int64_t bytes) const {
    return Buffer(*levels_->scratch, static_cast<std::size_t>(bytes), MemoryTag::communication);
  }
  void* sum_of(int slice, const Part& part) const {  // own shard, over all ranks
    return wide_ ? static_cast<void*>(static_cast<float*>(part.wide.data()) + part.begin)
                 : recv(slice, part.begin);
  }

  void share(Part& part, std::int64_t count) const {
    const int rails =
        count * (wide_ ? 4 : element_) <= kOneRailBytes ? 1 : levels_->placement.rails();
    part.counts.assign(static_cast<std::size_t>(levels_->local_size()), 0);
    for (int i = 0; i < rails; ++i) {
      const algorithm::Range range = algorithm::shard(count, rails, i, kGranule);
      part.counts[static_cast<std::size_t>(i)] = range.size();
      if (i == levels_->local_rank()) part.begin = range.begin;
    }
    if (levels_->local_rank() >= rails) part.begin = count;
    part.own = part.counts[static_cast<std::size_t>(levels_->local_rank())];
  }

  // 16-bit floats are summed in f32 over all levels.
  float* widened(Part& part, int slice) {
    const std::int64_t count = slices_.at(slice).size();
    part.wide = scratch(count * 4);
    auto* const values = static_cast<float*>(part.wide.data());
    widen(call_.dtype, send(slice), values, count);
    if (call_.op == ReduceOp::premultiplied_sum)
      levels_->reduction->scale(DType::f32, values, call_.factor, count, Stream{});
    return values;
  }

  Reduction node_reduction() const {
    if (call_.op == ReduceOp::avg) return ReduceOp::sum;
    if (call_.op != ReduceOp::premultiplied_sum) return call_.op;
    return wide_ ? Reduction(ReduceOp::sum) : Reduction::premultiplied_sum(call_.factor);
  }
  ReduceOp rail_reduction() const {
    return call_.op == ReduceOp::avg || call_.op == ReduceOp::premultiplied_sum ? ReduceOp::sum
                                                                                : call_.op;
  }

  const std::byte* send(int slice) const {
    return static_cast<const std::byte*>(call_.send) + slices_.at(slice).begin * element_;
  }
  std::byte* recv(int slice, std::int64_t offset) const {
    return static_cast<std::byte*>(call_.recv) + (slices_.at(slice).begin + offset) * element_;
  }

  const std::int64_t element_;
  const bool wide_;
  const algorithm::Slices slices_;
  std::vector<Part> parts_;  // by slice
  std::size_t first_unsummed_ = 0;
};

}  // namespace

std::shared_ptr<net::Task> make_all_reduce_task(std::shared_ptr<Levels> levels, Call call,
                                                std::int64_t slice) {
  return std::make_shared<AllReduceTask>(std::move(levels), std::move(call), slice);
}

}  // namespace shoal::collectives::hierarchical
