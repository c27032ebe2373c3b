#include <algorithm>
#include <filesystem>
#include <iterator>
#include <utility>

#include "shoal/collectives/transport/operation.h"
#include "shoal/nn/models/adapter.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/parallel_for.h"
#include "shoal/runtime/io/file_system.h"
#include "shoal/runtime/io/files.h"
#include "shoal/train/checkpoint/checkpoint_directory.h"
#include "shoal/train/checkpoint/model_record.h"
#include "shoal/train/checkpoint/sharded_checkpoint.h"
#include "shoal/train/checkpoint/transformers_checkpoint.h"
#include "shoal/train/trainer/resolved_run.h"
#include "shoal/train/trainer/same_adapters.h"
#include "shoal/train/trainer/trainer_impl.h"

namespace shoal {
namespace {

constexpr const char* kStateFile = kTrainerStateFile.data();
constexpr const char* kSamples = "samples";  // in TrainerState::data: number of rows of an epoch

std::string text_of(const TrainerState& state) { return state.to_json().dump(2) + "\n"; }

// True for values of --resume_from_checkpoint that ask for a new run.
bool begins_anew(const std::string& resume_from_checkpoint) {
  const std::string& asked = resume_from_checkpoint;
  return asked.empty() || asked == "false" || asked == "False" || asked == "0";
}

bool wants_newest(const std::string& resume_from_checkpoint) {
  const std::string& asked = resume_from_checkpoint;
  return asked == "true" || asked == "True" || asked == "1";
}

}  // namespace

void check_output_directory(const TrainingArguments& arguments) {
  if (arguments.overwrite_output_dir || !begins_anew(arguments.resume_from_checkpoint)) return;
  const auto all = list_checkpoints(arguments.output_dir);
  if (all.empty()) return;
  if (std::ranges::all_of(all, &is_transformers_checkpoint, &CheckpointInfo::path))
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{} holds checkpoints of transformers' Trainer, which no run goes on "
                            "from",
                            arguments.output_dir),
                fmt::format("begin with the weights of the last, --model_name_or_path {}, and give "
                            "another --output_dir",
                            all.back().path));
  throw Error(
      ErrorCode::invalid_argument,
      fmt::format("{} holds {} checkpoint{} already", arguments.output_dir, all.size(),
                  all.size() == 1 ? "" : "s"),
      "--resume_from_checkpoint true continues the run, --overwrite_output_dir replaces it");
}

void Trainer::Impl::take_output_dir() {
  if (!owners.of_rank.empty()) return;
  owners = find_owners(engine->beside(), args.output_dir);
  at_own_pace(
      [&] {
        if (writes_files() && owners.is_owner(parts.communicator->rank()))
          run_lock = std::make_shared<RunLock>(args.output_dir,
                                               [this](const std::string& line) { say(line); });
      },
      received_signal());
}

void Trainer::Impl::check_output_dir() const {
  if (run_lock) run_lock->check();
}

void Trainer::Impl::save_checkpoint() {
  with_memory_for(MemoryUse::checkpoint, [this] { snapshot_and_write(); });
}

void Trainer::Impl::snapshot_and_write() {
  settle();
  const std::string path = checkpoint_path(args.output_dir, state.global_step);
  const nn::LossScaler& scaler = engine->scaler();
  const nn::LossScalerState& scaling = scaler.state();
  state.loss_scale = scaling.scale;
  state.loss_scale_dynamic = scaler.dynamic();
  state.loss_scale_good_steps = scaling.good_steps;
  state.loss_scale_shift_left = scaling.shift_left;
  state.loss_scale_overflows_at_minimum = scaling.overflows_at_minimum;
  state.layout = {ranks(), available_cores(), parts.kernels->describe(), run_plan(args)};
  state.compute_dtype = to_string(compute_dtype(args));
  state.data = data_options();
  state.stream = streams() ? stream_of_all().to_json() : nlohmann::json();
  std::vector<std::string> keep = {path};  // a checkpoint with a higher number may be another run's
  if (state.best_model_checkpoint) keep.push_back(*state.best_model_checkpoint);
  if (engine->writes_parts()) {
    save_part(keep);
  } else {
    {
      const TraceSpan span(parts.tracer, "checkpoint", "wait for the one before");
      wait_for_writers();  // so that memory holds one snapshot at a time
    }
    if (is_main()) save_whole(keep);
  }
  last_checkpoint = path;
  last_checkpoint_step = state.global_step;
  each_callback([&](TrainerCallback& c) { c.on_save(state.global_step, path); });
}

// The stream's position, with the shard sizes collected from the ranks that know them.
StreamState Trainer::Impl::stream_of_all() {
  StreamState all = stream;
  if (!all.known) return all;
  auto sizes = std::make_shared<std::vector<std::int64_t>>(*all.known);
  if (ranks() > 1)
    engine->beside()
        .all_reduce(sizes->data(), sizes->data(), std::ssize(*sizes), DType::i64,
                    collectives::ReduceOp::max)
        ->wait();
  all.known = std::move(sizes);
  return all;
}

void Trainer::Impl::save_whole(const std::vector<std::string>& keep) {
  const TraceSpan span(parts.tracer, "step", "snapshot", state.global_step);
  writer->submit([write = engine->snapshot(!args.save_only_model), text = text_of(state), keep,
                  output_dir = args.output_dir, step = state.global_step,
                  limit = args.save_total_limit, lock = run_lock, tracer = parts.tracer] {
    const TraceSpan writing(tracer, "checkpoint", "write", step);
    lock->check();  // another run's transaction may have the same name
    CheckpointTransaction transaction(output_dir, step, 0);
    write(transaction.directory());
    write_file_atomically(transaction.directory() + "/" + kStateFile, text);
    lock->check();
    transaction.commit();
    if (limit) rotate_checkpoints(output_dir, *limit, keep);
  });
}

// Ranks write while the next steps run. In next_input(), they find out when all of them have
// finished; the writer threads do not communicate.
void Trainer::Impl::save_part(const std::vector<std::string>& keep) {
  {
    const TraceSpan span(parts.tracer, "checkpoint", "wait for the one before");
    finish_writing();
  }
  const TraceSpan span(parts.tracer, "step", "snapshot", state.global_step);
  Unfinished now{nullptr, std::make_shared<SealedFile>(),
                 std::make_shared<std::atomic<bool>>(false), keep};
  const int rank = parts.communicator->rank();
  // The directory has the same name on every disk; each shard records which save it belongs to.
  if (owners.is_owner(rank)) {
    run_lock->check();  // another run's transaction may have the same name
    now.transaction =
        std::make_shared<CheckpointTransaction>(args.output_dir, state.global_step, 0);
  }
  if (ranks() > 1) parts.communicator->host().barrier()->wait();  // the directory exists now
  writer->submit([write = engine->snapshot(!args.save_only_model), part = now.part,
                  written = now.written, name = shard_name(rank, ranks()),
                  directory = unfinished_checkpoint_path(args.output_dir, state.global_step, 0),
                  text = is_main() ? text_of(state) : std::string(), step = state.global_step,
                  tracer = parts.tracer] {
    const TraceSpan writing(tracer, "checkpoint", "write", step);
    write(directory);
    if (!text.empty()) write_file_atomically(directory + "/" + kStateFile, text);
    *part = seal_file(directory, name);
    *written = true;
  });
  unfinished = std::move(now);
}

void Trainer::Impl::complete() {
  // Rank 0 marks the checkpoint with the checksums of all parts, also of those on other disks.
  const auto all = static_cast<std::size_t>(ranks());
  const auto own = static_cast<std::size_t>(parts.communicator->rank());
  std::vector<std::int64_t> numbers(5 * all, 0);
  numbers[5 * own] = unfinished->part->bytes;
  std::ranges::copy(unfinished->part->sha256, numbers.data() + 5 * own + 1);
  sum(numbers.data(), std::ssize(numbers));
  std::vector<SealedFile> here, elsewhere;  // in rank 0's directory, and on other disks
  for (int rank = 0; rank < ranks(); ++rank) {
    const auto* const of_rank = numbers.data() + 5 * rank;
    auto& sealed = owners.of_rank[static_cast<std::size_t>(rank)] == 0 ? here : elsewhere;
    sealed.push_back({shard_name(rank, ranks()), of_rank[0], {}});
    std::copy_n(of_rank + 1, 4, sealed.back().sha256.begin());
  }
  if (unfinished->transaction)
    writer->submit([here, elsewhere, is_main = is_main(), transaction = unfinished->transaction,
                    keep = unfinished->keep, output_dir = args.output_dir,
                    limit = args.save_total_limit, lock = run_lock, tracer = parts.tracer] {
      const TraceSpan writing(tracer, "checkpoint", "complete");
      // Checks that each element is there exactly once. Readers check shards on other disks.
      if (is_main && elsewhere.empty()) ShardedCheckpoint::open(transaction->directory());
      lock->check();
      if (is_main)
        transaction->commit(here, elsewhere);
      else
        transaction->commit_part();
      if (limit) rotate_checkpoints(output_dir, *limit, keep);
    });
  unfinished.reset();
}

void Trainer::Impl::finish_writing() {
  wait_for_writers();
  if (!unfinished) return;
  complete();
  wait_for_writers();  // waits for the completion mark, which is written last
}

void Trainer::Impl::wait_for_writers() {
  at_own_pace([this] {
    if (writer) writer->finish([] { progress::made(); });
  });
}

void Trainer::Impl::save_model(const std::string& directory) {
  settle();
  check_output_dir();
  if (is_main()) make_directories(directory, "choose another --output_dir or its permissions");
  at_own_pace([&] { engine->save_model(directory); });
}

std::string Trainer::Impl::will_continue() const {
  const std::string& asked = args.resume_from_checkpoint;
  if (!is_main() || !args.do_train || begins_anew(asked)) return {};
  if (!wants_newest(asked)) return asked;
  auto all = list_checkpoints(args.output_dir);  // resume() verifies the contents, on all ranks
  while (!all.empty() && checkpoint_problem(all.back().path, false)) all.pop_back();
  return all.empty() ? std::string() : all.back().path;
}

std::optional<std::string> Trainer::Impl::checkpoint_to_resume() {
  // A new run does this too, because its first checkpoint removes unfinished ones.
  if (is_main()) restore_replaced_checkpoints(args.output_dir);
  agree_on_step(0);  // no rank looks before rank 0 is done
  const std::string& asked = args.resume_from_checkpoint;
  if (wants_newest(asked)) return newest_to_resume();
  if (begins_anew(asked)) {
    check_output_directory(args);
    agree_on_step(-1);  // returns when all ranks have looked
    return std::nullopt;
  }
  // If only some ranks see the file, agree_on_step() below finds that out.
  std::int64_t seen = path_exists(asked + "/" + kStateFile) ? 1 : 0;
  sum(&seen, 1);
  if (seen == 0)
    refuse({ErrorCode::not_found,
            fmt::format("cannot resume from {}: it is no checkpoint of a run (no {})", asked,
                        kStateFile),
            "start a new run with --model_name_or_path " + asked});
  if (const auto problem = problem_of(asked, received_signal());
      problem && is_transformers_checkpoint(asked))
    refuse(
        {ErrorCode::invalid_argument, fmt::format("cannot resume from {}: {}", asked, *problem)});
  else if (problem)
    refuse({ErrorCode::corrupt_data, fmt::format("cannot resume from {}: {}", asked, *problem),
            "--resume_from_checkpoint true takes the newest that is whole"});
  agree_on_step(read_trainer_state(asked).global_step);
  return asked;
}

std::optional<std::string> Trainer::Impl::newest_to_resume() {
  std::vector<DamagedCheckpoint> damaged;
  const auto say_damaged = [&] {
    for (const DamagedCheckpoint& one : damaged)
      say(fmt::format("warning: {} is passed over: {}", one.path, one.reason));
  };
  for (auto all = list_checkpoints(args.output_dir); !all.empty(); all.pop_back()) {
    agree_on_step(all.back().step);
    const auto problem = problem_of(all.back().path, received_signal());
    if (!problem) {
      say_damaged();
      return all.back().path;
    }
    damaged.push_back({all.back().path, *problem});
  }
  agree_on_step(-1);
  if (!damaged.empty() && !args.overwrite_output_dir)
    refuse(none_is_whole(args.output_dir, damaged,
                         "bring the missing files back, or begin at step 0 and remove these with "
                         "--overwrite_output_dir true"));
  say_damaged();
  say(fmt::format("no complete checkpoint in {}: training begins at step 0", args.output_dir));
  return std::nullopt;
}

// Every rank reads its share of the bytes; every rank gets the problem that the lowest rank found.
std::optional<std::string> Trainer::Impl::problem_of(const std::string& checkpoint,
                                                     collectives::LongWork::Received stopped_by) {
  std::optional<std::string> own;
  at_own_pace(
      [&] { own = checkpoint_problem(checkpoint, true, {parts.communicator->rank(), ranks()}); },
      stopped_by);
  return first_said(own);
}

// Ranks that resumed different checkpoints would train different models.
void Trainer::Impl::agree_on_step(std::int64_t step) {
  std::vector<std::int64_t> steps(static_cast<std::size_t>(ranks()), 0);
  steps[static_cast<std::size_t>(parts.communicator->rank())] = step;
  sum(steps.data(), ranks());
  const auto text = [](std::int64_t of) {
    return of < 0 ? std::string("no checkpoint") : fmt::format("step {}", of);
  };
  for (std::size_t rank = 1; rank < steps.size(); ++rank)
    if (steps[rank] != steps[0])
      refuse(
          {ErrorCode::invalid_argument,
           fmt::format("rank 0 would resume from {}, but rank {} from {}", text(steps[0]), rank,
                       text(steps[rank])),
           "output_dir must be on a file system that every rank sees, or hold the same checkpoints "
           "on every host"});
}

void Trainer::Impl::end_others(const std::exception& why) noexcept {
  const auto* const error = dynamic_cast<const Error*>(&why);
  const std::string reason = error != nullptr ? error->message() : why.what();
  const bool knows = error != nullptr && error->code() == ErrorCode::aborted;
  const std::string_view what = "tell the other ranks why this one ends";
  if (long_work && !knows) best_effort(what, [&] { long_work->abort(reason); });
  if (engine) return engine->abort(why);
  if (ranks() > 1 && !knows) best_effort(what, [&] { parts.communicator->abort(reason); });
}

void Trainer::Impl::refuse(const Error& error) const {
  if (is_main()) throw Error(error);
  throw Error(ErrorCode::aborted, error.what());
}

bool Trainer::Impl::resume() {
  if (state.global_step > 0) return true;  // train() called again
  const auto path = checkpoint_to_resume();
  if (!path) {
    // A later resume must not find a checkpoint of the run that is overwritten.
    check_output_dir();
    if (is_main() && args.overwrite_output_dir)
      for (const CheckpointInfo& info : list_checkpoints(args.output_dir)) {
        say(fmt::format("removing {} (overwrite_output_dir)", info.path));
        remove_tree(info.path);
      }
    return false;
  }
  load_checkpoint(*path);
  last_checkpoint = *path;
  // A checkpoint from another directory is saved again in this run's.
  if (is_same_file(*path, checkpoint_path(args.output_dir, state.global_step)))
    last_checkpoint_step = state.global_step;
  say(fmt::format("resuming from {} at step {}", *path, state.global_step));
  if (const auto all = list_checkpoints(args.output_dir);
      !all.empty() && all.back().step > state.global_step)
    say(
        fmt::format("warning: {} is of a later step and stays: remove it, or a resume from the "
                    "newest may take it for this run's",
                    all.back().path));
  return true;
}

void Trainer::Impl::load_checkpoint(const std::string& directory) {
  TrainerState saved = read_trainer_state(directory);
  const auto known = [this](const nlohmann::json& config, std::string_view source) {
    return parts.task->configuration_of(config, source);
  };
  const nn::Module& model = parts.task->module();
  std::vector<std::string> differences = check_same_adapters(directory, model);
  std::ranges::move(
      check_same_model(directory, parts.task->configuration(), known, nn::config_name(model)),
      std::back_inserter(differences));
  for (const std::string& difference : differences)
    say(fmt::format("warning: {}: the run will differ from an unbroken one", difference));
  at_own_pace([&] {
    engine->load_weights(directory);
    engine->load_optimizer(directory, saved.optimizer_steps);
  });
  const auto changed = [&](const char* name, auto was, auto is) {
    if (was != is)
      say(fmt::format(
          "warning: {} was {} in {} and is {} now: the run will differ from an unbroken "
          "one",
          name, was, directory, is));
  };
  changed("the global batch", saved.global_batch_size, plan->global_batch);
  changed("seed", saved.seed, state.seed);
  if (!saved.compute_dtype.empty())
    changed("the type computed in", std::string_view(saved.compute_dtype),
            to_string(compute_dtype(args)));
  changed("the number of steps", saved.max_steps, plan->total_steps);
  compare_data(saved, directory);
  if (saved.layout.ranks != ranks() || saved.layout.instruction_set != parts.kernels->describe())
    say(fmt::format("note: {} was written by {} ranks ({}): equal up to rounding, not to the bit",
                    directory, saved.layout.ranks, saved.layout.instruction_set));
  else if (const nlohmann::json now = run_plan(args);
           !saved.layout.plan.is_null() && saved.layout.plan != now)
    say(
        fmt::format("note: {} was written under the plan {}, and this run's is {}: equal up to "
                    "rounding, not to the bit",
                    directory, saved.layout.plan.dump(), now.dump()));

  saved.seed = state.seed;
  saved.data_seed = state.data_seed;
  saved.max_steps = plan->total_steps;
  saved.num_train_epochs = plan->epochs;
  saved.train_batch_size = state.train_batch_size;
  saved.global_batch_size = plan->global_batch;
  state = std::move(saved);
  find_best_checkpoint();
  resume_data(directory);
  const nn::LossScaler& scaler = engine->scaler();
  if (scaler.dynamic() && state.loss_scale_dynamic)
    engine->restore_scaler({state.loss_scale, state.loss_scale_good_steps,
                            state.loss_scale_shift_left, state.loss_scale_overflows_at_minimum});
  else if (scaler.scale() != state.loss_scale)
    say(fmt::format("note: the loss scale begins at {}; {} has {}, {}", scaler.scale(), directory,
                    state.loss_scale,
                    state.loss_scale_dynamic ? "and scaling is not dynamic now"
                                             : "which was not a dynamic one"));
}

// The run may have been moved, or its best checkpoint removed. Reports a missing checkpoint now
// instead of at the end.
void Trainer::Impl::find_best_checkpoint() {
  if (!state.best_model_checkpoint || !args.load_best_model_at_end) return;
  namespace fs = std::filesystem;
  const std::string recorded = *state.best_model_checkpoint;
  const std::string beside = (fs::path(args.output_dir) / fs::path(recorded).filename()).string();
  enum Where : std::int64_t { nowhere, as_recorded, in_output_dir };
  const auto whole = [](const std::string& path) { return !checkpoint_problem(path, false); };
  std::int64_t where = nowhere;  // where rank 0 finds it
  if (is_main()) where = whole(recorded) ? as_recorded : whole(beside) ? in_output_dir : nowhere;
  sum(&where, 1);
  if (where == in_output_dir) state.best_model_checkpoint = beside;
  if (where != nowhere) return;
  say(
      fmt::format("warning: the best checkpoint so far, {}, is not there any more: the best of the "
                  "evaluations from here on counts",
                  recorded));
  state.best_model_checkpoint.reset();
  state.best_metric.reset();
}

nlohmann::json Trainer::Impl::data_options() const {
  nlohmann::json options = parts.data_options;
  if (streams()) return options;  // StreamState checks the options of a stream's order
  options["data_seed"] = args.order_seed();
  options["dataloader_drop_last"] = args.dataloader_drop_last;
  options[kSamples] = parts.train_dataset->size();
  options["train_sampling_strategy"] = to_string(args.sampling());
  return options;
}

// A position in an epoch is meaningless for other rows or another order: some samples would be
// trained twice, others never.
void Trainer::Impl::compare_data(const TrainerState& saved, const std::string& directory) {
  nlohmann::json before = saved.data;
  if (!streams()) before["data_seed"] = saved.data_seed;  // older files have only this field
  const nlohmann::json now = data_options();
  // Files written before 2026-11-28 lack this option: causal language models then had no special
  // tokens.
  if (!before.empty() && !before.contains("add_special_tokens"))
    before["add_special_tokens"] = false;
  const bool within = !streams() && saved.data_position > 0 && !args.ignore_data_skip;
  const std::string so =
      within ? fmt::format(
                   "from sample {} on this epoch is not the unbroken run's; give what it "
                   "was, or begin the epoch anew with --ignore_data_skip true",
                   saved.data_position)
             : std::string("the run will differ from an unbroken one");
  bool said = false;
  for (const auto& [name, was] : before.items()) {
    const auto is = now.find(name);
    if (is == now.end() || *is == was || name == kSamples) continue;
    say(fmt::format("warning: {} was {} in {} and is {} now: {}", name, was.dump(), directory,
                    is->dump(), so));
    said = true;
  }
  // If a changed option explains the difference, no second warning is needed.
  if (said || !before.contains(kSamples) || !now.contains(kSamples)) return;
  if (before[kSamples] != now[kSamples])
    say(fmt::format("warning: the training set had {} samples in {} and has {} now: {}",
                    before[kSamples].dump(), directory, now[kSamples].dump(), so));
}

// Refuses a position that no run can have reached: seeking it would take forever or look like the
// end of the epoch. For a stream, the limit follows from global_step, which is below max_steps.
void Trainer::Impl::check_position(const std::string& directory) const {
  constexpr std::int64_t kMostSamplesOfAStep = std::int64_t{1} << 20;
  std::int64_t most = 0;
  if (streams()) {
    if (__builtin_mul_overflow(state.global_step, kMostSamplesOfAStep, &most)) most = INT64_MAX;
  } else {
    const auto samples = state.data.find(kSamples);  // older files lack it
    most = samples != state.data.end() && samples->is_number_integer()
               ? samples->get<std::int64_t>()
               : parts.train_dataset->size();
  }
  if (const std::int64_t position = streams() ? stream.position : state.data_position;
      position > most)
    throw Error(ErrorCode::corrupt_data,
                fmt::format("{}/{} says that the data stand at sample {}; {} is the last after {}",
                            directory, kStateFile, position, most,
                            streams() ? fmt::format("{} steps", state.global_step)
                                      : std::string("an epoch of that run")),
                "resume from another checkpoint, or begin the data anew with --ignore_data_skip "
                "true");
}

// Moves the data to the checkpoint's position.
void Trainer::Impl::resume_data(const std::string& directory) {
  const nlohmann::json saved = std::exchange(state.stream, nlohmann::json());
  if (args.ignore_data_skip) {
    state.data_position = 0;
    if (streams()) state.data_epoch = 0;
    return;
  }
  if (saved.is_null() == streams())
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("{} is of a run {} streaming", directory, streams() ? "without" : "with"),
        fmt::format("give --streaming {}, or begin the data anew with --ignore_data_skip true",
                    streams() ? "false" : "true"));
  if (streams()) {
    const std::string place = directory + "/" + kStateFile;
    try {
      stream = StreamState::from_json(saved);
    } catch (const Error& problem) {
      throw_error(ErrorCode::corrupt_data, "{}: {}", place, problem.message());
    }
    state.data_position = stream.position;
    if (state.global_step >= args.max_steps) return;  // no step is left, so no sample is needed
    check_position(directory);
    loader->seek_stream(stream);  // refuses other shards
    return;
  }
  check_position(directory);
  SHOAL_CHECK(state.data_position % share.count == 0,
              "the checkpoint stands at sample {}, which {} {}s do not divide; resume on another "
              "number of ranks, or with --ignore_data_skip",
              state.data_position, share.count, share.device);
}

void Trainer::Impl::load_best_model() {
  if (!state.best_model_checkpoint) return;
  const std::string& path = *state.best_model_checkpoint;
  check_output_dir();
  gather_files(engine->beside(), owners, path, false);
  if (const auto problem = problem_of(path))
    refuse({ErrorCode::corrupt_data,
            fmt::format("cannot load the best model from {}: {}", path, *problem),
            "the model of the last step is in the newest checkpoint"});
  at_own_pace([&] { engine->load_weights(path); });
  evaluated_now.reset();
  weights_are_of_step = false;
  say(fmt::format("loaded the best model, {} (eval {} {:.6g})", path, args.metric_for_best_model,
                  state.best_metric.value_or(0)));
}

void Trainer::take_output_dir() {
  impl_->guarded([this] { impl_->take_output_dir(); });
}
void Trainer::check_output_dir() const { impl_->check_output_dir(); }

}  // namespace shoal
