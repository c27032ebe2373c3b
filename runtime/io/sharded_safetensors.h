// A model over several safetensors files: `model.safetensors`, or
// `model-00001-of-000NN.safetensors` with `model.safetensors.index.json` ({"metadata":
// {"total_size": n}, "weight_map": {name: file}}).
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

// Which tensors go to which shard: in order, a new shard when the next tensor would pass
// `max_bytes`; a single tensor above it gets a shard of its own. Indices into `entries`. Pure.
std::vector<std::vector<std::size_t>> plan_shards(const std::vector<SafetensorsEntry>& entries,
                                                  std::int64_t max_bytes);
// "model-00002-of-00005.safetensors"; with one shard "model.safetensors".
std::string shard_file_name(std::string_view stem, std::size_t index, std::size_t shards);

class ShardedSafetensors {
 public:
  // `path`: a directory (of the two, model.safetensors goes before an index, as in transformers),
  // an index file or a single safetensors file. Every shard is opened and the index checked against
  // it: a file name with a directory part ("../x") or an absolute one, a tensor that is not where
  // the index says, or in two shards: corrupt_data.
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

// Writes `tensors` under `directory` (which must exist), the index last. An earlier save's index
// or model.safetensors that would be read instead is removed; its other shards stay: better write
// into a new directory and rename it. Returns the file names written.
std::vector<std::string> write_sharded_safetensors(
    const std::string& directory, const std::vector<NamedView>& tensors,
    std::int64_t max_shard_bytes = std::int64_t{5'000'000'000}, std::string_view stem = "model");
// The same without holding them all: `entries` as of make_entry(); `value` is called once for each
// tensor, by name, and what it gives must stay until the next call.
std::vector<std::string> write_sharded_safetensors(
    const std::string& directory, std::vector<SafetensorsEntry> entries,
    const std::function<ConstView(const std::string& name)>& value,
    std::int64_t max_shard_bytes = std::int64_t{5'000'000'000}, std::string_view stem = "model");

}  // namespace shoal
