// The parts of config.json that describe the head of a decoder or of an encoder-decoder.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace shoal::nn {

class ConfigReader;

// The head, with its targets (ChainInput::targets):
enum class DecoderHead : std::uint8_t {
  causal_lm,                // i32 [B, T]: the next token; of an encoder-decoder, the decoder's
  sequence_classification,  // i32 [B]; regression: f32 [B, labels], NaN: none
  question_answering,       // i32 [B, 2]: positions of the answer's first and last token
  token_classification,     // i32 [B, T]
};
std::string_view to_string(DecoderHead head);  // "sequence classification"
// transformers' suffix: "ForSequenceClassification"
std::string_view class_suffix(DecoderHead head);

// Fields of config.json for heads other than a language model's.
struct DecoderLabels {
  std::int64_t num_labels = 2;
  std::vector<std::string> names{};  // by id; empty: no names
  // "regression" or "single_label_classification"; empty: derived from num_labels.
  std::string problem_type{};
  std::optional<double> token_dropout{};  // before token classification; absent: 0.1

  // The dropout is "classifier_dropout", otherwise "hidden_dropout" if `reads_hidden`, as in
  // transformers. `usual`: the number of labels if nothing says it.
  static DecoderLabels read(const ConfigReader& reader, bool reads_hidden, std::int64_t usual = 2);
  // Writes the fields that a model with this head has.
  void write(DecoderHead head, nlohmann::ordered_json& out) const;
  std::string describe(DecoderHead head) const;  // ", 3 labels"; empty: the head has none
  void check() const;                            // throws invalid_argument, with the values
  bool regression() const {
    return problem_type.empty() ? num_labels == 1 : problem_type == "regression";
  }
};

}  // namespace shoal::nn
