// Operations over several hosts by levels. Inside a host, ranks use each other's device memory.
// Between hosts, each rank's share passes through pinned memory on its own rail.
#include <algorithm>

#include "shoal/collectives/backend/device/device_engine.h"
#include "shoal/collectives/backend/tree_reduction.h"
#include "shoal/runtime/base/deadlines.h"
#include "shoal/runtime/base/log.h"

namespace shoal::collectives::device {
namespace {

constexpr int kFoldedAlike = 3;  // up to this many sources, the canonical tree is the left fold
constexpr int kSources = 64;     // limit of the device's kernels

int largest_host(const hierarchical::Placement& where) {
  int largest = 0;
  for (int node = 0; node < where.nodes(); ++node)
    largest = std::max(largest, where.local_size(node));
  return largest;
}

}  // namespace

// Collective; the result is the same on all ranks.
void DeviceEngine::meet_levels() {
  if (placement_->nodes() == 1 || placement_->nodes() == size_ || !neighbours_) return;
  const int node = placement_->node_of(rank_), local = placement_->local_rank(rank_);
  levels_ = std::make_unique<LevelGroups>();
  levels_->node = inner_->split(node, local);
  levels_->rail = inner_->split(local < placement_->rails() ? local : -1, node);
  levels_->on_host = make_rank_reduction(setup_.fixed_order);
  setup_.family->join(levels_->node);
  if (levels_->rail) setup_.family->join(levels_->rail);
}

// Depends only on the call, so all ranks agree.
bool DeviceEngine::goes_by_levels(const Call& call) const {
  if (!levels_ || (rdma_ && is_of_messages(call.operation))) return false;
  const std::int64_t bytes = is_message(call.operation) ? 0 : table_bytes(call, size_);
  if (bytes == 0 || bytes < setup_.levels_from) return false;
  if (call.reduces()) {
    const int most = largest_host(*placement_);
    if (call.op == ReduceOp::premultiplied_sum || most > kSources) return false;
    if (setup_.fixed_order && is_floating(call.dtype) &&
        (!placement_->canonical() || most > kFoldedAlike))
      return false;
  }
  if (has_levels(call, *placement_)) return true;
  if (wants_even_hosts(call.operation))
    log::once(log::Level::info, "device-not-levelled",
              fmt::format("{} passes wholly through pinned host memory: the {} hosts do not have "
                          "equally many ranks",
                          to_string(call.operation), placement_->nodes()));
  return false;
}

bool DeviceEngine::carry_out_by_levels(DeviceOperation& operation, const Call& call) {
  if (!goes_by_levels(call)) return false;
  // Waits until the buffers are ready, because neighbours read them as soon as they know the
  // addresses.
  until(call, [&] { return operation.ready.query(); });
  LevelPlan plan = level_plan(call, rank_, *placement_);
  std::vector<Buffer> sums;
  bool room = true;  // if one rank has no room, no rank uses levels
  try {
    sums = LevelPass::make_sums(call, plan, placement_->nodes(), setup_.slice_bytes, memory_,
                                in_.view());
  } catch (const Error& problem) {
    if (problem.code() != ErrorCode::out_of_memory) throw;
    room = false;
  }
  const std::vector<Reached> reached = exchange_places({call}, room);
  if (reached.empty()) return false;
  LevelPass::Buffers buffers;
  for (const int member : placement_->members(placement_->node_of(rank_))) {
    buffers.send.push_back(reached[0].send[at(member)]);
    buffers.recv.push_back(reached[0].recv[at(member)]);
  }
  for (Communicator* group : {levels_->node.get(), levels_->rail.get()})
    if (group) backend_of(*group).on_behalf_of(step_of_);
  pass_ = std::make_unique<LevelPass>(
      LevelPass::Setup{.in = in_.view(),
                       .out = out_.view(),
                       .staging = &staging_,
                       .folds = call.reduces() ? &reductions_.get() : nullptr,
                       .on_host = levels_->on_host.get(),
                       .rail = levels_->rail.get(),
                       .ranks = size_,
                       .local_rank = placement_->local_rank(rank_),
                       .slice_bytes = setup_.slice_bytes},
      call, std::move(plan), std::move(buffers), std::move(sums));
  bring_on(call, *pass_);
  const std::int64_t staged = pass_->staged_bytes();
  pass_.reset();
  until_done(*levels_->node->barrier());  // no rank accesses others' memory any more
  const std::lock_guard lock(mutex_);
  ++statistics_.bounced;
  statistics_.bounced_bytes += staged;
  for (const ReachableCopy& copy : operation.copies)
    statistics_.bounced_bytes += static_cast<std::int64_t>(copy.send.size());
  return true;
}

// The rail's Works have their own deadlines; the device's deadline restarts with any progress.
void DeviceEngine::bring_on(const Call& call, LevelPass& pass) {
  const auto from_now = [&] { return Deadline::in_seconds(setup_.deadline_seconds); };
  Deadline deadline = from_now();
  for (Backoff backoff; !pass.done();) {
    const bool went_on = pass.progress();
    if (went_on) deadline = from_now();
    if (progress_messages() || went_on) backoff = {};
    Work* const work = pass.awaited();
    if (is_late() && work) work->wait(deadlines::at_once());  // throws, naming the missing ranks
    if (is_late() || (!work && deadline.passed()))
      device_is_late(describe(call) + " waits", describe(call));
    backoff.take();
  }
}

// Aborts all host Communicators, which ends waits in them. Call from any thread.
void DeviceEngine::abort_hosts(std::string_view reason) {
  inner_->abort(reason);
  if (!levels_) return;
  levels_->node->abort(reason);
  if (levels_->rail) levels_->rail->abort(reason);
}

}  // namespace shoal::collectives::device
