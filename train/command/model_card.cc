#include "shoal/train/command/model_card.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <map>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "shoal/runtime/io/json_fields.h"

namespace shoal::command {
namespace {

constexpr std::string_view kComment =
    "<!-- This model card has been generated automatically according to the information the "
    "Trainer "
    "had access to. You\nshould probably proofread and complete it, then remove this comment. "
    "-->\n";

using Fields = std::vector<std::pair<std::string, std::string>>;

// "eval_matthews_correlation" -> "Matthews Correlation"
std::string title_of(std::string_view metric) {
  std::string title(metric.substr(metric.starts_with("eval_") ? 5 : 0));
  bool begins = true;
  for (char& c : title) {
    if (c == '_') c = ' ';
    c = static_cast<char>(begins ? std::toupper(static_cast<unsigned char>(c))
                                 : std::tolower(static_cast<unsigned char>(c)));
    begins = c == ' ';
  }
  return title;
}

// At most four digits after the point, as transformers rounds.
std::string text_of(const nlohmann::json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_number_float()) return value.dump();
  const std::string exact = value.dump();
  const auto point = exact.find('.');
  const bool is_long = point != std::string::npos && exact.size() - point - 1 > 4;
  return is_long ? fmt::format("{:.4f}", value.get<double>()) : exact;
}

bool is_quality(std::string_view name) {
  return name.starts_with("eval_") && !name.ends_with("_runtime") &&
         !name.ends_with("_per_second") && name != "eval_samples";
}

// A YAML scalar. JSON's strings are YAML's.
std::string yaml(const std::string& text) {
  static const std::set<std::string, std::less<>> kWords = {"null", "true", "false", "yes", "no",
                                                            "on",   "off",  "y",     "n"};
  std::string lower = text;
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  const bool is_plain =
      !text.empty() && std::isalpha(static_cast<unsigned char>(text.front())) != 0 &&
      text.back() != ' ' && !kWords.contains(lower) &&
      std::ranges::all_of(text, [](unsigned char c) {
        return std::isalnum(c) != 0 ||
               std::string_view("-_./ ").find(static_cast<char>(c)) != std::string_view::npos;
      });
  return is_plain ? text : nlohmann::json(text).dump();
}

// The number as Python writes it: 5e-05, 0.001.
std::string python_number(double value) {
  const std::string text = nlohmann::json(value).dump();
  const auto e = text.find('e');
  if (e == std::string::npos || text.size() - e > 3) return text;
  return text.substr(0, e + 2) + "0" + text.substr(e + 2);
}

Fields hyperparameters(const ResolvedRun& run, int ranks, const TrainerState& state) {
  const std::int64_t per_step = run.per_device_train_batch_size;
  Fields fields = {{"learning_rate", python_number(run.learning_rate)},
                   {"train_batch_size", fmt::format("{}", per_step)},
                   {"eval_batch_size", fmt::format("{}", run.per_device_eval_batch_size)},
                   {"seed", fmt::format("{}", run.seed)}};
  if (ranks > 1) {
    fields.emplace_back("distributed_type", "multi-GPU");
    if (run.use_cpu) fields.back().second = "multi-CPU";
    fields.emplace_back("num_devices", fmt::format("{}", ranks));
  }
  const std::int64_t accumulated = run.gradient_accumulation_steps;
  if (accumulated > 1)
    fields.emplace_back("gradient_accumulation_steps", fmt::format("{}", accumulated));
  if (state.global_batch_size > 0 && state.global_batch_size != per_step)
    fields.emplace_back("total_train_batch_size", fmt::format("{}", state.global_batch_size));
  const std::int64_t data_ranks =
      state.global_batch_size / std::max<std::int64_t>(1, per_step * accumulated);
  if (data_ranks > 1)
    fields.emplace_back("total_eval_batch_size",
                        fmt::format("{}", run.per_device_eval_batch_size * data_ranks));
  fields.emplace_back(
      "optimizer",
      run.optim.find("adam") == std::string::npos
          ? fmt::format("Use {} and the args are:\nNo additional optimizer arguments", run.optim)
          : fmt::format("Use {} with betas=({},{}) and epsilon={} and optimizer_args=No additional "
                        "optimizer arguments",
                        run.optim, python_number(run.adam_beta1), python_number(run.adam_beta2),
                        python_number(run.adam_epsilon)));
  fields.emplace_back("lr_scheduler_type", run.lr_scheduler_type);
  const double warmup = run.warmup_steps != 0 ? run.warmup_steps : run.warmup_ratio;
  if (warmup != 0) fields.emplace_back("lr_scheduler_warmup_steps", fmt::format("{}", warmup));
  if (run.max_steps > 0)
    fields.emplace_back("training_steps", fmt::format("{}", run.max_steps));
  else
    fields.emplace_back("num_epochs", python_number(run.num_train_epochs));
  if (run.fp16 || run.bf16)
    fields.emplace_back("mixed_precision_training", run.fp16 ? "fp16" : "bf16");
  if (run.label_smoothing_factor != 0)
    fields.emplace_back("label_smoothing_factor", python_number(run.label_smoothing_factor));
  return fields;
}

// A row for each evaluation, with the training loss that was logged before it.
std::string table_of(const nlohmann::json& log_history) {
  std::vector<Fields> rows;
  std::string loss = "No log";
  for (const nlohmann::json& record : log_history) {
    if (record.contains("loss")) loss = text_of(record["loss"]);
    if (!record.contains("eval_loss")) continue;
    const auto field_text = [&](const char* name) {
      const nlohmann::json* value = find_field(record, name);
      return value == nullptr ? std::string() : text_of(*value);
    };
    Fields row = {{"Training Loss", loss},
                  {"Epoch", field_text("epoch")},
                  {"Step", field_text("step")},
                  {"Validation Loss", text_of(record["eval_loss"])}};
    for (const auto& [name, value] : record.items())
      if (is_quality(name) && name != "eval_loss") row.emplace_back(title_of(name), text_of(value));
    rows.push_back(std::move(row));
  }
  if (rows.empty()) return {};
  std::vector<std::size_t> widths;
  for (std::size_t i = 0; i < rows[0].size(); ++i) {
    widths.push_back(rows[0][i].first.size());
    for (const Fields& row : rows)
      if (i < row.size()) widths[i] = std::max(widths[i], row[i].second.size());
  }
  std::string table, rule;
  for (std::size_t i = 0; i < widths.size(); ++i) {
    table += fmt::format("| {:<{}} ", rows[0][i].first, widths[i]);
    rule += fmt::format("|:{:-<{}}:", "", widths[i]);
  }
  table += "|\n" + rule + "|\n";
  for (const Fields& row : rows) {
    for (std::size_t i = 0; i < widths.size(); ++i)
      table += fmt::format("| {:<{}} ", i < row.size() ? row[i].second : "", widths[i]);
    table += "|\n";
  }
  return table;
}

// The model that was trained on, as the Hub may know it. A directory's path stays private.
std::string base_of(const RunArguments& arguments, const std::string& adapted) {
  const std::filesystem::path path(adapted.empty() ? arguments.model.model_name_or_path : adapted);
  if (!path.is_absolute()) return path.string();
  return path.has_filename() ? path.filename().string() : path.parent_path().filename().string();
}

std::string upper(std::string text) {
  for (char& c : text) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return text;
}

// The lines between the two "---", which the Hub reads: name, origin and metrics.
std::string front_matter(const RunArguments& arguments, const std::string& name,
                         const nlohmann::ordered_json& results, const std::string& adapted) {
  static const std::map<std::string, std::string, std::less<>> kTags = {
      {"eval_accuracy", "accuracy"},
      {"eval_f1", "f1"},
      {"eval_precision", "precision"},
      {"eval_recall", "recall"},
      {"eval_matthews_correlation", "matthews_correlation"}};
  std::string tags, values;
  for (const auto& [metric, value] : results.items())
    if (const auto tag = kTags.find(metric); tag != kTags.end() && value.is_number()) {
      tags += fmt::format("- {}\n", tag->second);
      values += fmt::format("    - name: {}\n      type: {}\n      value: {}\n", title_of(metric),
                            tag->second, value.dump());
    }
  const std::string& task = arguments.data.task_name;
  std::string text =
      fmt::format("---\nlibrary_name: {}\n", adapted.empty() ? "transformers" : "peft");
  if (!task.empty()) text += "language:\n- en\n";
  const std::string base = base_of(arguments, adapted);
  if (!base.empty()) text += fmt::format("base_model: {}\n", yaml(base));
  text += "tags:\n";
  if (!adapted.empty()) text += fmt::format("- {}\n", yaml("base_model:adapter:" + base));
  text += "- generated_from_trainer\n";
  if (!adapted.empty()) text += "- lora\n- transformers\n";
  if (!task.empty()) text += "datasets:\n- glue\n";
  if (!tags.empty()) text += "metrics:\n" + tags;
  text += fmt::format("model-index:\n- name: {}\n  results:", yaml(name));
  if (task.empty() || values.empty()) return text + " []\n---\n";
  return text + fmt::format(
                    "\n  - task:\n      name: Text Classification\n"
                    "      type: text-classification\n"
                    "    dataset:\n      name: GLUE {}\n      type: glue\n      args: {}\n"
                    "    metrics:\n{}---\n",
                    upper(task), task, values);
}

}  // namespace

std::string model_card(const RunArguments& arguments, int ranks, const TrainerState& state,
                       const nlohmann::ordered_json& results, const std::string& adapted) {
  const ResolvedRun& run = arguments.training;
  std::filesystem::path directory(run.output_dir);
  if (!directory.has_filename()) directory = directory.parent_path();  // "out/"
  const std::string name = directory.filename();
  const std::string base = base_of(arguments, adapted);
  std::string text = front_matter(arguments, name, results, adapted);
  text += fmt::format("\n{}\n# {}\n\n", kComment, name);
  text += base.empty() ? "This model was trained from scratch on "
                       : fmt::format(
                             "This model is a fine-tuned version of "
                             "[{0}](https://huggingface.co/{0}) on ",
                             base);
  const std::string& task = arguments.data.task_name;
  text += task.empty() ? "an unknown dataset." : fmt::format("the GLUE {} dataset.", upper(task));
  std::string reached;
  for (const auto& [metric, value] : results.items())
    if (is_quality(metric)) reached += fmt::format("\n- {}: {}", title_of(metric), text_of(value));
  if (!reached.empty())
    text += "\nIt achieves the following results on the evaluation set:" + reached;
  for (const char* section :
       {"Model description", "Intended uses & limitations", "Training and evaluation data"})
    text += fmt::format("\n\n## {}\n\nMore information needed", section);
  text +=
      "\n\n## Training procedure\n\n### Training hyperparameters\n\n"
      "The following hyperparameters were used during training:\n";
  for (const auto& [field, value] : hyperparameters(run, ranks, state))
    text += fmt::format("- {}: {}\n", field, value);
  if (const std::string table = table_of(state.log_history); !table.empty())
    text += "\n### Training results\n\n" + table + "\n";
  return text + "\n### Framework versions\n\n- Shoal " SHOAL_VERSION "\n";
}

bool is_generated_card(const std::string& text) {
  return text.find(kComment.substr(0, kComment.find('\n'))) != std::string::npos;
}

}  // namespace shoal::command
