// shoal study: runs the same training with several numbers of ranks, loader workers, batch sizes
// and backends.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>

#include "command_line.h"
#include "commands.h"
#include "core_files.h"
#include "study/job.h"
#include "study/run.h"
#include "study/study.h"
#include "submit_check.h"
#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/exit_status.h"
#include "shoal/runtime/base/parallel_for.h"
#include "shoal/runtime/base/report_error.h"
#include "shoal/runtime/base/terminal.h"
#include "shoal/runtime/io/base64.h"
#include "shoal/runtime/io/byte_source.h"
#include "shoal/runtime/io/digest.h"
#include "shoal/runtime/io/file_system.h"
#include "shoal/runtime/io/files.h"
#include "shoal/runtime/io/json.h"
#include "shoal/runtime/io/json_fields.h"
#include "shoal/sagemaker/job/secrets.h"
#include "shoal/train/checkpoint/run_lock.h"
#include "shoal/train/command/stop_signals.h"

namespace shoal::app {
namespace {

struct StudyWords {
  std::string path, output;  // the study file; where results go
  JobPlace place;
  bool json = false, dry_run = false;
};

struct StudyRun {
  StudyCell cell;
  std::string name, directory;
  // What is run: the words of a command, or a job file's content. A result that was measured with
  // the same is kept.
  Json what;
};

constexpr const char* kResult = "/result.json";

Json what_runs(const StudyOptions& o, const StudyCell& cell, const std::string& output,
               const std::string& directory, const Json& job) {
  if (!o.job.empty()) return job_of(job, o, cell);
  return command_of(o, cell, canonical_path("/proc/self/exe"), output, directory);
}

std::vector<StudyRun> runs_of(const StudyOptions& o, const Study& study, const std::string& output,
                              const Json& job) {
  std::vector<StudyRun> runs;
  for (std::int64_t round = 1; round <= o.rounds; ++round)
    for (const StudyCell& cell : study.cells) {
      const std::string name =
          round == 1 ? cell.name() : fmt::format("{}-round{}", cell.name(), round);
      const std::string directory = output + "/runs/" + name;
      runs.push_back({cell, name, directory, what_runs(o, cell, output, directory, job)});
    }
  return runs;
}

// A hash, since a job file may hold secrets. Another version of Shoal measures anew.
std::string hash_of(const StudyRun& run) {
  return to_base64(hmac_sha256("shoal study " SHOAL_VERSION, run.what.dump()));
}

void keep_result(const StudyRun& run, const StudyResult& result) {
  const auto number = [](double value) { return std::isnan(value) ? Json() : Json(value); };
  const Json kept = {{"of", hash_of(run)},
                     {"samples_per_second", result.samples_per_second},
                     {"loader_stall_share", number(result.stall_share)},
                     {"node_seconds", result.node_seconds},
                     {"losses", result.losses}};
  write_file_atomically(run.directory + kResult, kept.dump(2) + "\n");
}

// The result of an earlier call; nullopt: none, or of another run.
std::optional<StudyResult> kept_result(const StudyRun& run) {
  const std::string file = run.directory + kResult;
  if (!path_exists(file)) return std::nullopt;
  const Json kept = parse_ordered_json(read_text_file(file), file);
  if (need_field<std::string>(kept, "of", file) != hash_of(run)) return std::nullopt;
  StudyResult result{.cell = run.cell};
  result.samples_per_second = need_field<double>(kept, "samples_per_second", file);
  result.stall_share = field_or(kept, "loader_stall_share", std::nan(""), file);
  result.node_seconds = need_field<double>(kept, "node_seconds", file);
  for (const auto& pair : need_field<std::vector<std::vector<double>>>(kept, "losses", file))
    result.losses.emplace_back(pair.at(0), pair.at(1));
  return result;
}

// The median of a cell's rounds, and what all of them cost.
StudyResult median_of(std::vector<StudyResult> rounds) {
  std::ranges::sort(rounds, {}, &StudyResult::samples_per_second);
  StudyResult median = rounds[(rounds.size() - 1) / 2];
  median.node_seconds = 0;
  for (const StudyResult& round : rounds) median.node_seconds += round.node_seconds;
  return median;
}

// Writes study.json and study.html of the runs that have ended.
Json write_results(const StudyOptions& o, const Study& study, const std::string& output,
                   const std::map<std::string, std::vector<StudyResult>>& results,
                   std::vector<StudyRow>& rows) {
  std::vector<StudyResult> medians;
  for (const StudyCell& cell : study.cells)
    if (const auto rounds = results.find(cell.name()); rounds != results.end())
      medians.push_back(median_of(rounds->second));
  rows = evaluate_study(medians, o);
  Json json = study_json(rows, study);
  write_file_atomically(output + "/study.json", json.dump(2) + "\n");
  write_file_atomically(output + "/study.html", study_page(rows, study, o));
  return json;
}

// Checks for errors of all runs before the first one begins. Returns what a dry run prints: each
// run's command, or its job's request with secrets as ***.
Json checked_runs(const StudyOptions& o, const std::vector<StudyRun>& runs,
                  const StudyWords& words) {
  auto all = Json::array();
  if (o.job.empty()) check_commands(o);
  for (const StudyRun& run : runs) {
    if (o.job.empty()) {
      all.push_back({{"run", run.name}, {"command", run.what}});
      continue;
    }
    const sagemaker::TrainingJob job =
        checked_job(run.what, words.place.directory, words.place.aws).job;
    if (all.empty())
      for (const std::string& notice : job.notices)
        terminal::print(stderr, "shoal study: {}\n", notice);
    all.push_back({{"run", run.name}, {"request", sagemaker::without_secrets(job.request)}});
  }
  return all;
}

void print_runs(const std::vector<StudyRun>& runs) {
  for (const StudyRun& run : runs)
    if (run.what.is_array())
      terminal::print("{}\n", fmt::join(run.what.get<std::vector<std::string>>(), " "));
    else
      terminal::print("{}: {} instances with {}\n", run.name, run.cell.nodes,
                      options_of(run.cell).dump());
}

// nullopt: a signal stopped this process.
std::optional<StudyResult> carry_out(const StudyOptions& o, const StudyRun& run,
                                     const JobPlace& place) {
  if (!o.job.empty()) return run_job(o, run.cell, run.what, place, run.directory);
  return run_command(o, run.cell, run.what.get<std::vector<std::string>>(), run.directory);
}

int run_study(StudyWords words) {
  if (words.output.empty()) words.output = std::filesystem::path(words.path).stem().string();
  std::vector<std::int64_t> ranks;
  for (std::int64_t count = 1; count <= available_cores(); count *= 2) ranks.push_back(count);
  const StudyOptions o = read_study(parse_ordered_json(read_text_file(words.path), words.path),
                                    std::filesystem::path(words.path).stem().string(), ranks);
  const Study study = plan_study(o);
  Json job;
  if (!o.job.empty()) {
    forbid_core_files();  // a job file may contain a git password
    job = sagemaker::read_job_file(o.job);
    words.place.directory = directory_of(o.job);
  }
  const std::vector<StudyRun> runs = runs_of(o, study, words.output, job);
  const Json checked = checked_runs(o, runs, words);
  if (words.dry_run) {
    words.json ? print_json(checked) : print_runs(runs);
    return 0;
  }
  check_python(o);
  const RunLock lock(words.output);
  std::map<std::string, std::vector<StudyResult>> results;
  std::vector<StudyRow> rows;
  Json json;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const StudyRun& run = runs[i];
    std::optional<StudyResult> result = kept_result(run);
    const bool is_kept = result.has_value();
    if (!is_kept) {
      terminal::print(stderr, "{} of {}: {} begins\n", i + 1, runs.size(), run.name);
      try {
        result = carry_out(o, run, words.place);
      } catch (const Error& problem) {  // an error of the run, not of the study's file
        report_error("shoal study", problem.what());
        return kFailed;
      }
      if (!result) {
        terminal::print(stderr, "shoal study: stopped in {}; the same command continues with it\n",
                        run.name);
        return 128 + command::stop_signal;
      }
      keep_result(run, *result);
    }
    terminal::print(stderr, "{} of {}: {}: {:.1f} samples/s{}\n", i + 1, runs.size(), run.name,
                    result->samples_per_second, is_kept ? ", measured before" : "");
    results[run.cell.name()].push_back(std::move(*result));
    json = write_results(o, study, words.output, results, rows);
  }
  if (words.json)
    print_json(json, -1);
  else
    terminal::print("{}{} examples in every run; plots in {}/study.html\n", study_table(rows, o),
                    study.examples, words.output);
  return 0;
}

}  // namespace

void add_study(CLI::App& app, Action& action) {
  auto* command = app.add_subcommand(
      "study",
      "One training by ranks, loader workers, batch size and backend: speed, losses, cost");
  command->footer(
      "STUDY.json: {\"config\": \"run.json\", \"ranks\": [1, 2], \"workers\": [0, 2]}; all its "
      "keys: docs/guides/studies.md.\nEvery run trains on the same number of examples. A study "
      "that "
      "ended early continues with the missing runs.");
  auto words = std::make_shared<StudyWords>();
  command->add_option("study", words->path, "the study's JSON file")->required();
  command->add_option("--output,-o", words->output,
                      "directory for study.json, study.html and the runs; default: the file's name "
                      "without .json, here");
  command->add_flag("--json", words->json, "print study.json instead of a table");
  command->add_flag("--dry-run", words->dry_run, "check the file and print the runs");
  command
      ->add_option("--interval", words->place.interval_seconds,
                   "seconds between questions about a job")
      ->check(from_to(0.01, 3600.0))
      ->capture_default_str();
  add_aws_words(*command, words->place.aws);
  command->callback([&action, words] { action = [words] { return run_study(*words); }; });
}

}  // namespace shoal::app
