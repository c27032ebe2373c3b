// Which task a run has, and the Task for it.
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
  token_classification
};
std::string_view to_string(TaskKind kind);  // "causal-lm", "text-classification", ...

// What the model of this config.json was made for, by its `architectures` and model_type; empty:
// they do not say, or it is something else.
std::optional<TaskKind> task_of(const nlohmann::json& config);

// invalid_argument where a model of this configuration's type has no head for the task.
void check_task(TaskKind kind, const nlohmann::json& config, std::string_view source);

struct TaskOptions {
  bool gradient_checkpointing = false;
};

// `config`: config.json as Hugging Face has it; `source` names it in messages. invalid_argument
// where a model of this type has no such task, or the tokenizer has ids beyond its vocabulary;
// takes memory for nothing but names.
std::unique_ptr<Task> make_task(TaskKind kind, const nlohmann::json& config,
                                std::string_view source, std::shared_ptr<const Tokenizer> tokenizer,
                                const TaskOptions& options = {});

}  // namespace shoal
