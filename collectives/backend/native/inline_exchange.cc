// The small-message path: one synchronisation and no plan.
//
// Each rank writes its data beside its descriptor and publishes. Once every rank has published,
// each rank computes its own result from all slots. The path is kept short as follows:
//   - Up to 48 bytes of data share one cache line with the flag and the values that must agree
//     (FirstLine), so a rank reads one line of each peer.
//   - Data beside that line is prefetched while the rank waits for the flag.
//   - Publishing takes two plain stores; sleepers do the fencing (doorbell.h).
//   - Operations are reused (queued_operation.h).
//   - Until a wait has spun for a while, only the flight recorder's clock is read.
//
// A slot is rewritten kSlots operations later. By then every rank has published a later operation,
// and so no longer reads this slot (run_ahead.cc).
#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "shoal/collectives/backend/native/counts.h"
#include "shoal/collectives/backend/native/plan.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/log.h"

namespace shoal::collectives::native {
namespace {

constexpr std::size_t kRanksOnStack = 16;
constexpr int kFew = 4;
constexpr std::int64_t kFetchedAhead = 256;  // bytes

// The other operations that travel inline have plans, which read the data from the slot's payload.
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

// Sums up to kFew elements, in rank order as ReductionKernels do, but without their overhead.
template <typename T, std::size_t kCount>
void sum_of(std::span<const void* const> sources, void* destination) {
  std::array<T, kCount> sum, next;
  std::memcpy(&sum, sources[0], sizeof sum);
  for (std::size_t s = 1; s < sources.size(); ++s) {
    std::memcpy(&next, sources[s], sizeof next);
    for (std::size_t i = 0; i < kCount; ++i) sum[i] += next[i];
  }
  std::memcpy(destination, &sum, sizeof sum);
}
template <typename T>
void sum_few(std::span<const void* const> sources, void* destination, std::int64_t count) {
  static_assert(kFew == 4);
  switch (count) {
    case 1:
      return sum_of<T, 1>(sources, destination);
    case 2:
      return sum_of<T, 2>(sources, destination);
    case 3:
      return sum_of<T, 3>(sources, destination);
    default:
      return sum_of<T, 4>(sources, destination);
  }
}

// memcpy without the call for one or two words.
void copy_bytes(void* to, const void* from, std::int64_t bytes) {
  if (bytes == 4)
    std::memcpy(to, from, 4);
  else if (bytes == 8)
    std::memcpy(to, from, 8);
  else
    std::memcpy(to, from, static_cast<std::size_t>(bytes));
}

struct Exchange {
  const Group& group;
  kernels::ReductionKernels& reduction;
  bool fixed_order;
  const Call& call;
  std::uint32_t sequence;
  const InlineLayout& layout;
  std::int64_t bytes;  // size of the call's `count` elements

  const std::byte* data(int peer) const {
    return layout.data(group.rank(), peer, group.slot(peer, sequence));
  }
  // `own`: this rank's contribution.
  void reduce(std::span<const void*> sources, const std::byte* own) const {
    for (int peer = 0; peer < group.size(); ++peer)
      sources[static_cast<std::size_t>(peer)] = peer == group.rank() ? own : data(peer);
    // For up to three ranks, the canonical tree sums in rank order.
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
    const std::byte* own = static_cast<const std::byte*>(call.send) + offset;
    const auto size = static_cast<std::size_t>(group.size());
    if (size <= kRanksOnStack) {
      std::array<const void*, kRanksOnStack> sources;
      return reduce(std::span(sources).first(size), own);
    }
    std::vector<const void*> sources(size);
    reduce(sources, own);
  }
  void copy(void* to, const void* from) const {
    if (to != from) copy_bytes(to, from, bytes);
  }
};

}  // namespace

bool exchanges_inline(const Call& call) { return needs_no_plan(call.operation); }

int only_source(const Call& call) {
  return call.operation == Operation::broadcast ? call.root : -1;
}

InlineLayout inline_layout(const Call& call, int rank, int size) {
  InlineLayout layout;
  if (call.operation == Operation::barrier) return layout;
  layout.read = call.count * static_cast<std::int64_t>(size_of(call.dtype));
  // A rank leaves out its own part, which no other rank reads: with two ranks, half of its data.
  layout.parts = call.operation == Operation::reduce_scatter;
  const std::int64_t sent = layout.read * (layout.parts ? size - 1 : 1);
  layout.first_line = sent <= static_cast<std::int64_t>(transport::FirstLine::kPayloadBytes);
  const int source = only_source(call);
  layout.written = source < 0 || source == rank ? sent : 0;
  return layout;
}

void InlineLayout::write(const void* send, int rank, transport::ControlSlot& slot) const {
  if (written == 0) return;
  std::byte* to = first_line ? slot.first.payload : slot.payload;
  const auto* from = static_cast<const std::byte*>(send);
  const std::int64_t before = parts ? rank * read : written;
  copy_bytes(to, from, before);
  if (before < written) copy_bytes(to + before, from + before + read, written - before);
}

const std::byte* InlineLayout::data(int reader, int writer,
                                    const transport::ControlSlot& slot) const {
  const std::byte* begin = first_line ? slot.first.payload : slot.payload;
  return parts ? begin + (reader < writer ? reader : reader - 1) * read : begin;
}

void fetch_inline_ahead(const Group& group, const Call& call, std::uint32_t sequence,
                        const InlineLayout& layout) {
  if (layout.first_line) return;
  const int source = only_source(call);
  for (std::int64_t at = 0; at < std::min(layout.read, kFetchedAhead); at += 64)
    for (int peer = 0; peer < group.size(); ++peer)
      if (peer != group.rank() && (source < 0 || peer == source))
        __builtin_prefetch(layout.data(group.rank(), peer, group.slot(peer, sequence)) + at);
}

void run_inline_exchange(const Group& group, kernels::ReductionKernels& reduction, bool fixed_order,
                         const Call& call, std::uint32_t sequence, const InlineLayout& layout) {
  if (call.count == 0 || call.operation == Operation::barrier) return;
  const std::int64_t bytes = call.count * static_cast<std::int64_t>(size_of(call.dtype));
  const Exchange exchange{group, reduction, fixed_order, call, sequence, layout, bytes};
  auto* recv = static_cast<std::byte*>(call.recv);
  switch (call.operation) {
    case Operation::all_reduce:
      return exchange.reduce(0);
    case Operation::reduce_scatter:
      return exchange.reduce(group.rank() * bytes);
    case Operation::all_gather:
      for (int peer = 0; peer < group.size(); ++peer)
        exchange.copy(recv + peer * bytes, peer == group.rank() ? call.send : exchange.data(peer));
      return;
    case Operation::broadcast:
      if (call.root != group.rank()) exchange.copy(recv, exchange.data(call.root));
      return;
    default:
      SHOAL_ASSERT(false);
  }
}

bool travels_inline(const Call& call, int size, const PlanChoice& choice) {
  if (call.operation == Operation::barrier || call.count == 0) return true;
  const auto capacity =
      static_cast<std::int64_t>(transport::kInlineBytes - counts_bytes(call.operation, size));
  if (!choice.inlines(call)) return false;
  const std::int64_t bytes = largest_send_bytes(call, size);
  if (bytes > capacity && choice.forces(Algorithm::inlined))
    log::once(log::Level::warn, "shm-inline-too-long",
              fmt::format("algorithm inline takes up to {} B inside a host; {} of {} B goes direct",
                          capacity, to_string(call.operation), bytes));
  return bytes <= capacity;
}

void write_inline_payload(const Call& call, int size, std::int64_t bytes,
                          transport::ControlSlot& slot) {
  if (bytes > 0)
    std::memcpy(slot.payload + counts_bytes(call.operation, size), call.send,
                static_cast<std::size_t>(bytes));
}

}  // namespace shoal::collectives::native
