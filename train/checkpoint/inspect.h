// Reports the contents of a checkpoint directory, complete or not. Reads headers and descriptions,
// no values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace shoal {

enum class CheckpointKind {
  huggingface,  // whole tensors, model.safetensors
  trainer,      // whole tensors and the state of a run
  sharded,      // tensors in parts, one shard per rank
};

struct CheckpointTensor {
  std::string name, dtype;          // as in its file: "F32"
  std::vector<std::int64_t> sizes;  // of the whole tensor
  std::int64_t bytes = 0;           // of the whole tensor
  bool is_state = false;            // optimizer state
  int parts = 1;                    // shards or files that hold a part of it
  std::string problem = {};         // empty: every element is there exactly once
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
  int shards = 0;                              // expected number; sharded only
  std::vector<CheckpointTensor> tensors = {};  // by name, weights before state
  std::vector<CheckpointFile> files = {};
  std::vector<std::string> problems = {};  // missing or invalid parts; empty: complete
  std::vector<std::string> notes = {};
  bool verified = false;  // every byte was read and matches its checksum
};

// Throws not_found if the directory does not exist or holds no part of a checkpoint. All other
// problems are in `problems`. `checksums`: reads every byte if the directory has checksums.
CheckpointContents inspect_checkpoint(const std::string& directory, bool checksums);

// As text; summarizes state tensors by kind unless `all` is set.
std::string describe(const CheckpointContents& contents, bool all);
nlohmann::ordered_json to_json(const CheckpointContents& contents);

}  // namespace shoal
