// One group of ranks on an engine: numbers its operations, chooses and caches their programs.
//
// One thread at a time. A group is used either by its Communicator's caller or by Tasks (inside the
// engine's lock), not by both.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "shoal/collectives/backend/net/net_engine.h"
#include "shoal/collectives/backend/net/program_cache.h"

namespace shoal::collectives::net {

// Number of group ids of a group of `size`: one for its collectives, one for each message sender.
constexpr std::uint32_t group_ids(int size) { return static_cast<std::uint32_t>(size) + 1; }

class NetGroup {
 public:
  // Interval, in operations of a channel, at which one keeps its ranks together (a power of two, so
  // that numbers may wrap).
  static constexpr std::uint32_t kCollectiveReach = 256, kMessageReach = 64;

  // `members`: the endpoint's ranks in group order; `id`: the first of group_ids(size). `first`:
  // number of the first operation; tests start just before the wrap. `name`: the name of its dumps;
  // empty: nothing is recorded.
  NetGroup(std::shared_ptr<NetEngine> engine, std::uint32_t id, std::vector<int> members, int rank,
           const CommunicatorOptions& options, std::string name = {}, std::uint32_t first = 1);

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(members_->size()); }
  const std::vector<int>& members() const { return *members_; }
  const std::shared_ptr<NetEngine>& engine() const { return engine_; }
  // Name of a group that is split off; empty if this one has no name.
  std::string split_name(std::int64_t ordinal, int color) const;

  // Number of hosts the ranks are on, for the selection table; default: a host for each rank. Call
  // before any operation.
  void set_nodes(int nodes) { programs_.set_nodes(nodes); }

  // Submit a checked call. The second is called from inside Task::advance().
  std::shared_ptr<NetOperation> submit(Call call);
  std::shared_ptr<NetOperation> submit_locked(Call call);
  // With the caller's program; the ranks compare `signature`.
  std::shared_ptr<NetOperation> submit_program_locked(
      Call call, std::shared_ptr<const CompiledProgram> program, const Signature& signature);
  // The same for a group that belongs to its Communicator's caller.
  std::shared_ptr<NetOperation> submit_program(Call call,
                                               std::shared_ptr<const CompiledProgram> program,
                                               const Signature& signature);
  // One of the group's collectives by other means; takes its number among them.
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
  const std::shared_ptr<FlightRecorder> flight_;  // of the collectives; may be null
  std::uint32_t next_;
  std::shared_ptr<Channel> channel_;
  std::map<std::pair<int, bool>, Lane> lanes_;  // by peer; true: messages from this rank
  ProgramCache programs_;
  std::shared_ptr<const CompiledProgram> last_;  // of the last collective
};

}  // namespace shoal::collectives::net
