#include <algorithm>
#include <cstring>
#include <filesystem>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/parallel_for.h"
#include "shoal/runtime/io/files.h"
#include "shoal/runtime/io/safetensors.h"
#include "shoal/train/checkpoint/checkpoint_directory.h"
#include "shoal/train/trainer/trainer_impl.h"

namespace shoal {
namespace {

constexpr const char* kOptimizerFile = "optimizer.safetensors";

// A copy of everything a checkpoint holds, so that the next step may begin. One allocation a
// tensor; given back when the writer is done.
struct Snapshot {
  std::vector<nn::NamedTensor> masters, moments;
  std::string state;  // trainer_state.json

  ConstView master(const nn::Parameter& parameter) const {
    const auto it = std::find_if(masters.begin(), masters.end(), [&](const nn::NamedTensor& entry) {
      return entry.name == parameter.name();
    });
    SHOAL_ASSERT(it != masters.end());
    return it->tensor.const_view();
  }
};

// What --resume_from_checkpoint may say instead of a path or "true".
bool begins_anew(const std::string& resume_from_checkpoint) {
  const std::string& asked = resume_from_checkpoint;
  return asked.empty() || asked == "false" || asked == "False" || asked == "0";
}

void copy_tensor(const Tensor& from, const Tensor& to) {
  std::memcpy(to.view().data, from.const_view().data, from.bytes());
}

std::vector<nn::NamedTensor> copies(const std::vector<nn::NamedTensor>& tensors,
                                    MemoryResource& memory) {
  std::vector<nn::NamedTensor> result;
  result.reserve(tensors.size());
  for (const nn::NamedTensor& entry : tensors) {
    Tensor copy =
        Tensor::empty(entry.tensor.shape(), entry.tensor.dtype(), memory, MemoryTag::workspace);
    copy_tensor(entry.tensor, copy);
    result.push_back({entry.name, std::move(copy)});
  }
  return result;
}

void write_checkpoint(const Task& task, const Snapshot& snapshot, const std::string& output_dir,
                      std::int64_t step) {
  CheckpointTransaction transaction(output_dir, step, 0);
  const std::string& directory = transaction.directory();
  task.save(directory, [&](const nn::Parameter& p) { return snapshot.master(p); });
  if (!snapshot.moments.empty()) {
    std::vector<NamedView> views;
    for (const nn::NamedTensor& entry : snapshot.moments)
      views.push_back({entry.name, entry.tensor.const_view()});
    write_safetensors(directory + "/" + kOptimizerFile, views);
  }
  write_file_atomically(directory + "/trainer_state.json", snapshot.state);
  transaction.commit();
}

}  // namespace

void check_output_directory(const TrainingArguments& arguments) {
  if (arguments.overwrite_output_dir || !begins_anew(arguments.resume_from_checkpoint)) return;
  const auto all = list_checkpoints(arguments.output_dir);
  if (all.empty()) return;
  throw Error(
      ErrorCode::invalid_argument,
      fmt::format("{} holds {} checkpoint{} already", arguments.output_dir, all.size(),
                  all.size() == 1 ? "" : "s"),
      "--resume_from_checkpoint true continues the run, --overwrite_output_dir replaces it");
}

void Trainer::Impl::save_checkpoint() {
  settle();
  const std::string path = checkpoint_path(args.output_dir, state.global_step);
  state.loss_scale = scaler.state().scale;
  state.loss_scale_good_steps = scaler.state().good_steps;
  state.layout = {ranks(), available_cores(), parts.kernels->describe()};
  if (is_main()) {
    {
      const TraceSpan span(parts.tracer, "checkpoint", "wait for the one before");
      writer->finish();  // one snapshot's memory at a time
    }
    const TraceSpan span(parts.tracer, "step", "snapshot", state.global_step);
    auto snapshot = std::make_shared<Snapshot>();
    snapshot->masters = copies(weights->masters(), *parts.memory);
    if (!args.save_only_model)
      snapshot->moments = copies(optimizer->state_tensors(), *parts.memory);
    snapshot->state = state.to_json().dump(2) + "\n";
    std::vector<std::string> keep = {path};  // a higher number may be another run's
    if (state.best_model_checkpoint) keep.push_back(*state.best_model_checkpoint);
    writer->submit([task = parts.task, snapshot, keep, output_dir = args.output_dir,
                    step = state.global_step, limit = args.save_total_limit,
                    tracer = parts.tracer] {
      const TraceSpan writing(tracer, "checkpoint", "write", step);
      write_checkpoint(*task, *snapshot, output_dir, step);
      if (limit) rotate_checkpoints(output_dir, *limit, keep);
    });
  }
  last_checkpoint = path;
  last_checkpoint_step = state.global_step;
  each_callback([&](TrainerCallback& c) { c.on_save(state.global_step, path); });
}

void Trainer::Impl::save_model(const std::string& directory) {
  settle();
  if (is_main()) {
    std::error_code error;
    std::filesystem::create_directories(directory, error);
    if (error)
      throw Error(ErrorCode::io, fmt::format("cannot make {}: {}", directory, error.message()),
                  "choose another --output_dir or its permissions");
    const auto masters = weights->masters();
    parts.task->save(directory, [&](const nn::Parameter& parameter) {
      for (const nn::NamedTensor& entry : masters)
        if (entry.name == parameter.name()) return entry.tensor.const_view();
      throw_error(ErrorCode::internal, "{} has no master", parameter.name());
    });
  }
  if (ranks() > 1) parts.communicator->barrier()->wait();
}

std::optional<std::string> Trainer::Impl::checkpoint_to_resume() {
  const std::string& asked = args.resume_from_checkpoint;
  const bool newest = asked == "true" || asked == "True" || asked == "1";
  if (begins_anew(asked)) {
    check_output_directory(args);
    return std::nullopt;
  }
  if (!newest) {
    if (const auto problem = checkpoint_problem(asked, true))
      throw_error(ErrorCode::corrupt_data, "cannot resume from {}: {}", asked, *problem);
    return asked;
  }
  const auto found =
      newest_checkpoint(args.output_dir, [&](const std::string& path, const std::string& reason) {
        say(fmt::format("warning: {} is passed over: {}", path, reason));
      });
  return found ? std::optional(found->path) : std::nullopt;
}

// Ranks that look at different directories would train different models.
void Trainer::Impl::agree_on_resuming(const std::optional<std::string>& path) {
  if (ranks() == 1) return;
  std::vector<std::int64_t> steps(static_cast<std::size_t>(ranks()), 0);
  const auto own = static_cast<std::size_t>(parts.communicator->rank());
  steps[own] = path ? read_trainer_state(*path).global_step : -1;
  sum(steps.data(), ranks());
  const auto text = [](std::int64_t step) {
    return step < 0 ? std::string("no checkpoint") : fmt::format("step {}", step);
  };
  for (std::size_t rank = 1; rank < steps.size(); ++rank)
    if (steps[rank] != steps[0])
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("rank 0 would resume from {}, but rank {} from {}", text(steps[0]),
                              rank, text(steps[rank])),
                  "output_dir must be on a file system that every rank sees");
}

bool Trainer::Impl::resume() {
  if (state.global_step > 0) return true;  // train() called again
  const auto path = checkpoint_to_resume();
  agree_on_resuming(path);  // and everybody has looked
  if (!path) {
    // A later resume must not find a step of the run that was to be overwritten.
    if (is_main() && args.overwrite_output_dir)
      for (const CheckpointInfo& info : list_checkpoints(args.output_dir)) {
        say(fmt::format("removing {} (overwrite_output_dir)", info.path));
        std::error_code ignored;
        std::filesystem::remove_all(info.path, ignored);
      }
    return false;
  }
  load_checkpoint(*path);
  last_checkpoint = *path;
  // One from elsewhere is saved again where this run's checkpoints go.
  std::error_code ignored;
  if (std::filesystem::equivalent(*path, checkpoint_path(args.output_dir, state.global_step),
                                  ignored))
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

void Trainer::Impl::load_weights(const std::string& directory) {
  const auto masters = weights->masters();
  parts.task->load(directory, [&](const nn::Parameter& parameter, const ConstView& from) {
    for (const nn::NamedTensor& entry : masters)
      if (entry.name == parameter.name())
        return parts.kernels->elementwise().cast(from, entry.tensor.view(), {});
    throw_error(ErrorCode::internal, "{} has no master", parameter.name());
  });
  weights->refresh();
}

void Trainer::Impl::load_optimizer(const std::string& path) {
  const auto file = SafetensorsFile::open(path);
  for (const nn::NamedTensor& entry : optimizer->state_tensors()) {
    const Tensor saved = file->tensor(entry.name);
    SHOAL_CHECK(saved.dtype() == entry.tensor.dtype() && saved.shape() == entry.tensor.shape(),
                "{}: {} is {} {}, but this run needs {} {}", path, entry.name,
                to_string(saved.dtype()), to_string(saved.shape()), to_string(entry.tensor.dtype()),
                to_string(entry.tensor.shape()));
    copy_tensor(saved, entry.tensor);
  }
}

void Trainer::Impl::load_checkpoint(const std::string& directory) {
  TrainerState saved = read_trainer_state(directory);
  const std::string optimizer_file = directory + "/" + kOptimizerFile;
  if (!std::filesystem::exists(optimizer_file))
    throw Error(
        ErrorCode::not_found,
        fmt::format("{} has no {}: it was saved with save_only_model", directory, kOptimizerFile),
        "start a new run with --model_name_or_path " + directory);
  load_weights(directory);
  load_optimizer(optimizer_file);
  const auto changed = [&](const char* name, auto was, auto is) {
    if (was != is)
      say(fmt::format(
          "warning: {} was {} in {} and is {} now: the run will differ from an unbroken "
          "one",
          name, was, directory, is));
  };
  changed("the global batch", saved.global_batch_size, plan->global_batch);
  changed("seed", saved.seed, state.seed);
  changed("data_seed", saved.data_seed, state.data_seed);
  changed("the number of steps", saved.max_steps, plan->total_steps);
  if (saved.layout.ranks != ranks() || saved.layout.instruction_set != parts.kernels->describe())
    say(fmt::format("note: {} was written by {} ranks ({}): equal up to rounding, not to the bit",
                    directory, saved.layout.ranks, saved.layout.instruction_set));

  saved.seed = state.seed;
  saved.data_seed = state.data_seed;
  saved.max_steps = plan->total_steps;
  saved.num_train_epochs = plan->epochs;
  saved.train_batch_size = state.train_batch_size;
  saved.global_batch_size = plan->global_batch;
  state = std::move(saved);
  if (args.ignore_data_skip) state.data_position = 0;
  SHOAL_CHECK(state.data_position % ranks() == 0,
              "the checkpoint stands at sample {}, which {} ranks do not divide; resume on another "
              "number of ranks, or with --ignore_data_skip",
              state.data_position, ranks());
  step_state.step = static_cast<std::uint32_t>(state.optimizer_steps);
  if (args.fp16) {
    nn::LossScalerState scaling = scaler.state();
    scaling.scale = state.loss_scale;
    scaling.good_steps = state.loss_scale_good_steps;
    scaler.restore(scaling);
  }
}

void Trainer::Impl::load_best_model() {
  if (!state.best_model_checkpoint) return;
  if (ranks() > 1) parts.communicator->barrier()->wait();  // rank 0's writer has finished
  const std::string& path = *state.best_model_checkpoint;
  if (const auto problem = checkpoint_problem(path, true))
    throw_error(ErrorCode::corrupt_data, "cannot load the best model from {}: {}", path, *problem);
  load_weights(path);
  say(fmt::format("loaded the best model, {} (eval {} {:.6g})", path, args.metric_for_best_model,
                  state.best_metric.value_or(0)));
}

}  // namespace shoal
