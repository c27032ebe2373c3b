// `shoal generate` as a function: continues a prompt, token by token.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "shoal/nn/models/generate.h"

namespace shoal::command {

// The options of `shoal generate`, under their names.
struct GenerateOptions {
  std::string model;      // a Hugging Face directory, or a run with checkpoints
  std::string tokenizer;  // empty: the model's
  std::optional<std::string> prompt;
  std::string logits_out, input_ids;  // files; empty: none
  bool greedy = false, bf16 = false, no_stop = false;
  nn::GenerationOptions generation;  // temperature 0: greedy
};

struct GenerateOutput {
  // Receives the prompt, then each new piece of text; returns false to stop.
  std::function<bool(const std::string& text)> on_text;
  std::function<void(const std::string& line)> on_message;  // for the user
};

// Throws invalid_argument or not_found if options or model are wrong. Blocks.
void generate(const GenerateOptions& options, const GenerateOutput& output);

}  // namespace shoal::command
