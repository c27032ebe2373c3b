#include "shoal/train/trainer/shard_files.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include <fmt/ranges.h>

#include "shoal/nn/autograd/device_values.h"
#include "shoal/nn/models/adapter.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/io/file_system.h"
#include "shoal/runtime/io/safetensors.h"
#include "shoal/train/checkpoint/checkpoint_directory.h"
#include "shoal/train/checkpoint/sharded_checkpoint.h"

namespace shoal {
namespace {

namespace fs = std::filesystem;

bool is_in_parts(const std::string& directory) {
  return !names_in_if_there(directory, [](std::string_view name) {
            return name.starts_with("shard-");
          }).empty();
}

// Fills a part of a tensor from the whole tensor.
void fill(const LocalShard& part, const ConstView& whole, kernels::Kernels& kernels) {
  const View into = part.tensor.view();
  const auto from_size = static_cast<std::int64_t>(size_of(whole.dtype));
  const auto to_size = static_cast<std::int64_t>(size_of(into.dtype));
  for (const TensorRun& run : runs_of(part.shard)) {
    const ConstView from(static_cast<const std::byte*>(whole.data) + run.whole * from_size,
                         {run.count}, whole.dtype, whole.device);
    const View to{static_cast<std::byte*>(into.data) + run.local * to_size,
                  {run.count},
                  into.dtype,
                  into.device};
    kernels.elementwise().cast(from, to, {});
  }
}

}  // namespace

void read_local_shards(const ShardedCheckpoint& checkpoint, std::span<const LocalShard> into,
                       Stream stream) {
  const auto host = make_host_memory();
  // A device may write host memory too (optimizer_offloading): wait for its queued work first.
  if (!stream.device.is_cpu()) device_backend(stream.device.type).synchronize(stream);
  for (const LocalShard& part : into) {
    if (part.tensor.device().is_cpu()) {
      checkpoint.read(part.shard, part.tensor.view());
      continue;
    }
    const Tensor read =
        Tensor::empty(part.tensor.shape(), part.tensor.dtype(), *host, MemoryTag::workspace);
    checkpoint.read(part.shard, read.view());
    DeviceBackend& backend = device_backend(stream.device.type);
    backend.copy(part.tensor.view().data, read.const_view().data, read.bytes(), stream);
    backend.synchronize(stream);
  }
}

namespace {

// "a, b, c and 4 more"
std::string some(const std::vector<std::string>& names) {
  constexpr std::size_t kShown = 8;
  const std::size_t shown = std::min(names.size(), kShown);
  const std::string text = fmt::format(
      "{}", fmt::join(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(shown), ", "));
  return names.size() == shown ? text : fmt::format("{} and {} more", text, names.size() - shown);
}

constexpr const char* kOtherModel =
    "train the model that its config.json describes; for another head, begin with what `shoal "
    "checkpoint convert` makes of it";

// Checks the whole model, as load_weights() does with whole tensors, so that every rank finds the
// same problems. A checkpoint of adapters has only what is trained. Returns the names that the
// model does not use.
std::vector<std::string> check_fits(const ShardedCheckpoint& checkpoint, const nn::Module& model,
                                    const std::string& directory) {
  std::set<std::string> known;
  std::vector<std::string> missing, mismatched, unexpected;
  const bool adapts = nn::is_adapter(directory);
  for (const nn::Parameter* parameter : model.parameters()) {
    if (adapts && !parameter->trainable()) continue;
    const std::string& name = parameter->name();
    known.insert(name);
    const auto found = checkpoint.tensors().find(name);
    if (found == checkpoint.tensors().end())
      missing.push_back(name);
    else if (found->second.shape != parameter->whole_shape())
      mismatched.push_back(fmt::format("{} is {}, the model wants {}", name,
                                       to_string(found->second.shape),
                                       to_string(parameter->whole_shape())));
  }
  if (!missing.empty())
    throw Error(ErrorCode::not_found, fmt::format("{} lacks {}", directory, some(missing)),
                kOtherModel);
  if (!mismatched.empty())
    throw Error(ErrorCode::invalid_argument, fmt::format("{}: {}", directory, some(mismatched)),
                kOtherModel);
  for (const auto& [name, tensor] : checkpoint.tensors())
    if (!known.contains(name) && name.find('/') == name.npos)  // state is named "exp_avg/NAME"
      unexpected.push_back(name);
  return unexpected;
}

[[noreturn]] void refuse_without_optimizer(const std::string& directory, const std::string& what) {
  throw Error(ErrorCode::not_found,
              fmt::format("{} has no {}: it was saved with save_only_model", directory, what),
              "start a new run with --model_name_or_path " + directory);
}

}  // namespace

nn::LoadReport read_weights(const std::string& directory, Task& task, kernels::Kernels& kernels,
                            std::span<const LocalShard> into) {
  std::multimap<std::string, const LocalShard*> by_name;
  for (const LocalShard& part : into) by_name.emplace(part.shard.name, &part);
  const auto load_whole = [&](const std::string& from) {
    return task.load(from, [&](const nn::Parameter& parameter, const ConstView& value) {
      const auto [first, last] = by_name.equal_range(parameter.name());
      for (auto it = first; it != last; ++it) fill(*it->second, value, kernels);
    });
  };
  if (!is_in_parts(directory)) return load_whole(directory);
  const auto checkpoint = ShardedCheckpoint::open(directory);
  nn::LoadReport report;
  std::vector<std::string> unexpected = check_fits(checkpoint, task.module(), directory);
  std::vector<LocalShard> there(into.begin(), into.end());
  if (nn::is_adapter(directory)) {
    const auto is_there = [&](const std::string& name) { return checkpoint.contains(name); };
    report = load_whole(nn::adapted_directory(directory, task.module()));
    std::erase_if(report.missing, is_there);
    std::erase_if(there, [&](const LocalShard& part) { return !is_there(part.shard.name); });
  }
  task.keep_files_of(directory);
  std::ranges::move(unexpected, std::back_inserter(report.unexpected));
  read_local_shards(checkpoint, there, kernels.stream());
  return report;
}

void read_optimizer(const std::string& directory, kernels::Kernels& kernels,
                    std::span<const LocalShard> into) {
  if (is_in_parts(directory)) {
    const auto checkpoint = ShardedCheckpoint::open(directory);
    for (const LocalShard& part : into)
      if (!checkpoint.contains(part.shard.name))
        refuse_without_optimizer(directory, part.shard.name);
    return read_local_shards(checkpoint, into, kernels.stream());
  }
  const std::string file_name(kOptimizerStateFile), path = directory + "/" + file_name;
  if (!path_exists(path)) refuse_without_optimizer(directory, file_name);
  const auto file = SafetensorsFile::open(path);
  for (const LocalShard& part : into) {
    const Tensor saved = file->tensor(part.shard.name);
    SHOAL_CHECK(saved.dtype() == DType::f32 && saved.shape() == part.shard.whole,
                "{}: {} is {} {}, but this run needs {} {}", path, part.shard.name,
                to_string(saved.dtype()), to_string(saved.shape()), to_string(DType::f32),
                to_string(part.shard.whole));
    fill(part, saved.const_view(), kernels);
  }
}

std::vector<LocalShard> copied(std::span<const LocalShard> tensors, MemoryResource& host,
                               Stream stream) {
  std::vector<LocalShard> copies;
  copies.reserve(tensors.size());
  for (const LocalShard& part : tensors)
    copies.push_back({part.shard, nn::copied_to_host(part.tensor, host, stream)});
  return copies;
}

void write_local_shards(const std::string& directory, int rank, int ranks,
                        std::span<const LocalShard> tensors) {
  std::vector<ShardData> data;
  data.reserve(tensors.size());
  for (const LocalShard& part : tensors)
    data.push_back({part.shard, part.tensor.reshaped({part.tensor.count()}).const_view()});
  // Each save has its own directory, whose name identifies the save.
  write_shard(directory, rank, ranks, data, fs::path(directory).filename());
}

}  // namespace shoal
