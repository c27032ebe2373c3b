// Heads that encoders and decoders share: the chain's last unit.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "shoal/nn/layers/layers.h"
#include "shoal/nn/layers/task_head.h"

namespace shoal::nn {

struct HeadSizes {
  std::int64_t channels = 0, labels = 0;  // labels: not of answers, which have 2
  float std = 0, dropout = 0;             // of new weights; before the last layer
};

// Classes of every position, [B, T, labels]: a linear layer called `name`. Targets i32 [B, T].
std::unique_ptr<TaskHead> make_token_head(const std::string& name, const HeadSizes& sizes);
// Where an answer starts and ends, [B, T, 2]: qa_outputs. Targets i32 [B, 2].
std::unique_ptr<TaskHead> make_question_head(const HeadSizes& sizes);
// The state where a sample ends (ChainInput::ends) through a matrix without bias, score: [B,
// labels]. Targets i32 [B], or of numbers f32 [B, labels].
std::unique_ptr<TaskHead> make_end_head(const HeadSizes& sizes, bool numbers);

// The loss of samples' scores [B, labels]: of classes, or of numbers.
LossOutput sample_loss(Context& context, const Value& scores, const ChainInput& input,
                       bool numbers);

}  // namespace shoal::nn
