#include "shoal/train/command/summary.h"

#include <filesystem>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "shoal/runtime/io/json_fields.h"

namespace shoal::command {
namespace {

// "accuracy 0.9524, f1 0.9310"; of a language model its perplexity. Empty: nothing was evaluated.
std::string metrics_of(const nlohmann::ordered_json& results) {
  constexpr std::string_view kPrefix = "eval_";
  std::vector<std::string> metrics;
  for (const auto& [name, value] : results.items())
    if (name.starts_with(kPrefix) && value.is_number() && !name.starts_with("eval_loss") &&
        !name.ends_with("_runtime") && !name.ends_with("_per_second"))
      metrics.push_back(fmt::format("{} {:.4f}", name.substr(kPrefix.size()), value.get<double>()));
  return fmt::format("{}", fmt::join(metrics, ", "));
}

// "validation loss: 8.35 first (step 0), 4.02 at the end; ..."
std::string validation_line(const TrainerState& state, const nlohmann::ordered_json& results,
                            double unigram) {
  if (!results.contains("eval_loss")) return {};
  const auto value_of = [](const auto& record) {
    return record["eval_loss"].template get<double>();
  };
  const auto& best = state.best_model_checkpoint;  // if set, `results` belong to the best model
  const std::string last =
      best ? "of the best model, " + std::filesystem::path(*best).filename().string()
           : "at the end";
  std::string line = fmt::format("validation loss: {:.4f} {}", value_of(results), last);
  for (const nlohmann::json& record : state.log_history) {
    if (!record.contains("eval_loss") || !record["eval_loss"].is_number()) continue;
    const auto step = field_or(record, "step", std::int64_t{0}, "a log record");
    if (step == state.global_step) break;  // the only evaluation
    line = fmt::format("validation loss: {:.4f} first (step {}), {:.4f} {}", value_of(record), step,
                       value_of(results), last);
    if (!best) line += fmt::format(" (step {})", state.global_step);
    break;
  }
  if (unigram > 0) line += fmt::format("; a unigram model of the same tokens: {:.4f}", unigram);
  return line;
}

// The losses that `shoal report` shows: means over the steps since the record before.
std::string training_line(const TrainerState& state) {
  std::vector<std::string> ends;
  const nlohmann::json* last = nullptr;
  const auto text_of = [](const nlohmann::json& record) {
    const auto& loss = record["loss"];
    return fmt::format("{} (step {})",
                       loss.is_number() ? fmt::format("{:.4f}", loss.get<double>()) : "not finite",
                       field_or(record, "step", std::int64_t{0}, "a log record"));
  };
  for (const nlohmann::json& record : state.log_history) {
    if (!record.contains("loss")) continue;
    if (last == nullptr) ends.push_back(text_of(record) + " first");
    last = &record;
  }
  if (last == nullptr) return {};
  return fmt::format("training loss: {}, {} last", ends.front(), text_of(*last));
}

}  // namespace

std::vector<std::string> result_lines(const TrainerState& state,
                                      const nlohmann::ordered_json& results, double unigram) {
  std::vector<std::string> lines;
  if (const std::string metrics = metrics_of(results); !metrics.empty())
    lines.push_back("result: " + metrics);
  for (std::string line : {validation_line(state, results, unigram), training_line(state)})
    if (!line.empty()) lines.push_back(std::move(line));
  return lines;
}

std::string next_line(TaskKind kind, const std::string& directory) {
  const bool predicts = !reads_text(kind);
  // config.json does not say what an encoder-decoder learned.
  const char* const task = kind == TaskKind::summarization ? " --task summarization"
                           : kind == TaskKind::translation
                               ? " --task translation --source-lang LANGUAGE --target-lang LANGUAGE"
                           : kind == TaskKind::span_corruption ? " --task span-corruption"
                           : kind == TaskKind::denoising       ? " --task denoising"
                                                               : "";
  const std::string use = predicts
                              ? fmt::format("`shoal predict --model {}{} FILE`", directory, task)
                          : kind == TaskKind::causal_lm
                              ? fmt::format("`shoal generate --model {} --prompt TEXT`", directory)
                              : fmt::format("`shoal evaluate --model {}{} FILE`", directory, task);
  return fmt::format("next: `shoal report {}` shows the run; {} uses the model", directory, use);
}

}  // namespace shoal::command
