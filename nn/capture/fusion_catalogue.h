// The fixed catalogue of fusions (decision 8), and a search for unfused chains in a step's record.
//
// Operations run immediately, as closures over the caller's frame, so none can be delayed until its
// successor is known. A fusion is therefore applied where an operation is called: by the fused
// functions in layers/functional.h, and in backward by BackwardContext::take_gate and take_sum. The
// record shows the chains that callers left unfused. The models' blocks leave none (tests/nn).
#pragma once

#include <string>
#include <vector>

#include "shoal/nn/autograd/recording_dispatcher.h"

namespace shoal::nn {

// Two operations that one kernel could replace. The second reads what the first wrote; its other
// inputs were not written in between.
struct FoundChain {
  int first = 0, second = 0;     // indices of operations
  std::string fusion;            // "residual_layer_norm"
  std::int64_t bytes_saved = 0;  // memory traffic that the fusion would save
};

// Returns the chains in the order of their first operations.
std::vector<FoundChain> find_chains(const RecordingDispatcher& record);

// A readable summary: "12 x residual_layer_norm, 3.5 MiB a step; ...". Empty if there are no
// chains.
std::string describe(const RecordingDispatcher& record, const std::vector<FoundChain>& chains);

}  // namespace shoal::nn
