// Ring all_reduce through outboxes in the bounce area: each rank writes its own outboxes and reads
// its left neighbour's. One pass of the ring reduces one slice, which has a chunk for each rank.
// 16-bit floats travel as f32 until the sum is complete, so they too are rounded only once.
#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "shoal/collectives/algorithm/ring.h"
#include "shoal/collectives/algorithm/shard.h"
#include "shoal/collectives/backend/native/plan.h"
#include "shoal/collectives/backend/partial_sums.h"
#include "shoal/collectives/backend/tree_reduction.h"

namespace shoal::collectives::native {
namespace {

// Outboxes of a rank. A box is rewritten kBoxes steps later, after the right neighbour has read it.
constexpr int kBoxes = 4;
constexpr std::int64_t kBoxBytes = kBounceBytes / kBoxes;
constexpr std::int64_t kGranuleBytes = 256;

class RingPlan final : public Plan {
 public:
  explicit RingPlan(PlanContext context)
      : c_(std::move(context)),
        wide_(c_.call.dtype == DType::bf16 || c_.call.dtype == DType::f16),
        slices_{c_.call.count, c_.size() * (kBoxBytes / (wide_ ? 4 : c_.element()))} {}

  Route route() const override { return Route::ring; }
  std::int64_t bounced_bytes() const override { return bounced_; }
  std::uint32_t steps() const override {
    return pass() * static_cast<std::uint32_t>(slices_.number());
  }
  Requirement needs(std::uint32_t step) const override {
    Requirement needed{.left = algorithm::ring_left(c_.rank(), c_.size()),
                       .right = algorithm::ring_right(c_.rank(), c_.size())};
    if (step % pass() != 0) needed.left_steps = step;
    // This step's box was last written kBoxes steps ago; the right neighbour reads it one step
    // after that.
    if (step >= kBoxes) needed.right_steps = step - kBoxes + 2;
    return needed;
  }

  void run(std::uint32_t step) override {
    const algorithm::Range slice = slices_.at(step / pass());
    const algorithm::RingStep action =
        algorithm::ring_step(c_.rank(), c_.size(), static_cast<int>(step % pass()));
    const algorithm::Range chunk =
        algorithm::shard(slice.size(), c_.size(), action.chunk, kGranuleBytes / c_.element());
    const std::int64_t begin = (slice.begin + chunk.begin) * c_.element();
    const std::byte* send = c_.send[static_cast<std::size_t>(c_.rank())] + begin;
    std::byte* recv = c_.recv[static_cast<std::size_t>(c_.rank())] + begin;
    const std::byte* inbox = box(algorithm::ring_left(c_.rank(), c_.size()), step + kBoxes - 1);
    std::byte* outbox = box(c_.rank(), step);
    const std::int64_t n = chunk.size();
    if (n <= 0) return;
    switch (action.action) {
      case algorithm::RingAction::send:
        put_own(send, outbox, n);
        bounced_ += n * c_.element();
        return;
      case algorithm::RingAction::reduce_and_send:
        return fold(inbox, send, outbox, n);
      case algorithm::RingAction::reduce_and_keep:
        finish(inbox, send, recv, n);
        return copy(outbox, recv, n);
      case algorithm::RingAction::store_and_send:
        copy(recv, inbox, n);
        return copy(outbox, inbox, n);
      case algorithm::RingAction::store:
        return copy(recv, inbox, n);
    }
  }

 private:
  std::uint32_t pass() const {
    return static_cast<std::uint32_t>(algorithm::ring_steps(c_.size()));
  }
  std::byte* box(int peer, std::uint32_t step) const {
    return c_.group.bounce(peer) + (step % kBoxes) * kBoxBytes;
  }
  void copy(std::byte* to, const std::byte* from, std::int64_t n) const {
    std::memcpy(to, from, static_cast<std::size_t>(n * c_.element()));
  }
  DType partial_dtype() const { return wide_ ? DType::f32 : c_.call.dtype; }
  bool scaled() const { return c_.call.op == ReduceOp::premultiplied_sum && c_.call.factor != 1; }
  // Writes this rank's elements as a partial sum of one rank.
  void put_own(const std::byte* own, void* out, std::int64_t n) const {
    if (wide_)
      widen(c_.call.dtype, own, static_cast<float*>(out), n);
    else
      copy(static_cast<std::byte*>(out), own, n);
    if (scaled()) c_.reduction.scale(partial_dtype(), out, c_.call.factor, n, Stream{});
  }
  // Combines this rank's elements with `partial`, which has the dtype that travels.
  void fold(const std::byte* partial, const std::byte* own, std::byte* out, std::int64_t n) const {
    const kernels::Reduce operation = traits(c_.call.op).fold;
    if (!wide_ && !scaled()) {
      const std::array<const void*, 2> sources{partial, own};
      c_.reduction.reduce(operation, c_.call.dtype, sources, out, n, Stream{});
      return;
    }
    const auto travels = static_cast<std::int64_t>(size_of(partial_dtype()));
    constexpr std::int64_t kTile = 2048;
    alignas(64) std::array<double, kTile> tile;
    const algorithm::Slices tiles{n, kTile};
    for (std::int64_t t = 0; t < tiles.number(); ++t) {
      const algorithm::Range range = tiles.at(t);
      put_own(own + range.begin * c_.element(), tile.data(), range.size());
      const std::array<const void*, 2> sources{partial + range.begin * travels, tile.data()};
      c_.reduction.reduce(operation, partial_dtype(), sources, out + range.begin * travels,
                          range.size(), Stream{});
    }
  }
  // Folds for the last time, then averages and rounds into `recv`, which may be `own`.
  void finish(const std::byte* partial, const std::byte* own, std::byte* recv, std::int64_t n) {
    if (!wide_) {
      fold(partial, own, recv, n);
    } else {
      scratch_.resize(static_cast<std::size_t>(n));
      fold(partial, own, reinterpret_cast<std::byte*>(scratch_.data()), n);
      if (c_.call.op == ReduceOp::avg)
        c_.reduction.scale(DType::f32, scratch_.data(), 1.0 / c_.size(), n, Stream{});
      narrow(c_.call.dtype, scratch_.data(), recv, n);
    }
    if (c_.call.op == ReduceOp::avg && !wide_)
      c_.reduction.scale(c_.call.dtype, recv, 1.0 / c_.size(), n, Stream{});
  }

  PlanContext c_;
  bool wide_;
  algorithm::Slices slices_;
  std::int64_t bounced_ = 0;
  std::vector<float> scratch_;
};

}  // namespace

std::unique_ptr<Plan> make_ring_plan(PlanContext context) {
  return std::make_unique<RingPlan>(std::move(context));
}

}  // namespace shoal::collectives::native
