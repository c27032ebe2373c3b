#include <algorithm>
#include <cstring>
#include <vector>

#include "shoal/collectives/algorithm/shard.h"
#include "shoal/collectives/backend/native/counts.h"
#include "shoal/collectives/backend/native/plan.h"
#include "shoal/collectives/backend/native/thresholds.h"
#include "shoal/collectives/backend/tree_reduction.h"
#include "shoal/runtime/base/error.h"

namespace shoal::collectives::native {
namespace {

// Whether the buffers permit the operation's direct plan. They always do if Linux copies between
// the processes.
bool can_go_direct(const PlanContext& c) {
  if (c.single_copy(largest_send_bytes(c.call, c.size()))) return true;
  switch (c.call.operation) {
    case Operation::all_reduce:
      return c.all_send_symmetric && c.all_recv_symmetric;
    case Operation::all_gather:  // pull from send, or push into recv
      return c.all_send_symmetric || c.all_recv_symmetric;
    case Operation::reduce_scatter:
      return c.all_send_symmetric;
    case Operation::broadcast:
      return c.root_symmetric;
    case Operation::barrier:
      return true;
    default:
      break;
  }
  return false;
}

}  // namespace

void reduce_ranks(kernels::ReductionKernels& reduction, const Call& call,
                  std::span<const void* const> sources, std::span<const double> factors,
                  void* destination, std::int64_t count) {
  if (count <= 0) return;
  const double average = 1.0 / static_cast<double>(sources.size());
  const bool half = call.dtype == DType::f16 || call.dtype == DType::bf16;
  if (call.op == ReduceOp::premultiplied_sum)
    return reduce_in_tree(reduction, kernels::Reduce::sum, call.dtype, sources, factors, 1,
                          destination, count);
  if (call.op == ReduceOp::avg && half)  // the sum may overflow although the mean does not
    return reduce_in_tree(reduction, kernels::Reduce::sum, call.dtype, sources, {}, average,
                          destination, count);
  reduction.reduce(traits(call.op).fold, call.dtype, sources, destination, count, Stream{});
  if (call.op == ReduceOp::avg) reduction.scale(call.dtype, destination, average, count, Stream{});
}

void PlanContext::reduce(std::span<const void* const> sources, void* destination,
                         std::int64_t count) const {
  reduce_ranks(reduction, call, sources, factors, destination, count);
}

void PlanContext::reduce_into_all(std::span<const void* const> sources,
                                  std::span<void* const> destinations, std::int64_t count,
                                  bool past_caches) const {
  if (count <= 0) return;
  if (call.op != ReduceOp::avg && call.op != ReduceOp::premultiplied_sum)
    return reduction.reduce_into_all(traits(call.op).fold, call.dtype, sources, destinations, count,
                                     past_caches, Stream{});
  // avg and premultiplied_sum take two passes. The loop works in tiles, which stay in the L1 cache
  // between the passes.
  constexpr std::int64_t kTileBytes = 32 << 10;
  const algorithm::Slices tiles{count, kTileBytes / element()};
  std::vector<const void*> from(sources.begin(), sources.end());
  for (std::int64_t t = 0; t < tiles.number(); ++t) {
    const algorithm::Range tile = tiles.at(t);
    const std::int64_t offset = tile.begin * element();
    for (std::size_t s = 0; s < from.size(); ++s)
      from[s] = static_cast<const std::byte*>(sources[s]) + offset;
    const auto to = [&](std::size_t d) {
      return static_cast<std::byte*>(destinations[d]) + offset;
    };
    reduce(from, to(0), tile.size());
    for (std::size_t d = 1; d < destinations.size(); ++d) copy(to(d), to(0), tile.size());
  }
}

void PlanContext::copy(void* to, const void* from, std::int64_t count, bool past_caches) const {
  if (count <= 0) return;
  if (!past_caches) {
    std::memcpy(to, from, static_cast<std::size_t>(count * element()));
    return;
  }
  reduction.reduce_into_all(kernels::Reduce::sum, DType::u8, {&from, 1}, {&to, 1},
                            count * element(), true, Stream{});
}

bool PlanContext::single_copy(std::int64_t bytes) const {
  return group.single_copy() && bytes >= single_copy_from(call.operation, size()) &&
         lane_bytes() >= kSmallestLane;
}

const std::byte* PlanContext::fetch(int peer, std::int64_t offset, std::int64_t bytes,
                                    std::byte* scratch) const {
  const auto p = static_cast<std::size_t>(peer);
  if (send[p]) return send[p] + offset;
  group.read_memory(peer, send_address[p] + static_cast<std::uint64_t>(offset), scratch, bytes);
  return scratch;
}

void PlanContext::copy_from_send(int peer, std::int64_t offset, void* to, std::int64_t bytes,
                                 bool past_caches) const {
  const auto p = static_cast<std::size_t>(peer);
  if (send[p])
    copy(to, send[p] + offset, bytes / element(), past_caches);
  else
    group.read_memory(peer, send_address[p] + static_cast<std::uint64_t>(offset), to, bytes);
}

void PlanContext::copy_to_recv(int peer, std::int64_t offset, const void* from, std::int64_t bytes,
                               bool past_caches) const {
  const auto p = static_cast<std::size_t>(peer);
  if (recv[p])
    copy(recv[p] + offset, from, bytes / element(), past_caches);
  else
    group.write_memory(peer, recv_address[p] + static_cast<std::uint64_t>(offset), from, bytes);
}

// The bounce area is free: every rank has begun this operation, and so finished the previous one.
std::byte* PlanContext::lane(int number) const {
  return group.bounce(rank()) + number * lane_bytes();
}
std::int64_t PlanContext::lane_bytes() const {
  return std::min(kLargestLane, kBounceBytes / (size() + 1) / kSmallestLane * kSmallestLane);
}

std::unique_ptr<Plan> make_plan(PlanContext context, const PlanChoice& choice) {
  switch (context.call.operation) {
    case Operation::gather:
    case Operation::scatter:
    case Operation::all_gather_v:
    case Operation::all_to_all:
    case Operation::all_to_all_v:
    case Operation::split:
      return make_exchange_plan(std::move(context));
    case Operation::reduce:
    case Operation::reduce_scatter_v:
      return make_reduce_plan(std::move(context));
    default:
      break;
  }
  if (context.call.operation == Operation::all_reduce) {
    const bool symmetric = context.all_send_symmetric && context.all_recv_symmetric;
    if (choice.plan(context.call, symmetric) == Algorithm::ring)
      return make_ring_plan(std::move(context));
  }
  return can_go_direct(context) ? make_direct_plan(context) : make_bounce_plan(context);
}

}  // namespace shoal::collectives::native
