// A custom model as a list of units, like torch.nn.Sequential. Pipelines cut it between units.
// Tensor parallelism splits its layers of known kinds (parallel/tensor).
//
//   struct Block final : nn::Unit {
//     nn::Slot<nn::Mlp> mlp{*this, "mlp", std::make_unique<nn::Mlp>(config)};
//     nn::Value forward(nn::Context& context, const nn::Value& x, const nn::ChainInput&) override {
//       return nn::add(context, x, mlp->forward(context, x));
//     }
//   };
//   nn::Sequential model(64, std::move(units), std::make_unique<Head>());
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "shoal/nn/layers/chain.h"

namespace shoal::nn {

// A part of the model that one rank runs whole: an embedding or a block.
class Unit : public Module {
 public:
  std::string_view kind() const override { return "Unit"; }
  // Hidden states [B, T, C] -> [B, T, C]. The first unit ignores `x` and reads input.ids.
  virtual Value forward(Context& context, const Value& x, const ChainInput& input) = 0;
};

// The last part: scores, and their loss, for example pointwise_loss() or cross_entropy().
class LossUnit : public Module {
 public:
  std::string_view kind() const override { return "LossUnit"; }
  // Hidden states [B, T, C] -> scores [B, ..].
  virtual Value scores(Context& context, const Value& x, const ChainInput& input) = 0;
  // The loss of scores(). Sums over the targets; see LossOptions.
  virtual LossOutput loss(Context& context, const Value& scores, const ChainInput& input) = 0;
};

// Owns its units. Give it to shoal::Model.
class Sequential final : public Chain {
 public:
  // Modules are named "0", "1", ... and "head". Throws invalid_argument if `units` is empty.
  Sequential(std::int64_t channels, std::vector<std::unique_ptr<Unit>> units,
             std::unique_ptr<LossUnit> head);

  std::string_view kind() const override { return "Sequential"; }
  int units() const override { return static_cast<int>(units_.size()) + 1; }
  std::string unit_name(int unit) const override;
  std::vector<Module*> unit_modules(int unit) const override;
  std::int64_t channels() const override { return channels_; }
  ResidualStream forward_unit(Context& context, int unit, ResidualStream stream,
                              const ChainInput& input) override;
  LossOutput forward_head(Context& context, ResidualStream stream,
                          const ChainInput& input) override;
  Tensor head_logits(Context& context, ResidualStream stream, const ChainInput& input) override;

 private:
  std::int64_t channels_;
  std::deque<Slot<Unit>> units_;
  Slot<LossUnit> head_;
};

}  // namespace shoal::nn
