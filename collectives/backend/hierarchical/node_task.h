// A hierarchical operation as a Task: phases on the node's Communicator and on the rails.
//
// The node's Communicator runs operations one at a time in the order of submission, so all ranks
// of a node must submit theirs in one order: whatever finishes when, a Task submits its node
// operations in a fixed order, and only while it holds the turn, which goes from Task to Task in
// the order of the calls.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "shoal/collectives/backend/hierarchical/placement.h"
#include "shoal/collectives/backend/net/net_group.h"

namespace shoal::collectives {

// The parts of a hierarchical Communicator that its Tasks use.
struct Levels {
  Placement placement;
  int rank = 0;                        // of the whole group
  std::unique_ptr<Communicator> node;  // this host's ranks
  std::unique_ptr<NetGroup> rail;      // null where this rank has none
  std::unique_ptr<NetGroup> exchange;  // all ranks, for programs of Tasks
  std::unique_ptr<kernels::ReductionKernels> reduction;
  std::atomic<std::int64_t> completed{0}, by_progress_thread{0};
  std::uint64_t next_ticket = 0;  // the caller's thread
  std::uint64_t turn = 0;         // with the engine's lock

  explicit Levels(Placement where) : placement(std::move(where)) {}
  int size() const { return placement.size(); }
  int node_number() const { return placement.node_of(rank); }
  int local_rank() const { return placement.local_rank(rank); }
  int local_size() const { return placement.local_size(node_number()); }
};

class NodeTask : public Task {
 public:
  NodeTask(std::shared_ptr<Levels> levels, Call call);

  std::string name() const final;
  std::string missing(std::vector<int>& peers) const final;
  bool must_poll() const final { return node_work_ != nullptr; }
  bool advance(bool background) final;
  void cancel(std::string_view reason) final;

 protected:
  // One step of this operation on the node. Each is finished before the next is submitted.
  virtual int node_steps() const = 0;
  virtual bool may_start(int step) const = 0;
  virtual WorkPtr start(int step) = 0;  // null: nothing to do here
  virtual void ended(int step) = 0;
  // Notes what the rails have finished; true when something moved.
  virtual bool advance_rail() = 0;
  virtual bool rail_over() const = 0;
  virtual const NetOperation* awaited() const = 0;  // an unfinished rail operation, or null

  const std::shared_ptr<Levels> levels_;
  const Call call_;

 private:
  bool advance_node();
  Error in_world(const Error& error) const;

  const std::uint64_t ticket_;
  int step_ = 0;
  WorkPtr node_work_;
};

// Whole operations; calls are checked.
std::shared_ptr<Task> make_all_reduce_task(std::shared_ptr<Levels> levels, Call call);
// Of equal parts or with counts. The placement must be contiguous.
std::shared_ptr<Task> make_all_gather_task(std::shared_ptr<Levels> levels, Call call);
std::shared_ptr<Task> make_reduce_scatter_task(std::shared_ptr<Levels> levels, Call call);

}  // namespace shoal::collectives
