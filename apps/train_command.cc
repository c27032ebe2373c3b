// shoal train CONFIG.json [--option value ...]
#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "agreement.h"
#include "commands.h"
#include "data_options.h"
#include "run_files.h"
#include "run_needs.h"
#include "run_settings.h"
#include "run_setup.h"
#include <CLI/CLI.hpp>
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include "shoal/collectives/communicator.h"
#include "shoal/kernels/kernels.h"
#include "shoal/runtime/base/deadlines.h"
#include "shoal/runtime/base/env.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/log.h"
#include "shoal/runtime/base/progress.h"
#include "shoal/runtime/base/signal_thread.h"
#include "shoal/runtime/base/terminal.h"
#include "shoal/runtime/io/file_system.h"
#include "shoal/runtime/io/files.h"
#include "shoal/runtime/io/json_fields.h"
#include "shoal/runtime/io/ordered_fields.h"
#include "shoal/runtime/rendezvous/threads.h"
#include "shoal/train/data/unigram.h"
#include "shoal/train/run/compute.h"
#include "shoal/train/run/devices.h"
#include "shoal/train/run/failures.h"
#include "shoal/train/run/run_ranks.h"
#include "shoal/train/tensorboard/tensorboard_callback.h"
#include "shoal/train/trainer/console.h"
#include "shoal/train/trainer/log_format.h"
#include "shoal/train/trainer/mp_parameters.h"
#include "shoal/train/trainer/trainer.h"

namespace shoal::app {
namespace {

constexpr const char* kMismatched = "_mm";  // behind the names of what MNLI's other part gives

// A signal handler can reach nothing else.
std::atomic<int> stop_signal{0};

extern "C" void on_stop_signal(int number) {
  stop_signal = number;
  std::signal(number, SIG_DFL);  // a second one ends at once
}

// While it lives, these signals ask the trainer to save and stop; before and after, where nothing
// can be lost, they end the program. SIGUSR1 is what mpirun passes on without killing anybody, and
// what SLURM can be told to send ahead of its time limit.
class StopSignals {
 public:
  static constexpr std::array kNumbers = {SIGINT, SIGTERM, SIGUSR1};

  StopSignals() {
    for (std::size_t i = 0; i < kNumbers.size(); ++i) {
      before_[i] = std::signal(kNumbers[i], on_stop_signal);
      // Somebody (nohup, a shell's background job) wants it ignored.
      if (before_[i] == SIG_IGN) std::signal(kNumbers[i], SIG_IGN);
    }
  }
  ~StopSignals() {
    for (std::size_t i = 0; i < kNumbers.size(); ++i) std::signal(kNumbers[i], before_[i]);
  }
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

 private:
  std::array<void (*)(int), kNumbers.size()> before_{};
};

// The mpirun that started this rank, where it runs on this host.
std::optional<pid_t> own_mpirun(const World& world) {
  if (world.launcher != Launcher::open_mpi) return std::nullopt;
  std::string name;
  std::getline(std::ifstream(fmt::format("/proc/{}/comm", ::getppid())) >> std::ws, name);
  const bool is_mpirun = name == "mpirun" || name == "orterun" || name == "mpiexec";
  return is_mpirun ? std::optional(::getppid()) : std::nullopt;
}

// mpirun waits a second, no more, between the SIGTERM that it makes of Ctrl-C and SIGKILL.
// (odls_base_sigkill_timeout would lengthen that, but delays the SIGTERM by as much.)
std::string how_to_stop(const World& world) {
  if (world.launcher != Launcher::open_mpi) return {};
  const auto mpirun = own_mpirun(world);
  return fmt::format(
      "to stop early: kill -USR1 {} saves a checkpoint first; after Ctrl-C mpirun grants 1 s",
      mpirun ? std::to_string(*mpirun) : "PID_OF_MPIRUN");
}

// Where a progress bar may be drawn. Ranks of mpirun write into pipes of its; it passes on what
// they write to stdout, so a bar goes there, between the other lines, if mpirun's is a terminal.
ConsoleCallback::Options console_options(const World& world, bool quiet) {
  ConsoleCallback::Options options{.out = stdout, .plain_progress = !quiet};
  if (quiet) return options;
  if (const auto mpirun = own_mpirun(world)) {
    const std::string path = fmt::format("/proc/{}/fd/1", *mpirun);
    // A probe: mpirun may be another user's.
    std::array<char, 64> target{};
    const ssize_t length = ::readlink(path.c_str(), target.data(), target.size());
    const std::string_view behind(target.data(),
                                  static_cast<std::size_t>(std::max<ssize_t>(length, 0)));
    if (!behind.starts_with("/dev/pts/") && !behind.starts_with("/dev/tty")) return options;
    const int terminal = ::open(path.c_str(), O_RDONLY | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
    if (terminal < 0) return options;
    options.columns = terminal_width(terminal);
    ::close(terminal);
    if (options.columns > 0) options.bar = stdout;
  } else if (terminal_width(stderr) > 0) {
    options.bar = stderr;
  }
  return options;
}

void declare(OptionSet& options, RunArguments& arguments, RefusedOptions& refused) {
  declare_options(options, arguments.model);
  declare_options(options, arguments.data);
  declare_options(options, arguments.named);
  declare_options(options, arguments.training);
  refused.declare(options);
}

void print_help() {
  RunArguments arguments;
  RefusedOptions refused;
  OptionSet options;
  declare(options, arguments, refused);
  terminal::print(
      "Usage: shoal train [CONFIG.json] [--option value ...]\n\n"
      "Trains a language model, masked or causal, or a model that classifies text, answers "
      "questions or tags\nwords (--task). Options go by Hugging Face's names, in a JSON file or "
      "here; "
      "what stands here wins.\nLaunch ranks with mpirun, torchrun or SLURM.\n\n"
      "SIGINT (Ctrl-C), SIGTERM and SIGUSR1 save a checkpoint, then stop; the exit status is 128 + "
      "the\n"
      "signal's number, and --resume_from_checkpoint true continues. Under mpirun, send SIGUSR1 to "
      "mpirun:\n"
      "after Ctrl-C it kills ranks within a second.\n\n"
      "Exit status: 0 done, 1 failed, 2 wrong options or data, 128 + N stopped by signal "
      "N.\n\n{}\n",
      options.help());
}

// Fills `arguments`, and `values` with those of all options; the notices are for rank 0 to print.
std::vector<std::string> parse(const std::vector<std::string>& words, RunArguments& arguments,
                               nlohmann::ordered_json& values) {
  RefusedOptions refused;
  OptionSet options;
  declare(options, arguments, refused);
  std::size_t first = 0;
  while (first < words.size() && !words[first].starts_with("-")) options.add_file(words[first++]);
  options.add_arguments(std::span(words).subspan(first));
  options.finish();
  refused.check(options);
  values = options.dump();
  take_given(options, arguments.training);
  arguments.training = resolve_arguments(arguments.training);
  std::vector<std::string> notices = options.notices();
  if (!arguments.data.validation_file.empty() && arguments.data.validation_split_percentage > 0)
    notices.emplace_back("validation_split_percentage has no effect: there is a validation_file");
  return notices;
}

std::string trace_path(const std::string& path, int rank) {
  return rank == 0 ? path : fmt::format("{}.rank{}", path, rank);
}

// What the program itself writes in output_dir, as long as no other run has taken it over.
class OutputFiles {
 public:
  explicit OutputFiles(std::string directory) : directory_(std::move(directory)) {}
  void ask(const Trainer& trainer) { trainer_ = &trainer; }  // whether it is still this run's
  const std::string& directory() const { return directory_; }
  void write(const std::vector<TaskData::File>& files) const {
    for (const TaskData::File& file : files) {
      if (trainer_ != nullptr) trainer_->check_output_dir();
      make_directories(directory_);
      write_file_atomically(directory_ + "/" + file.name, file.text);
    }
  }
  void write_results(const char* name, const nlohmann::ordered_json& metrics) const {
    write({{fmt::format("{}_results.json", name), metrics.dump(2) + "\n"}});
  }

 private:
  std::string directory_;
  const Trainer* trainer_ = nullptr;
};

// Says whether training began, from when on no failure is an option's.
class TrainingBegan final : public TrainerCallback {
 public:
  explicit TrainingBegan(bool& began) : began_(began) {}
  bool needs_every_step() const override { return false; }
  void on_train_begin(const TrainerState&) override { began_ = true; }

 private:
  bool& began_;
};

struct Rank {
  Task& task;
  const RunArguments& arguments;
  nlohmann::ordered_json told;  // of the options, what stands in run_settings.json
  const RunSetup& setup;
  const World& world;
  collectives::Communicator& communicator;
  const collectives::CommunicatorOptions& made_with;
  Compute& compute;
  const ChosenDevice& device;
  const std::vector<RankDevice>& devices;  // by rank
  int threads;                             // of this rank
  Tracer* tracer;
  std::vector<std::string> notices;
  bool& training_began;
};

// "validation loss: 8.35 before, 4.02 at the end; 6.21 is that of a unigram model ...", as far as
// it was measured.
std::string validation_summary(const TrainerState& state, const nlohmann::ordered_json& results,
                               double unigram) {
  if (!results.contains("eval_loss")) return {};
  const auto value_of = [](const auto& record) {
    return record["eval_loss"].template get<double>();
  };
  const auto& best = state.best_model_checkpoint;  // which the results are of, then
  const std::string last =
      best ? "of the best model, " + std::filesystem::path(*best).filename().string()
           : "at the end";
  std::string line = fmt::format("validation loss: {:.4f} {}", value_of(results), last);
  for (const nlohmann::json& record : state.log_history) {
    if (!record.contains("eval_loss") || !record["eval_loss"].is_number()) continue;
    const auto step = field_or(record, "step", std::int64_t{0}, "a log record");
    if (step == state.global_step) break;  // there was no other
    line = fmt::format("validation loss: {:.4f} first (step {}), {:.4f} {}", value_of(record), step,
                       value_of(results), last);
    if (!best) line += fmt::format(" (step {})", state.global_step);
    break;
  }
  if (unigram > 0) line += fmt::format("; a unigram model of the same tokens: {:.4f}", unigram);
  return line;
}

// compute_metrics of a task that has some. `asked`: the set that is being predicted, which the
// caller changes; what an evaluation leaves behind, rank 0 writes.
ComputeMetrics metrics_of(const Rank& rank, const OutputFiles& output,
                          std::shared_ptr<const Dataset>& asked) {
  if (!rank.setup.samples) return {};
  return [&rank, &output, &asked](const Predictions& predictions) {
    const TaskData& samples = *rank.setup.samples;
    if (rank.world.rank == 0 && asked == rank.setup.eval_dataset)
      output.write(samples.evaluated(*asked, predictions));
    return samples.metrics(*asked, predictions);
  };
}

// "predict_results.txt", "_mm" -> "predict_results_mm.txt"
std::string with_suffix(const std::string& file, const std::string& suffix) {
  const std::size_t dot = std::min(file.rfind('.'), file.size());
  return file.substr(0, dot) + suffix + file.substr(dot);
}

// Of one set; `metrics` gets its numbers, their names and those of files with `suffix`.
void predict(const Rank& rank, Trainer& trainer, const OutputFiles& output,
             const std::shared_ptr<const Dataset>& dataset, const std::string& suffix,
             nlohmann::ordered_json& metrics, const std::function<void(const std::string&)>& say) {
  const PredictionOutput predicted = trainer.predict(dataset);
  if (rank.world.rank != 0) return;
  auto files = rank.setup.samples->predicted(*dataset, predicted.predictions);
  for (TaskData::File& file : files) file.name = with_suffix(file.name, suffix);
  output.write(files);
  OrderedFields all(std::move(metrics));
  for (const auto& [name, value] : predicted.metrics.items()) all[name + suffix] = value;
  metrics = std::move(all).json();
  output.write_results("predict", metrics);
  say(fmt::format("{} predictions in {}/{}", predicted.predictions.samples.size(),
                  output.directory(), files.at(0).name));
}

// The validation set, unless the last step was evaluated just now, then MNLI's other genres under
// names that end with _mm, as run_glue.
nlohmann::ordered_json evaluate(const Rank& rank, Trainer& trainer,
                                std::shared_ptr<const Dataset>& asked) {
  asked = rank.setup.eval_dataset;
  nlohmann::ordered_json metrics = trainer.evaluate_once();
  if (rank.setup.eval_mismatched) {
    asked = rank.setup.eval_mismatched;
    metrics.update(trainer.evaluate(asked, kMismatched));
  }
  return metrics;
}

int train_and_evaluate(const Rank& rank) {
  const TrainingArguments& a = rank.arguments.training;
  const bool main_rank = rank.world.rank == 0;
  std::unique_ptr<ConsoleCallback> console;
  if (main_rank)
    console = std::make_unique<ConsoleCallback>(console_options(rank.world, a.disable_tqdm));
  const auto say = [&](const std::string& line) {
    if (console) console->on_message(line);
  };
  TrainerParts parts;
  parts.task = &rank.task;
  std::shared_ptr<const Dataset> asked = rank.setup.eval_dataset;
  OutputFiles output(a.output_dir);
  parts.compute_metrics = metrics_of(rank, output, asked);
  parts.kernels = rank.compute.kernels.get();
  parts.threads = rank.threads;
  parts.memory = &rank.compute.memory;
  parts.host_memory = &rank.compute.host();
  parts.pinned_memory = rank.compute.pinned.get();
  parts.planned_memory = &rank.compute.planned;
  parts.communicator = &rank.communicator;
  parts.made_with = &rank.made_with;
  parts.train_dataset = rank.setup.train_dataset;
  parts.train_shards = rank.setup.train_shards;
  parts.data_options = data_options(rank.arguments, rank.setup, rank.world);
  parts.shuffle_buffer = rank.arguments.data.shuffle_buffer_size;
  parts.shard_by_rank = rank.arguments.data.shard_by_rank;
  parts.eval_dataset = rank.setup.eval_dataset;
  parts.collator = rank.setup.collator;
  parts.initial_weights = rank.setup.initial_weights;
  if (console) parts.callbacks.push_back(console.get());
  TensorBoardCallback tensorboard(tensorboard_directory(a));
  if (main_rank && reports_to_tensorboard(a)) parts.callbacks.push_back(&tensorboard);
  RunSettings settings(a.output_dir, rank.told, rank.world);
  if (main_rank) parts.callbacks.push_back(&settings);
  TrainingBegan began(rank.training_began);
  parts.callbacks.push_back(&began);
  parts.tracer = rank.tracer;
  parts.stop_signal = &stop_signal;
  Trainer trainer(a, parts);
  output.ask(trainer);

  nlohmann::ordered_json results;
  int stopped_by = 0;
  double unigram = 0;  // 0: not known
  const auto say_notices = [&] {
    for (const auto* notices : {&rank.notices, &rank.setup.notices})
      for (const std::string& line : *notices) say(line);
  };
  if (!a.do_train) say_notices();  // what is evaluated may have lost something, too
  if (a.do_train) {
    if (a.run_name) say(fmt::format("run: {}", *a.run_name));
    std::vector<std::string> header = trainer.header();
    const auto* const limited = rank.compute.limited.get();
    header.push_back(fmt::format(
        "device: {} ({}){}", to_string(rank.device.device), rank.device.why,
        limited == nullptr
            ? ""
            : fmt::format("; tensors of a rank may take {} ({})",
                          format_bytes(limited->limit().bytes), limited->limit().bound)));
    for (std::string& line : device_lines(rank.devices)) header.push_back(std::move(line));
    for (const std::string& line : header) say(line);
    settings.describe(trainer, header);
    say_notices();
    if (rank.setup.train_dataset && rank.setup.eval_dataset && rank.task.predicts_tokens()) {
      trainer.at_own_pace([&] {
        if (main_rank)
          unigram = unigram_loss(*rank.setup.train_dataset, *rank.setup.eval_dataset,
                                 rank.task.vocabulary());
      });
      say(fmt::format("to beat: validation loss {:.4f} of a unigram model of the same tokens",
                      unigram));
    }
    trainer.take_output_dir();  // may wait for a while; a signal ends that at once
    if (const std::string hint = how_to_stop(rank.world); !hint.empty()) say(hint);
    const TrainResult trained = [&] {
      const StopSignals signals;
      return trainer.train();
    }();
    results = trained.metrics;
    if (unigram > 0) results["unigram_eval_loss"] = unigram;
    stopped_by = trained.stop_signal;
    if (stopped_by != 0 && trained.last_checkpoint.empty()) {
      say(fmt::format("stopped by signal {} before the first step; nothing was changed in {}",
                      stopped_by, a.output_dir));
    } else if (stopped_by != 0) {
      say(fmt::format(
          "stopped by signal {} at step {} of {}; {}", stopped_by, trained.global_step,
          trainer.total_steps(),
          a.save_only_model
              ? fmt::format("{} holds the model, but (save_only_model) no run to resume",
                            trained.last_checkpoint)
              : fmt::format("{} holds the run, --resume_from_checkpoint true continues it",
                            trained.last_checkpoint)));
    } else {
      trainer.save_model(a.output_dir);
      if (main_rank) output.write_results("train", trained.metrics);
      // It came when the last step was done: the model is saved, and ends like any other program.
      if (const int late = stop_signal; late != 0) {
        ::kill(::getpid(), late);  // another thread takes it
        ::pause();
      }
    }
  }
  if (stopped_by == 0 && a.do_eval && rank.setup.eval_dataset) {
    const nlohmann::ordered_json metrics = evaluate(rank, trainer, asked);
    if (main_rank) {
      output.write_results("eval", metrics);
      results.update(metrics);
    }
  }
  if (stopped_by == 0 && a.do_predict) {
    nlohmann::ordered_json metrics;
    for (const auto& [dataset, suffix] :
         {std::pair{rank.setup.test_dataset, ""}, {rank.setup.test_mismatched, kMismatched}}) {
      if (!dataset) continue;
      asked = dataset;
      predict(rank, trainer, output, dataset, suffix, metrics, say);
    }
  }
  if (main_rank && stopped_by == 0) output.write_results("all", results);
  if (const std::string line = validation_summary(trainer.state(), results, unigram); !line.empty())
    say(line);
  if (const std::string line = trainer.describe_capture(); !line.empty()) say(line);
  say("memory of rank 0, now and at its peak:");
  for (const std::string& line : trainer.memory_report()) say("  " + line);
  if (a.do_train && stopped_by == 0) say(fmt::format("model saved in {}", a.output_dir));
  return stopped_by == 0 ? 0 : 128 + stopped_by;
}

// What each rank finds out by itself.
struct Prepared {
  std::vector<std::string> notices;  // for rank 0 to print
  RunArguments arguments;
  nlohmann::ordered_json values;  // of all options
  RunSetup setup;
  ChosenDevice device;
  RankDevice own_device;
  std::vector<RankDevice> devices;  // by rank, once they told each other
  int threads = 1;                  // of this rank
  bool training_began = false;
};

Prepared parsed(const std::vector<std::string>& words) {
  Prepared prepared;
  prepared.notices = parse(words, prepared.arguments, prepared.values);
  name_models(prepared.arguments, prepared.notices);
  return prepared;
}

void set_up(Prepared& prepared, const World& world) {
  find_files(prepared.arguments, prepared.notices);
  const TrainingArguments& a = prepared.arguments.training;
  prepared.device = choose_device(world, a.use_cpu);
  prepared.own_device = describe_device(world, prepared.device);
  (void)communicator_options(a);  // what cannot be is refused here
  prepared.setup = set_up_run(prepared.arguments, world, prepared.device.device.is_cpu());
  // What cannot be written should not be found out when all is done.
  if (world.rank == 0) make_writable("output_dir", a.output_dir);
  const std::filesystem::path trace = a.trace;
  if (trace.has_parent_path() && !is_directory(trace.parent_path()))
    throw Error(ErrorCode::not_found,
                fmt::format("trace is {}, and there is no directory {}", a.trace,
                            trace.parent_path().string()),
                "make the directory");
  if (!a.trace.empty()) write_file_atomically(trace_path(a.trace, world.rank), "[]\n");
}

// Ranks of a GPU began one after the other: who looked last saw what the driver keeps of all.
SharedGpu shared_gpu(const Prepared& prepared, int rank) {
  const std::vector<int> sharing = ranks_on_device_of(prepared.devices, rank);
  std::int64_t free = prepared.own_device.free;
  for (const int other : sharing)
    free = std::min(free, prepared.devices[static_cast<std::size_t>(other)].free);
  return {static_cast<int>(sharing.size()), free};
}

int run_rank(Prepared& prepared, RunRanks& ranks) {
  const TrainingArguments& a = prepared.arguments.training;
  const World& world = ranks.world();
  std::unique_ptr<Tracer> tracer;
  if (!a.trace.empty()) tracer = std::make_unique<Tracer>(TracerOptions{.rank = world.rank});
  Compute compute(prepared.device.device, prepared.threads,
                  memory_limit(a.memory_limit_mb, world, prepared.device.device,
                               shared_gpu(prepared, world.rank)));
  collectives::CommunicatorOptions how = communicator_options(a);
  how.stream = compute.kernels->stream();
  how.deadline_seconds = deadlines::seconds();
  how.counted_by = &compute.memory;
  how.pinned = compute.pinned.get();
  const auto communicator = collectives::make_communicator(world, ranks.store(), how);
  (void)communicator->host();  // formed while all ranks are here
  ranks.stop_watching();       // the communicator does
  // Its parameters and their gradients live in memory of both.
  const std::unique_ptr<Task> task = std::move(prepared.setup.task);
  try {
    const int status = train_and_evaluate(
        {*task, prepared.arguments,
         told_options(prepared.values, run_plan(prepared.arguments.training)), prepared.setup,
         world, *communicator, how, compute, prepared.device, prepared.devices, prepared.threads,
         tracer.get(), prepared.notices, prepared.training_began});
    if (tracer) tracer->write_chrome_trace(trace_path(a.trace, world.rank));
    communicator->host().barrier()->wait();
    return status;
  } catch (const std::exception& problem) {
    const Error error = error_of(problem);
    if (world.size > 1 && error.code() != ErrorCode::aborted) communicator->abort(error.message());
    throw;
  }
}

// Before training begins, what cannot be read is what the user gave: status 2, as of a wrong
// option.
Error before_training(const Error& error) {
  if (error.code() != ErrorCode::corrupt_data) return error;
  return Error(ErrorCode::invalid_argument, error.message(), error.remedy())
      .in_operation(error.operation());
}

int train(const std::vector<std::string>& words) {
  for (const std::string& word : words)
    if (word == "--help" || word == "-h") {
      print_help();
      return 0;
    }
  const SignalThread takes_signals(StopSignals::kNumbers);
  World found = discover_world();
  log::set_rank(found.rank, found.size);
  RunRanks ranks(std::move(found));
  const World& world = ranks.world();
  collectives::WatchedStore& store = ranks.store();
  // work() on every rank; the exit status where it failed on one, else 0.
  const std::function<bool(int)> gone = [&](int rank) { return ranks.is_gone(rank); };
  const auto everywhere = [&](const char* label, const auto& work) {
    std::optional<Error> failure;
    const progress::Listener listener([&] { store.progressed(); });
    try {
      work();
    } catch (const std::exception& problem) {
      failure = before_training(error_of(problem));
    }
    // Who failed tells; who did not waits for the others, which may still be at work.
    return tell_failures(world, store, label, failure, deadlines::start(),
                         failure ? gone : std::function<bool(int)>{});
  };
  const auto progressed = [&] { store.progressed(); };
  Prepared prepared;
  if (const int status = everywhere("options", [&] { prepared = parsed(words); }); status != 0)
    return status;
  if (const int status =
          everywhere("model",
                     [&] {
                       std::string& path = prepared.arguments.model.model_name_or_path;
                       path = shared_model_directory(path, world, store, deadlines::start(),
                                                     [&](const std::string& given) {
                                                       const progress::Listener hears(progressed);
                                                       return model_directory(given);
                                                     });
                     });
      status != 0)
    return status;
  if (const int status = everywhere("setup",
                                    [&] {
                                      const progress::Listener hears(progressed);
                                      set_up(prepared, world);
                                    });
      status != 0)
    return status;
  if (const int status = everywhere("device",
                                    [&] {
                                      prepared.devices = exchange_devices(
                                          world, store, prepared.own_device, deadlines::start());
                                      prepared.threads =
                                          threads_of_rank(world, store, deadlines::start());
                                    });
      status != 0)
    return status;
  if (const int status = everywhere("agreement",
                                    [&] {
                                      check_agreement(world, store, prepared.values,
                                                      prepared.setup.task->describe(),
                                                      deadlines::start());
                                    });
      status != 0)
    return status;
  if (const int status = everywhere(
          "data",
          [&] { open_data(prepared.arguments, world, store, prepared.threads, prepared.setup); });
      status != 0)
    return status;
  try {
    return run_rank(prepared, ranks);
  } catch (const std::exception& problem) {
    return tell_failures(world, store, "failed", error_of(problem),
                         Deadline::in_seconds(deadlines::kTellFailures), gone,
                         prepared.training_began);
  }
}

}  // namespace

TrainNeeds check_train_words(const std::vector<std::string>& words) {
  RunArguments arguments;
  nlohmann::ordered_json values;
  parse(words, arguments, values);
  return needs_of(arguments);
}

void add_train(CLI::App& app, Action& action) {
  auto* command = app.add_subcommand("train", "Train or fine-tune a model (--help: every option)");
  command->set_help_flag();
  command->prefix_command();
  command->callback(
      [&action, command] { action = [command] { return train(command->remaining()); }; });
}

}  // namespace shoal::app
