#include "shoal/collectives/backend/hierarchical/hierarchical_communicator.h"

#include <algorithm>

#include "shoal/collectives/backend/backends.h"
#include "shoal/collectives/backend/net/net_communicator.h"
#include "shoal/collectives/backend/node_face.h"
#include "shoal/collectives/backend/tree_reduction.h"
#include "shoal/runtime/base/log.h"

namespace shoal::collectives::hierarchical {
namespace {

std::shared_ptr<Levels> make_levels(const net::NetGroup& flat, std::uint32_t first_id,
                                    const std::vector<std::string>& hosts,
                                    const std::string& prefix, const MakeNode& make_node,
                                    const CommunicatorOptions& options) {
  auto levels = std::make_shared<Levels>(Placement(hosts));
  const Placement& where = levels->placement;
  levels->rank = flat.rank();
  levels->member = flat.members()[static_cast<std::size_t>(flat.rank())];
  levels->reduction = make_rank_reduction(options.fixed_order);
  CommunicatorOptions inner = options;
  if (inner.algorithm == "hierarchical") inner.algorithm.clear();
  const int node = levels->node_number(), local = levels->local_rank();
  const auto in_job = [&](const std::vector<int>& ranks) {
    std::vector<int> members;
    for (const int rank : ranks) members.push_back(flat.members()[static_cast<std::size_t>(rank)]);
    return members;
  };
  levels->nodes[0] =
      levels->local_size() == 1
          ? make_single_communicator("native", inner, levels->member)
          : make_node(local, levels->local_size(), fmt::format("{}/node/{}", prefix, node), inner,
                      in_job(where.members(node)));
  levels->nodes[1] = levels->nodes[0]->split(0, local);
  for (const auto& lane : levels->nodes)
    if (auto* face = dynamic_cast<NodeFace*>(lane.get())) face->drive_by_hand();
  const std::uint32_t end = first_id + net::EngineCommunicator::ids_of(where.size());
  for (std::uint32_t lane = 0; lane < 2; ++lane) {
    levels->exchanges[lane] = std::make_unique<net::NetGroup>(flat.engine(), end - 2 + lane,
                                                              flat.members(), flat.rank(), inner);
  }
  levels->registered =
      std::make_unique<net::ScratchMemory>(*flat.engine(), levels->nodes[0]->memory_resource());
  levels->scratch = std::make_unique<PoolMemory>(*levels->registered);
  if (local >= where.rails()) return levels;
  const std::uint32_t id = first_id + net::group_ids(where.size()) +
                           static_cast<std::uint32_t>(local) * net::group_ids(where.nodes());
  levels->rail =
      std::make_unique<net::NetGroup>(flat.engine(), id, in_job(where.rail(local)), node, inner);
  return levels;
}

}  // namespace

HierarchicalCommunicator::HierarchicalCommunicator(Plan plan, const CommunicatorOptions& options)
    : net::EngineCommunicator(std::move(plan.flat), options),
      hosts_(std::move(plan.hosts)),
      prefix_(std::move(plan.prefix)),
      make_node_(std::move(plan.make_node)),
      levels_(make_levels(*flat_, plan.first_id, hosts_, prefix_, make_node_, options)),
      by_subtrees_(levels_->placement.canonical()),
      choices_(make_selector(options.collectives), size(), levels_->placement.nodes(),
               MemoryKind::unknown, levelled_candidates),
      memory_(engine_, levels_->nodes[0]->memory_resource()) {
  flat_->set_nodes(levels_->placement.nodes());
  if (options.fixed_order) log_fixed_order();
}

void HierarchicalCommunicator::log_fixed_order() const {
  const Placement& where = levels_->placement;
  if (by_subtrees_) {
    log::once(log::Level::info, "fixed-order-hosts",
              fmt::format("fixed_order: the {} hosts are subtrees of the canonical tree over {} "
                          "ranks; floating sums cost no more bytes between hosts than without",
                          where.nodes(), size()));
    return;
  }
  // For S bytes, a host with L of n ranks sends 2 L (n - L)/n S from rank to rank. By levels over N
  // hosts, it sends 2 (N - 1)/N S.
  double most = 0;
  for (int node = 0; node < where.nodes(); ++node) {
    const double local = where.local_size(node);
    most = std::max(most, local * (size() - local) / size());
  }
  log::once(log::Level::info, "fixed-order-hosts",
            fmt::format("fixed_order: the {} hosts are no subtrees of the canonical tree over {} "
                        "ranks, so floating reductions go from rank to rank, which sends {:.1f}x "
                        "the bytes; hosts of 1, 2, 4, 8 … ranks each in rank order cost nothing",
                        where.nodes(), size(), most * where.nodes() / (where.nodes() - 1)));
}

WorkPtr HierarchicalCommunicator::submit(Call&& call) {
  auto task = task_of(call);
  last_levels_ = task ? &chosen(call) : nullptr;
  if (task) {
    flat_->submit(task, call);
    return std::make_unique<net::NetWork>(engine_, std::move(task));
  }
  return net::EngineCommunicator::submit(std::move(call));
}

std::shared_ptr<net::Task> HierarchicalCommunicator::task_of(const Call& call) {
  const bool forced = options_.algorithm == "hierarchical";
  if (!forced && !options_.algorithm.empty()) return nullptr;
  // If hosts do not match the canonical tree, every rank's input must reach the rank that sums it.
  // Integers give the same result in any order.
  if (options_.fixed_order && call.reduces() && is_floating(call.dtype) && !by_subtrees_)
    return nullptr;
  const Selection& selection = chosen(call);
  if (!forced && selection.algorithm != Algorithm::hierarchical) return nullptr;
  switch (call.operation) {
    case Operation::all_reduce:
      return make_all_reduce_task(levels_, call, selection.slice);
    case Operation::broadcast:
      return make_broadcast_task(levels_, call, selection.slice);
    case Operation::reduce:
      return make_reduce_task(levels_, call, selection.slice);
    case Operation::all_gather:
    case Operation::all_gather_v:
      return in_blocks(call) ? make_all_gather_task(levels_, call) : nullptr;
    case Operation::reduce_scatter:
    case Operation::reduce_scatter_v:
      return in_blocks(call) ? make_reduce_scatter_task(levels_, call) : nullptr;
    default:
      return nullptr;
  }
}

bool HierarchicalCommunicator::in_blocks(const Call& call) const {
  if (levels_->placement.contiguous()) return true;
  log::once(log::Level::warn, "hosts-not-contiguous",
            fmt::format("native: {} goes from rank to rank, because the ranks of a host do not "
                        "follow each other; map ranks by slot",
                        to_string(call.operation)));
  return false;
}

CommunicatorStatistics HierarchicalCommunicator::statistics() const {
  CommunicatorStatistics sum = flat_->statistics();
  sum.transport = "shm + " + sum.transport;
  if (last_levels_) {
    sum.algorithm = to_string(Algorithm::hierarchical);
    sum.why = options_.algorithm.empty() ? last_levels_->why : "forced";
  }
  sum.operations += levels_->completed.load();
  sum.by_progress_thread += levels_->by_progress_thread.load();
  sum.zero_copy = sum.bounced = sum.bounced_bytes = 0;
  for (const auto& lane : levels_->nodes) {
    const CommunicatorStatistics node = lane->statistics();
    sum.zero_copy += node.zero_copy;
    sum.bounced += node.bounced;
    sum.bounced_bytes += node.bounced_bytes;
  }
  return sum;
}

void HierarchicalCommunicator::abort(std::string_view reason) {
  engine_->abort(reason);
  for (const auto& node : levels_->nodes) node->abort(reason);
}

void HierarchicalCommunicator::leave() {
  net::EngineCommunicator::leave();
  for (const auto& node : levels_->nodes)
    if (auto* const kept = dynamic_cast<Departure*>(node.get())) kept->leave();
}

void HierarchicalCommunicator::set_deadline_seconds(double seconds) {
  net::EngineCommunicator::set_deadline_seconds(seconds);
  for (const auto& node : levels_->nodes)
    if (auto* const inner = dynamic_cast<MovableDeadline*>(node.get()))
      inner->set_deadline_seconds(seconds);
}

std::unique_ptr<Communicator> HierarchicalCommunicator::make_split(const SplitPlan& plan) {
  if (plan.ranks.empty()) return nullptr;
  const int ranks = static_cast<int>(plan.ranks.size());
  const auto member = [this](int peer) { return flat_->members()[static_cast<std::size_t>(peer)]; };
  if (ranks == 1) return make_single_communicator(backend(), options_, member(plan.ranks.front()));
  const std::string prefix = fmt::format("{}/split/{}/{}", prefix_, plan.ordinal, plan.color);
  Plan inner;
  std::vector<int> members;
  for (const int peer : plan.ranks) {
    inner.hosts.push_back(hosts_[static_cast<std::size_t>(peer)]);
    members.push_back(member(peer));
  }
  if (Placement(inner.hosts).nodes() == 1)
    return make_node_(plan.rank, ranks, prefix, options_, std::move(members));
  inner.first_id = split_ids_.at(plan.color);
  inner.flat =
      std::make_unique<net::NetGroup>(engine_, inner.first_id, std::move(members), plan.rank,
                                      options_, flat_->split_name(plan.ordinal, plan.color));
  if (Placement(inner.hosts).nodes() == ranks)
    return std::make_unique<net::NetCommunicator>(std::move(inner.flat), options_);
  inner.prefix = prefix;
  inner.make_node = make_node_;
  return std::make_unique<HierarchicalCommunicator>(std::move(inner), options_);
}

}  // namespace shoal::collectives::hierarchical
