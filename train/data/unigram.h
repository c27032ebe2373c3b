// Loss of a unigram model, which knows only token frequencies: a baseline that any real model must
// beat.
#pragma once

#include <cstdint>

#include "shoal/train/data/dataset.h"

namespace shoal {

// Mean negative log-probability (nats a target) of the tokens of `evaluation` but each sample's
// first, which is nobody's target, under the frequencies in `train`, each count plus one over
// `vocab_size` tokens. Of a sample with labels these are the tokens, but for those without loss. An
// id beyond vocab_size, or no target at all: invalid_argument. Reads every sample once, with signs
// of progress (runtime/base/progress.h).
double unigram_loss(const Dataset& train, const Dataset& evaluation, std::int64_t vocab_size);

}  // namespace shoal
