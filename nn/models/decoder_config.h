// What config.json says of a decoder's heads.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace shoal::nn {

class ConfigReader;

// What a decoder ends in. Targets of each (ChainInput::targets):
enum class DecoderHead : std::uint8_t {
  causal_lm,                // i32 [B, T]: the next token
  sequence_classification,  // i32 [B]; where it gives numbers f32 [B, labels], NaN: none
  question_answering,       // i32 [B, 2]: positions of the answer's first and last token
  token_classification,     // i32 [B, T]
};
std::string_view to_string(DecoderHead head);     // "sequence classification"
std::string_view class_suffix(DecoderHead head);  // of transformers: "ForSequenceClassification"

// What config.json says of the heads that are no language model's.
struct DecoderLabels {
  std::int64_t num_labels = 2;
  std::vector<std::string> names{};       // by id; empty: they have none
  std::string problem_type{};             // regression, single_label_classification; empty: by
                                          // num_labels
  std::optional<double> token_dropout{};  // before token classification; absent: 0.1

  // "classifier_dropout", else "hidden_dropout", is the dropout, as transformers has it.
  static DecoderLabels read(const ConfigReader& reader);
  // What a model with this head says.
  void write(DecoderHead head, nlohmann::ordered_json& out) const;
  void check() const;  // invalid_argument with the values
  bool regression() const {
    return problem_type.empty() ? num_labels == 1 : problem_type == "regression";
  }
};

}  // namespace shoal::nn
