#include "shoal/train/command/train.h"

#include <algorithm>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "shoal/collectives/communicator.h"
#include "shoal/collectives/communicator_options.h"
#include "shoal/run.h"
#include "shoal/runtime/base/deadlines.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/log.h"
#include "shoal/runtime/base/progress.h"
#include "shoal/runtime/base/report_error.h"
#include "shoal/runtime/base/signal_thread.h"
#include "shoal/runtime/base/terminal.h"
#include "shoal/runtime/io/file_system.h"
#include "shoal/runtime/io/files.h"
#include "shoal/runtime/io/json.h"
#include "shoal/runtime/io/json_fields.h"
#include "shoal/runtime/rendezvous/threads.h"
#include "shoal/train/command/agreement.h"
#include "shoal/train/command/auto_layout.h"
#include "shoal/train/command/find_files.h"
#include "shoal/train/command/needs.h"
#include "shoal/train/command/recipes.h"
#include "shoal/train/command/run_settings.h"
#include "shoal/train/command/stop_signals.h"
#include "shoal/train/command/train_and_evaluate.h"
#include "shoal/train/run/compute.h"
#include "shoal/train/run/devices.h"
#include "shoal/train/run/failures.h"
#include "shoal/train/run/run_ranks.h"
#include "shoal/train/trainer/resolved_run.h"
#include "shoal/train/trainer/trainer.h"

namespace shoal::command {
namespace {

void declare_options(OptionSet& options, LayoutArguments& layout) {
  options.section("parallelism")
      .string(
          "plan", &layout.plan,
          {.help = "a layout that `shoal plan --save` wrote: its options win over CONFIG.json's"})
      .boolean("auto", &layout.automatic,
               {.help = "take the fastest layout that `shoal plan` finds for these ranks and this "
                        "batch; needs machine"})
      .string("machine", &layout.machine,
              {.help = "a machine's name, or a file of `shoal plan calibrate`: the log's head says "
                       "how long a step should take there"});
}

// Options set the fields of `said` and of `arguments`, whose `training` follows from `said`.
void declare(OptionSet& options, TrainingArguments& said, RunArguments& arguments,
             RefusedOptions& refused) {
  declare_options(options, arguments.model);
  declare_options(options, arguments.data);
  declare_options(options, arguments.named);
  declare_options(options, said);
  declare_options(options, arguments.layout);
  refused.declare(options);
  declare_synonyms(options);
}

// What --help shows; --help-all shows all.
constexpr std::string_view kEssentials[] = {"task",
                                            "model_name_or_path",
                                            "model_type",
                                            "config_overrides",
                                            "tokenizer_name",
                                            "train_file",
                                            "validation_file",
                                            "test_file",
                                            "text_column_names",
                                            "label_column_name",
                                            "block_size",
                                            "output_dir",
                                            "do_predict",
                                            "per_device_train_batch_size",
                                            "gradient_accumulation_steps",
                                            "num_train_epochs",
                                            "max_steps",
                                            "max_train_minutes",
                                            "seed",
                                            "learning_rate",
                                            "warmup_steps",
                                            "bf16",
                                            "gradient_checkpointing",
                                            "logging_steps",
                                            "eval_strategy",
                                            "eval_steps",
                                            "save_steps",
                                            "resume_from_checkpoint",
                                            "dataloader_num_workers",
                                            "mp_parameters",
                                            "plan"};

void print_help(bool all) {
  TrainingArguments said;
  RunArguments arguments;
  RefusedOptions refused;
  OptionSet options;
  declare(options, said, arguments, refused);
  terminal::print(
      "Usage: shoal train [CONFIG.json or RECIPE] [--option value ...]\n\n"
      "Trains a language model, masked or causal, or a model that classifies text, answers "
      "questions or tags\nwords (--task). Options go by Hugging Face's names, in a JSON file or "
      "here; "
      "what stands here wins.\n`shoal help recipes` lists files that are built in. Launch ranks "
      "with mpirun, torchrun or SLURM.\n\n"
      "SIGINT (Ctrl-C), SIGTERM and SIGUSR1 save a checkpoint, then stop; the exit status is 128 + "
      "the\n"
      "signal's number, and --resume_from_checkpoint true continues. Under mpirun, send SIGUSR1 to "
      "mpirun:\n"
      "after Ctrl-C it kills ranks within a second.\n\n"
      "Exit status: `shoal help exit-status`.\n\n{}{}\n",
      all ? options.help() : options.help(kEssentials),
      all ? "" : "\n`shoal train --help-all` lists all options.");
}

// A run's options, as they were given.
struct Given {
  std::vector<std::string> words = {};
  const nlohmann::json* json = nullptr;  // null: none
  FetchModel fetch = {};                 // null: nothing is downloaded
  bool may_lack_plan = false;            // where the run is only checked, its plan may be elsewhere
};

// Sets `arguments`, and stores the value of every option in `values`. Returns notices for rank 0 to
// print.
std::vector<std::string> parse(const Given& given, RunArguments& arguments,
                               nlohmann::ordered_json& values, const std::string& plan = {}) {
  TrainingArguments said;
  RefusedOptions refused;
  OptionSet options;
  declare(options, said, arguments, refused);
  const std::vector<std::string>& words = given.words;
  if (given.json != nullptr) options.add_json(*given.json, "options");
  std::size_t first = 0;
  while (first < words.size() && !words[first].starts_with("-"))
    add_file_or_recipe(options, words[first++]);
  if (!plan.empty()) options.add_file(plan);
  options.add_arguments(std::span(words).subspan(first));
  options.finish();
  const std::string named = arguments.layout.plan;
  const bool is_elsewhere = given.may_lack_plan && !path_exists(named);
  if (plan.empty() && !named.empty() && !is_elsewhere) {
    arguments = {};
    return parse(given, arguments, values, named);
  }
  refused.check(options);
  values = options.dump();
  take_given(options, said);
  arguments.training = resolve_arguments(said);
  return options.notices();
}

std::string trace_path(const std::string& path, int rank) {
  return rank == 0 ? path : fmt::format("{}.rank{}", path, rank);
}

// One rank's preparation for a run.
struct Prepared {
  std::vector<std::string> notices;  // for rank 0 to print
  RunArguments arguments;
  nlohmann::ordered_json values;  // the values of all options
  RunSetup setup;
  Forecast forecast;  // empty: no machine was given
  ChosenDevice device;
  RankDevice own_device;
  std::vector<RankDevice> devices;  // by rank, after the exchange
  int threads = 1;                  // threads of this rank
  bool training_began = false;
};

Prepared parsed(const Given& given) {
  Prepared prepared;
  prepared.notices = parse(given, prepared.arguments, prepared.values);
  name_models(prepared.arguments, given.fetch, prepared.notices);
  return prepared;
}

// The samples of a step follow from the number of ranks.
void compare_ranks(const std::string& plan, const World& world, std::vector<std::string>& notices) {
  if (plan.empty()) return;
  const nlohmann::json file = read_json_file(plan);
  const nlohmann::json* const about = find_field(file, "_plan");
  if (about == nullptr) return;
  const auto ranks = field_or<std::int64_t>(*about, "ranks", world.size, plan);
  if (ranks != world.size)
    notices.push_back(fmt::format(
        "the plan in {} is for {} ranks, and {} train: a step has other samples than planned", plan,
        ranks, world.size));
}

void set_up(Prepared& prepared, const World& world, const AddSources& add_sources) {
  find_files(prepared.arguments, prepared.notices);
  const ResolvedRun& a = prepared.arguments.training;
  prepared.device = choose_device(world, a.use_cpu);
  prepared.own_device = describe_device(world, prepared.device);
  (void)communicator_options(a);  // refuses impossible options
  const auto make_setup = [&] {
    prepared.setup =
        set_up_run(prepared.arguments, world, prepared.device.device.is_cpu(), add_sources);
  };
  make_setup();
  const LayoutArguments& layout = prepared.arguments.layout;
  compare_ranks(layout.plan, world, prepared.notices);
  if (layout.automatic) {
    prepared.forecast = take_fastest_layout(prepared.arguments, prepared.setup, world);
    (void)communicator_options(a);
    make_setup();
  } else if (!layout.machine.empty()) {
    prepared.forecast = predicted_step(prepared.arguments, prepared.setup, world);
  }
  // Finds out now, instead of after training, that a file cannot be written.
  if (world.rank == 0) make_writable("output_dir", a.output_dir);
  const std::filesystem::path trace = a.trace;
  if (trace.has_parent_path() && !is_directory(trace.parent_path()))
    throw Error(ErrorCode::not_found,
                fmt::format("trace is {}, and there is no directory {}", a.trace,
                            trace.parent_path().string()),
                "make the directory");
  if (!a.trace.empty()) write_file_atomically(trace_path(a.trace, world.rank), "[]\n");
}

// Ranks that share a GPU start one after the other, and each CUDA context takes memory. So the
// smallest free memory that any of them saw is the one to divide.
SharedGpu shared_gpu(const Prepared& prepared, int rank) {
  const std::vector<int> sharing = ranks_on_device_of(prepared.devices, rank);
  std::int64_t free = prepared.own_device.free;
  for (const int other : sharing)
    free = std::min(free, prepared.devices[static_cast<std::size_t>(other)].free);
  return {static_cast<int>(sharing.size()), free};
}

int run_rank(Prepared& prepared, RunRanks& ranks, Guest* guest) {
  const ResolvedRun& a = prepared.arguments.training;
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
  (void)communicator->host();  // creates it while all ranks take part
  ranks.stop_watching();       // the communicator watches them now
  // The task's parameters and gradients use memory of `compute` and `communicator`.
  const std::unique_ptr<Task> task = std::move(prepared.setup.task);
  try {
    const int status = train_and_evaluate(
        {*task, prepared.arguments,
         recorded_options(prepared.values, run_plan(prepared.arguments.training)),
         prepared.forecast, prepared.setup, world, *communicator, how, compute, prepared.device,
         prepared.devices, prepared.threads, tracer.get(), prepared.notices,
         prepared.training_began, guest});
    if (tracer) tracer->write_chrome_trace(trace_path(a.trace, world.rank));
    communicator->host().barrier()->wait();
    return status;
  } catch (const std::exception& problem) {
    const Error error = error_of(problem);
    if (world.size > 1 && error.code() != ErrorCode::aborted) communicator->abort(error.message());
    throw;
  }
}

// With --auto, machine files that differ between hosts could choose different layouts.
std::string model_and_layout(const Prepared& prepared) {
  const ResolvedRun& run = prepared.arguments.training;
  const std::string model = prepared.setup.task->describe();
  if (!prepared.arguments.layout.automatic) return model;
  return fmt::format("{} in the layout {} with {} samples a rank", model, run_plan(run).dump(),
                     run.per_device_train_batch_size);
}

int run_stages(const Given& given, const AddSources& add_sources, Guest* guest) {
  const SignalThread takes_signals(StopSignals::kNumbers);
  World found = discover_world();
  log::set_rank(found.rank, found.size);
  RunRanks ranks(std::move(found));
  const World& world = ranks.world();
  collectives::WatchedStore& store = ranks.store();
  const std::function<bool(int)> gone = [&](int rank) { return ranks.is_gone(rank); };
  Prepared prepared;
  std::string& model = prepared.arguments.model.model_name_or_path;
  const std::pair<const char*, std::function<void()>> stages[] = {
      {"options", [&] { prepared = parsed(given); }},
      {"model",
       [&] {
         model = shared_model_directory(model, world, store, deadlines::start(), model_directory);
       }},
      {"setup", [&] { set_up(prepared, world, add_sources); }},
      {"device",
       [&] {
         prepared.devices = exchange_devices(world, store, prepared.own_device, deadlines::start());
         prepared.threads = threads_of_rank(world, store, deadlines::start());
       }},
      {"agreement",
       [&] {
         check_agreement(world, store, prepared.values, model_and_layout(prepared),
                         deadlines::start());
       }},
      {"data",
       [&] { open_data(prepared.arguments, world, store, prepared.threads, prepared.setup); }},
  };
  const auto check_signal = [&] {
    if (const int number = stop_signal; guest != nullptr && number != 0)
      throw_error(ErrorCode::aborted, "stopped by signal {}", number);
  };
  const auto report = [&](const std::string& line) {
    if (guest == nullptr) return report_error("shoal train", line);
    guest->problem = line;
  };
  // Every rank goes through every stage, and all end if one of them fails.
  for (const auto& [label, work] : stages) {
    std::optional<Error> failure;
    try {
      const progress::Listener listener([&] {
        store.progressed();
        check_signal();
      });
      work();
      check_signal();
    } catch (const std::exception& problem) {
      failure = error_of(problem);
    }
    // A failed rank reports its error. The other ranks wait for all, because some may still be
    // working.
    const int status = tell_failures(world, store, label, failure, deadlines::start(),
                                     failure ? gone : std::function<bool(int)>{}, false, report);
    if (status != 0) return status;
  }
  try {
    return run_rank(prepared, ranks, guest);
  } catch (const std::exception& problem) {
    return tell_failures(world, store, "failed", error_of(problem),
                         Deadline::in_seconds(deadlines::kTellFailures), gone,
                         prepared.training_began, report);
  }
}

}  // namespace

int train(const std::vector<std::string>& words, const AddSources& add_sources,
          const FetchModel& fetch) {
  for (const std::string& word : words)
    if (word == "--help" || word == "-h" || word == "--help-all") {
      print_help(word == "--help-all");
      return 0;
    }
  stop_signal = 0;  // forget the signal of an earlier run
  return run_stages({.words = words, .fetch = fetch}, add_sources, nullptr);
}

int train(Guest& guest) {
  int status = 0;
  stop_signal = 0;  // forget the signal of an earlier run
  {
    const StopSignals signals;
    status = run_stages({.json = &guest.options}, [](SourceRegistry&) {}, &guest);
  }
  // A signal decides the status, even if it came too late to stop the run or made the run fail.
  return stop_signal != 0 ? 128 + stop_signal : status;
}

TrainNeeds check_train_words(const std::vector<std::string>& words) {
  RunArguments arguments;
  nlohmann::ordered_json values;
  parse({.words = words, .may_lack_plan = true}, arguments, values);
  return needs_of(arguments);
}

}  // namespace shoal::command

int shoal::train(const std::vector<std::string>& words) {
  return command::train(words, [](SourceRegistry&) {});
}
