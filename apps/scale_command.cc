// shoal scale: runs the same training with several numbers of ranks, loader workers and batch
// sizes.
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <sstream>
#include <system_error>

#include "command_line.h"
#include "commands.h"
#include "scale/study.h"
#include <CLI/CLI.hpp>
#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/parallel_for.h"
#include "shoal/runtime/base/terminal.h"
#include "shoal/runtime/io/byte_source.h"
#include "shoal/runtime/io/file_system.h"
#include "shoal/runtime/io/files.h"
#include "shoal/runtime/io/json.h"
#include "shoal/runtime/io/json_fields.h"
#include "shoal/train/command/needs.h"

namespace shoal::app {
namespace {

struct ScaleArguments {
  StudyOptions study;
  std::string output = "scale_output", launch, title = "Scaling study";
  int rounds = 1;
  bool json = false, dry_run = false;
  std::vector<std::string> train;  // arguments for `shoal train`
};

constexpr const char* kLaunch = "mpirun -n {ranks} --bind-to none --oversubscribe";

// Rejects options that the study sets itself.
void check_words(const std::vector<std::string>& words) {
  SHOAL_CHECK(
      !words.empty(),
      "what is to be trained? Give what `shoal train` takes: a CONFIG.json, or --model_type, "
      "--train_file and so on");
  static constexpr std::array kOwn = {"per_device_train_batch_size",
                                      "per_gpu_train_batch_size",
                                      "train_batch_size",
                                      "dataloader_num_workers",
                                      "max_steps",
                                      "output_dir",
                                      "gradient_accumulation_steps",
                                      "save_strategy",
                                      "eval_strategy"};
  for (const std::string& word : words)
    for (const char* name : kOwn)
      SHOAL_CHECK(word != std::string("--") + name && !word.starts_with(fmt::format("--{}=", name)),
                  "--{} is set by the study; see --ranks, --workers, --batches, --examples, "
                  "--output",
                  name);
}

std::vector<std::string> split_words(const std::string& text) {
  std::istringstream in(text);
  std::vector<std::string> words;
  for (std::string word; in >> word;) words.push_back(word);
  return words;
}

std::vector<std::string> command_of(const ScaleArguments& o, const StudyCell& cell,
                                    const std::string& directory) {
  std::vector<std::string> words;
  if (cell.ranks > 1 || o.launch != kLaunch) {
    words = split_words(o.launch);
    for (std::string& word : words)
      if (const auto at = word.find("{ranks}"); at != word.npos)
        word.replace(at, 7, std::to_string(cell.ranks));
  }
  words.push_back(canonical_path("/proc/self/exe"));
  words.emplace_back("train");
  words.insert(words.end(), o.train.begin(), o.train.end());
  const auto tokens = std::find(o.train.begin(), o.train.end(), "--data_cache_dir");
  if (tokens == o.train.end())  // tokenize the text only once for all runs
    words.insert(words.end(), {"--data_cache_dir", o.output + "/tokens"});
  for (const auto& [name, value] : std::initializer_list<std::pair<const char*, std::string>>{
           {"per_device_train_batch_size", std::to_string(cell.batch)},
           {"dataloader_num_workers", std::to_string(cell.workers)},
           {"gradient_accumulation_steps", "1"},
           {"max_steps", std::to_string(cell.steps)},
           {"logging_strategy", "steps"},
           {"logging_steps", std::to_string(std::max<std::int64_t>(1, cell.steps / 6))},
           {"save_strategy", "no"},
           {"eval_strategy", "no"},
           {"do_eval", "false"},
           {"report_to", "none"},
           {"disable_tqdm", "true"},
           {"overwrite_output_dir", "true"},
           {"output_dir", directory}}) {
    words.push_back(std::string("--") + name);
    words.push_back(value);
  }
  return words;
}

std::string last_line_of(const std::string& path) {
  std::istringstream file(read_text_file(path));
  std::string last;
  for (std::string line; std::getline(file, line);)
    if (!line.empty()) last = line;
  return last;
}

// Runs a program to its end, with its output in two files. Returns the exit status.
int run_program(std::vector<std::string> words, const std::string& out, const std::string& err) {
  posix_spawn_file_actions_t files;
  ::posix_spawn_file_actions_init(&files);
  constexpr int kFlags = O_WRONLY | O_CREAT | O_TRUNC;
  ::posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_addopen(&files, STDOUT_FILENO, out.c_str(), kFlags, 0666);
  ::posix_spawn_file_actions_addopen(&files, STDERR_FILENO, err.c_str(), kFlags, 0666);
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  pid_t child = -1;
  const int failed =
      ::posix_spawnp(&child, arguments[0], &files, nullptr, arguments.data(), environ);
  ::posix_spawn_file_actions_destroy(&files);
  if (failed != 0)
    throw Error(
        ErrorCode::unavailable,
        fmt::format("cannot start {}: {}", words[0], std::generic_category().message(failed)),
        "install it, or say with --launch how ranks are started");
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// Steady throughput: from the first log line, when everything is warm, to the last.
StudyResult measured(const StudyCell& cell, const std::string& directory) {
  const std::string said = directory + "/train_results.json";
  const nlohmann::json results = read_json_file(said);
  const auto rate = need_field<double>(results, "train_samples_per_second", said);
  const double of_step =
      rate * need_field<double>(results, "train_runtime", said) / static_cast<double>(cell.steps);
  StudyResult result{cell, rate, 0};
  const std::string metrics = directory + "/metrics.jsonl";
  std::istringstream file(path_exists(metrics) ? read_text_file(metrics) : "");
  std::optional<nlohmann::json> first, last;
  const auto number = [&metrics](const nlohmann::json& record, const char* key) {
    return need_field<double>(record, key, metrics);
  };
  double stalled = 0;
  for (std::string line; std::getline(file, line);) {
    nlohmann::json record = json_if_valid(line).value_or(nullptr);
    if (find_field(record, "elapsed") == nullptr) continue;
    if (last)
      stalled += field_or(record, "loader_stall_share", 0.0, metrics) *
                 (number(record, "elapsed") - number(*last, "elapsed"));
    last = record;
    if (!first) first = std::move(record);
  }
  if (!first) return result;
  const double seconds = number(*last, "elapsed") - number(*first, "elapsed");
  const double steps = number(*last, "step") - number(*first, "step");
  if (steps == 0) return result;
  result.samples_per_second = of_step * steps / std::max(seconds, 1e-9);
  result.stall_share = stalled / std::max(seconds, 1e-9);
  return result;
}

StudyResult run_cell(const ScaleArguments& o, const StudyCell& cell) {
  const std::string directory = fmt::format("{}/runs/{}", o.output, cell.name());
  make_directories(directory);
  const std::string err = directory + "/stderr.txt";
  const int status = run_program(command_of(o, cell, directory), directory + "/stdout.txt", err);
  if (status != 0) {
    const std::string why = last_line_of(err);
    throw Error(ErrorCode::invalid_argument,
                fmt::format("the run {} ended with status {}: {}", cell.name(), status,
                            why.empty() ? "it said nothing" : why),
                fmt::format("all it said is in {}", directory));
  }
  remove_file(directory + "/model.safetensors");  // not needed
  return measured(cell, directory);
}

StudyResult median_of(std::vector<StudyResult> rounds) {
  std::sort(rounds.begin(), rounds.end(), [](const StudyResult& a, const StudyResult& b) {
    return a.samples_per_second < b.samples_per_second;
  });
  return rounds[(rounds.size() - 1) / 2];
}

int scale(ScaleArguments o) {
  check_words(o.train);
  const int cores = available_cores();
  if (o.study.ranks.empty())
    for (std::int64_t ranks = 1; ranks <= cores; ranks *= 2) o.study.ranks.push_back(ranks);
  if (o.study.batches.empty()) o.study.batches = {8, 16};
  if (o.launch.empty()) o.launch = kLaunch;
  SHOAL_CHECK(o.launch.find("{ranks}") != o.launch.npos,
              "--launch '{}' does not say where the number of ranks goes; write {{ranks}} there",
              o.launch);
  SHOAL_CHECK(!split_words(o.output).empty(), "--output is empty");
  const Study study = plan_study(o.study);
  // Check for errors of all runs before the first one begins.
  command::check_paths(command::check_train_words(o.train));
  if (o.dry_run) {
    for (const StudyCell& cell : study.cells)
      terminal::print("{}\n",
                      fmt::join(command_of(o, cell, o.output + "/runs/" + cell.name()), " "));
    return 0;
  }
  // Ranks of this host always get equal shares of its cores. Otherwise a single
  // rank would have all cores, and the study would compare cores.
  const std::int64_t most = *std::max_element(o.study.ranks.begin(), o.study.ranks.end());
  if (o.launch == kLaunch)
    ::setenv("SHOAL_THREADS", std::to_string(std::max<std::int64_t>(1, cores / most)).c_str(), 0);
  make_directories(o.output, "choose another --output");

  std::vector<std::vector<StudyResult>> results(study.cells.size());
  for (int round = 0; round < o.rounds; ++round)
    for (std::size_t i = 0; i < study.cells.size(); ++i) {
      results[i].push_back(run_cell(o, study.cells[i]));
      if (!o.json)
        terminal::print(stderr, "{} of {}: {}: {:.1f} samples/s\n",
                        static_cast<std::size_t>(round) * study.cells.size() + i + 1,
                        static_cast<std::size_t>(o.rounds) * study.cells.size(),
                        study.cells[i].name(), results[i].back().samples_per_second);
    }
  std::vector<StudyResult> medians;
  for (std::vector<StudyResult>& rounds : results) medians.push_back(median_of(std::move(rounds)));
  const std::vector<StudyRow> rows = evaluate_study(medians);
  const nlohmann::ordered_json json = study_json(rows, study.examples);
  write_file_atomically(o.output + "/study.json", json.dump(2) + "\n");
  write_file_atomically(o.output + "/study.html", study_page(rows, study.examples, o.title));
  if (o.json)
    print_json(json, -1);
  else
    terminal::print("{}{} examples in every run; plots in {}/study.html\n", study_table(rows),
                    study.examples, o.output);
  return 0;
}

}  // namespace

void add_scale(CLI::App& app, Action& action) {
  auto* command = app.add_subcommand(
      "scale", "Throughput of one training by ranks, loader workers and batch size");
  command->allow_extras();
  command->footer(
      "All else goes to `shoal train`: shoal scale --ranks 1,2 CONFIG.json --bf16 true. Every run "
      "trains on the\nsame number of examples. Ranks of this host share its cores equally in every "
      "run; SHOAL_THREADS changes that.\nOn several hosts: --launch 'mpirun -n {ranks} --hostfile "
      "HOSTS -x SHOAL_THREADS'.");
  auto o = std::make_shared<ScaleArguments>();
  // A list is a single argument, so that a configuration file may follow it.
  command->add_option("--ranks", o->study.ranks, "numbers of ranks; default 1, 2, 4 .. cores")
      ->delimiter(',')
      ->allow_extra_args(false);
  command->add_option("--workers", o->study.workers, "dataloader_num_workers, of each rank")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->capture_default_str();
  command->add_option("--batches", o->study.batches, "samples of a rank in a step; default 8, 16")
      ->delimiter(',')
      ->allow_extra_args(false);
  command->add_option("--examples", o->study.examples,
                      "of every run; default: 12 steps of the largest, or a little more");
  command->add_option("--rounds", o->rounds, "medians of so many, turn by turn")
      ->check(from_to(1, 1000))
      ->capture_default_str();
  command->add_option(
      "--launch", o->launch,
      fmt::format("how ranks are started; default \"{}\", one rank without", kLaunch));
  command->add_option("--output,-o", o->output, "directory for study.json, study.html and the runs")
      ->capture_default_str();
  command->add_option("--title", o->title, "of the page")->capture_default_str();
  command->add_flag("--json", o->json, "print study.json instead of a table");
  command->add_flag("--dry-run", o->dry_run, "print the commands");
  command->callback([&action, o, command] {
    o->train = command->remaining();
    action = [o] { return scale(*o); };
  });
}

}  // namespace shoal::app
