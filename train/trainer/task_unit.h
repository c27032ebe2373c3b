// Wraps a task that is not a chain of units as a chain of one unit. It cannot be cut into stages or
// used for predictions.
#pragma once

#include "shoal/nn/layers/chain.h"
#include "shoal/runtime/base/error.h"
#include "shoal/train/tasks/task.h"

namespace shoal {

class TaskUnit final : public nn::Chain {
 public:
  explicit TaskUnit(Task& task) : task_(task) {}
  std::string_view kind() const override { return "Task"; }
  int units() const override { return 1; }
  std::string unit_name(int) const override { return "model"; }
  std::vector<nn::Module*> unit_modules(int) const override { return {&task_.module()}; }
  std::int64_t channels() const override { return 1; }
  nn::ResidualStream forward_unit(nn::Context&, int, nn::ResidualStream,
                                  const nn::ChainInput&) override {
    refuse();
  }
  nn::LossOutput forward_head(nn::Context& context, nn::ResidualStream,
                              const nn::ChainInput& input) override {
    return task_.loss(context, input);
  }
  Tensor head_logits(nn::Context&, nn::ResidualStream, const nn::ChainInput&) override { refuse(); }

 private:
  [[noreturn]] void refuse() const {
    throw_error(ErrorCode::invalid_argument, "{} is no chain of units, which predictions need",
                task_.describe());
  }
  Task& task_;
};

}  // namespace shoal
