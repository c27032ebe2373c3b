// Checkpoints in parts: every rank writes what it holds, and any other layout reads what it needs.
// Whole tensors (a Hugging Face directory) are read the same way.
//
// A directory has one shard-RRRRR-of-NNNNN.safetensors per writing rank. The metadata of a shard
// describe each entry's part of its tensor (tensor_shard.h, JSON under "shoal"), so a shard is
// self-contained. Opening checks that all shards exist and that each element occurs exactly once.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "shoal/runtime/io/safetensors.h"
#include "shoal/train/checkpoint/tensor_shard.h"

namespace shoal {

struct ShardData {
  TensorShard shard;
  ConstView data;  // shard.count() elements of shard.dtype, contiguous, host memory
};

std::string shard_name(int rank, int ranks);  // "shard-00003-of-00008.safetensors"
// Writes the shard of rank `rank` of `ranks`, replacing one of that name. A rank that holds nothing
// writes an empty shard. `save` ("step 20") identifies the save: all ranks pass the same name, and
// each save has a different one. Readers use it to detect that a save over older shards was
// interrupted.
void write_shard(const std::string& directory, int rank, int ranks,
                 std::span<const ShardData> tensors, const std::string& save);
// The same without holding all tensors in memory. `data(i)` is called once per tensor, in any
// order; its result must stay valid until the next call.
void write_shard(const std::string& directory, int rank, int ranks,
                 std::span<const TensorShard> tensors,
                 const std::function<ConstView(std::size_t)>& data, const std::string& save);

// Paths by rank; `ranks` is the number of shards, 0 if there are none. find_shards() throws
// corrupt_data if the directory has shards of two saves.
struct FoundShards {
  int ranks = 0;
  std::map<int, std::string> paths;
};
FoundShards find_shards(const std::string& directory);
// The reason why `shard` cannot belong to the same save as `first` in the same directory; empty: it
// can.
std::string save_problem(const SafetensorsFile& first, const SafetensorsFile& shard);
// The entries that a shard describes; `key` is the tensor's name in the file. Throws corrupt_data.
struct ShardEntry {
  TensorShard shard;
  std::string key;
};
std::vector<ShardEntry> entries_of_shard(const SafetensorsFile& file);

class ShardedCheckpoint {
 public:
  // Maps every shard. Throws corrupt_data with the shard or tensor if shards are missing or of
  // different saves (write_shard), or if elements are in no shard or in two. Throws io if the
  // directory cannot be listed.
  static ShardedCheckpoint open(const std::string& directory);
  // Opens a directory of whole tensors: model.safetensors or its parts, or an adapter, whose
  // tensors get the names of the model's parameters; and optimizer.safetensors if present.
  static ShardedCheckpoint open_full(const std::string& directory);

  struct Description {
    Shape shape;
    DType dtype = DType::f32;
    int parts = 0;  // shards that have a part of it
  };
  const std::map<std::string, Description>& tensors() const { return tensors_; }
  bool contains(const std::string& name) const { return tensors_.contains(name); }
  int shards() const { return static_cast<int>(files_.size()); }

  // Reads wanted.count() elements in the order of `wanted`, converted to the dtype of `into`.
  // Throws invalid_argument if the checkpoint's tensor has another whole shape. Throws not_found,
  // with the nearest name, if there is no tensor of this name.
  void read(const TensorShard& wanted, const View& into) const;

 private:
  struct Part {
    ShardEntry entry;
    std::vector<TensorRun> runs;
    std::shared_ptr<SafetensorsFile> file;
  };
  void add_part(ShardEntry entry, std::shared_ptr<SafetensorsFile> file);

  std::string directory_;
  std::vector<std::shared_ptr<SafetensorsFile>> files_;
  std::map<std::string, Description> tensors_;
  std::map<std::string, std::vector<Part>> parts_;
};

}  // namespace shoal
