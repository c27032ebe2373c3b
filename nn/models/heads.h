// Heads shared by encoders and decoders: the chain's last unit.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "shoal/nn/layers/layers.h"
#include "shoal/nn/layers/task_head.h"

namespace shoal::nn {

// What a head does to each state first: norm(activation(dense(x))).
struct StateTransform {
  std::string dense{}, norm{};           // names of the layers; empty: none
  std::int64_t channels = 0, width = 0;  // of its input and result
  kernels::Activation activation = kernels::Activation::none;
  float std = 0, epsilon = 0;
  bool bias = true, norm_bias = true;
};
// Its layers, which are children of the head.
class TransformLayers {
 public:
  TransformLayers(Module& head, const StateTransform& config);
  Value forward(Context& context, const Value& x);
  std::optional<Slot<LinearLike>> dense;
  std::optional<Slot<NormLike>> norm;
};

struct HeadSizes {
  std::int64_t channels = 0, labels = 0;  // labels: unused for answers, which have 2
  float std = 0, dropout = 0;             // std of new weights; dropout before the last layer
  StateTransform transform{};
  float first_dropout = 0;  // of an end head: before the transform
  bool bias = true;         // of an end head's last layer
};

// Classifies every position with a linear layer `name`: [B, T, labels]. Targets i32 [B, T].
std::unique_ptr<TaskHead> make_token_head(const std::string& name, const HeadSizes& sizes);
// Scores of an answer's start and end by a linear layer `name`: [B, T, 2]. Targets i32 [B, 2].
std::unique_ptr<TaskHead> make_question_head(const std::string& name, const HeadSizes& sizes);
// Classifies the state at the sample's end (ChainInput::ends) with a linear layer `name`: [B,
// labels]. Targets i32 [B], or with `numbers` f32 [B, labels].
std::unique_ptr<TaskHead> make_end_head(const std::string& name, const HeadSizes& sizes,
                                        bool numbers);

// The loss of scores [B, labels]: cross-entropy, or squared error with `numbers`.
LossOutput sample_loss(Context& context, const Value& scores, const ChainInput& input,
                       bool numbers);

}  // namespace shoal::nn
