// shoal report RUN...: summarises runs from their metrics.jsonl and results, and writes a page.
#include <algorithm>
#include <cctype>
#include <filesystem>
#include <memory>
#include <optional>

#include "aws_words.h"
#include "commands.h"
#include "job_output.h"
#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/terminal.h"
#include "shoal/runtime/io/file_system.h"
#include "shoal/runtime/io/files.h"
#include "shoal/runtime/io/ordered_fields.h"
#include "shoal/runtime/io/scratch_directory.h"
#include "shoal/train/checkpoint/checkpoint_directory.h"
#include "shoal/train/report/measures.h"
#include "shoal/train/report/page.h"
#include "shoal/train/report/run_log.h"

namespace shoal::app {
namespace {

struct ReportWords {
  std::vector<std::string> runs;  // directories, and SageMaker jobs
  AwsWords aws;
  std::string output;  // empty: report.html in the run; for several runs, here
  bool json = false;
};

void print_run(const report::RunLog& run, bool several) {
  const auto numbers = report::numbers_of(run);
  const auto text = [&](const char* key) -> std::optional<std::string> {
    const report::Number* number = report::find(numbers, key);
    if (number == nullptr) return std::nullopt;
    return report::format_number(number->value, number->unit);
  };
  const auto line = [](const char* name, const std::string& value) {
    terminal::print("{:<16} {}\n", name, value);
  };
  const auto pair = [&](const char* name, const char* first, const char* last) {
    if (const auto from = text(first), to = text(last); from && to)
      line(name, fmt::format("{} at first, {} at last", *from, *to));
  };
  if (several) terminal::print("\n{}\n", run.directory);
  line("steps", text("steps").value_or("0"));
  pair("training loss", "loss_first", "loss");
  if (const auto from = text("loss_first"); from && !text("loss"))
    line("training loss", fmt::format("{} at first, not finite at last", *from));
  // The run was killed, or its build did not log the last steps.
  if (const auto logged = run.training.last("step"); logged && *logged < run.last_step())
    line("", fmt::format("(of step {:.0f}, the last with a record)", *logged));
  pair("validation loss", "eval_loss_first", "eval_loss");
  if (const auto unigram = text("unigram_eval_loss"))
    line("unigram loss", *unigram + " (a model that only knows how often each token occurs)");
  for (const report::Number& number : numbers)
    if (number.key.starts_with("eval_") && !number.key.starts_with("eval_loss"))
      line(number.key.c_str(), report::format_number(number.value, number.unit));
  if (const auto rate = text("tokens_per_second"))
    line("tokens/s", fmt::format("{} ({} tokens seen)", *rate, text("tokens_seen").value_or("no")));
  if (const auto rate = text("samples_per_second")) line("samples/s", *rate);
  if (const auto share = text("mfu")) line("of the peak", *share);
  if (const auto seconds = text("step_seconds")) line("step time", *seconds);
  if (const auto bytes = text("memory_peak_bytes")) line("peak memory", *bytes);
  const std::vector<ForecastPart> forecast = report::forecast_of(run);
  for (const ForecastPart& part : forecast)
    if (part.whole)
      line(("predicted " + part.name).c_str(),
           fmt::format("{}, measured {} ({:+.1f} %)", format_part(part, part.predicted),
                       format_part(part, part.measured), 100 * part.error()));
  for (const std::string& miss : forecast_misses(forecast)) line("", "(" + miss + ")");
  if (const auto bytes = text("pinned_memory_peak_bytes")) line("peak pinned", *bytes);
  if (const auto newest = newest_checkpoint(run.directory, nullptr))
    line("last checkpoint", newest->path);
  for (const std::string& remark : report::remarks_of(run)) line("", "(" + remark + ")");
}

nlohmann::ordered_json json_of_run(const report::RunLog& run) {
  OrderedFields record;
  record["run"] = run.directory;
  record["finished"] = run.finished;
  for (const char* fact : {"ranks", "global_batch_size", "total_steps"})
    if (const auto value = run.setting(fact); value != 0) record[fact] = value;
  for (const report::Number& number : report::numbers_of(run)) record[number.key] = number.value;
  if (const auto newest = newest_checkpoint(run.directory, nullptr))
    record["last_checkpoint"] = newest->path;
  if (const auto forecast = report::forecast_of(run); !forecast.empty()) {
    auto& parts = record["forecast"] = nlohmann::ordered_json::array();
    for (const ForecastPart& part : forecast)
      parts.push_back({{"part", part.name},
                       {"predicted", part.predicted},
                       {"measured", part.measured},
                       {"unit", part.bytes ? "bytes" : "seconds"}});
    record["predictions_missed"] = forecast_misses(forecast);
  }
  if (const auto remarks = report::remarks_of(run); !remarks.empty()) record["remarks"] = remarks;
  return std::move(record).json();
}

void write_page(const std::vector<report::RunLog>& runs, const std::string& path) {
  const auto parent = std::filesystem::path(path).parent_path();
  if (!parent.empty() && !is_directory(parent))
    throw Error(
        ErrorCode::not_found,
        fmt::format("the page is to be {}, and there is no directory {}", path, parent.string()),
        "make the directory, or choose another --output");
  if (is_directory(path))
    throw Error(ErrorCode::invalid_argument,
                fmt::format("the page is to be {}, which is a directory", path),
                "give --output the name of a file");
  try {
    write_file_atomically(path, report::page(runs, "shoal " SHOAL_VERSION));
  } catch (const Error& problem) {
    throw Error(problem.code(), problem.message(), "choose another --output");
  }
}

// True if `run` is no path here, but looks like a SageMaker job's name or ARN.
bool is_job(const std::string& run) {
  if (path_exists(run)) return false;
  return run.starts_with("arn:") ||
         std::ranges::all_of(run, [](unsigned char c) { return std::isalnum(c) != 0 || c == '-'; });
}

// `scratch` keeps the files of jobs.
std::vector<report::RunLog> read_all(const ReportWords& words, const ScratchDirectory& scratch) {
  std::vector<std::string> directories = words.runs;
  for (std::string& run : directories) {
    if (!is_job(run)) continue;
    const std::string name = run.substr(run.rfind('/') + 1);
    try {
      fetch_job_run(words.aws, run, scratch / name);
    } catch (const Error& error) {
      throw Error(error.code(),
                  fmt::format("{} is not there, and as a SageMaker job: {}", name, error.message()),
                  error.remedy());
    }
    run = scratch / name;
  }
  std::vector<report::RunLog> runs = report::read_runs(directories);
  for (std::size_t i = 0; i < runs.size(); ++i)
    if (directories[i] != words.runs[i]) runs[i].directory = words.runs[i];
  return runs;
}

int report_runs(const ReportWords& words) {
  const ScratchDirectory scratch;
  const std::vector<report::RunLog> runs = read_all(words, scratch);
  std::string path = words.output;
  if (path.empty() && !words.json)
    path = runs.size() > 1 || !is_directory(runs[0].directory)
               ? "report.html"
               : (std::filesystem::path(runs[0].directory) / "report.html").string();
  if (words.json) {
    auto all = nlohmann::ordered_json::array();
    for (const report::RunLog& run : runs) all.push_back(json_of_run(run));
    print_json(all);
  } else {
    for (const report::RunLog& run : runs) print_run(run, runs.size() > 1);
  }
  if (path.empty()) return 0;
  write_page(runs, path);
  if (!words.json) terminal::print("{}{:<16} {}\n", runs.size() > 1 ? "\n" : "", "page", path);
  return 0;
}

}  // namespace

void add_report(CLI::App& app, Action& action) {
  auto* command = app.add_subcommand(
      "report",
      "Report the results of runs: losses, speed, memory, and a page of plots (report.html)");
  auto words = std::make_shared<ReportWords>();
  command
      ->add_option("run", words->runs,
                   "output_dir of a run, or a SageMaker job's name, whose output in S3 is read; of "
                   "several the page compares them, and shows the scaling of runs on different "
                   "numbers of ranks")
      ->required();
  command->add_option("--output", words->output,
                      "the page; else report.html in the run's directory, of jobs and several "
                      "runs here");
  add_aws_words(*command, words->aws);
  command->add_flag("--json", words->json,
                    "print the numbers as JSON; a page is then written only with --output");
  command->callback([&action, words] { action = [words] { return report_runs(*words); }; });
}

}  // namespace shoal::app
