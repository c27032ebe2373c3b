// Texts that a run generates while it trains (sample_prompts, sample_texts).
#pragma once

#include "shoal/train/command/setup.h"
#include "shoal/train/trainer/sample_texts.h"

namespace shoal::command {

// Throws invalid_argument for options that the run cannot follow.
void check_sample_options(const RunArguments& arguments, TaskKind kind);
// The prompts of a run whose model and tokenizer are known. Throws invalid_argument if a prompt
// does not fit into the model.
SampleTexts sample_prompts(const RunArguments& arguments, const RunSetup& setup);
// setup.sample_texts with the first texts of its validation set, which has been opened.
SampleTexts with_texts_of_set(const RunArguments& arguments, const RunSetup& setup);

}  // namespace shoal::command
