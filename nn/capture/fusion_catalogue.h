// The fixed catalogue of fusions (decision 8), and what of it a step's record still holds.
//
// Operations run as they are called, and their bodies are closures over their callers' frames: none
// is put off until it is known what follows it. So a fusion is applied where an operation is called
// (layers/functional.h's fused ones; BackwardContext::take_gate and take_sum in backward), and the
// record shows what callers have left apart. The models' blocks leave none (tests/nn).
#pragma once

#include <string>
#include <vector>

#include "shoal/nn/autograd/recording_dispatcher.h"

namespace shoal::nn {

// Two operations of which one kernel could be made: the second reads what the first wrote, and
// everything else it reads was there when the first ran.
struct FoundChain {
  int first = 0, second = 0;     // indices of operations
  std::string fusion;            // "residual_layer_norm"
  std::int64_t bytes_saved = 0;  // of memory traffic: what would not be written or read again
};

// In the order of their first operations. Pure.
std::vector<FoundChain> find_chains(const RecordingDispatcher& record);

// For people: "12 x residual_layer_norm, 3.5 MiB a step; ...". Empty: there are none.
std::string describe(const RecordingDispatcher& record, const std::vector<FoundChain>& chains);

}  // namespace shoal::nn
