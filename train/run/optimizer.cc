#include <memory>
#include <utility>

#include <nlohmann/json.hpp>

#include "shoal/model.h"
#include "shoal/nn/autograd/device_values.h"
#include "shoal/nn/optim/schedule.h"
#include "shoal/runtime/base/error.h"
#include "shoal/train/checkpoint/checkpoint_directory.h"
#include "shoal/train/checkpoint/sharded_checkpoint.h"
#include "shoal/train/run/job_parts.h"
#include "shoal/train/trainer/local_state.h"

namespace shoal {

struct Optimizer::Parts {
  Parts(Model::Parts& of, const AdamW& rule)
      : model(of),
        optimizer(*of.model,
                  nn::adamw({.beta1 = rule.beta1,
                             .beta2 = rule.beta2,
                             .epsilon = rule.epsilon,
                             .weight_decay = rule.weight_decay}),
                  {.dynamic_loss_scale = of.model->plan().precision.dtype == DType::f16,
                   .dynamic_loss_args =
                       of.model->plan().precision.loss_scaling.value_or(nn::LossScalerOptions{})}) {
    model.optimizer = &optimizer;
  }
  ~Parts() { model.optimizer = nullptr; }
  Parts(const Parts&) = delete;
  Parts& operator=(const Parts&) = delete;

  std::vector<LocalShard> local_state(Which which) const {
    std::vector<LocalShard> all = local_weights(*model.model, which);
    for (LocalShard& moment : local_moments(optimizer, which)) all.push_back(std::move(moment));
    return all;
  }

  Model::Parts& model;
  parallel::DistributedOptimizer optimizer;
};

std::function<double(std::int64_t)> learning_rates(const std::string& kind, double highest,
                                                   std::int64_t warmup_steps,
                                                   std::int64_t total_steps) {
  return
      [schedule = nn::Schedule(kind, highest, warmup_steps, total_steps, nlohmann::json::object())](
          std::int64_t step) { return schedule.learning_rate(step); };
}

Optimizer::Optimizer(Model& model, const AdamW& rule)
    : parts_(model.parts().mesh.guarded(
          [&] { return std::make_unique<Parts>(model.parts(), rule); })) {}
Optimizer::~Optimizer() = default;

Update Optimizer::step(double learning_rate, double max_norm) {
  Model::Parts& model = parts_->model;
  const nn::StepOutcome outcome = model.mesh.guarded([&] {
    return parts_->optimizer.step(*model.state,
                                  {.learning_rate = learning_rate, .max_gradient_norm = max_norm});
  });
  return {outcome.gradient_norm, outcome.skipped};
}

void Optimizer::save(const std::string& directory, std::int64_t step) {
  Model::Parts& model = parts_->model;
  collectives::Communicator& world = model.mesh.world();
  model.mesh.guarded([&] {
    model.model->wait_for_values();
    std::unique_ptr<CheckpointTransaction> transaction;
    if (world.rank() == 0)
      transaction = std::make_unique<CheckpointTransaction>(directory, step, 0);
    world.host().barrier()->wait();  // the directory exists now
    const std::string unfinished = unfinished_checkpoint_path(directory, step, 0);
    std::vector<LocalShard> written = parts_->local_state(Which::written);
    for (LocalShard& one : written)
      one.tensor = nn::on_host(one.tensor, model.job.parts().compute.host(), model.context.stream);
    write_local_shards(unfinished, world.rank(), world.size(), written);
    world.host().barrier()->wait();  // all parts are written
    if (transaction) {
      ShardedCheckpoint::open(unfinished);  // checks that each element occurs exactly once
      model.task->save_setup(unfinished);
      transaction->commit();
    }
    world.host().barrier()->wait();  // the checkpoint is complete
  });
}

std::int64_t Optimizer::resume(const std::string& directory) {
  Model::Parts& model = parts_->model;
  collectives::Communicator& world = model.mesh.world();
  return model.mesh.guarded([&] {
    std::int64_t step = 0;
    if (world.rank() == 0) {
      std::vector<DamagedCheckpoint> damaged;
      const auto newest =
          newest_checkpoint(directory, [&](const std::string& path, const std::string& why) {
            damaged.push_back({path, why});
            model.job.print("{} is passed over: {}\n", path, why);
          });
      if (!newest && !damaged.empty())
        throw none_is_whole(directory, damaged, "choose another directory, or remove them");
      if (newest) step = newest->step;
    }
    world.host().broadcast(&step, 1, DType::i64, 0)->wait();
    if (step == 0) return step;
    // Pending gathers still read the values that are overwritten here.
    model.model->wait_for_values();
    const auto checkpoint = ShardedCheckpoint::open(checkpoint_path(directory, step));
    read_local_shards(checkpoint, parts_->local_state(Which::all), model.context.stream);
    parts_->optimizer.refresh();
    kernels::StepState state = model.state.read();
    state.step = static_cast<std::uint32_t>(step);
    model.state.write(state);
    return step;
  });
}

}  // namespace shoal
