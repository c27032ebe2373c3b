// Plans on symmetric memory: loads and stores in the peers' buffers, nothing is copied twice.
//
// Each plan is `blocks` steps of work that wait for nothing (the matching descriptors already say
// that every rank's buffers are ready) and one last step that waits until every rank has done its
// blocks, after which no rank touches another's buffers. All ranks have equally many steps.
#include <algorithm>
#include <vector>

#include "shoal/collectives/algorithm/shard.h"
#include "shoal/collectives/backend/native/plan.h"
#include "shoal/runtime/base/error.h"

namespace shoal::collectives {
namespace {

// A step's bytes: some tens of microseconds.
constexpr std::int64_t kBlockBytes = 256 << 10;
constexpr std::int64_t kShardGranuleBytes = 256;

std::size_t at(int rank) { return static_cast<std::size_t>(rank); }

class DirectPlan : public Plan {
 public:
  explicit DirectPlan(PlanContext context) : c_(std::move(context)) {}
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
  std::uint32_t blocks_ = 0;
};

class DirectAllReduce final : public DirectPlan {
 public:
  explicit DirectAllReduce(PlanContext context) : DirectPlan(std::move(context)) {
    const std::int64_t granule = kShardGranuleBytes / c_.element();
    mine_ = shard(c_.call.count, c_.size(), c_.rank(), granule);
    const Range largest = shard(c_.call.count, c_.size(), 0, granule);
    blocks_ =
        static_cast<std::uint32_t>(Slices{largest.size(), kBlockBytes / c_.element()}.number());
    sources_.resize(at(c_.size()));
    destinations_.resize(at(c_.size()));
    // In place the lines to be stored have just been loaded.
    past_caches_ = c_.call.send != c_.call.recv &&
                   c_.exceeds_caches(2 * c_.size() * c_.call.send_bytes(c_.rank(), c_.size()));
  }

 private:
  void run_block(std::uint32_t block) override {
    const Range range = Slices{mine_.size(), kBlockBytes / c_.element()}.at(block);
    const std::int64_t offset = (mine_.begin + range.begin) * c_.element();
    for (std::size_t peer = 0; peer < at(c_.size()); ++peer) {
      sources_[peer] = c_.send[peer] + offset;
      destinations_[peer] = c_.recv[peer] + offset;
    }
    // One pass: every element is loaded once from each rank and stored once to each rank.
    c_.reduce_into_all(sources_, destinations_, range.size(), past_caches_);
  }
  Range mine_;
  bool past_caches_;
  std::vector<const void*> sources_;
  std::vector<void*> destinations_;
};

class DirectReduceScatter final : public DirectPlan {
 public:
  explicit DirectReduceScatter(PlanContext context)
      : DirectPlan(std::move(context)), sources_(at(c_.size())) {
    slices_ = {c_.call.count, kBlockBytes / c_.element()};
    blocks_ = static_cast<std::uint32_t>(slices_.number());
  }

 private:
  void run_block(std::uint32_t block) override {
    const Range range = slices_.at(block);
    const std::int64_t offset = (c_.rank() * c_.call.count + range.begin) * c_.element();
    for (std::size_t peer = 0; peer < at(c_.size()); ++peer)
      sources_[peer] = c_.send[peer] + offset;
    c_.reduce(sources_, static_cast<std::byte*>(c_.call.recv) + range.begin * c_.element(),
              range.size());
  }
  Slices slices_;
  std::vector<const void*> sources_;
};

// Pulls every peer's part where send buffers are symmetric, else pushes the own part everywhere.
class DirectAllGather final : public DirectPlan {
 public:
  explicit DirectAllGather(PlanContext context) : DirectPlan(std::move(context)) {
    slices_ = {c_.call.count, kBlockBytes / c_.element()};
    blocks_ = static_cast<std::uint32_t>(slices_.number() * c_.size());
    past_caches_ = c_.exceeds_caches(2 * c_.size() * c_.call.recv_bytes(c_.rank(), c_.size()));
  }

 private:
  void run_block(std::uint32_t block) override {
    const auto per_peer = static_cast<std::uint32_t>(slices_.number());
    // Every rank begins with another peer, so that they do not all load from one.
    const int peer = (c_.rank() + static_cast<int>(block / per_peer)) % c_.size();
    const Range range = slices_.at(block % per_peer);
    const std::int64_t begin = range.begin * c_.element();
    const std::int64_t part = c_.call.count * c_.element();
    const bool pull = c_.all_send_symmetric;
    const std::byte* from = (pull ? c_.send[at(peer)] : c_.send[at(c_.rank())]) + begin;
    std::byte* to = pull ? c_.recv[at(c_.rank())] + peer * part + begin
                         : c_.recv[at(peer)] + c_.rank() * part + begin;
    if (from != to) c_.copy(to, from, range.size(), past_caches_);
  }
  Slices slices_;
  bool past_caches_;
};

// Where every buffer is symmetric each rank hands a shard of the root's data to all others: the
// root works too. Else every rank but the root pulls all of it.
class DirectBroadcast final : public DirectPlan {
 public:
  explicit DirectBroadcast(PlanContext context)
      : DirectPlan(std::move(context)), shared_(c_.all_recv_symmetric) {
    const std::int64_t granule = kShardGranuleBytes / c_.element();
    const auto part = [&](int rank) {
      return shared_ ? shard(c_.call.count, c_.size(), rank, granule) : Range{0, c_.call.count};
    };
    mine_ = part(c_.rank());
    blocks_ =
        static_cast<std::uint32_t>(Slices{part(0).size(), kBlockBytes / c_.element()}.number());
    past_caches_ = c_.exceeds_caches(c_.size() * c_.call.send_bytes(c_.rank(), c_.size()));
  }

 private:
  void run_block(std::uint32_t block) override {
    const Range range = Slices{mine_.size(), kBlockBytes / c_.element()}.at(block);
    if (range.empty() || (!shared_ && c_.rank() == c_.call.root)) return;
    const std::int64_t begin = (mine_.begin + range.begin) * c_.element();
    const std::byte* from = c_.send[at(c_.call.root)] + begin;
    for (int hop = 0; hop < c_.size(); ++hop) {
      const int peer = (c_.rank() + hop) % c_.size();
      if (peer != c_.call.root && (shared_ || peer == c_.rank()))
        c_.copy(c_.recv[at(peer)] + begin, from, range.size(), past_caches_);
    }
  }
  Range mine_;
  bool shared_, past_caches_;
};

}  // namespace

std::unique_ptr<Plan> make_direct_plan(PlanContext context) {
  switch (context.call.operation) {
    case Operation::all_reduce:
      return std::make_unique<DirectAllReduce>(std::move(context));
    case Operation::reduce_scatter:
      return std::make_unique<DirectReduceScatter>(std::move(context));
    case Operation::all_gather:
      return std::make_unique<DirectAllGather>(std::move(context));
    case Operation::broadcast:
      return std::make_unique<DirectBroadcast>(std::move(context));
    case Operation::barrier:
    default:
      break;
  }
  SHOAL_ASSERT(false);
}

}  // namespace shoal::collectives
