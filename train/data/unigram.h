// Loss of a unigram model, which knows only token frequencies: a baseline that any real model must
// beat.
#pragma once

#include <cstdint>

#include "shoal/train/data/dataset.h"

namespace shoal {

// Mean negative log-probability (nats per target) of `evaluation` under the token frequencies of
// `train`. Each count is incremented by one, over `vocab_size` tokens. The targets are a sample's
// labels that are not kIgnoreLabel, or without labels its tokens; the first position is never a
// target. invalid_argument: an id not below `vocab_size`, or no target at all. Reads every sample
// once, with signs of progress (runtime/base/progress.h).
double unigram_loss(const Dataset& train, const Dataset& evaluation, std::int64_t vocab_size);

}  // namespace shoal
