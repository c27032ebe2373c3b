#include "shoal/collectives/backend/device/level_plan.h"

#include <algorithm>
#include <numeric>

#include "shoal/collectives/algorithm/shard.h"
#include "shoal/collectives/backend/device/parts.h"

namespace shoal::collectives::device {
namespace {

constexpr std::int64_t kGranule = 32;  // elements, as in hierarchical/

bool is_scatter(Operation operation) {
  return operation == Operation::reduce_scatter || operation == Operation::reduce_scatter_v;
}

bool is_even(const hierarchical::Placement& where) {
  for (int node = 0; node < where.nodes(); ++node)
    if (where.local_size(node) != where.rails()) return false;
  return true;
}

// A rank's part of the whole buffer of a scatter or gather.
LevelPlan::Part part_of(const Call& call, int rank) {
  if (call.counts.empty()) return {rank * call.count, call.count};
  const auto begin = call.counts.begin();
  return {std::accumulate(begin, begin + rank, std::int64_t{0}), call.counts[at(rank)]};
}

std::vector<int> all_of(int ranks) {
  std::vector<int> all(at(ranks));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

// Each rail carries one shard of the buffer.
void plan_shards(LevelPlan& plan, const Call& call, int rank,
                 const hierarchical::Placement& where) {
  const int node = where.node_of(rank), local = where.local_rank(rank);
  const bool rooted = call.root >= 0;
  const bool at_root = rooted && node == where.node_of(call.root);
  const bool broadcasts = call.operation == Operation::broadcast;
  const int root = rooted ? where.local_rank(call.root) : -1;
  if (broadcasts && at_root && rank != call.root) plan.copies.push_back({root, 0, 0, call.count});
  if (local >= where.rails()) return;
  const algorithm::Range own = algorithm::shard(call.count, where.rails(), local, kGranule);
  const LevelPlan::Part part{own.begin, own.size()};
  plan.rail = call;
  plan.rail->count = own.size();
  if (rooted) plan.rail->root = where.node_of(call.root);
  if (!broadcasts || at_root) plan.from = {part};
  if (!rooted || at_root != broadcasts) plan.to = {part};
  const std::vector<int> neighbours = all_of(where.local_size(node));
  plan.sources = broadcasts ? std::vector<int>{root} : neighbours;
  plan.destinations = call.operation == Operation::reduce ? std::vector<int>{root} : neighbours;
}

// Each rail carries the parts of its own ranks.
void plan_parts(LevelPlan& plan, const Call& call, int rank, const hierarchical::Placement& where) {
  const int node = where.node_of(rank), local = where.local_rank(rank);
  const std::vector<int> rail = where.rail(local), neighbours = all_of(where.local_size(node));
  std::vector<LevelPlan::Part> parts;
  for (const int member : rail) parts.push_back(part_of(call, member));
  plan.rail = call;
  if (!call.counts.empty()) {
    plan.rail->counts.clear();
    for (const auto& part : parts) plan.rail->counts.push_back(part.count);
    plan.rail->count =
        std::accumulate(plan.rail->counts.begin(), plan.rail->counts.end(), std::int64_t{0});
  }
  const LevelPlan::Part own{0, part_of(call, rank).count};
  if (is_scatter(call.operation)) {  // else a gather
    plan.from = parts;
    plan.to = {own};
    plan.sources = neighbours;
    plan.destinations = {local};
    return;
  }
  plan.from = {own};
  plan.to = parts;
  plan.to[at(node)].moves = false;  // the ranks of a host copy its parts from each other
  plan.sources = {local};
  plan.destinations = neighbours;
  for (const int neighbour : neighbours) {
    const LevelPlan::Part part = part_of(call, where.members(node)[at(neighbour)]);
    plan.copies.push_back({neighbour, 0, part.at, part.count});
  }
}

}  // namespace

bool wants_even_hosts(Operation operation) {
  return is_scatter(operation) || operation == Operation::all_gather ||
         operation == Operation::all_gather_v;
}

bool has_levels(const Call& call, const hierarchical::Placement& where) {
  switch (call.operation) {
    case Operation::all_reduce:
    case Operation::reduce:
    case Operation::broadcast:
      return true;
    default:
      return wants_even_hosts(call.operation) && is_even(where);
  }
}

LevelPlan level_plan(const Call& call, int rank, const hierarchical::Placement& where) {
  LevelPlan plan;
  if (wants_even_hosts(call.operation))
    plan_parts(plan, call, rank, where);
  else
    plan_shards(plan, call, rank, where);
  if (!plan.rail) return plan;
  plan.rail->stream = {};
  plan.rail->outer.reset();
  if (!call.reduces()) return plan;
  if (call.op == ReduceOp::avg) plan.rail->op = ReduceOp::sum;
  // Summed in f32 and rounded once, when the sum is complete.
  if (size_of(call.dtype) == 2 && is_floating(call.dtype) && traits(call.op).rounds)
    plan.rail->dtype = DType::f32;
  return plan;
}

bool neighbours_read_send(const Call& call, int rank) {
  return call.operation != Operation::broadcast || rank == call.root;
}

bool neighbours_write_recv(const Call& call, int rank) {
  switch (call.operation) {
    case Operation::all_reduce:
    case Operation::all_gather:
    case Operation::all_gather_v:
      return true;
    case Operation::broadcast:
      return rank != call.root;
    case Operation::reduce:
      return rank == call.root;
    default:
      return false;
  }
}

}  // namespace shoal::collectives::device
