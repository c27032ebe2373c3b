#include "shoal/train/report/run_log.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>

#include <fmt/format.h>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/io/byte_source.h"
#include "shoal/runtime/io/file_system.h"
#include "shoal/runtime/io/json.h"
#include "shoal/runtime/io/json_fields.h"

namespace shoal::report {
namespace {

namespace fs = std::filesystem;

bool is_evaluation(const nlohmann::json& record) {
  return std::ranges::any_of(record.items(),
                             [](const auto& item) { return item.key().starts_with("eval_"); });
}

// Raises each tag's peak in `most` to the record's value if that is higher.
void raise_peaks(const nlohmann::json& record, const char* name,
                 std::map<std::string, double>& most) {
  const auto peaks = record.find(name);
  if (peaks == record.end() || !peaks->is_object()) return;
  for (const auto& [tag, bytes] : peaks->items())
    if (bytes.is_number()) most[tag] = std::max(most[tag], bytes.get<double>());
}

// A training record of a step that exists already means that the run resumed from a checkpoint.
void take_record(RunLog& run, const nlohmann::json& record) {
  ++run.records;
  const bool training = record.contains("loss");
  const auto step = record.find("step");
  if (!training && !is_evaluation(record)) {
    run.finished = record.contains("train_runtime");
    run.end_step =
        run.finished && step != record.end() && step->is_number() ? step->get<double>() : 0;
    return;
  }
  if (training) run.finished = false, run.end_step = 0;
  Records& table = training ? run.training : run.evaluations;
  if (step != record.end() && step->is_number() && training) {
    const auto number = step->get<double>();
    const std::int64_t again = run.training.drop_from(number);
    if (again > 0) {
      ++run.continued;
      run.replaced += again + run.evaluations.drop_from(number);
    }
  } else if (step != record.end() && step->is_number()) {
    const auto number = step->get<double>();
    // A second record of the same step is either MNLI's mismatched part, which is merged, or the
    // evaluation after training. The latter may be of the best model instead of this step's, and is
    // ignored.
    const bool again = table.rows() > 0 && table.steps().back() == number;
    if (again && (table.join(record) || run.finished)) return;
    table.drop_from(number);
  }
  table.add(record);
  raise_peaks(record, "memory_peak_by_tag", run.memory_peak_by_tag);
  raise_peaks(record, "pinned_memory_peak_by_tag", run.pinned_memory_peak_by_tag);
}

// Returns {} if the file is missing or damaged, because a report can do without it.
nlohmann::json object_in(const std::string& path) {
  if (!path_exists(path)) return nlohmann::json::object();
  try {
    nlohmann::json value = read_json_file(path);
    return value.is_object() ? value : nlohmann::json::object();
  } catch (const Error& problem) {
    if (problem.code() == ErrorCode::io) throw;
    return nlohmann::json::object();
  }
}

// The records of a run of Hugging Face's Trainer, one a line.
std::string records_of_trainer(const std::string& path) {
  const nlohmann::json state = read_json_file(path);
  std::string lines;
  for (const nlohmann::json& record :
       field_or(state, "log_history", std::vector<nlohmann::json>(), path))
    lines += record.dump() + "\n";
  return lines;
}

std::string text_of(const nlohmann::json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

}  // namespace

double RunLog::last_step() const {
  return std::max(
      {training.last("step").value_or(0), evaluations.last("step").value_or(0), end_step});
}

std::vector<std::string> remarks_of(const RunLog& run) {
  std::vector<std::string> all;
  if (run.records == 0)
    all.emplace_back(
        "metrics.jsonl has no record: the run ended before its first log line, or has not come to "
        "it (--logging_steps).");
  if (run.cut_off)
    all.emplace_back(
        "The last line of metrics.jsonl is cut off (the run was killed while it wrote, or still "
        "writes); it is left out.");
  if (const std::size_t lines = run.unreadable.size(); lines > 0)
    all.push_back(
        fmt::format("{} of metrics.jsonl {} no JSON object and {} left out, the first line {}.",
                    lines == 1 ? "1 line" : fmt::format("{} lines", lines),
                    lines == 1 ? "is" : "are", lines == 1 ? "is" : "are", run.unreadable.front()));
  if (run.continued > 0)
    all.push_back(fmt::format(
        "The run went on from an earlier checkpoint {}; {} records that it then wrote again are "
        "shown once.",
        run.continued == 1 ? "once" : fmt::format("{} times", run.continued), run.replaced));
  if (run.settings.empty())
    all.emplace_back(
        "There is no run_settings.json: ranks, options and machine are not known. `shoal train` "
        "writes it when training begins.");
  return all;
}

std::int64_t RunLog::setting(std::string_view wanted) const {
  const auto found = settings.find(wanted);
  const double number = found != settings.end() && found->is_number() ? found->get<double>() : 0;
  return std::abs(number) < 0x1p53 ? static_cast<std::int64_t>(number) : 0;
}

std::string RunLog::text_setting(std::string_view wanted) const {
  const auto found = settings.find(wanted);
  return found != settings.end() && found->is_string() ? found->get<std::string>() : std::string();
}

std::string RunLog::option(std::string_view wanted) const {
  const auto options = settings.find("options");
  if (options == settings.end() || !options->is_object()) return {};
  for (const auto& [section, values] : options->items())
    if (values.is_object())
      if (const auto found = values.find(wanted); found != values.end()) return text_of(*found);
  return {};
}

RunLog parse_run(std::string_view metrics) {
  RunLog run;
  std::int64_t number = 0;
  for (std::size_t at = 0; at < metrics.size();) {
    const std::size_t newline = metrics.find('\n', at);
    const bool whole = newline != std::string_view::npos;
    std::string_view line = metrics.substr(at, whole ? newline - at : std::string_view::npos);
    at = whole ? newline + 1 : metrics.size();
    ++number;
    while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) line.remove_suffix(1);
    if (line.empty()) continue;
    const nlohmann::json record = json_if_valid(line).value_or(nullptr);
    if (record.is_object())
      take_record(run, record);
    else if (whole)
      run.unreadable.push_back(number);
    else
      run.cut_off = true;
  }
  return run;
}

RunLog read_run(const std::string& directory) {
  const char* const remedy = "give a run's output_dir, where shoal train wrote metrics.jsonl";
  if (!path_exists(directory))
    throw Error(ErrorCode::not_found, fmt::format("{} is not there", directory), remedy);
  if (!is_directory(directory))
    throw Error(ErrorCode::invalid_argument, fmt::format("{} is no directory", directory), remedy);
  const std::string metrics = directory + "/metrics.jsonl",
                    trainer = directory + "/trainer_state.json";
  const bool is_trainers = !is_regular_file(metrics) && is_regular_file(trainer);
  if (!is_trainers && !is_regular_file(metrics)) {
    std::string found;
    // This only improves the error's hint; a failure here must not replace the error.
    best_effort("look for a run below", [&] {
      for (const DirectoryEntry& entry : list_directory(directory))
        if (found.empty() && entry.kind == FileKind::directory &&
            path_exists(entry.path + "/metrics.jsonl"))
          found = entry.path;
    });
    throw Error(ErrorCode::not_found,
                fmt::format("{} holds no metrics.jsonl: that is no run of shoal train", directory),
                found.empty() ? std::string(remedy) : fmt::format("{} is one", found));
  }
  constexpr std::int64_t kMostBytes = std::int64_t{8} << 30;
  RunLog run =
      parse_run(is_trainers ? records_of_trainer(trainer) : read_text_file(metrics, kMostBytes));
  run.directory = directory;
  run.settings = object_in(directory + "/" + kSettingsFile);
  run.results = object_in(directory + "/all_results.json");
  if (const std::string samples = directory + "/" + kSamplesFile; is_regular_file(samples))
    run.samples = parse_samples(read_text_file(samples, kMostBytes));
  fs::path path = fs::path(directory).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  if (path == "." || path == "..") path = canonical_path(path);
  run.name = path.filename().string();
  return run;
}

std::vector<RunLog> read_runs(const std::vector<std::string>& directories) {
  std::vector<RunLog> runs;
  for (const std::string& directory : directories) runs.push_back(read_run(directory));
  std::set<std::string> names;
  for (const RunLog& run : runs) names.insert(run.name);
  if (names.size() == runs.size()) return runs;
  names.clear();
  for (RunLog& run : runs) {
    const fs::path path = fs::path(run.directory).lexically_normal();
    run.name = path.has_filename() ? path.string() : path.parent_path().string();
    if (!names.insert(run.name).second)
      throw Error(ErrorCode::invalid_argument, fmt::format("{} is given twice", run.directory),
                  "give each run once");
  }
  return runs;
}

}  // namespace shoal::report
