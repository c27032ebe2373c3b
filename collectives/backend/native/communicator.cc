#include "shoal/collectives/backend/backends.h"
#include "shoal/collectives/backend/departure.h"
#include "shoal/collectives/backend/movable_deadline.h"
#include "shoal/collectives/backend/native/engine.h"
#include "shoal/collectives/backend/native/symmetric_memory.h"
#include "shoal/collectives/backend/node_face.h"
#include "shoal/collectives/backend_communicator.h"

namespace shoal::collectives::native {
namespace {

std::vector<int> members_of(const Group& group) {
  std::vector<int> members;
  for (int peer = 0; peer < group.size(); ++peer) members.push_back(group.member(peer));
  return members;
}

class NativeCommunicator final : public BackendCommunicator,
                                 public NodeFace,
                                 public Departure,
                                 public MovableDeadline {
 public:
  NativeCommunicator(const std::shared_ptr<Group>& group, Store& store, std::string prefix,
                     const CommunicatorOptions& options)
      : group_(group),
        store_(store),
        prefix_(std::move(prefix)),
        options_(options),
        memory_(group, options.counted_by, options.deadline_seconds),
        engine_(new Engine(
            group, PlanChoice(options, group->size()), options.deadline_seconds,
            FlightRecorder(prefix_, group->rank(), members_of(*group), options.flight_directory))) {
  }
  ~NativeCommunicator() override { engine_->stop(); }

  int rank() const override { return group_->rank(); }
  int size() const override { return group_->size(); }
  std::string backend() const override { return "native"; }
  MemoryResource& memory_resource() override { return memory_; }
  CommunicatorStatistics statistics() const override {
    CommunicatorStatistics statistics = engine_->statistics();
    statistics.transport = "shm";
    return statistics;
  }
  void abort(std::string_view reason) override { engine_->abort(reason); }
  void leave() override { engine_->stop(); }
  void set_deadline_seconds(double seconds) override { engine_->set_deadline_seconds(seconds); }
  void drive_by_hand() override {
    engine_->end_thread();
    group_->fence_at_publishing();
  }

 private:
  WorkPtr repeat(const PlainCall& call) override { return engine_->repeat(call); }
  WorkPtr submit(Call&& call) override { return engine_->submit(std::move(call)); }
  // Fuses small all_reduces of one kind.
  WorkPtr submit_group(std::vector<Call> calls) override {
    std::vector<WorkPtr> works;
    for (std::vector<Call>& list : fusible(std::move(calls))) {
      if (list.size() == 1) {
        works.push_back(submit(std::move(list.front())));
        continue;
      }
      auto fusion = std::make_unique<Fusion>(std::move(list), memory_);
      Call call = fusion->call();
      works.push_back(engine_->submit(std::move(call), std::move(fusion)));
    }
    return make_group_work(std::move(works), deadline_seconds());
  }
  double deadline_seconds() const override { return engine_->deadline_seconds(); }
  std::unique_ptr<Communicator> make_split(const SplitPlan& plan) override {
    if (plan.ranks.empty()) return nullptr;
    const int ranks = static_cast<int>(plan.ranks.size());
    const std::string prefix = fmt::format("{}/split/{}/{}", prefix_, plan.ordinal, plan.color);
    std::vector<int> members;
    bool same = ranks == size();
    for (int place = 0; place < ranks; ++place) {
      const int peer = plan.ranks[static_cast<std::size_t>(place)];
      same = same && peer == place;
      members.push_back(group_->member(peer));
    }
    if (ranks == 1 || !same)
      return make_node_communicator(plan.rank, ranks, store_, prefix, options_, std::move(members));
    // With the same ranks, this group's memory is symmetric in the new group too.
    auto group = std::make_shared<Group>(plan.rank, ranks, store_, prefix,
                                         Deadline::in_seconds(options_.deadline_seconds),
                                         std::move(members), group_);
    return std::make_unique<NativeCommunicator>(std::move(group), store_, prefix, options_);
  }

  std::shared_ptr<Group> group_;
  Store& store_;
  const std::string prefix_;  // of store keys
  const CommunicatorOptions options_;
  SymmetricMemory memory_;
  // Outlives the Communicator while callers hold Works, so that these can throw.
  std::unique_ptr<Engine, Engine::Deleter> engine_;
};

}  // namespace

std::unique_ptr<Communicator> make_node_communicator(int rank, int size, Store& store,
                                                     const std::string& prefix,
                                                     const CommunicatorOptions& options,
                                                     std::vector<int> members) {
  if (size == 1)
    return make_single_communicator("native", options, members.empty() ? 0 : members.front());
  auto group =
      std::make_shared<Group>(rank, size, store, prefix,
                              Deadline::in_seconds(options.deadline_seconds), std::move(members));
  return std::make_unique<NativeCommunicator>(std::move(group), store, prefix, options);
}

}  // namespace shoal::collectives::native
