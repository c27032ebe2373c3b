#include "run.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <sstream>

#include <fmt/format.h>

#include "shoal/runtime/base/clock.h"
#include "shoal/runtime/base/env.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/parallel_for.h"
#include "shoal/runtime/io/byte_source.h"
#include "shoal/runtime/io/file_system.h"
#include "shoal/runtime/io/json.h"
#include "shoal/runtime/io/json_fields.h"
#include "shoal/sagemaker/container/command.h"
#include "shoal/sagemaker/container/outputs.h"
#include "shoal/sagemaker/process/process.h"
#include "shoal/train/command/needs.h"
#include "shoal/train/command/stop_signals.h"

namespace shoal::app {
namespace {

constexpr const char* kLaunch = "mpirun -n {ranks} --bind-to none --oversubscribe";
// Gives a rank torchrun's variables. Several hosts need MASTER_ADDR.
constexpr const char* kAsTorchrun =
    "export RANK=${OMPI_COMM_WORLD_RANK:-${SLURM_PROCID:-0}} "
    "LOCAL_RANK=${OMPI_COMM_WORLD_LOCAL_RANK:-${SLURM_LOCALID:-0}} "
    "MASTER_ADDR=${MASTER_ADDR:-127.0.0.1} MASTER_PORT=${MASTER_PORT:-29500} "
    "WORLD_SIZE={ranks} LOCAL_WORLD_SIZE={ranks_per_node}; exec \"$@\"";

std::string filled_in(std::string text, const StudyCell& cell) {
  for (const auto& [mark, value] :
       {std::pair("{ranks}", cell.ranks),
        {"{nodes}", cell.nodes},
        {"{ranks_per_node}", (cell.ranks + cell.nodes - 1) / cell.nodes}})
    for (auto at = text.find(mark); at != text.npos; at = text.find(mark, at))
      text.replace(at, std::string_view(mark).size(), std::to_string(value));
  return text;
}

void add(std::vector<std::string>& words, const std::vector<std::string>& more) {
  words.insert(words.end(), more.begin(), more.end());
}

// Options as words, without sections and comments.
void add_options(std::vector<std::string>& words, const Json& options) {
  for (const auto& [name, value] : options.items()) {
    if (name.starts_with('_')) continue;
    if (value.is_object())
      add_options(words, value);
    else
      add(words, sagemaker::option_words(Json::object({{name, value}})));
  }
}

// What the user gave, as arguments of `shoal train`.
std::vector<std::string> given_words(const StudyOptions& o) {
  std::vector<std::string> words;
  if (!o.config.empty()) words.push_back(o.config);
  add_options(words, o.options);
  return words;
}

// Ranks of this host always get equal shares of its cores. Otherwise a single rank would have all
// cores, and the study would compare cores.
std::vector<std::string> variables_of(const StudyOptions& o, const StudyCell& cell) {
  if (!o.launch.empty()) return {};
  const std::string threads = env::is_set(env::kThreads)
                                  ? env::get_string(env::kThreads)
                                  : std::to_string(std::max<std::int64_t>(
                                        1, available_cores() / *std::ranges::max_element(o.ranks)));
  return {(is_ddp(cell.backend) ? "OMP_NUM_THREADS=" : "SHOAL_THREADS=") + threads};
}

// "SHOAL_THREADS=2".
bool is_variable(const std::string& word) {
  const auto end = word.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_");
  return end != word.npos && end > 0 && word[end] == '=';
}

}  // namespace

std::vector<std::string> command_of(const StudyOptions& o, const StudyCell& cell,
                                    const std::string& shoal, const std::string& output,
                                    const std::string& directory) {
  std::vector<std::string> words = variables_of(o, cell);
  const bool launched = cell.ranks > 1 || !o.launch.empty();
  if (launched) {
    std::istringstream launch(filled_in(o.launch.empty() ? kLaunch : o.launch, cell));
    for (std::string word; launch >> word;) words.push_back(word);
  }
  if (is_ddp(cell.backend)) {
    if (launched) add(words, {"sh", "-c", filled_in(kAsTorchrun, cell), "rank"});
    words.push_back(o.python);
    if (cell.backend == "ddp-shoal") add(words, {"-m", "shoal.run"});
    words.push_back(o.script);
    if (!o.config.empty())
      add_options(words, parse_ordered_json(read_text_file(o.config), o.config));
    add_options(words, o.options);
  } else {
    add(words, {shoal, "train"});
    add(words, given_words(o));
    if (!o.options.contains("data_cache_dir"))  // tokenize the text only once for all runs
      add(words, {"--data_cache_dir", output + "/tokens"});
  }
  add_options(words, options_of(cell));
  add(words, {"--output_dir", directory});
  return words;
}

void check_commands(const StudyOptions& o) {
  if (!std::ranges::all_of(o.backends, is_ddp))
    command::check_paths(command::check_train_words(given_words(o)));
  if (!o.script.empty() && !is_regular_file(o.script))
    throw Error(ErrorCode::not_found, fmt::format("/script: there is no file {}", o.script));
}

void check_python(const StudyOptions& o) {
  if (o.script.empty()) return;
  const bool ours = std::ranges::find(o.backends, "ddp-shoal") != o.backends.end();
  const sagemaker::ProcessResult result =
      sagemaker::run_process({o.python, "-c",
                              ours ? "import torch, transformers, accelerate, shoal.torch"
                                   : "import torch, transformers, accelerate"});
  if (result.status != 0)
    throw Error(ErrorCode::unavailable,
                fmt::format("/python: {} cannot run {}: {}", o.python, o.script,
                            sagemaker::reason_of(result.error, result.status)),
                "name a Python that has PyTorch, transformers and accelerate, and for ddp-shoal "
                "Shoal's package");
}

std::optional<StudyResult> run_command(const StudyOptions& o, const StudyCell& cell,
                                       std::vector<std::string> command,
                                       const std::string& directory) {
  if (is_ddp(cell.backend)) remove_tree(directory);  // older scripts refuse a folder with files
  make_directories(directory);
  const auto first = std::ranges::find_if_not(command, is_variable);
  const std::vector<std::string> variables(command.begin(), first);
  command.erase(command.begin(), first);
  const auto begin = Clock::now();
  sagemaker::ProcessResult ended;
  {
    const command::StopSignals signals;
    ended = sagemaker::run_process(command, {.environment = variables,
                                             .output = directory + ".stdout.txt",
                                             .stop = &command::stop_signal});
  }
  write_file(directory + ".stderr.txt", ended.error);
  if (ended.was_stopped) return std::nullopt;
  if (ended.status != 0)
    throw Error(ErrorCode::unavailable,
                fmt::format("the run {} failed: {}", cell.name(),
                            is_ddp(cell.backend)
                                ? sagemaker::reason_of_script(o.script, ended.error, ended.status)
                                : sagemaker::reason_of(ended.error, ended.status)),
                fmt::format("{0}.stdout.txt and {0}.stderr.txt have all it wrote", directory));
  remove_file(directory + "/model.safetensors");  // not needed
  StudyResult result = measured(o, cell, report::read_run(directory));
  result.node_seconds = seconds_since(begin) * static_cast<double>(cell.nodes);
  return result;
}

StudyResult measured(const StudyOptions& o, const StudyCell& cell, const report::RunLog& run) {
  const std::string file = run.directory + "/all_results.json";
  const auto rate = need_field<double>(run.results, "train_samples_per_second", file);
  const double trained = rate * need_field<double>(run.results, "train_runtime", file);
  const auto step = static_cast<double>(cell.ranks * cell.batch);
  const double wanted = step * static_cast<double>(cell.steps);
  if (std::abs(trained - wanted) > 0.02 * wanted)
    throw Error(ErrorCode::corrupt_data,
                fmt::format("the run {} trained on {:.0f} examples instead of {:.0f}", cell.name(),
                            trained, wanted),
                "the launcher must start the ranks as one job; a script of Hugging Face's Trainer "
                "needs use_cpu on hosts without GPUs");
  StudyResult result{.cell = cell, .samples_per_second = rate};
  const auto steps = run.training.steps(), losses = run.training.column("loss"),
             elapsed = run.training.column("elapsed"),
             stalls = run.training.column("loader_stall_share");
  for (std::size_t i = 0; i < losses.size(); ++i)
    if (std::isfinite(losses[i])) result.losses.emplace_back(steps[i] * step, losses[i]);
  result.stall_share = std::numeric_limits<double>::quiet_NaN();
  std::size_t begin = 0;
  while (begin < elapsed.size() && steps[begin] * 6 < static_cast<double>(cell.steps)) ++begin;
  if (begin + 1 >= elapsed.size()) return result;
  const double seconds = std::max(elapsed.back() - elapsed[begin], 1e-9);
  if (std::ranges::none_of(o.backends, is_ddp))
    result.samples_per_second = step * (steps.back() - steps[begin]) / seconds;
  result.stall_share = 0;
  for (std::size_t i = begin + 1; i < stalls.size(); ++i)
    if (std::isfinite(stalls[i]))
      result.stall_share += stalls[i] * (elapsed[i] - elapsed[i - 1]) / seconds;
  return result;
}

}  // namespace shoal::app
