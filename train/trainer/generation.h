// Text that a task's model generates for evaluation and prediction, in any layout. Not for other
// libraries.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "shoal/nn/models/encoder_decoder/generate.h"
#include "shoal/train/trainer/engine.h"

namespace shoal {

// The generated ids of each row of a batch.
using GeneratedRows = std::vector<std::vector<std::int32_t>>;

struct GenerationPlace {
  Engine* engine = nullptr;
  nn::EncoderDecoder* model = nullptr;  // of the engine's task
  MemoryResource* host = nullptr;
  std::int64_t batch_rows = 1;  // limit of the rows of a batch
};

// Returns the rows of each of this rank's batches. Collective if engine->evaluates_together().
//
// A rank with the whole model generates with a key-value cache. If ranks share the model, each new
// token is an evaluation of the whole input: T tokens cost T forward passes, and the rank with the
// head holds the scores of all positions, f32 [rows, T, vocabulary]. Then only greedy generation is
// available; do_sample throws unavailable.
std::vector<GeneratedRows> generate_texts(const GenerationPlace& place,
                                          std::span<const Batch> batches,
                                          const nn::GenerationOptions& options);

}  // namespace shoal
