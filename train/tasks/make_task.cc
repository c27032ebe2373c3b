#include "shoal/train/tasks/make_task.h"

#include <algorithm>
#include <array>
#include <utility>

#include <fmt/ranges.h>

#include "shoal/nn/models/encoder/family.h"
#include "shoal/nn/models/encoder_decoder/family.h"
#include "shoal/nn/models/model_type.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/io/json_fields.h"
#include "shoal/train/tasks/causal_lm.h"
#include "shoal/train/tasks/decoder.h"
#include "shoal/train/tasks/encoder.h"
#include "shoal/train/tasks/encoder_decoder.h"
#include "shoal/train/tasks/headed_encoder_decoder.h"

namespace shoal {
namespace {

constexpr std::string_view kGenerates = "ForConditionalGeneration";

struct Known {
  TaskKind kind;
  std::string_view name, class_ending;
  std::optional<nn::EncoderTask> encoder;  // the encoder's head for the task
  std::optional<nn::DecoderHead> decoder;
};
constexpr std::array kKnown = {
    Known{TaskKind::causal_lm, "causal-lm", "LMHeadModel", {}, nn::DecoderHead::causal_lm},
    Known{TaskKind::causal_lm, "causal-lm", "ForCausalLM", {}, nn::DecoderHead::causal_lm},
    Known{TaskKind::masked_lm, "masked-lm", "ForMaskedLM", nn::EncoderTask::masked_lm, {}},
    Known{TaskKind::text_classification, "text-classification", "ForSequenceClassification",
          nn::EncoderTask::sequence_classification, nn::DecoderHead::sequence_classification},
    Known{TaskKind::question_answering, "question-answering", "ForQuestionAnswering",
          nn::EncoderTask::question_answering, nn::DecoderHead::question_answering},
    Known{TaskKind::token_classification, "token-classification", "ForTokenClassification",
          nn::EncoderTask::token_classification, nn::DecoderHead::token_classification},
    Known{TaskKind::summarization, "summarization", kGenerates, {}, {}},
    Known{TaskKind::translation, "translation", kGenerates, {}, {}},
    Known{TaskKind::span_corruption, "span-corruption", kGenerates, {}, {}},
    Known{TaskKind::denoising, "denoising", kGenerates, {}, {}}};

const Known& known(TaskKind kind) {
  for (const Known& one : kKnown)
    if (one.kind == kind) return one;
  throw_error(ErrorCode::internal, "unknown task {}", static_cast<int>(kind));
}

bool is_decoder(std::string_view model_type) {
  return std::ranges::count(nn::causal_lm_types(), model_type) > 0;
}

// True if the encoder-decoder has a head for the task besides the language model's.
bool has_head(std::string_view model_type, const Known& task) {
  const auto& heads = nn::encoder_decoder_family(model_type, "the model").heads;
  return task.decoder &&
         std::ranges::find(heads, *task.decoder, &nn::StackHead::head) != heads.end();
}

}  // namespace

std::string_view to_string(TaskKind kind) { return known(kind).name; }

bool reads_text(TaskKind kind) {
  return kind == TaskKind::causal_lm || kind == TaskKind::masked_lm ||
         kind == TaskKind::span_corruption || kind == TaskKind::denoising;
}

std::optional<TaskKind> task_of(const nlohmann::json& config) {
  if (!config.is_object()) return std::nullopt;
  if (const auto* classes = find_field(config, "architectures");
      classes != nullptr && classes->is_array())
    for (const nlohmann::json& name : *classes)
      for (const Known& one : kKnown)
        if (name.is_string() && one.class_ending != kGenerates &&
            name.get_ref<const std::string&>().ends_with(one.class_ending))
          return one.kind;
  if (is_decoder(nn::model_type_of(config))) return TaskKind::causal_lm;
  return std::nullopt;
}

void check_task(TaskKind kind, const nlohmann::json& config, std::string_view source) {
  const Known& task = known(kind);
  const std::string type = nn::model_type_of(config);
  if (type.empty()) return;  // make_task() refuses it
  const bool generates = nn::is_encoder_decoder_type(type);
  if (generates          ? task.class_ending == kGenerates || has_head(type, task)
      : is_decoder(type) ? task.decoder.has_value()
                         : task.encoder.has_value())
    return;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("{} is of a {}, which has no head for {}", source, type, task.name),
              generates ? "t5, bart and mbart do summarization, translation, span-corruption, "
                          "denoising, text-classification and question-answering, t5 also "
                          "token-classification"
              : is_decoder(type)
                  ? fmt::format("{} do causal-lm, text-classification, question-answering and "
                                "token-classification",
                                fmt::join(nn::causal_lm_types(), ", "))
                  : fmt::format("{} do masked-lm, text-classification, question-answering and "
                                "token-classification",
                                nn::encoder_types()));
}

std::unique_ptr<Task> make_task(TaskKind kind, const nlohmann::json& config,
                                std::string_view source, std::shared_ptr<const Tokenizer> tokenizer,
                                const TaskOptions& options) {
  check_task(kind, config, source);
  if (kind == TaskKind::causal_lm)
    return std::make_unique<CausalLmTask>(
        nn::make_causal_lm(config, source), std::move(tokenizer),
        CausalLmOptions{.gradient_checkpointing = options.gradient_checkpointing});
  if (nn::is_encoder_decoder_type(nn::model_type_of(config))) {
    const auto both = nn::EncoderDecoderConfig::from_json(config, source);
    if (known(kind).class_ending == kGenerates)
      return std::make_unique<EncoderDecoderTask>(both, std::move(tokenizer),
                                                  options.gradient_checkpointing);
    return std::make_unique<EncoderDecoderWithHead>(
        both, *known(kind).decoder, std::move(tokenizer), options.gradient_checkpointing);
  }
  if (is_decoder(nn::model_type_of(config)))
    return std::make_unique<DecoderWithHead>(
        nn::make_headed_decoder(config, source, *known(kind).decoder), std::move(tokenizer),
        options.gradient_checkpointing);
  return std::make_unique<EncoderWithHead>(nn::EncoderConfig::from_json(config, source),
                                           *known(kind).encoder, std::move(tokenizer),
                                           options.gradient_checkpointing);
}

}  // namespace shoal
