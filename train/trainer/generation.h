// Text that a task's model generates for evaluation and prediction, in any layout. Not for other
// libraries.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "shoal/nn/models/encoder_decoder/generate.h"
#include "shoal/train/trainer/engine.h"

namespace shoal {

struct GenerationPlace {
  Engine* engine = nullptr;
  nn::EncoderDecoder* model = nullptr;  // of the engine's task
  MemoryResource* host = nullptr;
  std::int64_t batch_rows = 1;  // limit of the rows of a batch
};

// The generated ids of row `row` of batches[batch].
using TakeText =
    std::function<void(std::size_t batch, std::int64_t row, const std::vector<std::int32_t>& ids)>;

// Generates a text for each row of this rank's batches. Calls `take` for each row on one of the
// ranks that read it. A sample's index in its data set numbers it for sampling, so the texts depend
// on the layout and the batches only by rounding. Collective if engine->evaluates_together().
// Throws invalid_argument for several texts of a sample, and for texts of no tokens.
//
// If engine->runs_whole_model(), each rank generates by itself. Otherwise the ranks evaluate each
// new token of all texts together, and each keeps the keys and values of its blocks. Texts that
// have ended are computed on until all of a batch have.
void generate_texts(const GenerationPlace& place, std::span<const Batch> batches,
                    const nn::GenerationOptions& options, const TakeText& take);

}  // namespace shoal
