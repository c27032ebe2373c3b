// Texts that a model generates while it trains, so that a reader sees what it has learned.
//
// A run writes them into samples.jsonl of its output_dir after each evaluation during training. A
// run that does not evaluate during training writes them before each checkpoint.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "shoal/nn/models/generation/options.h"

namespace shoal {

struct SampleTexts {
  // A causal language model continues it.
  struct Prompt {
    std::string text = {};               // as the file shows it
    std::vector<std::int32_t> ids = {};  // at least one
    std::string reference = {};          // how it really continues; empty: not known
  };
  // Refused where the task is no causal language model. If no rank can run the whole model
  // (Engine::runs_whole_model()), the run logs that and writes nothing.
  std::vector<Prompt> prompts = {};
  // Each prompt with max_new_tokens must fit into the model's positions. Prompt i has the random
  // numbers of text i, so texts of two steps differ only by the weights.
  nn::GenerationOptions options = {};
  // Tasks whose evaluation generates (TrainerParts::generation): how many of the validation set's
  // first samples are written. Nothing is generated twice.
  std::int64_t first_of_set = 0;
  // The text that `ids` add to that of `before`. Called on rank 0; required if anything is written.
  std::function<std::string(std::span<const std::int32_t> before,
                            std::span<const std::int32_t> ids)>
      text_of = {};

  bool any() const { return !prompts.empty() || first_of_set > 0; }
};

}  // namespace shoal
