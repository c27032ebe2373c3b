// Plans for gather, scatter, all_gather_v, all_to_all and all_to_all_v. They only move data; an
// Exchange lists the transfers. Three methods:
//   inline:    every send buffer lies beside its descriptor; each rank copies its parts from there.
//   direct:    for every transfer, one of its two ranks maps the other's buffer, or reaches it
//              through the kernel, and copies.
//   bounced:   senders fill two alternating slots slice by slice, and receivers take the slices.
#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "shoal/collectives/algorithm/exchange.h"
#include "shoal/collectives/algorithm/shard.h"
#include "shoal/collectives/backend/native/counts.h"
#include "shoal/collectives/backend/native/plan.h"
#include "shoal/collectives/backend/native/thresholds.h"
#include "shoal/runtime/base/error.h"

namespace shoal::collectives::native {
namespace {

algorithm::Exchange exchange_of(const PlanContext& c) {
  const Call& call = c.call;
  switch (call.operation) {
    case Operation::gather:
      return algorithm::Exchange::gather(c.size(), call.count, call.root);
    case Operation::scatter:
      return algorithm::Exchange::scatter(c.size(), call.count, call.root);
    case Operation::all_to_all:
      return algorithm::Exchange::all_to_all(c.size(), call.count);
    case Operation::all_gather_v:
      return algorithm::Exchange::all_gather(call.counts);
    case Operation::split:
      return algorithm::Exchange::all_gather(std::vector<std::int64_t>(at(c.size()), call.count));
    default:
      break;
  }
  std::vector<std::int64_t> counts;
  for (int sender = 0; sender < c.size(); ++sender) {
    const Counts row = counts_in(c.slot(sender), c.size());
    counts.insert(counts.end(), row.begin(), row.end());
  }
  return algorithm::Exchange::all_to_all_v(c.size(), counts);
}

class ExchangePlanBase : public Plan {
 public:
  ExchangePlanBase(PlanContext context, algorithm::Exchange exchange)
      : c_(std::move(context)), exchange_(std::move(exchange)) {}

 protected:
  std::byte* bytes_at(std::byte* buffer, std::int64_t index) const {
    return buffer + index * c_.element();
  }
  // Does nothing if a rank's own part is already in place.
  void copy(std::byte* to, const std::byte* from, std::int64_t elements) const {
    if (elements > 0 && to != from)
      std::memcpy(to, from, static_cast<std::size_t>(elements * c_.element()));
  }
  std::byte* own_send() const { return c_.send[at(c_.rank())]; }
  std::byte* own_recv() const { return c_.recv[at(c_.rank())]; }

  PlanContext c_;
  algorithm::Exchange exchange_;
};

class InlineExchange final : public ExchangePlanBase {
 public:
  using ExchangePlanBase::ExchangePlanBase;
  std::uint32_t steps() const override { return 1; }
  Requirement needs(std::uint32_t) const override { return {}; }
  Route route() const override { return Route::inlined; }
  void run(std::uint32_t) override {
    const std::size_t header = counts_bytes(c_.call.operation, c_.size());
    for (int peer = 0; peer < c_.size(); ++peer) {
      const algorithm::Transfer t = exchange_.at(peer, c_.rank());
      if (t.count == 0) continue;
      std::byte* from = peer == c_.rank() ? own_send() : c_.slot(peer).payload + header;
      copy(bytes_at(own_recv(), t.to), bytes_at(from, t.from), t.count);
    }
  }
};

// The receiver pulls a transfer if it maps the send buffer; the sender pushes it if it maps the
// recv buffer. If both can, or if neither can and Linux copies between the processes, the side with
// more ranks copies.
class DirectExchange final : public ExchangePlanBase {
 public:
  DirectExchange(PlanContext context, algorithm::Exchange exchange)
      : ExchangePlanBase(std::move(context), std::move(exchange)),
        length_(kBlockBytes / c_.element()) {
    for (int hop = 0; hop < c_.size(); ++hop) {
      // Every rank begins with a different peer, so that they do not all load from one.
      const int peer = (c_.rank() + hop) % c_.size();
      if (peer == c_.rank() || pulled(c_, exchange_, peer, c_.rank())) add(peer, c_.rank());
      if (peer != c_.rank() && !pulled(c_, exchange_, c_.rank(), peer)) add(c_.rank(), peer);
    }
    for (int rank = 0; rank < c_.size(); ++rank)
      most_blocks_ = std::max(most_blocks_, blocks_of(rank));
  }

  static bool possible(const PlanContext& c, const algorithm::Exchange& exchange) {
    return c.single_copy(exchange.longest() * c.element()) || mapped(c, exchange);
  }
  // Whether one end of every transfer is mapped.
  static bool mapped(const PlanContext& c, const algorithm::Exchange& exchange) {
    for (int sender = 0; sender < c.size(); ++sender)
      for (int receiver = 0; receiver < c.size(); ++receiver)
        if (sender != receiver && exchange.at(sender, receiver).count > 0 &&
            !c.send_symmetric[at(sender)] && !c.recv_symmetric[at(receiver)])
          return false;
    return true;
  }

  std::uint32_t steps() const override { return most_blocks_ + 1; }
  Requirement needs(std::uint32_t step) const override {
    return {.all = step == most_blocks_ ? most_blocks_ : 0};
  }
  Route route() const override { return Route::zero_copy; }
  void run(std::uint32_t step) override {
    if (step >= blocks_.size()) return;
    const Block& b = blocks_[step];
    const std::int64_t from = b.part.from * c_.element(), to = b.part.to * c_.element();
    const std::int64_t bytes = b.part.count * c_.element();
    if (b.sender == b.receiver)
      copy(own_recv() + to, own_send() + from, b.part.count);
    else if (b.receiver == c_.rank())
      c_.copy_from_send(b.sender, from, own_recv() + to, bytes);
    else
      c_.copy_to_recv(b.receiver, to, own_send() + from, bytes);
  }

 private:
  struct Block {
    int sender, receiver;
    algorithm::Transfer part;
  };
  static bool pulled(const PlanContext& c, const algorithm::Exchange& exchange, int sender,
                     int receiver) {
    if (c.send_symmetric[at(sender)] == c.recv_symmetric[at(receiver)])
      return !exchange.rather_pushed();
    return c.send_symmetric[at(sender)];
  }
  void add(int sender, int receiver) {
    const algorithm::Transfer t = exchange_.at(sender, receiver);
    const algorithm::Slices slices{t.count, length_};
    for (std::int64_t k = 0; k < slices.number(); ++k) {
      const algorithm::Range range = slices.at(k);
      blocks_.push_back(
          {sender, receiver, {t.from + range.begin, t.to + range.begin, range.size()}});
    }
  }
  std::uint32_t blocks_of(int rank) const {
    std::int64_t blocks = 0;
    const auto number = [&](int sender, int receiver) {
      return algorithm::Slices{exchange_.at(sender, receiver).count, length_}.number();
    };
    for (int peer = 0; peer < c_.size(); ++peer) {
      if (peer == rank || pulled(c_, exchange_, peer, rank)) blocks += number(peer, rank);
      if (peer != rank && !pulled(c_, exchange_, rank, peer)) blocks += number(rank, peer);
    }
    return static_cast<std::uint32_t>(blocks);
  }

  std::int64_t length_;
  std::vector<Block> blocks_;
  std::uint32_t most_blocks_ = 0;  // maximum over ranks, so that all have equally many steps
};

// Steps: fill(0), then for each slice k: fill(k+1), take(k). fill(k+1) overwrites the slot of slice
// k-1, so it waits until all ranks have taken that slice. A slot is one lane if every receiver gets
// the same data, else it has a lane for each receiver.
class BounceExchange final : public ExchangePlanBase {
 public:
  BounceExchange(PlanContext context, algorithm::Exchange exchange)
      : ExchangePlanBase(std::move(context), std::move(exchange)),
        lane_bytes_(exchange_.shared() ? kSlotBytes : kSlotBytes / c_.size() / 64 * 64) {
    length_ = lane_bytes_ / c_.element();
    SHOAL_CHECK(length_ > 0, "native: {} ranks on one host are more than bounce slots serve",
                c_.size());
    slices_ = algorithm::Slices{exchange_.longest(), length_}.number();
  }
  Route route() const override { return Route::bounced; }
  std::int64_t bounced_bytes() const override { return bounced_; }
  std::uint32_t steps() const override { return 1 + 2 * static_cast<std::uint32_t>(slices_); }
  Requirement needs(std::uint32_t step) const override {
    if (step == 0) return {};
    const std::uint32_t k = (step - 1) / 2;
    if (step % 2 == 1) return {.all = k == 0 ? 0 : 2 * k + 1};  // take(k-1) is step 2k
    return {.all = std::max(1u, 2 * k)};                        // fill(k) is step 2k-1
  }
  void run(std::uint32_t step) override {
    const std::int64_t k = (std::int64_t{step} + 1) / 2 - 1;  // step 0 belongs to slice -1
    if (step % 2 == 0 && step > 0)
      take(k);
    else if (k + 1 < slices_)
      fill(k + 1);
  }

 private:
  std::byte* lane(int sender, int receiver, std::int64_t k) const {
    return c_.group.bounce(sender) + (k % 2) * kSlotBytes +
           (exchange_.shared() ? 0 : receiver * lane_bytes_);
  }
  algorithm::Transfer slice(int sender, int receiver, std::int64_t k) const {
    const algorithm::Transfer t = exchange_.at(sender, receiver);
    const algorithm::Range range = algorithm::Slices{t.count, length_}.at(k);
    return {t.from + range.begin, t.to + range.begin, range.size()};
  }
  void fill(std::int64_t k) {
    for (int hop = 1; hop < c_.size(); ++hop) {
      const int peer = (c_.rank() + hop) % c_.size();
      const algorithm::Transfer t = slice(c_.rank(), peer, k);
      if (t.count == 0) continue;
      copy(lane(c_.rank(), peer, k), bytes_at(own_send(), t.from), t.count);
      bounced_ += t.count * c_.element();
      if (exchange_.shared()) return;
    }
  }
  void take(std::int64_t k) {
    for (int hop = 0; hop < c_.size(); ++hop) {
      const int peer = (c_.rank() + hop) % c_.size();
      const algorithm::Transfer t = slice(peer, c_.rank(), k);
      if (t.count == 0) continue;
      const std::byte* from =
          peer == c_.rank() ? bytes_at(own_send(), t.from) : lane(peer, c_.rank(), k);
      copy(bytes_at(own_recv(), t.to), from, t.count);
    }
  }

  std::int64_t lane_bytes_, length_ = 1, slices_ = 0, bounced_ = 0;
};

bool all_travel_inline(const PlanContext& c) {
  if (c.call.operation != Operation::all_to_all_v)
    return travels_inline(c.call, c.size(), c.choice);
  for (int peer = 0; peer < c.size(); ++peer) {
    Call theirs = c.call;
    const Counts counts = counts_in(c.slot(peer), c.size());
    theirs.counts.assign(counts.begin(), counts.end());
    theirs.count = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
    if (!travels_inline(theirs, c.size(), c.choice)) return false;
  }
  return true;
}

}  // namespace

std::unique_ptr<Plan> make_exchange_plan(PlanContext context) {
  algorithm::Exchange exchange = exchange_of(context);
  if (all_travel_inline(context))
    return std::make_unique<InlineExchange>(std::move(context), std::move(exchange));
  if (DirectExchange::possible(context, exchange))
    return std::make_unique<DirectExchange>(std::move(context), std::move(exchange));
  return std::make_unique<BounceExchange>(std::move(context), std::move(exchange));
}

}  // namespace shoal::collectives::native
