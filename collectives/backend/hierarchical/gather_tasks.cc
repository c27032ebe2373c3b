// all_gather and reduce_scatter over hosts, one other host's block at a time, so that the network
// brings the next while the node passes on (or sums up) the last. Every host sends and receives
// (nodes - 1) / nodes of the buffer, shared equally by its ranks.
#include <algorithm>

#include "shoal/collectives/backend/hierarchical/block_exchange.h"
#include "shoal/collectives/backend/hierarchical/node_task.h"
#include "shoal/collectives/backend/partial_sums.h"

namespace shoal::collectives {
namespace {

std::vector<std::int64_t> counts_of(const Call& call, int size) {
  if (has_counts(call.operation)) return call.counts;
  return std::vector<std::int64_t>(static_cast<std::size_t>(size), call.count);
}

class BlockTask : public NodeTask {
 public:
  // All of its steps on the node are of one lane.
  BlockTask(std::shared_ptr<Levels> levels, Call call, Lane lane)
      : NodeTask(std::move(levels), std::move(call)),
        lane_(lane),
        element_(static_cast<std::int64_t>(size_of(call_.dtype))),
        blocks_(levels_->placement, counts_of(call_, levels_->size())),
        exchanges_(static_cast<std::size_t>(nodes())) {}

 protected:
  int node_steps(Lane lane) const final { return lane == lane_ ? nodes() : 0; }
  Communicator& node() const { return NodeTask::node(lane_); }
  int nodes() const { return levels_->placement.nodes(); }
  int own() const { return levels_->node_number(); }
  int ahead(int distance) const { return (own() + distance) % nodes(); }
  int behind(int distance) const { return (own() - distance + nodes()) % nodes(); }
  std::vector<std::int64_t> shards_of(int node) const {
    std::vector<std::int64_t> counts;
    for (int local = 0; local < levels_->local_size(); ++local)
      counts.push_back(blocks_.shard_at(node, own(), local).size());
    return counts;
  }
  std::vector<std::int64_t> own_parts() const {
    std::vector<std::int64_t> counts;
    for (const int rank : levels_->placement.members(own()))
      counts.push_back(blocks_.part(rank).size());
    return counts;
  }

  // `distance` of the exchange; all ranks submit them in one order.
  void exchange(int distance, Program program, const void* input, void* output, DType dtype) {
    Call call;
    call.operation = call_.operation;
    call.send = input;
    call.recv = output;
    call.count = call_.count;
    call.dtype = dtype;
    call.counts = call_.counts;
    exchanges_[static_cast<std::size_t>(distance)] =
        levels_->exchanges[static_cast<std::size_t>(lane_)]->submit_program_locked(
            std::move(call), std::make_shared<const CompiledProgram>(std::move(program)),
            signature_of(call_));
    ++submitted_;
  }
  bool exchanged(int distance) const {
    const auto& operation = exchanges_[static_cast<std::size_t>(distance)];
    return operation && operation->done();
  }
  const NetOperation* awaited() const override {
    for (int distance = 1; distance < nodes(); ++distance) {
      const auto& operation = exchanges_[static_cast<std::size_t>(distance)];
      if (operation && !operation->done()) return operation.get();
    }
    return nullptr;
  }
  bool all_exchanged() const { return submitted_ == nodes() - 1 && !awaited(); }

  const Lane lane_;
  const std::int64_t element_;
  const Blocks blocks_;

 private:
  std::vector<std::shared_ptr<NetOperation>> exchanges_;  // by distance
  int submitted_ = 0;
};

class AllGatherTask final : public BlockTask {
 public:
  AllGatherTask(std::shared_ptr<Levels> levels, Call call)
      : BlockTask(std::move(levels), std::move(call), Lane::gather) {}

 private:
  bool may_start(Lane, int step) const override { return step == 0 || exchanged(step); }
  WorkPtr start(Lane, int step) override {
    if (step == 0)
      return node().all_gather_v(call_.send, at(blocks_.block(own()).begin), own_parts(),
                                 call_.dtype, Stream{});
    const int from = behind(step);
    const Range shard = blocks_.shard_at(from, own(), levels_->local_rank());
    return node().all_gather_v(at(shard.begin), at(blocks_.block(from).begin), shards_of(from),
                               call_.dtype, Stream{});
  }
  void ended(Lane, int) override {}
  bool advance_rail() override {
    if (began_) return false;
    began_ = true;
    for (int distance = 1; distance < nodes(); ++distance)
      exchange(distance, blocks_.gather_step(levels_->rank, distance), call_.send, call_.recv,
               call_.dtype);
    return true;
  }
  bool rail_over() const override { return began_ && all_exchanged(); }

  std::byte* at(std::int64_t begin) const {
    return static_cast<std::byte*>(call_.recv) + begin * element_;
  }
  bool began_ = false;
};

class ReduceScatterTask final : public BlockTask {
 public:
  ReduceScatterTask(std::shared_ptr<Levels> levels, Call call)
      : BlockTask(std::move(levels), std::move(call), Lane::reduce),
        wide_(call_.dtype == DType::bf16 || call_.dtype == DType::f16),
        dtype_(wide_ ? DType::f32 : call_.dtype),
        part_(blocks_.part(levels_->rank)),
        out_(static_cast<std::size_t>(nodes())),
        in_(static_cast<std::size_t>(nodes())) {}

 private:
  // The blocks of the other hosts first, this one's own last, while theirs travel.
  bool may_start(Lane, int) const override { return true; }
  int distance_of(int step) const { return (step + 1) % nodes(); }  // 0: this host's own block

  WorkPtr start(Lane, int step) override {
    const int distance = distance_of(step), of = ahead(distance);
    const auto counts = distance == 0 ? own_parts() : shards_of(of);
    const Range block = blocks_.block(of);
    const Range mine = distance == 0 ? part_ : blocks_.shard_at(of, own(), levels_->local_rank());
    Reduction op = call_.op == ReduceOp::avg ? Reduction(ReduceOp::sum) : Reduction(call_.op);
    op.factor = call_.factor;
    const auto* from = static_cast<const std::byte*>(call_.send) + block.begin * element_;
    Buffer& out = out_[static_cast<std::size_t>(distance)];
    if (wide_) {
      out = scratch(block.size());
      auto* const values = static_cast<float*>(out.data());
      widen(call_.dtype, from, values, block.size());
      if (op.op == ReduceOp::premultiplied_sum) {
        levels_->reduction->scale(DType::f32, values, op.factor, block.size(), Stream{});
        op = ReduceOp::sum;
      }
      result_ = values + (mine.begin - block.begin);
      return node().reduce_scatter_v(values, result_, counts, DType::f32, op, Stream{});
    }
    if (distance > 0) out = scratch(mine.size());
    result_ = distance == 0 ? call_.recv : out.data();
    return node().reduce_scatter_v(from, result_, counts, dtype_, op, Stream{});
  }

  void ended(Lane, int step) override {
    const int distance = distance_of(step);
    if (distance == 0) {
      own_sum_ = result_;
      return;
    }
    Buffer& in = in_[static_cast<std::size_t>(distance)];
    in = scratch(part_.size());
    exchange(distance, blocks_.scatter_step(levels_->rank, distance), result_, in.data(), dtype_);
  }

  bool advance_rail() override {
    if (over_ || !own_known() || !all_exchanged()) return false;
    finish();
    over_ = true;
    return true;
  }
  bool rail_over() const override { return over_; }
  bool own_known() const { return own_sum_ != nullptr || part_.empty(); }

  // What each host has of this rank's part, in the order of the hosts.
  void finish() {
    if (part_.empty()) return;
    std::vector<const void*> sources;
    for (int node = 0; node < nodes(); ++node) {
      const int distance = (own() - node + nodes()) % nodes();
      sources.push_back(distance == 0 ? own_sum_ : in_[static_cast<std::size_t>(distance)].data());
    }
    void* const sum = wide_ ? own_sum_ : call_.recv;
    levels_->reduction->reduce(kernel_operation(call_.op), dtype_, sources, sum, part_.size(),
                               Stream{});
    if (call_.op == ReduceOp::avg)
      levels_->reduction->scale(dtype_, sum, 1.0 / levels_->size(), part_.size(), Stream{});
    if (wide_) narrow(call_.dtype, static_cast<const float*>(sum), call_.recv, part_.size());
    out_.clear();
    in_.clear();
  }

  Buffer scratch(std::int64_t count) const {
    const auto bytes = static_cast<std::size_t>(count) * size_of(dtype_);
    return bytes == 0 ? Buffer()
                      : Buffer(node().memory_resource(), bytes, MemoryTag::communication);
  }

  const bool wide_;
  const DType dtype_;  // of partial sums
  const Range part_;
  std::vector<Buffer> out_,
      in_;                  // by distance: this host's sums of another's block; theirs of ours
  void* result_ = nullptr;  // of the node step under way
  void* own_sum_ = nullptr;
  bool over_ = false;
};

}  // namespace

std::shared_ptr<Task> make_all_gather_task(std::shared_ptr<Levels> levels, Call call) {
  return std::make_shared<AllGatherTask>(std::move(levels), std::move(call));
}

std::shared_ptr<Task> make_reduce_scatter_task(std::shared_ptr<Levels> levels, Call call) {
  return std::make_shared<ReduceScatterTask>(std::move(levels), std::move(call));
}

}  // namespace shoal::collectives
