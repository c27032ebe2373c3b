// Heads shared by encoders and decoders: the chain's last unit.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "shoal/nn/layers/layers.h"
#include "shoal/nn/layers/task_head.h"

namespace shoal::nn {

struct HeadSizes {
  std::int64_t channels = 0, labels = 0;  // labels: unused for answers, which have 2
  float std = 0, dropout = 0;             // std of new weights; dropout before the last layer
};

// Classifies every position with a linear layer `name`: [B, T, labels]. Targets i32 [B, T].
std::unique_ptr<TaskHead> make_token_head(const std::string& name, const HeadSizes& sizes);
// Scores of an answer's start and end, [B, T, 2]: qa_outputs. Targets i32 [B, 2].
std::unique_ptr<TaskHead> make_question_head(const HeadSizes& sizes);
// Maps the state at the sample's end (ChainInput::ends) through a matrix without bias, score: [B,
// labels]. Targets i32 [B], or with `numbers` f32 [B, labels].
std::unique_ptr<TaskHead> make_end_head(const HeadSizes& sizes, bool numbers);

// The loss of scores [B, labels]: cross-entropy, or squared error with `numbers`.
LossOutput sample_loss(Context& context, const Value& scores, const ChainInput& input,
                       bool numbers);

}  // namespace shoal::nn
