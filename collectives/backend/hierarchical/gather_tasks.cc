// all_gather and reduce_scatter over hosts, one piece of every other host's block at a time. The
// network brings the next piece while the node passes on (or sums) the previous one. Every host
// sends and receives (nodes - 1) / nodes of the buffer, shared equally by its ranks.
//
// A host exchanges with all other hosts at once. If it exchanged with one after the other, a late
// host would delay both hosts that exchange with it at that moment.
#include <algorithm>
#include <span>

#include "shoal/collectives/backend/hierarchical/block_exchange.h"
#include "shoal/collectives/backend/hierarchical/node_task.h"
#include "shoal/collectives/backend/partial_sums.h"
#include "shoal/collectives/backend/tree_reduction.h"

namespace shoal::collectives::hierarchical {
namespace {

std::vector<std::int64_t> counts_of(const Call& call, int size) {
  if (has_counts(call.operation)) return call.counts;
  return std::vector<std::int64_t>(static_cast<std::size_t>(size), call.count);
}

// At either end of the operation one piece overlaps nothing. Smaller pieces would cost more than
// they hide.
constexpr std::int64_t kPieceBytes = 256 << 10, kMostPieces = 16;

int pieces_of(const Placement& where, std::span<const std::int64_t> counts, std::int64_t element) {
  std::int64_t largest = 0;
  for (int node = 0; node < where.nodes(); ++node) {
    std::int64_t block = 0;
    for (const int rank : where.members(node)) block += counts[static_cast<std::size_t>(rank)];
    largest = std::max(largest, block * element);
  }
  const std::int64_t pieces = std::clamp(largest / kPieceBytes, std::int64_t{1}, kMostPieces);
  // Rounds up, so that each rank has the same number of pieces.
  const std::int64_t rows = std::min<std::int64_t>(where.rails(), pieces);
  return static_cast<int>((pieces + rows - 1) / rows * rows);
}

class BlockTask : public NodeTask {
 public:
  // All node steps use one lane. `element`: bytes of an element on the network.
  BlockTask(std::shared_ptr<Levels> levels, Call call, Lane lane, std::int64_t element)
      : NodeTask(std::move(levels), std::move(call)),
        lane_(lane),
        element_(static_cast<std::int64_t>(size_of(call_.dtype))),
        blocks_(make_blocks(levels_->placement, counts_of(call_, levels_->size()), element)),
        exchanges_(static_cast<std::size_t>((nodes() - 1) * blocks_.pieces())) {}

 protected:
  Communicator& node() const { return NodeTask::node(lane_); }
  int nodes() const { return levels_->placement.nodes(); }
  int own() const { return levels_->node_number(); }
  int ahead(int distance) const { return (own() + distance) % nodes(); }
  int behind(int distance) const { return (own() - distance + nodes()) % nodes(); }
  // Exchanges are numbered by piece, and within a piece by distance.
  int exchanges() const { return static_cast<int>(exchanges_.size()); }
  int distance_of(int e) const { return e % (nodes() - 1) + 1; }
  int piece_of(int e) const { return blocks_.piece_in_turn(e / (nodes() - 1)); }
  std::vector<std::int64_t> shards_of(int node, int piece) const {
    std::vector<std::int64_t> counts;
    for (int local = 0; local < levels_->local_size(); ++local)
      counts.push_back(blocks_.shard_at(node, own(), local, piece).size());
    return counts;
  }
  std::vector<std::int64_t> own_parts() const {
    std::vector<std::int64_t> counts;
    for (const int rank : levels_->placement.members(own()))
      counts.push_back(blocks_.part(rank).size());
    return counts;
  }

  // All ranks submit exchanges in the same order.
  void exchange(int e, algorithm::Program program, const void* input, void* output, DType dtype) {
    Call call;
    call.operation = call_.operation;
    call.send = input;
    call.recv = output;
    call.count = call_.count;
    call.dtype = dtype;
    call.counts = call_.counts;
    exchanges_[static_cast<std::size_t>(e)] =
        levels_->exchanges[static_cast<std::size_t>(lane_)]->submit_program_locked(
            std::move(call), std::make_shared<const net::CompiledProgram>(std::move(program)),
            signature_of(call_));
  }
  bool exchanged(int e) const {
    const auto& operation = exchanges_[static_cast<std::size_t>(e)];
    return operation && operation->done();
  }
  const net::NetOperation* awaited() const override {
    for (const auto& operation : exchanges_)
      if (operation && !operation->done()) return operation.get();
    return nullptr;
  }

  const Lane lane_;
  const std::int64_t element_;
  const Blocks blocks_;

 private:
  static Blocks make_blocks(const Placement& where, std::vector<std::int64_t> counts,
                            std::int64_t element) {
    const int pieces = pieces_of(where, counts, element);
    return {where, std::move(counts), pieces};
  }
  std::vector<std::shared_ptr<net::NetOperation>> exchanges_;
};

class AllGatherTask final : public BlockTask {
 public:
  AllGatherTask(std::shared_ptr<Levels> levels, const Call& call)
      : BlockTask(std::move(levels), call, Lane::gather,
                  static_cast<std::int64_t>(size_of(call.dtype))) {}

 private:
  // This host's own block comes first, while the other hosts' blocks are in flight.
  int node_steps(Lane lane) const override { return lane == lane_ ? 1 + exchanges() : 0; }
  bool may_start(Lane, int step) const override { return step == 0 || exchanged(step - 1); }
  WorkPtr start(Lane, int step) override {
    if (step == 0)
      return node().all_gather_v(call_.send, at(blocks_.block(own()).begin), own_parts(),
                                 call_.dtype, Stream{});
    const int from = behind(distance_of(step - 1)), piece = piece_of(step - 1);
    if (blocks_.piece(from, piece).empty()) return nullptr;
    const algorithm::Range shard = blocks_.shard_at(from, own(), levels_->local_rank(), piece);
    return node().all_gather_v(at(shard.begin), at(blocks_.piece(from, piece).begin),
                               shards_of(from, piece), call_.dtype, Stream{});
  }
  void ended(Lane, int) override {}
  bool advance_rail() override {
    if (began_) return false;
    began_ = true;
    for (int e = 0; e < exchanges(); ++e)
      exchange(e, blocks_.gather_step(levels_->rank, distance_of(e), piece_of(e)), call_.send,
               call_.recv, call_.dtype);
    return true;
  }
  bool rail_over() const override { return began_ && !awaited(); }

  std::byte* at(std::int64_t begin) const {
    return static_cast<std::byte*>(call_.recv) + begin * element_;
  }
  bool began_ = false;
};

class ReduceScatterTask final : public BlockTask {
 public:
  ReduceScatterTask(std::shared_ptr<Levels> levels, const Call& call)
      : BlockTask(std::move(levels), call, Lane::reduce,
                  static_cast<std::int64_t>(size_of(sums_of(call.dtype)))),
        dtype_(sums_of(call_.dtype)),
        wide_(dtype_ != call_.dtype),
        part_(blocks_.part(levels_->rank)),
        out_(static_cast<std::size_t>(exchanges()) + 1),
        in_(static_cast<std::size_t>(nodes())) {}

 private:
  static DType sums_of(DType dtype) {
    return dtype == DType::bf16 || dtype == DType::f16 ? DType::f32 : dtype;
  }
  // The other hosts' blocks come first. This host's own comes last, while theirs are in flight.
  int node_steps(Lane lane) const override { return lane == lane_ ? exchanges() + 1 : 0; }
  bool may_start(Lane, int) const override { return true; }

  WorkPtr start(Lane, int step) override {
    const bool mine = step == exchanges();
    const int of = mine ? own() : ahead(distance_of(step)), piece = mine ? 0 : piece_of(step);
    const algorithm::Range all = mine ? blocks_.block(of) : blocks_.piece(of, piece);
    if (all.empty()) return nullptr;
    const algorithm::Range shard =
        mine ? part_ : blocks_.shard_at(of, own(), levels_->local_rank(), piece);
    const auto counts = mine ? own_parts() : shards_of(of, piece);
    Reduction op = call_.op == ReduceOp::avg ? Reduction(ReduceOp::sum) : Reduction(call_.op);
    op.factor = call_.factor;
    const auto* from = static_cast<const std::byte*>(call_.send) + all.begin * element_;
    Buffer& out = out_[static_cast<std::size_t>(step)];
    if (wide_) {
      out = scratch(all.size());
      auto* const values = static_cast<float*>(out.data());
      widen(call_.dtype, from, values, all.size());
      if (op.op == ReduceOp::premultiplied_sum) {
        levels_->reduction->scale(DType::f32, values, op.factor, all.size(), Stream{});
        op = ReduceOp::sum;
      }
      result_ = values + (shard.begin - all.begin);
      return node().reduce_scatter_v(values, result_, counts, DType::f32, op, Stream{});
    }
    if (!mine) out = scratch(shard.size());
    result_ = mine ? call_.recv : out.data();
    return node().reduce_scatter_v(from, result_, counts, dtype_, op, Stream{});
  }

  void ended(Lane, int step) override {
    if (step == exchanges()) {
      own_sum_ = static_cast<std::byte*>(result_);
      own_known_ = true;
      return;
    }
    Buffer& in = in_[static_cast<std::size_t>(distance_of(step))];
    if (!in.data()) in = scratch(part_.size());
    exchange(step, blocks_.scatter_step(levels_->rank, distance_of(step), piece_of(step)), result_,
             in.data(), dtype_);
  }

  // Finishes one piece per call, because the other messages need progress in between.
  bool advance_rail() override {
    bool moved = false;
    while (sent_ < exchanges() && exchanged(sent_)) {
      out_[static_cast<std::size_t>(sent_++)].reset();
      moved = true;
    }
    if (!own_known_ || turn_ == blocks_.pieces()) return moved;
    for (int distance = 1; distance < nodes(); ++distance)
      if (!exchanged(turn_ * (nodes() - 1) + distance - 1)) return moved;
    finish(blocks_.piece_in_turn(turn_++));
    return true;
  }
  bool rail_over() const override { return sent_ == exchanges() && turn_ == blocks_.pieces(); }

  // Reduces this rank's part of that piece over the hosts' sums, in the order of hosts.
  void finish(int piece) {
    const algorithm::Range all = blocks_.piece(own(), piece);
    const std::int64_t begin = std::max(all.begin, part_.begin) - part_.begin,
                       count = std::min(all.end, part_.end) - part_.begin - begin;
    if (count <= 0) return;
    const std::int64_t offset = begin * static_cast<std::int64_t>(size_of(dtype_));
    std::vector<const void*> sources;
    for (int node = 0; node < nodes(); ++node) {
      const int distance = (own() - node + nodes()) % nodes();
      const auto* sum =
          distance == 0
              ? own_sum_
              : static_cast<const std::byte*>(in_[static_cast<std::size_t>(distance)].data());
      sources.push_back(sum + offset);
    }
    std::byte* const sum = own_sum_ + offset;
    levels_->reduction->reduce(traits(call_.op).fold, dtype_, sources, sum, count, Stream{});
    if (call_.op == ReduceOp::avg)
      levels_->reduction->scale(dtype_, sum, 1.0 / levels_->size(), count, Stream{});
    if (wide_)
      narrow(call_.dtype, reinterpret_cast<const float*>(sum),
             static_cast<std::byte*>(call_.recv) + begin * element_, count);
  }

  Buffer scratch(std::int64_t count) const {
    const auto bytes = static_cast<std::size_t>(count) * size_of(dtype_);
    return bytes == 0 ? Buffer() : Buffer(*levels_->scratch, bytes, MemoryTag::communication);
  }

  const DType dtype_;  // of partial sums
  const bool wide_;
  const algorithm::Range part_;
  std::vector<Buffer> out_;  // by step: this host's sums
  std::vector<Buffer> in_;   // by distance: that host's sums of this rank's part
  void* result_ = nullptr;   // of the node step in progress
  std::byte* own_sum_ = nullptr;
  bool own_known_ = false;
  int sent_ = 0, turn_ = 0;  // finished exchanges; finished pieces
};

}  // namespace

std::shared_ptr<net::Task> make_all_gather_task(std::shared_ptr<Levels> levels, const Call& call) {
  return std::make_shared<AllGatherTask>(std::move(levels), call);
}

std::shared_ptr<net::Task> make_reduce_scatter_task(std::shared_ptr<Levels> levels,
                                                    const Call& call) {
  return std::make_shared<ReduceScatterTask>(std::move(levels), call);
}

}  // namespace shoal::collectives::hierarchical
