// `shoal generate` as a function: continues prompts, token by token, or answers them with an
// encoder-decoder.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include <nlohmann/json.hpp>

namespace shoal::command {

// The options of `shoal generate`, under their names.
struct GenerateOptions {
  std::string model{};      // a Hugging Face directory, or a run with checkpoints
  std::string tokenizer{};  // empty: the model's
  std::optional<std::string> prompt{};
  std::string prompts{};                  // a file, one prompt a line; empty: none
  std::string logits_out{}, input_ids{};  // files; empty: none
  bool greedy = false, bf16 = false, no_stop = false;
  std::uint64_t seed = 42;
  std::int64_t batch_size = 8;  // of the prompts of a file
  // Fields that replace those of the model's generation_config.json: {"num_beams": 4}. temperature
  // 0: greedy. A decoder samples unless these fields, the file or `greedy` say otherwise.
  nlohmann::json fields = nlohmann::json::object();
};

struct GenerateOutput {
  // Receives the text piece by piece: a decoder's prompt, then what is generated. For `prompts`,
  // lines of JSON: {"prompt": ..., "text": what is generated}. Returns false to stop.
  std::function<bool(const std::string& text)> on_text;
  std::function<void(const std::string& line)> on_message;  // for the user
};

// Throws invalid_argument or not_found if options or model are wrong. Blocks.
void generate(const GenerateOptions& options, const GenerateOutput& output);

}  // namespace shoal::command
