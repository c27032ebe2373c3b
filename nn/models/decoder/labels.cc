#include "shoal/nn/models/decoder/labels.h"

#include <array>
#include <cmath>
#include <iterator>

#include <nlohmann/json.hpp>

#include "shoal/nn/models/config_reader.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/shortened.h"
#include "shoal/runtime/io/ordered_fields.h"

namespace shoal::nn {
namespace {

struct Known {
  DecoderHead head;
  std::string_view name, class_suffix;
};
// causal_lm has no suffix, since transformers' class names differ between models.
constexpr std::array kKnown = {
    Known{DecoderHead::causal_lm, "causal language modelling", ""},
    Known{DecoderHead::sequence_classification, "sequence classification",
          "ForSequenceClassification"},
    Known{DecoderHead::question_answering, "question answering", "ForQuestionAnswering"},
    Known{DecoderHead::token_classification, "token classification", "ForTokenClassification"}};

const Known& known(DecoderHead head) {
  for (const Known& one : kKnown)
    if (one.head == head) return one;
  throw_error(ErrorCode::internal, "unknown head {}", static_cast<int>(head));
}

}  // namespace

std::string_view to_string(DecoderHead head) { return known(head).name; }
std::string_view class_suffix(DecoderHead head) { return known(head).class_suffix; }

DecoderLabels DecoderLabels::read(const ConfigReader& reader, bool reads_hidden,
                                  std::int64_t usual) {
  DecoderLabels labels{.num_labels = usual};
  reader.integer("num_labels", labels.num_labels);
  reader.text("problem_type", labels.problem_type);
  for (const std::string_view name : {"hidden_dropout", "classifier_dropout"}) {
    if (name == "hidden_dropout" && !reads_hidden) continue;
    double probability = std::nan("");
    reader.number(name, probability);
    if (!std::isnan(probability)) labels.token_dropout = probability;
  }
  const nlohmann::json* const names = reader.find("id2label");
  if (names == nullptr || !names->is_object()) return labels;
  labels.num_labels = std::ssize(*names);
  for (std::int64_t id = 0; id < labels.num_labels; ++id) {
    const auto name = names->find(std::to_string(id));
    if (name == names->end() || !name->is_string()) {
      labels.names.clear();
      break;
    }
    labels.names.push_back(name->get<std::string>());
  }
  return labels;
}

void DecoderLabels::write(DecoderHead head, nlohmann::ordered_json& out) const {
  const bool tokens = head == DecoderHead::token_classification;
  if (!tokens && head != DecoderHead::sequence_classification) return;
  OrderedFields by_id, by_name;
  for (std::int64_t id = 0; id < num_labels; ++id) {
    const std::string name =
        names.empty() ? fmt::format("LABEL_{}", id) : names[static_cast<std::size_t>(id)];
    by_id[std::to_string(id)] = name;
    by_name[name] = id;
  }
  out["id2label"] = std::move(by_id).json();
  out["label2id"] = std::move(by_name).json();
  if (!problem_type.empty()) out["problem_type"] = problem_type;
  if (tokens && token_dropout) out["classifier_dropout"] = *token_dropout;
}

std::string DecoderLabels::describe(DecoderHead head) const {
  if (head == DecoderHead::causal_lm || head == DecoderHead::question_answering) return {};
  const bool numbers = head == DecoderHead::sequence_classification && regression();
  return fmt::format(", {} {}", num_labels, numbers ? "numbers" : "labels");
}

void DecoderLabels::check() const {
  SHOAL_CHECK(num_labels <= kMostLabels, "num_labels {} is beyond reason", num_labels);
  SHOAL_CHECK(num_labels > 0 && (names.empty() || std::ssize(names) == num_labels),
              "num_labels {} with {} names", num_labels, names.size());
  SHOAL_CHECK(problem_type.empty() || problem_type == "regression" ||
                  problem_type == "single_label_classification",
              "problem_type '{}' is not supported; regression and single_label_classification are",
              shortened(problem_type));
  const double dropout = token_dropout.value_or(0);
  SHOAL_CHECK(dropout >= 0 && dropout < 1, "classifier_dropout {} is not in [0, 1)", dropout);
}

}  // namespace shoal::nn
