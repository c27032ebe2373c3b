// Plans that work in the peers' own buffers. Ranks map symmetric memory and load and store there,
// without extra copies. Other memory is copied by the kernel (Group::read_memory), into a lane or
// straight to the destination.
//
// Each plan has `blocks_` steps that wait for nothing: matching descriptors imply that every rank's
// buffers are ready. The last step waits until every rank has done its blocks; after it, no rank
// touches another's buffers. All ranks have the same number of steps.
#include <algorithm>
#include <vector>

#include "shoal/collectives/algorithm/shard.h"
#include "shoal/collectives/backend/native/plan.h"
#include "shoal/collectives/backend/native/thresholds.h"
#include "shoal/runtime/base/error.h"

namespace shoal::collectives::native {
namespace {

class DirectPlan : public Plan {
 public:
  // `mapped`: whether every buffer that peers access is mapped.
  DirectPlan(PlanContext context, bool mapped)
      : c_(std::move(context)),
        mapped_(mapped),
        length_((mapped ? kBlockBytes : c_.lane_bytes()) / c_.element()) {}
  std::uint32_t steps() const override { return blocks_ + 1; }
  Requirement needs(std::uint32_t step) const override {
    return {.all = step == blocks_ ? blocks_ : 0};
  }
  void run(std::uint32_t step) override {
    if (step < blocks_) run_block(step);
  }
  Route route() const override { return Route::zero_copy; }

 protected:
  virtual void run_block(std::uint32_t block) = 0;
  PlanContext c_;
  bool mapped_;
  std::int64_t length_;  // elements per block
  std::uint32_t blocks_ = 0;
};

class DirectAllReduce final : public DirectPlan {
 public:
  explicit DirectAllReduce(const PlanContext& context)
      : DirectPlan(context, context.all_send_symmetric && context.all_recv_symmetric),
        sources_(at(c_.size())) {
    destinations_.reserve(at(c_.size()));
    const std::int64_t granule = kShardGranuleBytes / c_.element();
    mine_ = algorithm::shard(c_.call.count, c_.size(), c_.rank(), granule);
    const algorithm::Range largest = algorithm::shard(c_.call.count, c_.size(), 0, granule);
    blocks_ = static_cast<std::uint32_t>(algorithm::Slices{largest.size(), length_}.number());
    // In-place calls do not bypass the caches, because the lines to be stored have just been loaded
    // into them.
    past_caches_ = mapped_ && c_.call.send != c_.call.recv &&
                   c_.exceeds_caches(2 * c_.size() * c_.call.send_bytes(c_.rank(), c_.size()));
  }

 private:
  void run_block(std::uint32_t block) override {
    const algorithm::Range range = algorithm::Slices{mine_.size(), length_}.at(block);
    if (range.empty()) return;
    const std::int64_t offset = (mine_.begin + range.begin) * c_.element();
    const std::int64_t bytes = range.size() * c_.element();
    destinations_.clear();
    for (int peer = 0; peer < c_.size(); ++peer) {
      sources_[at(peer)] = c_.fetch(peer, offset, bytes, c_.lane(peer));
      if (c_.recv[at(peer)]) destinations_.push_back(c_.recv[at(peer)] + offset);
    }
    // A single pass loads every element once from each rank and stores it once to each rank.
    c_.reduce_into_all(sources_, destinations_, range.size(), past_caches_);
    for (int hop = 1; hop < c_.size(); ++hop) {
      const int peer = (c_.rank() + hop) % c_.size();
      if (!c_.recv[at(peer)]) c_.copy_to_recv(peer, offset, c_.recv[at(c_.rank())] + offset, bytes);
    }
  }
  algorithm::Range mine_;
  bool past_caches_;
  std::vector<const void*> sources_;
  std::vector<void*> destinations_;
};

class DirectReduceScatter final : public DirectPlan {
 public:
  explicit DirectReduceScatter(const PlanContext& context)
      : DirectPlan(context, context.all_send_symmetric),
        slices_{c_.call.count, length_},
        sources_(at(c_.size())) {
    blocks_ = static_cast<std::uint32_t>(slices_.number());
  }

 private:
  void run_block(std::uint32_t block) override {
    const algorithm::Range range = slices_.at(block);
    const std::int64_t offset = (c_.rank() * c_.call.count + range.begin) * c_.element();
    for (int peer = 0; peer < c_.size(); ++peer)
      sources_[at(peer)] = c_.fetch(peer, offset, range.size() * c_.element(), c_.lane(peer));
    c_.reduce(sources_, static_cast<std::byte*>(c_.call.recv) + range.begin * c_.element(),
              range.size());
  }
  algorithm::Slices slices_;
  std::vector<const void*> sources_;
};

// If send buffers are symmetric, each rank pulls every peer's part. If only recv buffers are, it
// pushes its own part to all peers. If neither are, it pulls through the kernel.
class DirectAllGather final : public DirectPlan {
 public:
  explicit DirectAllGather(const PlanContext& context)
      : DirectPlan(context, context.all_send_symmetric || context.all_recv_symmetric),
        slices_{c_.call.count, length_},
        pull_(c_.all_send_symmetric || !c_.all_recv_symmetric) {
    blocks_ = static_cast<std::uint32_t>(slices_.number() * c_.size());
    // Bytes that all ranks touch together: each part once in a send buffer, and all parts once in
    // each rank's recv buffer.
    past_caches_ = c_.exceeds_caches((1 + c_.size()) * c_.call.recv_bytes(c_.rank(), c_.size()));
  }

 private:
  void run_block(std::uint32_t block) override {
    const auto per_peer = static_cast<std::uint32_t>(slices_.number());
    // Every rank begins with a different peer, so that they do not all load from one.
    const int peer = (c_.rank() + static_cast<int>(block / per_peer)) % c_.size();
    const algorithm::Range range = slices_.at(block % per_peer);
    const std::int64_t begin = range.begin * c_.element(), bytes = range.size() * c_.element();
    const std::int64_t part = c_.call.count * c_.element();
    const std::byte* own_send = c_.send[at(c_.rank())];
    std::byte* own_recv = c_.recv[at(c_.rank())];
    if (peer == c_.rank() && own_send == own_recv + peer * part) return;  // in place
    if (pull_)
      c_.copy_from_send(peer, begin, own_recv + peer * part + begin, bytes, past_caches_);
    else
      c_.copy_to_recv(peer, c_.rank() * part + begin, own_send + begin, bytes, past_caches_);
  }
  algorithm::Slices slices_;
  bool pull_, past_caches_;
};

// If every buffer is symmetric, or Linux copies between the processes, each rank, the root
// included, distributes one shard of the root's data to all others. Else every rank but the root
// pulls all of the data.
class DirectBroadcast final : public DirectPlan {
 public:
  explicit DirectBroadcast(const PlanContext& context)
      : DirectPlan(context, context.root_symmetric),
        shared_(c_.all_recv_symmetric || !c_.root_symmetric) {
    const std::int64_t granule = kShardGranuleBytes / c_.element();
    const auto part = [&](int rank) {
      return shared_ ? algorithm::shard(c_.call.count, c_.size(), rank, granule)
                     : algorithm::Range{0, c_.call.count};
    };
    mine_ = part(c_.rank());
    blocks_ = static_cast<std::uint32_t>(algorithm::Slices{part(0).size(), length_}.number());
    past_caches_ = c_.exceeds_caches(c_.size() * c_.call.send_bytes(c_.rank(), c_.size()));
  }

 private:
  void run_block(std::uint32_t block) override {
    const algorithm::Range range = algorithm::Slices{mine_.size(), length_}.at(block);
    const int rank = c_.rank(), root = c_.call.root;
    if (range.empty() || (!shared_ && rank == root)) return;
    const std::int64_t begin = (mine_.begin + range.begin) * c_.element();
    const std::int64_t bytes = range.size() * c_.element();
    const std::byte* from = c_.send[at(root)] ? c_.send[at(root)] + begin : nullptr;
    if (rank != root)
      c_.copy_from_send(root, begin, c_.recv[at(rank)] + begin, bytes, past_caches_);
    if (!from) from = c_.recv[at(rank)] + begin;
    for (int hop = 1; shared_ && hop < c_.size(); ++hop) {
      const int peer = (rank + hop) % c_.size();
      if (peer != root) c_.copy_to_recv(peer, begin, from, bytes, past_caches_);
    }
  }
  algorithm::Range mine_;
  bool shared_, past_caches_;
};

}  // namespace

std::unique_ptr<Plan> make_direct_plan(const PlanContext& context) {
  switch (context.call.operation) {
    case Operation::all_reduce:
      return std::make_unique<DirectAllReduce>(context);
    case Operation::reduce_scatter:
      return std::make_unique<DirectReduceScatter>(context);
    case Operation::all_gather:
      return std::make_unique<DirectAllGather>(context);
    case Operation::broadcast:
      return std::make_unique<DirectBroadcast>(context);
    case Operation::barrier:
    default:
      break;
  }
  SHOAL_ASSERT(false);
}

}  // namespace shoal::collectives::native
