// Every rank has the whole model and samples of its own; gradients are summed over the ranks.
#pragma once

#include "shoal/nn/autograd/context.h"
#include "shoal/nn/optim/master_weights.h"
#include "shoal/train/trainer/early_forward.h"
#include "shoal/train/trainer/engine.h"

namespace shoal {

class DataParallelEngine final : public Engine {
 public:
  explicit DataParallelEngine(const EngineParts& parts);

  DataShare data_share() const override;
  std::vector<std::string> describe_layout() const override;
  std::vector<std::string> describe_gradients() const override;
  collectives::Communicator& beside() override;

  void prepare_training() override;
  StepDone step(const StepWork& work) override;
  nn::LossScaler& scaler() override { return scaler_; }
  std::optional<double> settle() override;
  std::optional<parallel::ReducerStatistics> reduced() const override;

  LossSums evaluate(std::span<const Batch> batches) override;

  bool writes_parts() const override { return false; }
  Write snapshot(bool with_optimizer) override;
  void load_weights(const std::string& directory) override;
  void load_optimizer(const std::string& directory, std::int64_t updates) override;
  void save_model(const std::string& directory) override;

 private:
  int ranks() const { return parts_.trainer.communicator->size(); }
  void overlap_forward(parallel::ReducerOptions& options);
  double forward_backward(const StepWork& work);
  nn::StepOutcome update(const StepWork& work, double& loss_sum);

  const EngineParts parts_;
  Task& task_;
  AskingDispatcher dispatcher_;
  nn::Context context_;
  kernels::StepState step_state_;
  nn::LossScaler scaler_;
  std::unique_ptr<nn::MasterWeights> weights_;
  // From prepare_training() on.
  std::unique_ptr<parallel::Reducer> reducer_;
  std::unique_ptr<nn::Optimizer> optimizer_;
  // Where updates run behind the next forward: they, and a split of the communicator for everything
  // but gradients, which are under way meanwhile. Else null.
  std::unique_ptr<EarlyForward> early_;
  std::unique_ptr<collectives::Communicator> beside_;
  std::int64_t step_number_ = 0;
  bool warned_overflow_ = false;
};

}  // namespace shoal
