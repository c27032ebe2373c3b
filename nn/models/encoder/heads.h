// Heads of encoders: the chain's last unit.
#pragma once

#include <memory>

#include "shoal/nn/layers/layers.h"
#include "shoal/nn/layers/task_head.h"
#include "shoal/nn/models/encoder/family.h"

namespace shoal::nn {

// Targets are described at EncoderTask. Logits: masked_lm [B, T, V], token_classification [B, T,
// labels], question_answering [B, T, 2], sequence_classification [B, labels]. `words`: the
// embedding's weight, for tying.
std::unique_ptr<TaskHead> make_encoder_head(const EncoderConfig& config, EncoderTask task,
                                            std::shared_ptr<Parameter> words);

}  // namespace shoal::nn
