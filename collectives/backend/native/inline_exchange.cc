// The small-message path: one synchronisation and no plan.
//
// A rank writes its data beside its descriptor and publishes; once every rank has, each computes
// its own result from all slots. What is kept off this path, and why: a rank reads one cache line
// of each peer while up to 40 bytes travel (FirstLine: the flag, what must agree, the data);
// what lies beside it is fetched while the flag is waited for, so that it does not come after it;
// publishing is two plain stores (sleepers do the fencing, doorbell.h); nothing is allocated for
// the operation but its entry in the queue; no clock is read until a wait has spun for a while.
//
// A slot is written again two operations later. By then every rank has published the operation in
// between, and so has finished with this one.
#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "shoal/collectives/backend/native/counts.h"
#include "shoal/collectives/backend/native/plan.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/log.h"

namespace shoal::collectives {
namespace {

constexpr std::size_t kRanksOnStack = 16;
constexpr int kFew = 4;

// The other operations that travel inline have plans, which look for data in the slot's payload.
bool needs_no_plan(Operation operation) {
  switch (operation) {
    case Operation::all_reduce:
    case Operation::reduce_scatter:
    case Operation::all_gather:
    case Operation::broadcast:
    case Operation::barrier:
      return true;
    default:
      return false;
  }
}

bool fits_first_line(const Call& call, std::int64_t bytes) {
  return needs_no_plan(call.operation) &&
         bytes <= static_cast<std::int64_t>(FirstLine::kPayloadBytes);
}

// The sum of a handful of elements, in rank order as ReductionKernels folds, without the way there.
template <typename T>
void sum_few(std::span<const void* const> sources, void* destination, std::int64_t count) {
  T sum[kFew];
  const auto bytes = static_cast<std::size_t>(count) * sizeof(T);
  std::memcpy(sum, sources[0], bytes);
  for (std::size_t s = 1; s < sources.size(); ++s) {
    T next[kFew];
    std::memcpy(next, sources[s], bytes);
    for (std::int64_t i = 0; i < count; ++i) sum[i] += next[i];
  }
  std::memcpy(destination, sum, bytes);
}

struct Exchange {
  const Group& group;
  kernels::ReductionKernels& reduction;
  bool fixed_order;
  const Call& call;
  std::uint32_t sequence;
  bool first_line;     // the data lies there
  std::int64_t bytes;  // of the `count` elements of the call

  const std::byte* payload(int peer) const {
    const ControlSlot& slot = group.slot(peer, sequence);
    return first_line ? slot.first.payload : slot.payload;
  }
  void reduce(std::span<const void*> sources, std::int64_t offset) const {
    for (int peer = 0; peer < group.size(); ++peer)
      sources[static_cast<std::size_t>(peer)] = payload(peer) + offset;
    // Of three ranks the canonical tree is the fold from the left.
    const bool few =
        call.op == ReduceOp::sum && call.count <= kFew && (!fixed_order || sources.size() <= 3);
    if (few && call.dtype == DType::f32) return sum_few<float>(sources, call.recv, call.count);
    if (few && call.dtype == DType::f64) return sum_few<double>(sources, call.recv, call.count);
    std::vector<double> factors;
    if (call.op == ReduceOp::premultiplied_sum)
      for (int peer = 0; peer < group.size(); ++peer)
        factors.push_back(group.slot(peer, sequence).descriptor.factor);
    reduce_ranks(reduction, call, sources, factors, call.recv, call.count);
  }
  void reduce(std::int64_t offset) const {
    const auto size = static_cast<std::size_t>(group.size());
    if (size <= kRanksOnStack) {
      std::array<const void*, kRanksOnStack> sources;
      return reduce(std::span(sources).first(size), offset);
    }
    std::vector<const void*> sources(size);
    reduce(sources, offset);
  }
};

}  // namespace

bool exchanges_inline(const Call& call) { return needs_no_plan(call.operation); }

void run_inline_exchange(const Group& group, kernels::ReductionKernels& reduction, bool fixed_order,
                         const Call& call, std::uint32_t sequence, bool first_line) {
  if (call.count == 0 || call.operation == Operation::barrier) return;
  const Exchange exchange{group,
                          reduction,
                          fixed_order,
                          call,
                          sequence,
                          first_line,
                          call.count * static_cast<std::int64_t>(size_of(call.dtype))};
  const auto bytes = static_cast<std::size_t>(exchange.bytes);
  auto* recv = static_cast<std::byte*>(call.recv);
  switch (call.operation) {
    case Operation::all_reduce:
      return exchange.reduce(0);
    case Operation::reduce_scatter:
      return exchange.reduce(group.rank() * exchange.bytes);
    case Operation::all_gather:
      for (int peer = 0; peer < group.size(); ++peer)
        std::memcpy(recv + peer * exchange.bytes, exchange.payload(peer), bytes);
      return;
    case Operation::broadcast:
      if (call.root != group.rank()) std::memcpy(recv, exchange.payload(call.root), bytes);
      return;
    default:
      SHOAL_ASSERT(false);
  }
}

bool travels_inline(const Call& call, int size, const PlanChoice& choice) {
  if (call.operation == Operation::barrier || call.count == 0) return true;
  const auto capacity =
      static_cast<std::int64_t>(kInlineBytes - counts_bytes(call.operation, size));
  if (!choice.inlines(call)) return false;
  const std::int64_t bytes = largest_send_bytes(call, size);
  if (bytes > capacity && choice.forces(Algorithm::inlined))
    log::once(log::Level::warn, "shm-inline-too-long",
              fmt::format("algorithm inline takes up to {} B inside a host; {} of {} B goes direct",
                          capacity, to_string(call.operation), bytes));
  return bytes <= capacity;
}

std::int64_t write_inline_payload(const Call& call, int rank, int size, ControlSlot& slot) {
  if (call.count == 0 || call.operation == Operation::barrier) return 0;
  const std::int64_t bytes = call.send_bytes(rank, size);
  const bool near = fits_first_line(call, bytes);
  std::byte* to = near ? slot.first.payload : slot.payload + counts_bytes(call.operation, size);
  const bool sends = call.operation != Operation::broadcast || call.root == rank;
  if (bytes > 0 && sends) std::memcpy(to, call.send, static_cast<std::size_t>(bytes));
  return near ? 0 : bytes;
}

}  // namespace shoal::collectives
