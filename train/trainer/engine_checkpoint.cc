// Engine: saving and loading.
#include "shoal/nn/autograd/device_values.h"
#include "shoal/nn/models/adapter.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/io/safetensors.h"
#include "shoal/train/checkpoint/checkpoint_directory.h"
#include "shoal/train/trainer/engine.h"
#include "shoal/train/trainer/local_state.h"
#include "shoal/train/trainer/stage_cut.h"

namespace shoal {
namespace {

const Tensor& named(const std::vector<LocalShard>& tensors, const nn::Parameter& parameter) {
  for (const LocalShard& entry : tensors)
    if (entry.shard.name == parameter.name()) return entry.tensor;
  throw_error(ErrorCode::internal, "{} has no master", parameter.name());
}

}  // namespace

Engine::Write Engine::snapshot(bool with_optimizer) {
  const int rank = mesh_.world().rank();
  if (whole() && rank != 0) return {};
  struct Copy {
    std::vector<LocalShard> weights, moments;
  };
  auto copy = std::make_shared<Copy>();
  MemoryResource& host = parts_.trainer.host();
  copy->weights = copied(local_weights(*model_, saved_weights(task_)), host, context_.stream);
  if (with_optimizer)
    copy->moments = copied(local_moments(*optimizer_, Which::written), host, context_.stream);
  if (whole())
    return [task = &task_, copy](const std::string& directory) {
      task->save(directory,
                 [&](const nn::Parameter& p) { return named(copy->weights, p).const_view(); });
      if (copy->moments.empty()) return;
      std::vector<NamedView> views;
      for (const LocalShard& entry : copy->moments)
        views.push_back({entry.shard.name, entry.tensor.const_view()});
      write_safetensors(directory + "/" + std::string(kOptimizerStateFile), views);
    };
  std::ranges::move(copy->moments, std::back_inserter(copy->weights));
  return [copy, task = &task_, rank, ranks = ranks(), partition = model_->partition(),
          units = model_->units()](const std::string& directory) {
    write_local_shards(directory, rank, ranks, copy->weights);
    if (rank != 0) return;
    task->save_setup(directory);
    nn::save_adapter_config(directory, task->module());
    parallel::write_partition(directory + "/" + kPartitionFile, partition, units);
  };
}

void Engine::load_weights(const std::string& directory) {
  model_->wait_for_values();  // pending gathers still read the values that are overwritten here
  note_loaded(
      parts_, directory,
      read_weights(directory, task_, context_.kernels(), local_weights(*model_, Which::all)));
  model_->refresh();
}

void Engine::load_optimizer(const std::string& directory, std::int64_t updates) {
  read_optimizer(directory, context_.kernels(), local_moments(*optimizer_, Which::all));
  kernels::StepState state = step_state_.read();
  state.step = static_cast<std::uint32_t>(updates);
  step_state_.write(state);
}

void Engine::save_model(const std::string& directory) {
  if (!whole())
    return save_whole_model(*model_, task_, directory, parts_.trainer.host(), context_.stream);
  if (mesh_.world().rank() != 0) return;
  const auto masters = local_weights(*model_, Which::all);
  Tensor one;  // must stay valid until the next call
  task_.save(directory, [&](const nn::Parameter& parameter) {
    one = nn::on_host(named(masters, parameter), parts_.trainer.host(), context_.stream);
    return one.const_view();
  });
}

}  // namespace shoal
