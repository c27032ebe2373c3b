#include "shoal/nn/models/llama/classifier.h"

#include <utility>

#include <nlohmann/json.hpp>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/io/files.h"

namespace shoal::nn {
namespace {

// The state where a sample ends, through a matrix without bias. transformers multiplies every
// position and takes one of the products, which is the same.
class EndHead final : public SampleHead {
 public:
  explicit EndHead(const LlamaConfig& config)
      : score(*this, "score",
              std::make_unique<Linear>(
                  LinearConfig{.in = config.hidden_size,
                               .out = config.num_labels,
                               .bias = false,
                               .std = static_cast<float>(config.initializer_range)})),
        regression_(config.regression()) {}
  LossOutput loss(Context& context, const Value& hidden, const ChainInput& input) override {
    const Value x = scores(context, hidden, input);
    LossResult result = regression_ ? squared_error(context, x, input.targets, input.loss)
                                    : cross_entropy(context, x, input.targets, input.loss);
    return {std::move(result.loss), result.loss_sum, result.targets};
  }
  Value scores(Context& context, const Value& hidden, const ChainInput& input) override {
    return score->forward(context, positions_at(context, hidden, ends_of(context, input)));
  }

  Slot<LinearLike> score;

 private:
  // Without any said, the last position.
  static Tensor ends_of(Context& context, const ChainInput& input) {
    if (input.ends.defined()) return input.ends;
    const std::int64_t samples = input.ids.shape()[0], length = input.ids.shape()[1];
    const std::vector<std::int32_t> last(static_cast<std::size_t>(samples),
                                         static_cast<std::int32_t>(length - 1));
    return context.upload(last.data(), {samples}, DType::i32);
  }
  bool regression_;
};

}  // namespace

LlamaClassifier::LlamaClassifier(const LlamaConfig& config)
    : trunk(*this, config), head(*this, "", std::make_unique<EndHead>(config)) {
  name_tree();
}

std::string LlamaClassifier::describe() const {
  return fmt::format("llama for sequence classification, {}, {} {}", trunk.describe(), labels(),
                     regression() ? "numbers" : "labels");
}

std::vector<Module*> LlamaClassifier::unit_modules(int unit) const {
  return trunk.unit_modules(unit, *head);
}

ResidualStream LlamaClassifier::forward_unit(Context& context, int unit, ResidualStream stream,
                                             const ChainInput& input) {
  return trunk.forward_unit(context, unit, std::move(stream), input);
}

LossOutput LlamaClassifier::forward_head(Context& context, ResidualStream stream,
                                         const ChainInput& input) {
  return head->forward(context, stream.norm(context, *trunk.norm), input);
}

Tensor LlamaClassifier::head_logits(Context& context, ResidualStream stream,
                                    const ChainInput& input) {
  return head->logits(context, stream.norm(context, *trunk.norm), input).tensor;
}

LoadReport LlamaClassifier::load(const std::string& directory, const AssignParameter& assign) {
  return trunk.load(*this, directory, assign, true);
}

std::vector<std::string> LlamaClassifier::save_config(const std::string& directory,
                                                      DType dtype) const {
  write_file_atomically(
      directory + "/config.json",
      config().to_json(torch_name(dtype), LlamaHead::sequence_classification).dump(2) + "\n");
  return {"config.json"};
}

nlohmann::json LlamaClassifier::configuration() const {
  return config().to_json("float32", LlamaHead::sequence_classification);
}

}  // namespace shoal::nn
