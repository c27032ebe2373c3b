// A model in several safetensors files: `model.safetensors`, or `model-00001-of-000NN.safetensors`
// with `model.safetensors.index.json` ({"metadata": {"total_size": n}, "weight_map": {name:
// file}}).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "shoal/runtime/io/safetensors.h"

namespace shoal {

// Assigns tensors to shards, in order. A new shard begins if the next tensor would exceed
// `max_bytes`; a tensor larger than that gets its own shard. Returns indices into `entries`.
std::vector<std::vector<std::size_t>> plan_shards(const std::vector<SafetensorsEntry>& entries,
                                                  std::int64_t max_bytes);
// "model-00002-of-00005.safetensors"; with one shard "model.safetensors".
std::string shard_file_name(std::string_view stem, std::size_t index, std::size_t shards);

class ShardedSafetensors {
 public:
  // `path`: a directory (model.safetensors takes precedence over an index, as in transformers), an
  // index file or a single safetensors file. Opens every shard and checks the index against it.
  // Throws corrupt_data if the index names a file with a directory part ("../x") or an absolute
  // path, or if a tensor is missing from its shard or is in two shards.
  static ShardedSafetensors open(const std::string& path);

  std::vector<std::string> names() const;  // sorted
  bool contains(std::string_view name) const;
  const SafetensorsEntry& entry(std::string_view name) const;  // not_found names the nearest
  Tensor tensor(std::string_view name) const;                  // as SafetensorsFile::tensor
  const std::vector<std::shared_ptr<SafetensorsFile>>& files() const { return files_; }

 private:
  const SafetensorsFile& file_of(std::string_view name) const;
  std::vector<std::shared_ptr<SafetensorsFile>> files_;
  std::map<std::string, std::size_t, std::less<>> where_;
};

// Writes `tensors` to `directory` (which must exist), the index last. Removes an earlier save's
// index or model.safetensors if it would be read instead. Other shards of that save stay, so it is
// better to write to a new directory and rename it. Returns the names of the files written.
std::vector<std::string> write_sharded_safetensors(
    const std::string& directory, const std::vector<NamedView>& tensors,
    std::int64_t max_shard_bytes = std::int64_t{5'000'000'000}, std::string_view stem = "model");
// The same without holding all tensors. `entries` come from make_entry(). `value` is called once
// per tensor, by name; its result must stay valid until the next call.
std::vector<std::string> write_sharded_safetensors(
    const std::string& directory, std::vector<SafetensorsEntry> entries,
    const std::function<ConstView(const std::string& name)>& value,
    std::int64_t max_shard_bytes = std::int64_t{5'000'000'000}, std::string_view stem = "model");

}  // namespace shoal
