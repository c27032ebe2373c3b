// Communicator of ranks on several hosts. An all_reduce is a reduce_scatter inside the host through
// shared memory, an all_reduce of each shard on that rank's rail, and an all_gather inside the
// host. These are Herring's balanced fusion buffers with the workers as servers. Operations that
// gain nothing from levels go directly from rank to rank.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "shoal/collectives/backend/hierarchical/node_task.h"
#include "shoal/collectives/backend/net/engine_communicator.h"
#include "shoal/collectives/select/choices.h"

namespace shoal::collectives::hierarchical {

// Makes the Communicator of one host's ranks; collective among them. `prefix` must be unique to the
// group. `members`: their ranks in the job.
using MakeNode = std::function<std::unique_ptr<Communicator>(
    int rank, int size, const std::string& prefix, const CommunicatorOptions& options,
    std::vector<int> members)>;

class HierarchicalCommunicator final : public net::EngineCommunicator {
 public:
  struct Plan {
    std::unique_ptr<net::NetGroup> flat;
    std::uint32_t first_id = 0;      // the first of EngineCommunicator::ids_of(size) ids
    std::vector<std::string> hosts;  // by rank
    std::string prefix;              // of store keys
    MakeNode make_node;
  };
  // Collective: the ranks of each host form their node.
  HierarchicalCommunicator(Plan plan, const CommunicatorOptions& options);

  MemoryResource& memory_resource() override { return memory_; }
  CommunicatorStatistics statistics() const override;
  void abort(std::string_view reason) override;
  // Of the node's groups too.
  void leave() override;
  void set_deadline_seconds(double seconds) override;

 private:
  WorkPtr submit(Call&& call) override;
  std::unique_ptr<Communicator> make_split(const SplitPlan& plan) override;
  const Selection& chosen(const Call& call) const {
    return choices_.at(base_operation(call.operation), table_bytes(call, size()));
  }
  std::shared_ptr<net::Task> task_of(const Call& call);
  bool in_blocks(const Call& call) const;
  void log_fixed_order() const;

  const std::vector<std::string> hosts_;
  const std::string prefix_;
  const MakeNode make_node_;
  std::shared_ptr<Levels> levels_;
  const bool by_subtrees_;  // fixed order permits levels
  const Choices choices_;
  const Selection* last_levels_ = nullptr;  // null: the last call used none
  net::RegisteredMemory memory_;
};

}  // namespace shoal::collectives::hierarchical
