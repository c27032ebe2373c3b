// Heads other than a language model's HeadLoss: classifiers, answer spans.
#pragma once

#include "shoal/nn/layers/chain.h"

namespace shoal::nn {

class TaskHead : public Module {
 public:
  // Hidden states [B, T, C], or a slice of the positions. The head defines the targets.
  virtual LossOutput forward(Context& context, const Value& hidden, const ChainInput& input) = 0;
  // Class scores; the head defines the shape.
  virtual Value logits(Context& context, const Value& hidden, const ChainInput& input) = 0;
};

// A head that must see every position of a sample.
class SampleHead : public TaskHead {
 public:
  std::string_view kind() const final { return "SampleHead"; }
  // Throws if it gets a slice of the positions.
  LossOutput forward(Context& context, const Value& hidden, const ChainInput& input) final;

 protected:
  virtual LossOutput loss(Context& context, const Value& hidden, const ChainInput& input) = 0;
};

}  // namespace shoal::nn
