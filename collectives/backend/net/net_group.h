// A group of ranks on an engine. It numbers its operations, and chooses and caches their programs.
//
// One thread at a time uses a group: either its Communicator's caller, or Tasks (with the engine's
// lock held), never both.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "shoal/collectives/backend/net/net_engine.h"
#include "shoal/collectives/backend/net/program_cache.h"

namespace shoal::collectives::net {

// Number of group ids of a group of `size` ranks: one for its collectives and one for each sender
// of messages.
constexpr std::uint32_t group_ids(int size) { return static_cast<std::uint32_t>(size) + 1; }

class NetGroup {
 public:
  // In each channel, one of kCollectiveReach collectives needs all ranks, and one of kMessageReach
  // messages is acknowledged. Powers of two, so that numbers may wrap.
  static constexpr std::uint32_t kCollectiveReach = 256, kMessageReach = 64;

  // `members`: the endpoint's ranks, in group order. `id`: the first of its group_ids(size) ids.
  // `first`: number of the first operation; tests start just before the wrap. `name`: names its
  // dumps; empty: nothing is recorded.
  NetGroup(std::shared_ptr<NetEngine> engine, std::uint32_t id, std::vector<int> members, int rank,
           const CommunicatorOptions& options, std::string name = {}, std::uint32_t first = 1);

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(members_->size()); }
  const std::vector<int>& members() const { return *members_; }
  const std::shared_ptr<NetEngine>& engine() const { return engine_; }
  // Name of a group split off this one; empty if this one has no name.
  std::string split_name(std::int64_t ordinal, int color) const;

  // Sets the number of hosts that the ranks are on, for the selection table. Default: one host per
  // rank. Call before any operation.
  void set_nodes(int nodes) { programs_.set_nodes(nodes); }

  // Submit a checked call. Call the second from inside Task::advance().
  std::shared_ptr<NetOperation> submit(Call call);
  std::shared_ptr<NetOperation> submit_locked(Call call);
  // Submits a call with the caller's program. The ranks compare `signature`.
  std::shared_ptr<NetOperation> submit_program_locked(
      Call call, std::shared_ptr<const CompiledProgram> program, const Signature& signature);
  // The same, for a group that its Communicator's caller uses.
  std::shared_ptr<NetOperation> submit_program(Call call,
                                               std::shared_ptr<const CompiledProgram> program,
                                               const Signature& signature);
  // Submits one of the group's collectives as a Task. The Task is numbered among the collectives.
  void submit(const std::shared_ptr<Task>& task, const Call& call);
  CommunicatorStatistics statistics() const;

 private:
  struct Lane {  // messages from one rank to another
    std::shared_ptr<Channel> channel;
    std::uint32_t next = 0;
  };
  using Put = void (NetEngine::*)(const std::shared_ptr<Channel>&, std::shared_ptr<NetOperation>);
  std::shared_ptr<NetOperation> submit_with(Put put, Call call);
  std::shared_ptr<NetOperation> collective(Call call);
  std::shared_ptr<NetOperation> submit_program_with(Put put, Call call,
                                                    std::shared_ptr<const CompiledProgram> program,
                                                    const Signature& signature);
  void keep_together(Put put);
  void number(InFlight& operation);
  std::shared_ptr<NetOperation> message(Call call, Lane& lane);
  std::shared_ptr<NetOperation> prepared(Call call, bool acknowledged);

  const std::shared_ptr<NetEngine> engine_;
  const std::uint32_t id_;
  const std::shared_ptr<const std::vector<int>> members_;
  const int rank_;
  const std::string name_;
  const std::shared_ptr<FlightRecorder> flight_;  // records the operations; may be null
  std::uint32_t next_;
  std::shared_ptr<Channel> channel_;
  std::map<std::pair<int, bool>, Lane> lanes_;  // by peer; true: this rank sends
  ProgramCache programs_;
  std::shared_ptr<const CompiledProgram> last_;  // program of the last collective
};

}  // namespace shoal::collectives::net
