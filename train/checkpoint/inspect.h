// What a checkpoint directory holds, whole or not: read from headers and descriptions, no numbers.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace shoal {

enum class CheckpointKind {
  huggingface,  // whole tensors, model.safetensors
  trainer,      // the same with a run's state
  sharded,      // tensors in parts, a shard of each rank
};

struct CheckpointTensor {
  std::string name, dtype;          // as its file says: "F32"
  std::vector<std::int64_t> sizes;  // of the whole tensor
  std::int64_t bytes = 0;           // of the whole tensor
  bool is_state = false;            // the optimizer's
  int parts = 1;                    // shards that hold some of it, or files
  std::string problem = {};         // empty: every element is there, once
};

struct CheckpointFile {
  std::string name;
  std::int64_t bytes = 0;
  int tensors = 0;  // parts of tensors, in a safetensors file
  std::string problem = {};
};

struct CheckpointContents {
  std::string path;
  CheckpointKind kind = CheckpointKind::huggingface;
  std::optional<std::int64_t> step = {};
  int shards = 0;                              // as many as there should be; sharded only
  std::vector<CheckpointTensor> tensors = {};  // by name, weights before state
  std::vector<CheckpointFile> files = {};
  std::vector<std::string> problems = {};  // what is missing or wrong; empty: complete
  std::vector<std::string> notes = {};
  bool verified = false;  // every byte was read and fits its checksum
};

// not_found: no directory, or nothing of a checkpoint in it. All else is told in `problems`.
// `checksums`: read every byte where the directory has checksums.
CheckpointContents inspect_checkpoint(const std::string& directory, bool checksums);

// As text; state tensors summed up by kind unless `all`.
std::string describe(const CheckpointContents& contents, bool all);
nlohmann::ordered_json to_json(const CheckpointContents& contents);

}  // namespace shoal
