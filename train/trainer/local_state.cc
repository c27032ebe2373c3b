#include "shoal/train/trainer/local_state.h"

#include "shoal/nn/autograd/device_values.h"
#include "shoal/nn/layers/lora.h"
#include "shoal/runtime/io/file_system.h"
#include "shoal/train/checkpoint/sharded_checkpoint.h"
#include "shoal/train/trainer/directories.h"

namespace shoal {

Which saved_weights(Task& task) {
  return nn::adapted_layers(task.module()).empty() ? Which::written : Which::trained;
}

std::vector<LocalShard> local_weights(const parallel::ParallelModel& model, Which which) {
  std::vector<LocalShard> all;
  std::vector<std::vector<parallel::OwnedRun>> found = {model.owned()};
  if (which != Which::trained) found.push_back(model.frozen());
  for (const auto& runs : found)
    for (const parallel::OwnedRun& run : runs) {
      const Tensor& master = run.segment.master;
      if (which == Which::all || run.writes)
        all.push_back(
            {shard_of(*run.parameter, run.first, run.first + master.count(), master.dtype()),
             master});
    }
  return all;
}

std::vector<LocalShard> local_moments(const parallel::DistributedOptimizer& optimizer,
                                      Which which) {
  std::vector<LocalShard> all;
  for (const parallel::StateRun& run : optimizer.state_runs())
    if (!run.state.name.empty() && (which == Which::all || run.writes)) {
      const std::string prefix = run.state.name + "/";
      const nn::Parameter& parameter = *run.parameter;
      all.push_back({run.state.mean_over > 0
                         ? whole_tensor(prefix + parameter.name(),
                                        nn::state_shape(run.state, parameter.whole_shape()),
                                        run.tensor.dtype())
                         : shard_of(parameter, run.first, run.first + run.tensor.count(),
                                    run.tensor.dtype(), prefix),
                     run.tensor});
    }
  return all;
}

void save_whole_model(const parallel::ParallelModel& model, Task& task,
                      const std::string& directory, MemoryResource& host, Stream stream) {
  collectives::Communicator& world = model.mesh().world();
  // If this run dies now, the next run removes a directory with such a name.
  const std::string in_parts = directory + "/tmp-checkpoint-model.0";
  const DirectoryOwners owners = find_owners(world.host(), directory);
  if (owners.is_owner(world.rank())) {
    remove_tree(in_parts);
    make_directories(in_parts, "choose another --output_dir or its permissions");
  }
  world.host().barrier()->wait();
  std::vector<LocalShard> written = local_weights(model, saved_weights(task));
  for (LocalShard& one : written) one.tensor = nn::on_host(one.tensor, host, stream);
  write_local_shards(in_parts, world.rank(), world.size(), written);
  world.host().barrier()->wait();
  gather_files(world.host(), owners, in_parts, true);
  const auto clean_up = [&] {
    best_effort("remove the parts of a saved model", [&] { remove_tree(in_parts); });
  };
  if (owners.is_owner(world.rank()) && world.rank() != 0) clean_up();
  if (world.rank() != 0) return;
  const auto checkpoint = ShardedCheckpoint::open(in_parts);
  Tensor whole;
  task.save(directory, [&](const nn::Parameter& parameter) {
    whole = {};
    whole = Tensor::empty(parameter.whole_shape(), DType::f32, host, MemoryTag::workspace);
    checkpoint.read(whole_tensor(parameter.name(), parameter.whole_shape(), DType::f32),
                    whole.view());
    return whole.const_view();
  });
  clean_up();
}

}  // namespace shoal
