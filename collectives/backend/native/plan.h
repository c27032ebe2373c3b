// One operation, cut into steps. A rank waits only between steps, never inside one.
#pragma once

#include <memory>
#include <span>

#include "shoal/collectives/algorithm/choice.h"
#include "shoal/collectives/backend/native/group.h"
#include "shoal/collectives/backend/native/plan_choice.h"
#include "shoal/collectives/call.h"
#include "shoal/kernels/reduction.h"

namespace shoal::collectives::native {

// How many steps of this operation other ranks must have completed before this rank's next step.
struct Requirement {
  std::uint32_t all = 0;  // by every rank
  int left = -1, right = -1;
  std::uint32_t left_steps = 0, right_steps = 0;
};

enum class Route : std::uint8_t { inlined, zero_copy, bounced, ring };

// Steps run in order. Each takes at most a few hundred microseconds, so that the driving thread can
// hand over. Once a plan is finished, no rank touches this rank's buffers any more.
class Plan {
 public:
  virtual ~Plan() = default;
  virtual std::uint32_t steps() const = 0;
  virtual Requirement needs(std::uint32_t step) const = 0;
  virtual void run(std::uint32_t step) = 0;
  virtual Route route() const = 0;
  virtual std::int64_t bounced_bytes() const { return 0; }
};

// The data that plans work with. `send` and `recv` hold this process's mappings of the peers'
// buffers, null if a rank's buffer is not symmetric; this rank's own entries are always set. The
// engine owns the arrays and keeps them until the operation is done.
struct PlanContext {
  Group& group;
  kernels::ReductionKernels& reduction;
  Call call;
  std::uint32_t sequence;
  std::span<std::byte* const> send, recv;  // by rank
  // Taken from the descriptors, so that every rank decides alike.
  bool all_send_symmetric, all_recv_symmetric, root_symmetric;
  std::span<const bool> send_symmetric, recv_symmetric;  // by rank
  // By rank, for buffers that are not symmetric: addresses in that rank's process.
  std::span<const std::uint64_t> send_address, recv_address;
  std::span<const double> factors;  // premultiplied_sum: by rank
  const PlanChoice& choice;

  int rank() const { return group.rank(); }
  int size() const { return group.size(); }
  std::int64_t element() const { return static_cast<std::int64_t>(size_of(call.dtype)); }
  transport::ControlSlot& slot(int peer) const { return group.slot(peer, sequence); }
  // Reduces one source per rank and finishes avg and premultiplied_sum.
  void reduce(std::span<const void* const> sources, void* destination, std::int64_t count) const;
  // Writes the same result to every destination. `past_caches`: see ReductionKernels.
  void reduce_into_all(std::span<const void* const> sources, std::span<void* const> destinations,
                       std::int64_t count, bool past_caches) const;
  // Copies `count` elements between disjoint buffers; `past_caches`: see ReductionKernels.
  void copy(void* to, const void* from, std::int64_t count, bool past_caches = false) const;
  // Whether Linux copies between processes whose buffers are not symmetric. `bytes` as in
  // single_copy_from(), equal on all ranks.
  bool single_copy(std::int64_t bytes) const;
  // Returns `bytes` bytes from byte `offset` of the peer's send buffer: a pointer into the mapping
  // if there is one, else `scratch`, filled with a copy.
  const std::byte* fetch(int peer, std::int64_t offset, std::int64_t bytes,
                         std::byte* scratch) const;
  // Copy between this rank's memory and the peer's buffer, mapped or not.
  void copy_from_send(int peer, std::int64_t offset, void* to, std::int64_t bytes,
                      bool past_caches = false) const;
  void copy_to_recv(int peer, std::int64_t offset, const void* from, std::int64_t bytes,
                    bool past_caches = false) const;
  // Scratch memory of this rank, which no peer reads during a direct plan. `number`: 0 .. size().
  std::byte* lane(int number) const;
  std::int64_t lane_bytes() const;
  // Whether this many bytes, over all ranks, exceed the last-level cache.
  bool exceeds_caches(std::int64_t bytes) const { return bytes > group.last_cache_bytes(); }
};

// Reduces one source per rank, in the order of `reduction`, and finishes avg and premultiplied_sum
// (`factors`, by rank).
void reduce_ranks(kernels::ReductionKernels& reduction, const Call& call,
                  std::span<const void* const> sources, std::span<const double> factors,
                  void* destination, std::int64_t count);

// Whether the call's data fits the control message; decided alike on all ranks.
bool travels_inline(const Call& call, int size, const PlanChoice& choice);
// For a call with a plan: writes the bytes that other ranks need into the slot's payload.
void write_inline_payload(const Call& call, int size, std::int64_t bytes,
                          transport::ControlSlot& slot);

// Small messages take a path without a plan, which reads each rank's slot only once
// (inline_exchange.cc). Returns true if `call`, which travels inline, takes this path.
bool exchanges_inline(const Call& call);
// The layout of such a call's data in the slots.
struct InlineLayout {
  std::int64_t written = 0;  // bytes that this rank writes into its slot
  std::int64_t read = 0;     // bytes that this rank reads from another rank's slot
  bool first_line = true;    // data in the slot's first line; else in its payload
  bool parts = false;        // one part for each other rank, in rank order; else the same for all

  // Writes the bytes of `send` that other ranks need.
  void write(const void* send, int rank, transport::ControlSlot& slot) const;
  // The data for `reader` in the slot of `writer`, another rank.
  const std::byte* data(int reader, int writer, const transport::ControlSlot& slot) const;
};
InlineLayout inline_layout(const Call& call, int rank, int size);
// The only rank whose data a call needs; ranks wait for no other. -1: all ranks.
int only_source(const Call& call);
// Prefetches the data that run_inline_exchange() will read.
void fetch_inline_ahead(const Group& group, const Call& call, std::uint32_t sequence,
                        const InlineLayout& layout);
// Computes this rank's result once every rank, or the only source, has published this call.
void run_inline_exchange(const Group& group, kernels::ReductionKernels& reduction, bool fixed_order,
                         const Call& call, std::uint32_t sequence, const InlineLayout& layout);

// Makes the plan of a call whose descriptors all match.
std::unique_ptr<Plan> make_plan(PlanContext context, const PlanChoice& choice);

std::unique_ptr<Plan> make_direct_plan(const PlanContext& context);
std::unique_ptr<Plan> make_bounce_plan(const PlanContext& context);
std::unique_ptr<Plan> make_ring_plan(PlanContext context);
// For gather, scatter, all_gather_v and all_to_all(_v): zero-copy, bounced or inline.
std::unique_ptr<Plan> make_exchange_plan(PlanContext context);
// For reduce and reduce_scatter_v: zero-copy, bounced or inline.
std::unique_ptr<Plan> make_reduce_plan(PlanContext context);

}  // namespace shoal::collectives::native
