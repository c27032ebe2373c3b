// The loss of a model that knows only how often each token occurs: what any real model must beat.
#pragma once

#include <cstdint>

#include "shoal/train/data/token_file.h"

namespace shoal {

// Mean negative log-probability (nats a token) of `validation`'s tokens under the frequencies of
// `train`, each count plus one over `vocab_size` tokens, so that unseen tokens have a probability.
// Ids beyond vocab_size, or an empty file: invalid_argument. Reads both files once.
double unigram_loss(const TokenFile& train, const TokenFile& validation, std::int64_t vocab_size);

}  // namespace shoal
