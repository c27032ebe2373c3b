// Plans for reduce and reduce_scatter_v. There are three methods:
//   inline:    Each rank sends its data beside its descriptor. The ranks that need a result reduce
//              these data.
//   direct:    In a reduce, every rank reduces its shard from all ranks' memory and stores it in
//              the root's buffer. If that is not mapped and Linux does not copy between the
//              processes, the root reduces everything. In a reduce_scatter_v, every rank reduces
//              its part from all ranks' memory.
//   bounced:   Every rank fills its bounce slots slice by slice. In a reduce, every rank then
//              reduces its shard of the slice into its slot, and the root takes it from there.
#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "shoal/collectives/algorithm/shard.h"
#include "shoal/collectives/backend/native/counts.h"
#include "shoal/collectives/backend/native/plan.h"
#include "shoal/collectives/backend/native/thresholds.h"
#include "shoal/runtime/base/error.h"

namespace shoal::collectives::native {
namespace {

// The range of the send buffers that a rank reduces.
algorithm::Range part_of(const Call& call, int rank) {
  std::int64_t begin = 0;
  for (int r = 0; r < rank; ++r) begin += call.counts[at(r)];
  return {begin, begin + call.counts[at(rank)]};
}

class InlineReduce final : public Plan {
 public:
  explicit InlineReduce(PlanContext context) : c_(std::move(context)) {}
  std::uint32_t steps() const override { return 1; }
  Requirement needs(std::uint32_t) const override { return {}; }
  Route route() const override { return Route::inlined; }
  void run(std::uint32_t) override {
    const Call& call = c_.call;
    const bool rooted = call.operation == Operation::reduce;
    if (rooted && c_.rank() != call.root) return;
    const algorithm::Range part =
        rooted ? algorithm::Range{0, call.count} : part_of(call, c_.rank());
    const auto offset = static_cast<std::int64_t>(counts_bytes(call.operation, c_.size())) +
                        part.begin * c_.element();
    std::vector<const void*> sources;
    for (int peer = 0; peer < c_.size(); ++peer) sources.push_back(c_.slot(peer).payload + offset);
    c_.reduce(sources, call.recv, part.size());
  }

 private:
  PlanContext c_;
};

class DirectReduce final : public Plan {
 public:
  explicit DirectReduce(PlanContext context)
      : c_(std::move(context)),
        mapped_(c_.all_send_symmetric),
        length_((mapped_ ? kBlockBytes : c_.lane_bytes()) / c_.element()) {
    const Call& call = c_.call;
    if (call.operation == Operation::reduce_scatter_v) {
      mine_ = part_of(call, c_.rank());
      largest_ = *std::ranges::max_element(call.counts);
      to_ = static_cast<std::byte*>(call.recv);
      return;
    }
    const auto root = at(call.root);
    if (c_.recv_symmetric[root] || !mapped_) {
      const std::int64_t granule = kShardGranuleBytes / c_.element();
      mine_ = algorithm::shard(call.count, c_.size(), c_.rank(), granule);
      largest_ = algorithm::shard(call.count, c_.size(), 0, granule).size();
      if (c_.recv[root]) to_ = c_.recv[root] + mine_.begin * c_.element();
    } else {
      if (c_.rank() == call.root) mine_ = {0, call.count};
      largest_ = call.count;
      to_ = static_cast<std::byte*>(call.recv);
    }
  }
  Route route() const override { return Route::zero_copy; }
  std::uint32_t steps() const override { return blocks() + 1; }
  Requirement needs(std::uint32_t step) const override {
    return {.all = step == blocks() ? blocks() : 0};
  }
  void run(std::uint32_t step) override {
    if (step == blocks()) return;
    const algorithm::Range range = algorithm::Slices{mine_.size(), length_}.at(step);
    if (range.empty()) return;
    const std::int64_t offset = (mine_.begin + range.begin) * c_.element();
    const std::int64_t bytes = range.size() * c_.element();
    std::vector<const void*> sources;
    for (int peer = 0; peer < c_.size(); ++peer)
      sources.push_back(c_.fetch(peer, offset, bytes, c_.lane(peer)));
    if (to_) return c_.reduce(sources, to_ + range.begin * c_.element(), range.size());
    std::byte* const result = c_.lane(c_.size());
    c_.reduce(sources, result, range.size());
    c_.copy_to_recv(c_.call.root, offset, result, bytes);
  }

 private:
  std::uint32_t blocks() const {
    return static_cast<std::uint32_t>(algorithm::Slices{largest_, length_}.number());
  }
  PlanContext c_;
  bool mapped_;
  std::int64_t length_;
  algorithm::Range mine_;     // this rank's range of the send buffers
  std::int64_t largest_ = 0;  // maximum over ranks of the elements to reduce
  std::byte* to_ = nullptr;   // destination of mine_; null: Linux copies it to the root
};

// Steps: fill(0), then for each slice k: fill(k+1), reduce(k), take(k). fill(k+1) overwrites the
// slot of slice k-1, so it waits until all ranks have done take(k-1).
class BounceReduce final : public Plan {
 public:
  explicit BounceReduce(PlanContext context)
      : c_(std::move(context)), slices_{c_.call.count, kSlotBytes / c_.element()} {}
  Route route() const override { return Route::bounced; }
  std::int64_t bounced_bytes() const override { return bounced_; }
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
    if (phase == 2 && c_.rank() == c_.call.root) take(k, slices_.at(k));
  }

 private:
  std::byte* slot(int peer, std::int64_t k) const {
    return c_.group.bounce(peer) + (k % 2) * kSlotBytes;
  }
  algorithm::Range shard_of(int peer, algorithm::Range slice) const {
    return algorithm::shard(slice.size(), c_.size(), peer, kShardGranuleBytes / c_.element());
  }
  const std::byte* own_send(std::int64_t index) const {
    return c_.send[at(c_.rank())] + index * c_.element();
  }
  void copy_in(std::int64_t k, algorithm::Range slice, std::int64_t begin, std::int64_t end) {
    if (begin >= end) return;
    std::memcpy(slot(c_.rank(), k) + begin * c_.element(), own_send(slice.begin + begin),
                static_cast<std::size_t>((end - begin) * c_.element()));
    bounced_ += (end - begin) * c_.element();
  }
  // Copies everything but this rank's shard, which no other rank reads.
  void fill(std::int64_t k, algorithm::Range slice) {
    const algorithm::Range mine = shard_of(c_.rank(), slice);
    copy_in(k, slice, 0, mine.begin);
    copy_in(k, slice, mine.end, slice.size());
  }
  void reduce(std::int64_t k, algorithm::Range slice) {
    const algorithm::Range mine = shard_of(c_.rank(), slice);
    std::vector<const void*> sources;
    for (int peer = 0; peer < c_.size(); ++peer)
      sources.push_back(peer == c_.rank() ? own_send(slice.begin + mine.begin)
                                          : slot(peer, k) + mine.begin * c_.element());
    c_.reduce(sources, slot(c_.rank(), k) + mine.begin * c_.element(), mine.size());
  }
  void take(std::int64_t k, algorithm::Range slice) {
    for (int peer = 0; peer < c_.size(); ++peer) {
      const algorithm::Range theirs = shard_of(peer, slice);
      if (theirs.empty()) continue;
      std::memcpy(c_.recv[at(c_.rank())] + (slice.begin + theirs.begin) * c_.element(),
                  slot(peer, k) + theirs.begin * c_.element(),
                  static_cast<std::size_t>(theirs.size() * c_.element()));
    }
  }

  PlanContext c_;
  algorithm::Slices slices_;
  std::int64_t bounced_ = 0;
};

// Steps: fill(0), then for each slice k of every part: fill(k+1), reduce(k). A slot has one lane
// for each rank's part.
class BounceReduceScatterV final : public Plan {
 public:
  explicit BounceReduceScatterV(PlanContext context)
      : c_(std::move(context)), lane_bytes_(kSlotBytes / c_.size() / 64 * 64) {
    SHOAL_CHECK(lane_bytes_ > 0, "native: {} ranks on one host are more than bounce slots serve",
                c_.size());
    length_ = lane_bytes_ / c_.element();
    slices_ = algorithm::Slices{*std::ranges::max_element(c_.call.counts), length_}.number();
  }
  Route route() const override { return Route::bounced; }
  std::int64_t bounced_bytes() const override { return bounced_; }
  std::uint32_t steps() const override { return 1 + 2 * static_cast<std::uint32_t>(slices_); }
  Requirement needs(std::uint32_t step) const override {
    if (step == 0) return {};
    const std::uint32_t k = (step - 1) / 2;
    if (step % 2 == 1) return {.all = k == 0 ? 0 : 2 * k + 1};  // reduce(k-1) is step 2k
    return {.all = std::max(1u, 2 * k)};                        // fill(k) is step 2k-1
  }
  void run(std::uint32_t step) override {
    const std::int64_t k = (std::int64_t{step} + 1) / 2 - 1;  // step 0 belongs to slice -1
    if (step % 2 == 0 && step > 0)
      reduce(k);
    else if (k + 1 < slices_)
      fill(k + 1);
  }

 private:
  std::byte* lane(int from, int part, std::int64_t k) const {
    return c_.group.bounce(from) + (k % 2) * kSlotBytes + part * lane_bytes_;
  }
  algorithm::Range slice(int rank, std::int64_t k) const {
    const algorithm::Range part = part_of(c_.call, rank),
                           inside = algorithm::Slices{part.size(), length_}.at(k);
    return {part.begin + inside.begin, part.begin + inside.end};
  }
  const std::byte* own_send(algorithm::Range range) const {
    return c_.send[at(c_.rank())] + range.begin * c_.element();
  }
  void fill(std::int64_t k) {
    for (int hop = 1; hop < c_.size(); ++hop) {
      const int peer = (c_.rank() + hop) % c_.size();
      const algorithm::Range range = slice(peer, k);
      if (range.empty()) continue;
      const std::int64_t bytes = range.size() * c_.element();
      std::memcpy(lane(c_.rank(), peer, k), own_send(range), static_cast<std::size_t>(bytes));
      bounced_ += bytes;
    }
  }
  void reduce(std::int64_t k) {
    const algorithm::Range range = slice(c_.rank(), k);
    if (range.empty()) return;
    std::vector<const void*> sources;
    for (int peer = 0; peer < c_.size(); ++peer)
      sources.push_back(peer == c_.rank() ? own_send(range) : lane(peer, c_.rank(), k));
    c_.reduce(sources, c_.recv[at(c_.rank())] + k * length_ * c_.element(), range.size());
  }

  PlanContext c_;
  std::int64_t lane_bytes_, length_ = 1, slices_ = 0, bounced_ = 0;
};

}  // namespace

std::unique_ptr<Plan> make_reduce_plan(PlanContext context) {
  if (travels_inline(context.call, context.size(), context.choice))
    return std::make_unique<InlineReduce>(std::move(context));
  if (context.all_send_symmetric ||
      context.single_copy(largest_send_bytes(context.call, context.size())))
    return std::make_unique<DirectReduce>(std::move(context));
  if (context.call.operation == Operation::reduce)
    return std::make_unique<BounceReduce>(std::move(context));
  return std::make_unique<BounceReduceScatterV>(std::move(context));
}

}  // namespace shoal::collectives::native
