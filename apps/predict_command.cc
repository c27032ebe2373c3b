// shoal predict, shoal evaluate: a trained model on a file of samples.
#include <algorithm>
#include <array>
#include <filesystem>
#include <memory>

#include "command_line.h"
#include "commands.h"
#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/exit_status.h"
#include "shoal/runtime/base/report_error.h"
#include "shoal/runtime/base/terminal.h"
#include "shoal/runtime/io/file_system.h"
#include "shoal/runtime/io/files.h"
#include "shoal/runtime/rendezvous/world.h"
#include "shoal/train/command/predict.h"

namespace shoal::app {
namespace {

using nlohmann::ordered_json;

struct PredictWords {
  command::PredictOptions run;
  std::string output;
  bool json = false;
};

// Options of `shoal train` that change how a file is read or how fast a model is run.
struct Passed {
  const char *name, *help;
  bool is_flag = false, is_essential = false;
};
constexpr std::array kPassed = {
    Passed{"task", "if config.json does not name it"},
    Passed{"tokenizer_name", "if the model's directory has none"},
    Passed{"text_column_names", "one or two columns with the texts, separated by a comma", false,
           true},
    Passed{"label_column_name", "the column with the labels", false, true},
    Passed{"label_list",
           "the labels in the order of the model's classes, if it does not name them"},
    Passed{"column_names", "columns of a file without a header line"},
    Passed{"task_name", "a GLUE task, which gives columns and metrics"},
    Passed{"version_2_with_negative", "some questions have no answer", true},
    Passed{"skip_bad_rows", "leave out rows that cannot be read, instead of ending", true},
    Passed{"max_seq_length", "tokens of a sample at most; longer texts are cut", false, true},
    Passed{"text_column", "the column with the texts to summarize"},
    Passed{"summary_column", "the column with their summaries"},
    Passed{"source_lang", "the language to translate from: en, or mBART's en_XX"},
    Passed{"target_lang", "the language to translate into"},
    Passed{"lang", "mBART: the language of summaries"},
    Passed{"source_prefix", "put before each text to summarize or translate"},
    Passed{"max_source_length", "tokens of such a text at most"},
    Passed{"max_target_length", "tokens of a summary or translation at most"},
    Passed{"forced_bos_token", "the first token of each translation"},
    Passed{"mlm_probability", "share of the tokens that are guessed"},
    Passed{"doc_stride", "tokens that the pieces of a long text share, to answer questions"},
    Passed{"per_device_eval_batch_size", "samples that are computed together (8)", false, true},
    Passed{"bf16", "compute in bfloat16", true},
    Passed{"use_cpu", "even if there is a GPU", true}};

void add_passed(CLI::App& command, command::PredictOptions& run) {
  for (const Passed& passed : kPassed) {
    std::string dashed = passed.name;
    std::ranges::replace(dashed, '_', '-');
    const std::string names =
        dashed == passed.name ? "--" + dashed : fmt::format("--{},--{}", dashed, passed.name);
    if (passed.is_flag)
      command.add_flag_callback(
          names, [&run, &passed] { run.options.insert_or_assign(passed.name, "true"); },
          passed.help);
    else
      command.add_option_function<std::string>(
          names,
          [&run, &passed](const std::string& value) {
            run.options.insert_or_assign(passed.name, value);
          },
          passed.help);
    if (!passed.is_essential) rarely(command, {("--" + dashed).c_str()});
  }
}

// "probabilities": {"good": 0.9} becomes a column "probabilities.good".
std::vector<std::pair<std::string, std::string>> cells_of(const ordered_json& row) {
  const auto text = [](const ordered_json& value) {
    return value.is_string() ? value.get<std::string>()
                             : value.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
  };
  std::vector<std::pair<std::string, std::string>> cells;
  for (const auto& [name, value] : row.items()) {
    if (!value.is_object()) {
      cells.emplace_back(name, text(value));
      continue;
    }
    for (const auto& [inner, each] : value.items())
      cells.emplace_back(name + "." + inner, text(each));
  }
  return cells;
}

std::string table_of(const std::vector<ordered_json>& rows, char separator) {
  std::string table;
  const auto append = [&](const std::string& cell, bool is_first) {
    if (!is_first) table += separator;
    if (cell.find_first_of(std::string("\"\r\n") + separator) == cell.npos) {
      table += cell;
      return;
    }
    table += '"';
    for (const char c : cell) table += c == '"' ? "\"\"" : std::string(1, c);
    table += '"';
  };
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto cells = cells_of(rows[i]);
    for (std::size_t c = 0; i == 0 && c < cells.size(); ++c) append(cells[c].first, c == 0);
    if (i == 0) table += '\n';
    for (std::size_t c = 0; c < cells.size(); ++c) append(cells[c].second, c == 0);
    table += '\n';
  }
  return table;
}

std::string lines_of(const std::vector<ordered_json>& rows) {
  std::string lines;
  for (const ordered_json& row : rows)
    lines += row.dump(-1, ' ', false, ordered_json::error_handler_t::replace) + "\n";
  return lines;
}

std::string text_for(const std::string& output, const std::vector<ordered_json>& rows) {
  if (output.ends_with(".csv")) return table_of(rows, ',');
  if (output.ends_with(".tsv")) return table_of(rows, '\t');
  return lines_of(rows);
}

void check_output(const std::string& output) {
  if (output.empty()) return;
  SHOAL_CHECK(output.ends_with(".jsonl") || output.ends_with(".csv") || output.ends_with(".tsv"),
              "--output is {}; give a name that ends with .jsonl, .csv or .tsv", output);
  const auto parent = std::filesystem::path(output).parent_path();
  if (!parent.empty() && !is_directory(parent))
    throw Error(
        ErrorCode::not_found,
        fmt::format("--output is {}, and there is no directory {}", output, parent.string()),
        "make the directory");
}

// Returns false, after the reason, if the run failed.
bool succeeded(const char* program, const command::Answered& answered) {
  for (const std::string& line : answered.notices) terminal::print(stderr, "{}\n", line);
  if (!answered.problem.empty()) report_error(program, answered.problem);
  return answered.status == kDone;
}

ConsoleCallback::Options progress_bar() {
  return {.bar = terminal_width(stderr) > 0 ? stderr : nullptr};
}

int predict(const PredictWords& words) {
  check_output(words.output);
  const command::Answered answered = command::predict(words.run, progress_bar());
  if (!succeeded("shoal predict", answered) || discover_world().rank != 0) return answered.status;
  if (words.output.empty()) {
    terminal::write_result(stdout, lines_of(answered.answers));
    return kDone;
  }
  write_file_atomically(words.output, text_for(words.output, answered.answers));
  terminal::print("{} predictions in {}\n", answered.answers.size(), words.output);
  return kDone;
}

// The task's metrics first, then the loss, then the speed.
int place_of(const std::string& name) {
  if (name.ends_with("_runtime") || name.ends_with("_per_second") || name == "epoch") return 2;
  return name.starts_with("eval_loss") || name.starts_with("eval_perplexity") ? 1 : 0;
}

int evaluate(const PredictWords& words) {
  const command::Answered answered = command::evaluate(words.run, progress_bar());
  if (!succeeded("shoal evaluate", answered) || discover_world().rank != 0) return answered.status;
  if (words.json) {
    print_json(answered.metrics);
    return kDone;
  }
  for (const int place : {0, 1, 2})
    for (const auto& [name, value] : answered.metrics.items())
      if (place_of(name) == place && value.is_number())
        terminal::print("{:<28} {:.6g}\n", name, value.get<double>());
  return kDone;
}

}  // namespace

void add_predict(CLI::App& app, Action& action) {
  auto* command = app.add_subcommand(
      "predict", "Label the rows of a file, tag its words or answer its questions");
  auto words = std::make_shared<PredictWords>();
  command->add_option("file", words->run.file, "what to predict, as train_file without its labels")
      ->required();
  command
      ->add_option("--model,-m", words->run.model,
                   "a Hugging Face directory, or a run with checkpoints")
      ->required();
  command->add_option("--output,-o", words->output,
                      "a .jsonl, .csv or .tsv file; without it, JSON lines on standard output");
  add_passed(*command, words->run);
  command->callback([&action, words] { action = [words] { return predict(*words); }; });
}

void add_evaluate(CLI::App& app, Action& action) {
  auto* command =
      app.add_subcommand("evaluate", "Measure a model on a file with labels, or on text");
  auto words = std::make_shared<PredictWords>();
  command->add_option("file", words->run.file, "labelled samples, as validation_file")->required();
  command
      ->add_option("--model,-m", words->run.model,
                   "a Hugging Face directory, or a run with checkpoints")
      ->required();
  command->add_flag("--json", words->json, "as one JSON object");
  add_passed(*command, words->run);
  command->callback([&action, words] { action = [words] { return evaluate(*words); }; });
}

}  // namespace shoal::app
