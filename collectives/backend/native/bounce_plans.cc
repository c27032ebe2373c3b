// Plans for buffers that peers do not map. Each rank passes its slices through two alternating
// bounce slots: it fills one while its peers still read the other.
//
// Step order, for slices 0..N-1 (fill(N) is empty):
//   exchange: fill(0), then for each k: fill(k+1), take(k)
//   reduce:   fill(0), then for each k: fill(k+1), reduce(k), take(k)
// fill(k+1) overwrites the slot of slice k-1, so it waits until all ranks have taken that slice.
#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "shoal/collectives/algorithm/shard.h"
#include "shoal/collectives/backend/native/plan.h"
#include "shoal/collectives/backend/native/thresholds.h"
#include "shoal/runtime/base/error.h"

namespace shoal::collectives::native {
namespace {

class BouncePlan : public Plan {
 public:
  // `length`: elements per slice.
  BouncePlan(PlanContext context, std::int64_t length)
      : c_(std::move(context)), slices_{c_.call.count, length} {}
  Route route() const override { return Route::bounced; }
  std::int64_t bounced_bytes() const override { return bounced_; }

 protected:
  std::byte* slot(int peer, std::int64_t slice) const {
    return c_.group.bounce(peer) + (slice % 2) * kSlotBytes;
  }
  void copy(std::byte* to, const std::byte* from, std::int64_t elements) const {
    if (elements > 0) std::memcpy(to, from, static_cast<std::size_t>(elements * c_.element()));
  }
  void copy_in(std::byte* to, const std::byte* from, std::int64_t elements) {
    copy(to, from, elements);
    count_bounced(elements);
  }
  void count_bounced(std::int64_t elements) {
    bounced_ += std::max<std::int64_t>(elements, 0) * c_.element();
  }
  const std::byte* own_send() const { return c_.send[at(c_.rank())]; }
  std::byte* own_recv() const { return c_.recv[at(c_.rank())]; }

  PlanContext c_;
  algorithm::Slices slices_;

 private:
  std::int64_t bounced_ = 0;
};

// A plan that alternates fill and take steps.
class ExchangePlan : public BouncePlan {
 public:
  using BouncePlan::BouncePlan;
  std::uint32_t steps() const override {
    return 1 + 2 * static_cast<std::uint32_t>(slices_.number());
  }
  Requirement needs(std::uint32_t step) const override {
    if (step == 0) return {};
    const std::uint32_t k = (step - 1) / 2;
    if (step % 2 == 1) return {.all = k == 0 ? 0 : 2 * k + 1};  // take(k-1) is step 2k
    return {.all = std::max(1u, 2 * k)};                        // fill(k) is step 2k-1
  }
  void run(std::uint32_t step) override {
    const std::int64_t k = (std::int64_t{step} + 1) / 2 - 1;  // step 0 belongs to slice -1
    if (step % 2 == 0 && step > 0) return take(k, slices_.at(k));
    if (k + 1 < slices_.number()) fill(k + 1, slices_.at(k + 1));
  }

 protected:
  virtual void fill(std::int64_t k, algorithm::Range slice) = 0;
  virtual void take(std::int64_t k, algorithm::Range slice) = 0;
};

class BounceAllGather final : public ExchangePlan {
 public:
  explicit BounceAllGather(const PlanContext& context)
      : ExchangePlan(context, kSlotBytes / context.element()) {}

 private:
  void fill(std::int64_t k, algorithm::Range slice) override {
    copy_in(slot(c_.rank(), k), own_send() + slice.begin * c_.element(), slice.size());
  }
  void take(std::int64_t k, algorithm::Range slice) override {
    for (int hop = 0; hop < c_.size(); ++hop) {
      const int peer = (c_.rank() + hop) % c_.size();
      std::byte* to = own_recv() + (peer * c_.call.count + slice.begin) * c_.element();
      const std::byte* own = own_send() + slice.begin * c_.element();
      if (peer != c_.rank())
        copy(to, slot(peer, k), slice.size());
      else if (to != own)
        copy(to, own, slice.size());
    }
  }
};

class BounceReduceScatter final : public ExchangePlan {
 public:
  explicit BounceReduceScatter(const PlanContext& context)
      : ExchangePlan(context, width(context)) {}

 private:
  // Elements in each of a slot's `size` parts. Parts begin at multiples of a cache line.
  static std::int64_t width(const PlanContext& c) {
    return std::max<std::int64_t>(1, kSlotBytes / c.size() / 64 * 64 / c.element());
  }
  void fill(std::int64_t k, algorithm::Range slice) override {
    for (int peer = 0; peer < c_.size(); ++peer) {
      if (peer == c_.rank()) continue;
      copy_in(slot(c_.rank(), k) + peer * slices_.length * c_.element(),
              own_send() + (peer * c_.call.count + slice.begin) * c_.element(), slice.size());
    }
  }
  void take(std::int64_t k, algorithm::Range slice) override {
    std::vector<const void*> sources;
    for (int peer = 0; peer < c_.size(); ++peer)
      sources.push_back(peer == c_.rank()
                            ? own_send() + (peer * c_.call.count + slice.begin) * c_.element()
                            : slot(peer, k) + c_.rank() * slices_.length * c_.element());
    c_.reduce(sources, own_recv() + slice.begin * c_.element(), slice.size());
  }
};

class BounceBroadcast final : public ExchangePlan {
 public:
  explicit BounceBroadcast(const PlanContext& context)
      : ExchangePlan(context, kSlotBytes / context.element()) {}

 private:
  void fill(std::int64_t k, algorithm::Range slice) override {
    if (c_.rank() == c_.call.root)
      copy_in(slot(c_.rank(), k), own_send() + slice.begin * c_.element(), slice.size());
  }
  void take(std::int64_t k, algorithm::Range slice) override {
    if (c_.rank() != c_.call.root)
      copy(own_recv() + slice.begin * c_.element(), slot(c_.call.root, k), slice.size());
  }
};

// Every rank fills its slot with all its data and reduces all slots into its recv buffer. This
// moves more bytes than shards do, but saves two waits, which pays for short buffers.
class BounceAllReduceWhole final : public ExchangePlan {
 public:
  explicit BounceAllReduceWhole(const PlanContext& context)
      : ExchangePlan(context, kSlotBytes / context.element()) {}

 private:
  void fill(std::int64_t k, algorithm::Range slice) override {
    copy_in(slot(c_.rank(), k), own_send() + slice.begin * c_.element(), slice.size());
  }
  void take(std::int64_t k, algorithm::Range slice) override {
    std::vector<const void*> sources;
    for (int peer = 0; peer < c_.size(); ++peer)
      sources.push_back(peer == c_.rank() ? own_send() + slice.begin * c_.element()
                                          : slot(peer, k));
    c_.reduce(sources, own_recv() + slice.begin * c_.element(), slice.size());
  }
};

// Every rank fills its slot with all shards but its own. It then reduces its own shard from all
// slots into its recv buffer and its slot, and takes the other shards from their owners' slots.
class BounceAllReduce final : public BouncePlan {
 public:
  explicit BounceAllReduce(const PlanContext& context)
      : BouncePlan(context, kSlotBytes / context.element()) {}
  std::uint32_t steps() const override {
    return 1 + 3 * static_cast<std::uint32_t>(slices_.number());
  }
  Requirement needs(std::uint32_t step) const override {
    if (step == 0) return {};
    const std::uint32_t k = (step - 1) / 3;
    switch ((step - 1) % 3) {
      case 0:  // fill(k+1), after take(k-1), which is step 3k
        return {.all = k == 0 ? 0 : 3 * k + 1};
      case 1:  // reduce(k), after fill(k), which is step 3k-2
        return {.all = k == 0 ? 1 : 3 * k - 1};
      default:  // take(k), after reduce(k), which is step 3k+2
        return {.all = 3 * k + 3};
    }
  }
  void run(std::uint32_t step) override {
    const std::int64_t k = (std::int64_t{step} + 2) / 3 - 1;  // step 0 belongs to slice -1
    const std::uint32_t phase = step == 0 ? 0 : (step - 1) % 3;
    if (phase == 0 && k + 1 < slices_.number()) fill(k + 1, slices_.at(k + 1));
    if (phase == 1) reduce(k, slices_.at(k));
    if (phase == 2) take(k, slices_.at(k));
  }

 private:
  algorithm::Range shard_of(int peer, algorithm::Range slice) const {
    return algorithm::shard(slice.size(), c_.size(), peer, kShardGranuleBytes / c_.element());
  }
  void fill(std::int64_t k, algorithm::Range slice) {
    const algorithm::Range mine = shard_of(c_.rank(), slice);
    const std::byte* from = own_send() + slice.begin * c_.element();
    std::byte* to = slot(c_.rank(), k);
    copy_in(to, from, mine.begin);
    copy_in(to + mine.end * c_.element(), from + mine.end * c_.element(), slice.size() - mine.end);
  }
  void reduce(std::int64_t k, algorithm::Range slice) {
    const algorithm::Range mine = shard_of(c_.rank(), slice);
    if (mine.empty()) return;
    const std::int64_t in_slot = mine.begin * c_.element();
    const std::int64_t in_buffer = (slice.begin + mine.begin) * c_.element();
    std::vector<const void*> sources;
    for (int peer = 0; peer < c_.size(); ++peer)
      sources.push_back(peer == c_.rank() ? own_send() + in_buffer : slot(peer, k) + in_slot);
    c_.reduce_into_all(sources,
                       std::array<void*, 2>{own_recv() + in_buffer, slot(c_.rank(), k) + in_slot},
                       mine.size(), false);
    count_bounced(mine.size());
  }
  void take(std::int64_t k, algorithm::Range slice) {
    for (int hop = 1; hop < c_.size(); ++hop) {
      const int peer = (c_.rank() + hop) % c_.size();
      const algorithm::Range theirs = shard_of(peer, slice);
      copy(own_recv() + (slice.begin + theirs.begin) * c_.element(),
           slot(peer, k) + theirs.begin * c_.element(), theirs.size());
    }
  }
};

}  // namespace

std::unique_ptr<Plan> make_bounce_plan(const PlanContext& context) {
  switch (context.call.operation) {
    case Operation::all_reduce:
      if (context.call.count * context.element() < shards_from(context.size()))
        return std::make_unique<BounceAllReduceWhole>(context);
      return std::make_unique<BounceAllReduce>(context);
    case Operation::reduce_scatter:
      return std::make_unique<BounceReduceScatter>(context);
    case Operation::all_gather:
      return std::make_unique<BounceAllGather>(context);
    case Operation::broadcast:
      return std::make_unique<BounceBroadcast>(context);
    case Operation::barrier:
    default:
      break;
  }
  SHOAL_ASSERT(false);
}

}  // namespace shoal::collectives::native
