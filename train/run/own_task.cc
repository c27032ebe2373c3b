#include "shoal/train/run/own_task.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "shoal/runtime/base/error.h"

namespace shoal {
namespace {

[[noreturn]] void refuse_files() {
  throw Error(ErrorCode::unavailable, "a model of one's own has no Hugging Face files",
              "save it in parts, with Optimizer::save()");
}

class OwnTask final : public Task {
 public:
  explicit OwnTask(std::unique_ptr<nn::Chain> chain) : chain_(std::move(chain)) {
    chain_->name_tree();
  }

  nn::Module& module() override { return *chain_; }
  nn::Chain* chain() override { return chain_.get(); }
  std::string describe() const override { return std::string(chain_->kind()); }
  std::int64_t vocabulary() const override { return 0; }
  std::int64_t positions() const override { return 0; }
  bool predicts_tokens() const override { return false; }

  std::int64_t count_targets(const Batch& batch) const override {
    const Tensor& labels = batch.labels;
    if (!labels.defined()) return 0;
    if (labels.dtype() == DType::f32) {
      const auto* const numbers = labels.const_data<float>();
      return std::count_if(numbers, numbers + labels.count(),
                           [](float number) { return !std::isnan(number); });
    }
    const auto* const classes = labels.const_data<std::int32_t>();
    return std::count_if(classes, classes + labels.count(),
                         [](std::int32_t one) { return one >= 0; });
  }
  nn::ChainInput chain_input(const Batch& batch, MemoryResource& /*memory*/) const override {
    nn::ChainInput input;
    input.ids = batch.input_ids;
    input.targets = batch.labels;
    input.key_mask = batch.attention_mask;
    input.token_types = batch.token_type_ids;
    return input;
  }
  nn::LossOutput loss(nn::Context& context, const nn::ChainInput& input) override {
    nn::ResidualStream stream =
        nn::forward_units(context, *chain_, 0, chain_->units() - 1, {}, input);
    return nn::forward_head(context, *chain_, 0, std::move(stream), input);
  }
  nn::LoadReport load(const std::string& /*directory*/, const Assign& /*assign*/) override {
    refuse_files();
  }
  void save(const std::string& /*directory*/, const ValueOf& /*value*/) const override {
    refuse_files();
  }
  void save_setup(const std::string& /*directory*/) const override {}

 private:
  const std::unique_ptr<nn::Chain> chain_;
};

}  // namespace

std::shared_ptr<Task> own_task(std::unique_ptr<nn::Chain> chain) {
  return std::make_shared<OwnTask>(std::move(chain));
}

}  // namespace shoal
