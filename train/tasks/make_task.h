// Finds the task of a run and creates its Task.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "shoal/train/data/tokenizer/tokenizer.h"
#include "shoal/train/tasks/task.h"

namespace shoal {

enum class TaskKind : std::uint8_t {
  causal_lm,
  masked_lm,
  text_classification,
  question_answering,
  token_classification,
  summarization,
  translation,
  span_corruption,
  denoising
};
std::string_view to_string(TaskKind kind);  // "causal-lm", "text-classification", ...

// True if samples are blocks or lines of plain text, false if they are rows, questions or tags.
bool reads_text(TaskKind kind);

// The task that the model of this config.json was trained for, by its `architectures` and
// model_type; nullopt if they do not name one known task. (A T5 both summarizes and translates.)
std::optional<TaskKind> task_of(const nlohmann::json& config);

// Throws invalid_argument if a model of this type has no head for the task.
void check_task(TaskKind kind, const nlohmann::json& config, std::string_view source);

struct TaskOptions {
  bool gradient_checkpointing = false;
};

// `config` is a Hugging Face config.json; `source` names it in messages. Throws invalid_argument if
// a model of this type has no such task, or if the tokenizer has ids beyond the vocabulary.
// Allocates no memory for parameters.
std::unique_ptr<Task> make_task(TaskKind kind, const nlohmann::json& config,
                                std::string_view source, std::shared_ptr<const Tokenizer> tokenizer,
                                const TaskOptions& options = {});

}  // namespace shoal
