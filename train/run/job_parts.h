// The private members of Job and Model.
#pragma once

#include <memory>
#include <string>

#include "shoal/model.h"
#include "shoal/nn/autograd/device_values.h"
#include "shoal/parallel/apply/distributed_optimizer.h"
#include "shoal/run.h"
#include "shoal/train/run/compute.h"
#include "shoal/train/run/run_ranks.h"
#include "shoal/train/tasks/task.h"

namespace shoal {

struct Job::Parts {
  explicit Parts(RunRanks& all_ranks);

  RunRanks& ranks;
  ChosenDevice device;
  Compute compute;
  std::unique_ptr<collectives::Communicator> communicator;
};

struct Model::Parts {
  Parts(Job& of_job, std::shared_ptr<Task> of_task, const ParallelPlan& plan, std::uint64_t seed);

  // Cuts this replica's batch into this rank's microbatches.
  std::vector<parallel::Microbatch> cut(const Batch& batch, const nn::LossOptions& loss) const;
  // Sum of the batch's targets over all replicas.
  double targets(const Batch& batch) const;

  Job& job;
  std::shared_ptr<Task> task;
  nn::DirectDispatcher dispatcher;
  nn::Context context;
  nn::StepStateMemory state;
  parallel::ProcessMesh mesh;
  std::unique_ptr<parallel::ParallelModel> model;
  parallel::DistributedOptimizer* optimizer = nullptr;  // set while there is an Optimizer
};

}  // namespace shoal
