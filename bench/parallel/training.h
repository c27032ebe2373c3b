// A model and optimizer in one layout, ready to step.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "bench.h"

#include "shoal/kernels/kernels.h"
#include "shoal/nn/autograd/dispatcher.h"
#include "shoal/nn/models/causal_lm.h"
#include "shoal/parallel/apply/distributed_optimizer.h"

namespace shoal::bench {

struct Layout {
  std::string name;
  parallel::MeshShape mesh;
  parallel::ParallelOptions options;
};

constexpr int kContiguous = 1 << 20;  // checkpoint_group: all blocks of a stage

parallel::ParallelOptions pipelined(parallel::ScheduleKind kind, int microbatches, int chunks = 1);
parallel::ParallelOptions checkpointed(parallel::ParallelOptions options, int group,
                                       bool offloaded = false);
// The layouts that `a.only` selects, plus `always` (a baseline).
std::vector<Layout> chosen(std::vector<Layout> all, const ParallelArguments& a,
                           const std::vector<std::string>& always);
// With --list: prints the names on rank 0 and returns true.
bool listed(const std::vector<Layout>& all, const ParallelArguments& a, int rank);

class Training {
 public:
  // `counted`: a memory counter that already includes the shared memory of `world`; it will count
  // this model's memory too. Null: the object uses a counter of its own.
  Training(Layout layout, const ParallelArguments& a, collectives::Communicator& world,
           kernels::Kernels& kernels, CountingMemory* counted = nullptr);

  double step();  // returns the loss

  const Layout& layout() const { return layout_; }
  const parallel::ParallelModel& model() const { return *model_; }
  parallel::ParallelModel& model() { return *model_; }
  CountingMemory& memory() { return memory_; }
  double predicted_activations() const { return predicted_activations_; }  // bytes on this rank

  std::vector<double> seconds;  // by round
  double last_loss = 0;

 private:
  Tensor tokens(std::int64_t rows, std::uint32_t first);
  std::vector<parallel::UnitCost> measure(const parallel::Microbatch& trace,
                                          CountingMemory* counted);

  Layout layout_;
  ParallelArguments arguments_;
  std::unique_ptr<MemoryResource> host_ = make_host_memory();
  CountingMemory own_memory_{*host_};
  CountingMemory& memory_;
  nn::DirectDispatcher dispatcher_;
  nn::Context context_;
  kernels::StepState state_;
  parallel::ProcessMesh mesh_;
  nn::CausalLm gpt2_;
  std::unique_ptr<parallel::ParallelModel> model_;
  std::unique_ptr<parallel::DistributedOptimizer> optimizer_;
  std::vector<parallel::Microbatch> microbatches_;
  double predicted_activations_ = 0;
};

// Runs the steps of all trainings by turns, and appends the times to `seconds` of each.
void time_rounds(const std::vector<std::unique_ptr<Training>>& trainings,
                 const ParallelArguments& a, collectives::Communicator& world);

}  // namespace shoal::bench
