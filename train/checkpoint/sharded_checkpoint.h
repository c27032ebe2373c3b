// Tensors in parts: every rank writes what it holds, any other layout reads what it needs.
// Whole tensors (a Hugging Face directory) are read the same way.
//
// A directory of shard-RRRRR-of-NNNNN.safetensors, one of each rank that wrote. Their metadata say
// which part of which tensor each entry is (held_tensor.h, JSON under "shoal"), so a shard explains
// itself. That they are all there, and each element once, is checked when they are opened.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "shoal/runtime/io/safetensors.h"
#include "shoal/train/checkpoint/held_tensor.h"

namespace shoal {

struct HeldData {
  HeldTensor held;
  ConstView data;  // held.count() elements of held.dtype, contiguous, host memory
};

std::string shard_name(int rank, int ranks);  // "shard-00003-of-00008.safetensors"
// Rank `rank` of `ranks`; a rank that holds nothing writes an empty shard. A shard of that name is
// replaced. `save`: the same on every rank, another for another save ("step 20"): by it a directory
// in which a save over older shards was interrupted is told from a whole one.
void write_shard(const std::string& directory, int rank, int ranks,
                 std::span<const HeldData> tensors, const std::string& save);
// The same without holding them all: `data(i)` of tensors[i] is asked for once, in any order, and
// must stay until the next call.
void write_shard(const std::string& directory, int rank, int ranks,
                 std::span<const HeldTensor> tensors,
                 const std::function<ConstView(std::size_t)>& data, const std::string& save);

// Paths by rank; `ranks` is of how many, 0 where there is none. corrupt_data: shards of two saves.
struct FoundShards {
  int ranks = 0;
  std::map<int, std::string> paths;
};
FoundShards find_shards(const std::string& directory);
// Why `shard` cannot belong to `first`, of the same directory; empty: both are of one save.
std::string save_problem(const SafetensorsFile& first, const SafetensorsFile& shard);
// What a shard says that it holds; `key` is the tensor's name in the file. Throws corrupt_data.
struct ShardEntry {
  HeldTensor held;
  std::string key;
};
std::vector<ShardEntry> entries_of_shard(const SafetensorsFile& file);

class ShardedCheckpoint {
 public:
  // Maps every shard. Throws corrupt_data, naming the shard or the tensor: shards missing or of
  // different saves (write_shard), elements in no shard or in two. io: it cannot be listed.
  static ShardedCheckpoint open(const std::string& directory);
  // A directory of whole tensors: model.safetensors or its parts, and optimizer.safetensors where
  // that is there.
  static ShardedCheckpoint open_full(const std::string& directory);

  struct Description {
    Shape shape;
    DType dtype = DType::f32;
    int parts = 0;  // shards that have some of it
  };
  const std::map<std::string, Description>& tensors() const { return tensors_; }
  bool contains(const std::string& name) const { return tensors_.contains(name); }
  int shards() const { return static_cast<int>(files_.size()); }

  // Into `into`: wanted.count() elements in the order of `wanted`, converted to its dtype. Another
  // whole shape: invalid_argument; an unknown name: not_found with the nearest.
  void read(const HeldTensor& wanted, const View& into) const;

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
