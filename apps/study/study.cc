#include "study.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>

#include <fmt/ranges.h>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/shortened.h"
#include "shoal/runtime/io/json_fields.h"

namespace shoal::app {
namespace {

using sagemaker::Fields;
using sagemaker::Problems;

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
constexpr std::int64_t kRanksInStudy = 4096;
constexpr double kMostRuns = 1000;
constexpr std::int64_t kMostExamples = std::int64_t{1} << 40;

// A value for messages.
std::string shown(const Json& value) { return shortened(value.dump(), 80); }

// Sets `into` to the list of different numbers under `name`, if there is one.
void read_numbers(Fields& fields, const std::string& name, std::int64_t least, std::int64_t most,
                  std::vector<std::int64_t>& into) {
  const Json* const given = fields.value(name);
  if (given == nullptr) return;
  if (!given->is_array() || given->empty())
    return fields.problem(
        name, fmt::format("is {}; a list of numbers is needed, such as [1, 2]", shown(*given)));
  into.clear();
  for (const Json& item : *given) {
    const auto number = integer_in<std::int64_t>(item);
    if (!number || *number < least || *number > most)
      return fields.problem(name, fmt::format("has {}; whole numbers from {} to {} are possible",
                                              shown(item), least, most));
    if (std::ranges::find(into, *number) != into.end())
      return fields.problem(name, fmt::format("has {} twice", *number));
    into.push_back(*number);
  }
}

void read_backends(Fields& fields, StudyOptions& o) {
  const auto given =
      fields.texts("backends", 1, 8, {.choices = {"native", "nccl", "mpi", "ddp", "ddp-shoal"}});
  if (given) o.backends = *given;
  for (const std::string& backend : o.backends)
    if (std::ranges::count(o.backends, backend) > 1)
      return fields.problem("backends", fmt::format("has {} twice", backend));
  const bool ddp = std::ranges::any_of(o.backends, is_ddp);
  if (ddp && o.script.empty())
    fields.problem("script",
                   "is missing: the backends ddp and ddp-shoal run a script of Hugging Face's "
                   "Trainer, such as run_clm.py, with the study's options");
  if (!ddp && !o.script.empty())
    fields.problem("script",
                   "is for the backends ddp and ddp-shoal, which the study does not have");
}

// Refuses options that the study sets itself.
void check_options(Fields& fields, const Json& options) {
  static constexpr std::array kSynonyms = {"per_gpu_train_batch_size", "train_batch_size",
                                           "output_dir"};
  const Json own = options_of({});
  for (const auto& [name, value] : options.items())
    if (own.contains(name) || std::ranges::find(kSynonyms, name) != kSynonyms.end())
      fields.problem("options",
                     fmt::format("sets {}, which the study sets: see ranks, workers, batches, "
                                 "backends and examples",
                                 name));
}

void read_machines(Fields& fields, StudyOptions& o) {
  read_numbers(fields, "ranks", 1, kRanksInStudy, o.ranks);
  std::vector<std::int64_t> nodes;
  read_numbers(fields, "nodes", 1, kRanksInStudy, nodes);
  o.ranks_per_node = fields.integer("ranks_per_node", 1, kRanksInStudy).value_or(0);
  if (nodes.empty()) return;
  if (fields.has("ranks")) fields.problem("ranks", "excludes nodes; give one of them");
  if (o.ranks_per_node == 0)
    fields.problem("ranks_per_node", "is missing: nodes needs it, such as the GPUs of a node");
  o.ranks.clear();
  for (const std::int64_t count : nodes) o.ranks.push_back(count * o.ranks_per_node);
}

void read_launch(Fields& fields, StudyOptions& o) {
  o.launch = fields.text("launch").value_or("");
  o.job = fields.text("job").value_or("");
  if (!o.launch.empty() && o.launch.find("{ranks}") == o.launch.npos &&
      o.launch.find("{nodes}") == o.launch.npos)
    fields.problem("launch", fmt::format("'{}' does not say where the number of ranks goes; write "
                                         "{{ranks}} there, or {{nodes}}",
                                         shortened(o.launch)));
  if (o.job.empty()) return;
  for (const char* name : {"launch", "config", "script", "python"})
    if (fields.has(name)) fields.problem(name, "excludes job: SageMaker starts what the job names");
  if (!fields.has("nodes")) fields.problem("nodes", "is missing: a job runs on so many instances");
}

}  // namespace

bool is_ddp(const std::string& backend) { return backend.starts_with("ddp"); }

std::string StudyCell::name() const {
  return fmt::format("ranks{}-workers{}-batch{}-{}", ranks, workers, batch, backend);
}

StudyOptions read_study(const Json& file, const std::string& name,
                        const std::vector<std::int64_t>& ranks) {
  StudyOptions o;
  o.ranks = ranks;
  Problems problems;
  Fields fields(file, "", problems);
  o.name = fields.text("name", {.min = 1, .max = 100}).value_or(name);
  o.config = fields.text("config").value_or("");
  if (const Json* const options = fields.value("options")) {
    if (!options->is_object())
      fields.problem(
          "options",
          fmt::format("is {}; an object of options of `shoal train` is needed", shown(*options)));
    else
      check_options(fields, o.options = *options);
  }
  read_machines(fields, o);
  read_numbers(fields, "workers", 0, 1024, o.workers);
  read_numbers(fields, "batches", 1, std::int64_t{1} << 20, o.batches);
  o.script = fields.text("script").value_or("");
  o.python = fields.text("python").value_or(o.python);
  read_backends(fields, o);
  o.examples = fields.integer("examples", 1, kMostExamples).value_or(0);
  o.rounds = fields.integer("rounds", 1, 1000).value_or(1);
  read_launch(fields, o);
  if (const Json* const price = fields.value("price_per_hour")) {
    if (price->is_number() && price->get<double>() >= 0)
      o.price_per_hour = price->get<double>();
    else
      fields.problem("price_per_hour", fmt::format("is {}; a number of at least 0 is needed, the "
                                                   "price of a node",
                                                   shown(*price)));
  }
  if (o.job.empty() && o.config.empty() && o.options.empty())
    fields.problem("",
                   "what is to be trained? Give config, a CONFIG.json of `shoal train`, or "
                   "options, or a SageMaker job");
  fields.finish();
  problems.check();
  return o;
}

Study plan_study(const StudyOptions& o) {
  const double runs = static_cast<double>(o.ranks.size()) * static_cast<double>(o.batches.size()) *
                      static_cast<double>(o.workers.size()) *
                      static_cast<double>(o.backends.size());
  SHOAL_CHECK(runs <= kMostRuns, "the study has {:.0f} runs; at most {:.0f} are possible", runs,
              kMostRuns);
  std::int64_t all = 1, largest = 1;  // common multiple of all steps; samples of the largest step
  for (const std::int64_t ranks : o.ranks)
    for (const std::int64_t batch : o.batches) {
      const std::int64_t step = ranks * batch;
      const std::int64_t factor = step / std::gcd(all, step);
      SHOAL_CHECK(factor <= kMostExamples / all,
                  "no number of examples below 10^12 suits all these ranks and batches in whole "
                  "steps; give fewer, or multiples of one another");
      all *= factor;
      largest = std::max(largest, step);
    }
  Study study;
  study.examples = o.examples;
  if (o.examples == 0) study.examples = (12 * largest + all - 1) / all * all;
  if (study.examples % all != 0) {
    const std::int64_t below = study.examples / all * all;
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("/examples: {} are not a whole number of steps in every run: steps "
                    "take up to {} samples",
                    study.examples, largest),
        fmt::format("give {}{}", below > 0 ? fmt::format("{} or ", below) : "", below + all));
  }
  for (const std::int64_t ranks : o.ranks)
    for (const std::int64_t batch : o.batches)
      for (const std::int64_t workers : o.workers)
        for (const std::string& backend : o.backends) {
          const std::int64_t steps = study.examples / (ranks * batch);
          if (steps < 2)
            throw Error(ErrorCode::invalid_argument,
                        fmt::format("/examples: {} are one step on {} ranks with batches of {}",
                                    study.examples, ranks, batch),
                        fmt::format("give {} or more", 2 * all));
          const std::int64_t each = o.ranks_per_node > 0 ? o.ranks_per_node : ranks;
          study.cells.push_back({ranks, (ranks + each - 1) / each, workers, batch, steps, backend});
        }
  return study;
}

Json options_of(const StudyCell& cell) {
  Json set = {{"per_device_train_batch_size", cell.batch},
              {"dataloader_num_workers", cell.workers},
              {"gradient_accumulation_steps", 1},
              {"max_steps", cell.steps},
              {"logging_strategy", "steps"},
              {"logging_steps", std::max<std::int64_t>(1, cell.steps / 24)},
              {"save_strategy", "no"},
              {"eval_strategy", "no"},
              {"eval_on_start", false},
              {"load_best_model_at_end", false},
              {"do_eval", false},
              {"report_to", "none"},
              {"disable_tqdm", true}};
  if (is_ddp(cell.backend)) {
    set["do_train"] = true;
  } else {
    set["ddp_backend"] = cell.backend;
    set["overwrite_output_dir"] = true;
  }
  return set;
}

Json job_of(const Json& file, const StudyOptions& o, const StudyCell& cell) {
  Json job = file;
  job.erase("job_name");
  job["instance_count"] = cell.nodes;
  Json& options = job["hyperparameters"];
  if (!options.is_object()) options = Json::object();
  options.update(o.options);
  options.update(options_of(cell));
  return job;
}

std::vector<StudyRow> evaluate_study(const std::vector<StudyResult>& results,
                                     const StudyOptions& o) {
  // The throughput of the run that equals `cell` except for one of its fields.
  const auto rate = [&](const StudyCell& cell) {
    const auto found = std::ranges::find(results, cell.name(),
                                         [](const StudyResult& one) { return one.cell.name(); });
    return found == results.end() ? kNone : found->samples_per_second;
  };
  std::vector<StudyRow> rows;
  for (const StudyResult& result : results) {
    StudyCell without = result.cell, first = result.cell, fewest = result.cell;
    without.workers = 0;
    first.backend = o.backends.front();
    for (const StudyResult& other : results) {
      StudyCell same = other.cell;
      same.ranks = result.cell.ranks;
      if (same.name() == result.cell.name())
        fewest.ranks = std::min(fewest.ranks, other.cell.ranks);
    }
    StudyRow row{result};
    const double mine = result.samples_per_second;
    row.gain = mine / rate(without) - 1;
    row.efficiency = mine / static_cast<double>(result.cell.ranks) /
                     (rate(fewest) / static_cast<double>(fewest.ranks));
    row.over_first = mine / rate(first);
    row.cost = o.price_per_hour ? result.node_seconds / 3600 * *o.price_per_hour : kNone;
    rows.push_back(row);
  }
  return rows;
}

std::vector<std::vector<std::string>> study_cells(const std::vector<StudyRow>& rows,
                                                  const StudyOptions& o) {
  const auto text = [](double value, const char* format) {
    return std::isnan(value) ? std::string() : fmt::format(fmt::runtime(format), value);
  };
  std::vector<std::vector<std::string>> cells = {
      {"ranks", "nodes", "workers", "batch", "backend", "steps", "samples/s", "gain over 0 workers",
       "efficiency", "over " + o.backends.front(), "stall share", "node seconds", "cost"}};
  for (const StudyRow& row : rows) {
    const StudyCell& cell = row.result.cell;
    const bool is_first = cell.backend == o.backends.front();
    cells.push_back(
        {std::to_string(cell.ranks), o.ranks_per_node > 0 ? std::to_string(cell.nodes) : "",
         std::to_string(cell.workers), std::to_string(cell.batch), cell.backend,
         std::to_string(cell.steps), text(row.result.samples_per_second, "{:.1f}"),
         cell.workers > 0 ? text(row.gain * 100, "{:+.0f} %") : "", text(row.efficiency, "{:.2f}"),
         is_first ? "" : text(row.over_first, "{:.2f}"), text(row.result.stall_share, "{:.2f}"),
         text(row.result.node_seconds, "{:.0f}"), text(row.cost, "{:.2f}")});
  }
  for (std::size_t i = cells[0].size(); i-- > 0;)
    if (std::all_of(cells.begin() + 1, cells.end(),
                    [&](const auto& row) { return row[i].empty(); }))
      for (auto& row : cells) row.erase(row.begin() + static_cast<std::ptrdiff_t>(i));
  return cells;
}

std::string study_table(const std::vector<StudyRow>& rows, const StudyOptions& o) {
  const auto cells = study_cells(rows, o);
  std::string text;
  for (const auto& row : cells) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      std::size_t width = 0;
      for (const auto& other : cells) width = std::max(width, other[i].size());
      text += fmt::format("{}{:>{}}", i == 0 ? "" : "  ", row[i], width);
    }
    text += "\n";
  }
  return text;
}

Json study_json(const std::vector<StudyRow>& rows, const Study& study) {
  const auto number = [](double value) { return std::isnan(value) ? Json() : Json(value); };
  Json all = {{"examples", study.examples},
              {"missing_runs", study.cells.size() - rows.size()},
              {"runs", Json::array()}};
  for (const StudyRow& row : rows) {
    const StudyCell& cell = row.result.cell;
    all["runs"].push_back({{"ranks", cell.ranks},
                           {"nodes", cell.nodes},
                           {"workers", cell.workers},
                           {"batch", cell.batch},
                           {"backend", cell.backend},
                           {"steps", cell.steps},
                           {"samples_per_second", row.result.samples_per_second},
                           {"gain_over_0_workers", number(row.gain)},
                           {"efficiency", number(row.efficiency)},
                           {"over_first_backend", number(row.over_first)},
                           {"loader_stall_share", number(row.result.stall_share)},
                           {"node_seconds", number(row.result.node_seconds)},
                           {"cost", number(row.cost)},
                           {"losses", row.result.losses}});
  }
  return all;
}

}  // namespace shoal::app
