#include "shoal/collectives/backend/device/rdma_memory.h"

#include <algorithm>
#include <numeric>

#include "shoal/collectives/algorithm/programs.h"
#include "shoal/collectives/backend/device/parts.h"
#include "shoal/collectives/call.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/log.h"

namespace shoal::collectives::device {
namespace {

std::vector<std::int64_t> counts_of(const Call& call, int size) {
  return has_counts(call.operation)
             ? call.counts
             : std::vector<std::int64_t>(static_cast<std::size_t>(size), call.count);
}

// Returns the program without its copies, which the device makes. An instruction that waited for a
// copy waits for that copy's dependencies instead.
algorithm::Program without_copies(const algorithm::Program& program) {
  SHOAL_ASSERT(program.scratch == 0 && program.partial == 0);
  algorithm::Program messages;
  std::vector<std::vector<int>> stands_for;  // by instruction: the kept ones that replace it
  for (const algorithm::Instruction& instruction : program.instructions) {
    SHOAL_ASSERT(instruction.verb != algorithm::Verb::reduce);
    std::vector<int> after;
    for (const int earlier : instruction.after)
      for (const int kept : stands_for[static_cast<std::size_t>(earlier)])
        if (std::ranges::find(after, kept) == after.end()) after.push_back(kept);
    if (instruction.verb == algorithm::Verb::copy) {
      stands_for.push_back(std::move(after));
      continue;
    }
    stands_for.push_back({static_cast<int>(messages.instructions.size())});
    messages.instructions.push_back(instruction);
    messages.instructions.back().after = std::move(after);
  }
  return messages;
}

// Each part crosses once to each other host.
algorithm::Program gather_between_hosts(const std::vector<std::int64_t>& counts, int rank,
                                        const hierarchical::Placement& where) {
  algorithm::Program program;
  const int size = where.size();
  // No two ranks begin with the same peer.
  for (int step = 1; step < size; ++step) {
    const int to = (rank + step) % size, from = (rank - step + size) % size;
    const std::int64_t sent = counts[static_cast<std::size_t>(rank)],
                       received = counts[static_cast<std::size_t>(from)];
    if (sent > 0 && where.node_of(to) != where.node_of(rank) && carrier_of(rank, to, where) == to)
      program.instructions.push_back({algorithm::Verb::send,
                                      to,
                                      0,
                                      {{algorithm::Space::input, 0, sent}},
                                      {},
                                      {},
                                      false,
                                      false});
    if (received > 0 && where.node_of(from) != where.node_of(rank) &&
        carrier_of(from, rank, where) == rank)
      program.instructions.push_back({algorithm::Verb::receive,
                                      from,
                                      0,
                                      {},
                                      {algorithm::Space::output, before(counts, from), received},
                                      {},
                                      false,
                                      false});
  }
  return program;
}

}  // namespace

void RdmaMemory::hold(void* segment) {
  access_.on_device([&] {
    segments_[segment] = rdma_.register_on(
        memory_.device(), segment, static_cast<std::int64_t>(memory_.segment_bytes(segment)));
  });
}

void RdmaMemory::try_it() {
  constexpr std::size_t kProbe = 256;
  void* const probe = memory_.allocate(kProbe, MemoryTag::communication, {});
  memory_.deallocate(probe, kProbe, MemoryTag::communication, {});
  hold(memory_.segment_of(probe, kProbe));
}

bool RdmaMemory::reach(const void* pointer, std::int64_t bytes) {
  if (bytes == 0) return true;
  void* const segment = memory_.segment_of(pointer, static_cast<std::size_t>(bytes));
  if (!segment) return false;
  if (const auto found = segments_.find(segment); found != segments_.end())
    return found->second != nullptr;
  try {
    hold(segment);
    return true;
  } catch (const Error& error) {
    segments_[segment] = nullptr;
    log::once(
        log::Level::warn, "device-rdma-refused",
        fmt::format("{} bytes of {} cannot be registered, so what lies there passes through "
                    "pinned host memory: {}",
                    memory_.segment_bytes(segment), to_string(memory_.device()), error.message()));
    return false;
  }
}

WorkPtr RdmaMemory::exchange(Call call, int rank, const hierarchical::Placement& where) {
  algorithm::Program messages = messages_of(call, rank, where);
  return rdma_.exchange(std::move(call), std::move(messages));
}

bool is_of_messages(Operation operation) {
  switch (operation) {
    case Operation::all_gather:
    case Operation::all_gather_v:
    case Operation::broadcast:
    case Operation::gather:
    case Operation::scatter:
    case Operation::all_to_all:
    case Operation::all_to_all_v:
    case Operation::send:
    case Operation::recv:
      return true;
    default:
      return false;
  }
}

std::int64_t longest_message(const Call& call, int size) {
  const auto element = static_cast<std::int64_t>(size_of(call.dtype));
  if (call.operation == Operation::all_to_all_v) return -1;  // no rank knows all counts
  if (call.operation == Operation::all_gather_v)
    return *std::ranges::max_element(call.counts) * element;
  // A broadcast travels in shards.
  return (call.operation == Operation::broadcast ? call.count / size : call.count) * element;
}

int carrier_of(int owner, int rank, const hierarchical::Placement& where) {
  const int node = where.node_of(rank);
  if (where.node_of(owner) == node) return owner;
  return where.members(
      node)[static_cast<std::size_t>(where.local_rank(owner) % where.local_size(node))];
}

algorithm::Program messages_of(const Call& call, int rank, const hierarchical::Placement& where) {
  const int size = where.size();
  const algorithm::Member member{rank, size};
  const auto counts = counts_of(call, size);
  switch (call.operation) {
    case Operation::all_gather:
    case Operation::all_gather_v:
      return gather_between_hosts(counts, rank, where);
    case Operation::broadcast:
      return without_copies(
          algorithm::programs::broadcast(Algorithm::sharded, member, call.count, call.root, {}));
    case Operation::gather:
      return without_copies(
          algorithm::programs::gather(Algorithm::direct, member, call.count, call.root, {}));
    case Operation::scatter:
      return without_copies(
          algorithm::programs::scatter(Algorithm::direct, member, call.count, call.root, {}));
    case Operation::all_to_all:
      return without_copies(
          algorithm::programs::all_to_all(Algorithm::direct, member, counts, counts, {}));
    case Operation::all_to_all_v:
      return without_copies(
          algorithm::programs::all_to_all(Algorithm::direct, member, counts, call.recv_counts, {}));
    default:
      throw_error(ErrorCode::internal, "an operation without messages between hosts");
  }
}

OwnPart own_part(const Call& call, int rank, int size) {
  const auto counts = counts_of(call, size);
  const std::int64_t own = counts[static_cast<std::size_t>(rank)];
  switch (call.operation) {
    case Operation::all_gather:
    case Operation::all_gather_v:
      return {0, before(counts, rank), own};
    case Operation::gather:
      return {0, before(counts, rank), rank == call.root ? own : 0};
    case Operation::scatter:
      return {before(counts, rank), 0, rank == call.root ? own : 0};
    case Operation::all_to_all:
      return {before(counts, rank), before(counts, rank), own};
    case Operation::all_to_all_v:
      return {before(counts, rank), before(call.recv_counts, rank), own};
    default:
      return {};
  }
}

}  // namespace shoal::collectives::device
