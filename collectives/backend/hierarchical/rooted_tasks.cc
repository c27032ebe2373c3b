// broadcast and reduce over hosts. A byte crosses each host's network links once, not once per
// rank. Works slice by slice, so that the phases of neighbouring slices overlap. The ranks of a
// host share the rails' traffic equally.
//   broadcast: in the root's host by shared memory; each of its ranks sends a shard on its rail;
//              the other hosts gather the shards.
//   reduce:    reduce_scatter in every host; each shard is reduced on its rail to the root's host;
//              there the root collects the shards.
#include <algorithm>

#include "shoal/collectives/algorithm/shard.h"
#include "shoal/collectives/backend/hierarchical/node_task.h"
#include "shoal/collectives/backend/partial_sums.h"

namespace shoal::collectives::hierarchical {
namespace {

constexpr int kRootedOnRail = 3;  // slices on a rail at a time, over all calls

// A slice's shards by local rank. Ranks without a rail have none. All hosts cut alike.
struct Shares {
  std::vector<std::int64_t> counts;
  std::int64_t begin = 0, own = 0;  // this rank's shard in the slice
};
Shares share(const Levels& levels, std::int64_t count, std::int64_t element) {
  const int rails = count * element <= kOneRailBytes ? 1 : levels.placement.rails();
  Shares shares;
  shares.counts.assign(static_cast<std::size_t>(levels.local_size()), 0);
  for (int i = 0; i < rails; ++i) {
    const algorithm::Range range = algorithm::shard(count, rails, i, kGranule);
    shares.counts[static_cast<std::size_t>(i)] = range.size();
    if (i == levels.local_rank()) shares.begin = range.begin;
  }
  if (levels.local_rank() >= rails) shares.begin = count;
  shares.own = shares.counts[static_cast<std::size_t>(levels.local_rank())];
  return shares;
}

class RootedTask : public NodeTask {
 public:
  RootedTask(std::shared_ptr<Levels> levels, const Call& call, std::int64_t element,
             std::int64_t slice)
      : NodeTask(std::move(levels), call),
        element_(static_cast<std::int64_t>(size_of(call_.dtype))),
        slices_(cut(call_.count, element, slice, 8, 8 << 20)),
        rails_(static_cast<std::size_t>(slices_.number())) {
    for (std::int64_t s = 0; s < slices_.number(); ++s)
      shares_.push_back(share(*levels_, slices_.at(s).size(), element));
  }

 protected:
  int slices() const { return static_cast<int>(slices_.number()); }
  int root_node() const { return levels_->placement.node_of(call_.root); }
  bool at_root() const { return levels_->node_number() == root_node(); }
  int root_local() const { return levels_->placement.local_rank(call_.root); }
  const Shares& shares(int slice) const { return shares_[static_cast<std::size_t>(slice)]; }

  // Call at the end of each step of the reduce lane, on every rank, so that all ranks number the
  // rail operations in the same order.
  void submit_rail(int slice, Call call) {
    Rail& rail = rails_[static_cast<std::size_t>(slice)];
    rail.submitted = true;
    if (shares(slice).own == 0) return;  // a rank without a rail does not wait
    call.count = shares(slice).own;
    call.root = root_node();
    call.outer = outer();
    rail.operation = levels_->rail->submit_locked(std::move(call));
    ++levels_->on_rail;
  }
  bool room_on_rail() const { return levels_->on_rail < kRootedOnRail; }
  bool railed(int slice) const { return slice < railed_; }

  bool advance_rail() final {
    bool moved = false;
    while (railed_ < slices()) {
      const Rail& rail = rails_[static_cast<std::size_t>(railed_)];
      if (!rail.submitted || (rail.operation && !rail.operation->done())) break;
      if (rail.operation) --levels_->on_rail;
      came(railed_++);
      moved = true;
    }
    return moved;
  }
  bool rail_over() const final { return railed_ == slices(); }
  virtual void came(int slice) = 0;  // called when the rail has finished the slice
  const net::NetOperation* awaited() const final {
    for (std::size_t slice = static_cast<std::size_t>(railed_); slice < rails_.size(); ++slice)
      if (rails_[slice].operation) return rails_[slice].operation.get();
    return nullptr;
  }

  const std::int64_t element_;
  const algorithm::Slices slices_;

 private:
  struct Rail {
    bool submitted = false;
    std::shared_ptr<net::NetOperation> operation;
  };
  std::vector<Shares> shares_;  // by slice, as rails_
  std::vector<Rail> rails_;
  int railed_ = 0;  // slices whose rail is known to be done
};

class BroadcastTask final : public RootedTask {
 public:
  BroadcastTask(std::shared_ptr<Levels> levels, const Call& call, std::int64_t slice)
      : RootedTask(std::move(levels), call, static_cast<std::int64_t>(size_of(call.dtype)), slice) {
  }

 private:
  int node_steps(Lane lane) const override {
    return lane == Lane::reduce || !at_root() ? slices() : 0;
  }
  bool may_start(Lane lane, int slice) const override {
    return lane == Lane::reduce ? room_on_rail() : railed(slice);
  }
  WorkPtr start(Lane lane, int slice) override {
    if (lane == Lane::gather)
      return node(lane).all_gather_v(at(slice, shares(slice).begin), at(slice, 0),
                                     shares(slice).counts, call_.dtype, Stream{});
    if (!at_root()) return nullptr;
    return node(lane).broadcast(at(slice, 0), slices_.at(slice).size(), call_.dtype, root_local(),
                                Stream{});
  }
  void ended(Lane lane, int slice) override {
    if (lane == Lane::gather) return;
    Call call;
    call.operation = Operation::broadcast;
    call.recv = at(slice, shares(slice).begin);
    call.send = call.recv;
    call.dtype = call_.dtype;
    submit_rail(slice, std::move(call));
  }
  void came(int) override {}

  std::byte* at(int slice, std::int64_t offset) const {
    return static_cast<std::byte*>(call_.recv) + (slices_.at(slice).begin + offset) * element_;
  }
};

class ReduceTask final : public RootedTask {
 public:
  ReduceTask(std::shared_ptr<Levels> levels, const Call& call, bool wide, std::int64_t slice)
      : RootedTask(std::move(levels), call,
                   wide ? 4 : static_cast<std::int64_t>(size_of(call.dtype)), slice),
        wide_(wide),
        dtype_(wide ? DType::f32 : call.dtype),
        parts_(static_cast<std::size_t>(slices())) {}

 private:
  struct Part {
    Buffer wide;  // the slice in f32
    Buffer sum;   // this rank's shard in dtype_, unless it lies in `wide`
  };

  int node_steps(Lane lane) const override {
    return lane == Lane::reduce || at_root() ? slices() : 0;
  }
  bool may_start(Lane lane, int slice) const override {
    return lane == Lane::reduce ? room_on_rail() : railed(slice);
  }
  WorkPtr start(Lane lane, int slice) override {
    if (lane == Lane::gather) return take(slice);
    Part& part = parts_[static_cast<std::size_t>(slice)];
    const std::int64_t count = slices_.at(slice).size();
    const void* from = send(slice);
    Reduction op = call_.op == ReduceOp::avg ? Reduction(ReduceOp::sum) : Reduction(call_.op);
    op.factor = call_.factor;
    if (wide_) {
      part.wide = scratch(count);
      auto* const values = static_cast<float*>(part.wide.data());
      widen(call_.dtype, from, values, count);
      if (op.op == ReduceOp::premultiplied_sum) {
        levels_->reduction->scale(DType::f32, values, op.factor, count, Stream{});
        op = ReduceOp::sum;
      }
      from = values;
    } else {
      part.sum = scratch(shares(slice).own);
    }
    return node(lane).reduce_scatter_v(from, sum_of(slice), shares(slice).counts, dtype_, op,
                                       Stream{});
  }
  void ended(Lane lane, int slice) override {
    Part& part = parts_[static_cast<std::size_t>(slice)];
    if (lane == Lane::gather) {
      part.sum.reset();
      part.wide.reset();
      return;
    }
    Call call;
    call.operation = Operation::reduce;
    call.send = sum_of(slice);
    call.recv = at_root() ? sum_of(slice) : nullptr;
    call.dtype = dtype_;
    call.op = call_.op == ReduceOp::avg || call_.op == ReduceOp::premultiplied_sum ? ReduceOp::sum
                                                                                   : call_.op;
    submit_rail(slice, std::move(call));
  }

  // On the root's host, the shard is now the complete sum.
  void came(int slice) override {
    Part& part = parts_[static_cast<std::size_t>(slice)];
    if (!at_root()) {
      part.sum.reset();
      part.wide.reset();
      return;
    }
    const std::int64_t count = shares(slice).own;
    if (count == 0) return;
    void* const sum = sum_of(slice);
    if (call_.op == ReduceOp::avg)
      levels_->reduction->scale(dtype_, sum, 1.0 / levels_->size(), count, Stream{});
    if (!wide_) return;
    part.sum = Buffer(node(Lane::gather).memory_resource(),
                      static_cast<std::size_t>(count * element_), MemoryTag::communication);
    narrow(call_.dtype, static_cast<const float*>(sum), part.sum.data(), count);
  }
  WorkPtr take(int slice) {
    const auto size = static_cast<std::size_t>(levels_->local_size());
    const Part& part = parts_[static_cast<std::size_t>(slice)];
    const bool takes = levels_->rank == call_.root;
    std::vector<std::int64_t> out(size, 0);
    out[static_cast<std::size_t>(root_local())] = shares(slice).own;
    const std::vector<std::int64_t> in =
        takes ? shares(slice).counts : std::vector<std::int64_t>(size, 0);
    void* const to =
        takes ? static_cast<std::byte*>(call_.recv) + slices_.at(slice).begin * element_ : nullptr;
    return node(Lane::gather).all_to_all_v(part.sum.data(), out, to, in, call_.dtype, Stream{});
  }

  const std::byte* send(int slice) const {
    return static_cast<const std::byte*>(call_.send) + slices_.at(slice).begin * element_;
  }
  // The memory in which this rank's shard of the slice is summed, in dtype_.
  void* sum_of(int slice) {
    Part& part = parts_[static_cast<std::size_t>(slice)];
    return wide_ ? static_cast<float*>(part.wide.data()) + shares(slice).begin : part.sum.data();
  }
  Buffer scratch(std::int64_t count) const {
    const auto bytes = static_cast<std::size_t>(count) * size_of(dtype_);
    return bytes == 0
               ? Buffer()
               : Buffer(node(Lane::reduce).memory_resource(), bytes, MemoryTag::communication);
  }

  const bool wide_;
  const DType dtype_;        // of partial sums
  std::vector<Part> parts_;  // by slice
};

}  // namespace

std::shared_ptr<net::Task> make_broadcast_task(std::shared_ptr<Levels> levels, const Call& call,
                                               std::int64_t slice) {
  return std::make_shared<BroadcastTask>(std::move(levels), call, slice);
}

std::shared_ptr<net::Task> make_reduce_task(std::shared_ptr<Levels> levels, const Call& call,
                                            std::int64_t slice) {
  const bool wide = call.dtype == DType::bf16 || call.dtype == DType::f16;
  return std::make_shared<ReduceTask>(std::move(levels), call, wide, slice);
}

}  // namespace shoal::collectives::hierarchical
