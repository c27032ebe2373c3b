// Plans on symmetric memory: loads and stores in the peers' buffers, nothing is copied twice.
//
// Each plan is `blocks` steps of work that wait for nothing (the matching descriptors already say
// that every rank's buffers are ready) and one last step that waits until every rank has done its
// blocks, after which no rank touches another's buffers. All ranks have equally many steps.
#include <algorithm>
#include <cstring>

#include "shoal/collectives/algorithm/shard.h"
#include "shoal/collectives/backend/native/plan.h"
#include "shoal/runtime/base/error.h"

namespace shoal::collectives {
namespace {

// A step's bytes: some tens of microseconds. Within it, a tile is reduced and handed out while it
// is still in the nearest cache.
constexpr std::int64_t kBlockBytes = 256 << 10;
constexpr std::int64_t kTileBytes = 32 << 10;
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
  }

 private:
  void run_block(std::uint32_t block) override {
    const Range range = Slices{mine_.size(), kBlockBytes / c_.element()}.at(block);
    const Slices tiles{range.size(), kTileBytes / c_.element()};
    std::vector<const void*> sources(at(c_.size()));
    for (std::int64_t t = 0; t < tiles.number(); ++t) {
      const Range tile = tiles.at(t);
      const std::int64_t offset = (mine_.begin + range.begin + tile.begin) * c_.element();
      for (int peer = 0; peer < c_.size(); ++peer) sources[at(peer)] = c_.send[at(peer)] + offset;
      std::byte* own = c_.recv[at(c_.rank())] + offset;
      c_.reduce(sources, own, tile.size());
      for (int hop = 1; hop < c_.size(); ++hop)
        std::memcpy(c_.recv[at((c_.rank() + hop) % c_.size())] + offset, own,
                    static_cast<std::size_t>(tile.size() * c_.element()));
    }
  }
  Range mine_;
};

class DirectReduceScatter final : public DirectPlan {
 public:
  explicit DirectReduceScatter(PlanContext context) : DirectPlan(std::move(context)) {
    slices_ = {c_.call.count, kBlockBytes / c_.element()};
    blocks_ = static_cast<std::uint32_t>(slices_.number());
  }

 private:
  void run_block(std::uint32_t block) override {
    const Range range = slices_.at(block);
    const std::int64_t offset = (c_.rank() * c_.call.count + range.begin) * c_.element();
    std::vector<const void*> sources;
    for (int peer = 0; peer < c_.size(); ++peer) sources.push_back(c_.send[at(peer)] + offset);
    c_.reduce(sources, static_cast<std::byte*>(c_.call.recv) + range.begin * c_.element(),
              range.size());
  }
  Slices slices_;
};

// Pulls every peer's part where send buffers are symmetric, else pushes the own part everywhere.
class DirectAllGather final : public DirectPlan {
 public:
  explicit DirectAllGather(PlanContext context) : DirectPlan(std::move(context)) {
    slices_ = {c_.call.count, kBlockBytes / c_.element()};
    blocks_ = static_cast<std::uint32_t>(slices_.number() * c_.size());
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
    if (from != to) std::memcpy(to, from, static_cast<std::size_t>(range.size() * c_.element()));
  }
  Slices slices_;
};

class DirectBroadcast final : public DirectPlan {
 public:
  explicit DirectBroadcast(PlanContext context) : DirectPlan(std::move(context)) {
    slices_ = {c_.call.count, kBlockBytes / c_.element()};
    blocks_ = static_cast<std::uint32_t>(slices_.number());
  }

 private:
  void run_block(std::uint32_t block) override {
    if (c_.rank() == c_.call.root) return;
    const Range range = slices_.at(block);
    const std::int64_t begin = range.begin * c_.element();
    std::memcpy(c_.recv[at(c_.rank())] + begin, c_.send[at(c_.call.root)] + begin,
                static_cast<std::size_t>(range.size() * c_.element()));
  }
  Slices slices_;
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
