// A hierarchical operation as a Task, with phases on the node's Communicator and on the rails.
//
// A node's Communicator runs operations one at a time in the order of submission, so all ranks of a
// node must submit theirs in the same order. A Task therefore submits its node operations of a lane
// in a fixed order, and only while it holds the lane's turn. The turn passes from Task to Task in
// the order of the calls.
//
// There are two lanes, each with its own Communicator: one for the steps before the rails and one
// for those after them. The next Task may therefore reduce in the node while the rails still carry
// the end of this one. So the network stays busy even if each rank calls the next operation only
// after it has finished this one.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include "shoal/collectives/algorithm/shard.h"
#include "shoal/collectives/backend/hierarchical/placement.h"
#include "shoal/collectives/backend/net/net_group.h"
#include "shoal/collectives/backend/net/scratch_memory.h"
#include "shoal/collectives/communicator.h"

namespace shoal::collectives::hierarchical {

// State that the Tasks of a hierarchical Communicator share.
struct Levels {
  Placement placement;
  int rank = 0;    // in the whole group
  int member = 0;  // this rank in the job, which Errors name
  // This host's ranks, by lane. Both Communicators share the first one's symmetric memory.
  std::array<std::unique_ptr<Communicator>, 2> nodes;
  std::unique_ptr<net::NetGroup> rail;  // null if this rank has none
  // Groups of all ranks for Tasks' programs, by the lane that submits them in the same order.
  std::array<std::unique_ptr<net::NetGroup>, 2> exchanges;
  // Node memory for Tasks' partial sums, registered once. Use only within Task::advance().
  std::unique_ptr<net::ScratchMemory> registered;
  std::unique_ptr<PoolMemory> scratch;  // allocates from `registered`
  std::unique_ptr<kernels::ReductionKernels> reduction;
  std::atomic<std::int64_t> completed{0}, by_progress_thread{0};
  std::uint64_t next_ticket = 0;  // used by the caller's thread only
  // Guarded by the engine's lock:
  std::array<std::uint64_t, 2> turns{};  // by lane
  int on_rail = 0;                       // slices that all_reduces have on this rank's rail

  explicit Levels(Placement where) : placement(std::move(where)) {}
  int size() const { return placement.size(); }
  int node_number() const { return placement.node_of(rank); }
  int local_rank() const { return placement.local_rank(rank); }
  int local_size() const { return placement.local_size(node_number()); }
};

// Lanes of a Task's node steps: before the rails (reduce) and after them (gather).
enum class Lane : std::uint8_t { reduce, gather };

class NodeTask : public net::Task {
 public:
  NodeTask(std::shared_ptr<Levels> levels, Call call);

  std::string name() const final;
  std::string missing(std::vector<int>& peers) const final;
  bool must_poll() const final { return states_[0].work || states_[1].work; }
  bool doze(int milliseconds) final;
  bool advance(bool background) final;
  void cancel(std::string_view reason) final;

 protected:
  Communicator& node(Lane lane) const { return *levels_->nodes[static_cast<std::size_t>(lane)]; }
  // Number of this operation's steps on the node. Each step finishes before its lane's next is
  // submitted.
  virtual int node_steps(Lane lane) const = 0;
  virtual bool may_start(Lane lane, int step) const = 0;
  virtual WorkPtr start(Lane lane, int step) = 0;  // null: nothing to do here
  virtual void ended(Lane lane, int step) = 0;
  // Records what the rails have finished. Returns true if there was progress.
  virtual bool advance_rail() = 0;
  virtual bool rail_over() const = 0;
  virtual const net::NetOperation* awaited() const = 0;  // an unfinished rail operation, or null

  // The user's call, to which the steps on the node and the rails belong.
  OuterCall outer() const { return {signature, number}; }

  const std::shared_ptr<Levels> levels_;
  const Call call_;

 private:
  struct State {
    int step = 0;
    bool over = false;  // the turn has passed on
    WorkPtr work;
  };
  bool advance_node(Lane lane);
  WorkPtr start_for_caller(Lane lane, int step);
  Error as_called(const Error& error) const;

  const std::uint64_t ticket_;
  std::array<State, 2> states_;  // by lane
};

// Tasks divide a slice among rails in multiples of kGranule elements.
inline constexpr std::int64_t kGranule = 32;
inline constexpr std::int64_t kOneRailBytes = 16 << 10;  // up to this, one rail only

// Cuts `count` elements of `element` bytes into slices of `slice` bytes. 0: into about `wanted`
// slices, each of 1 MiB to `largest` bytes.
algorithm::Slices cut(std::int64_t count, std::int64_t element, std::int64_t slice,
                      std::int64_t wanted, std::int64_t largest);

// Make Tasks of whole operations. The calls must have been checked. `slice`: bytes of a slice; 0:
// chosen by the call's length.
std::shared_ptr<net::Task> make_all_reduce_task(std::shared_ptr<Levels> levels, Call call,
                                                std::int64_t slice = 0);
// For equal parts or counts. The placement must be contiguous.
std::shared_ptr<net::Task> make_all_gather_task(std::shared_ptr<Levels> levels, const Call& call);
std::shared_ptr<net::Task> make_reduce_scatter_task(std::shared_ptr<Levels> levels,
                                                    const Call& call);
// `slice`: as in make_all_reduce_task.
std::shared_ptr<net::Task> make_broadcast_task(std::shared_ptr<Levels> levels, const Call& call,
                                               std::int64_t slice = 0);
std::shared_ptr<net::Task> make_reduce_task(std::shared_ptr<Levels> levels, const Call& call,
                                            std::int64_t slice = 0);

}  // namespace shoal::collectives::hierarchical
