// Converts a checkpoint in parts to whole tensors that transformers opens, and back. It works
// tensor by tensor, so memory holds only the largest one.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "shoal/runtime/tensor/dtype.h"

namespace shoal {

// Limit of shards, each of which is a file that is synced. Any number of ranks can read them.
inline constexpr int kMostShards = 4'096;

struct ConvertOptions {
  std::string from = {}, to = {};   // directories; `to` must not exist, or be empty
  int shards = 0;                   // at most kMostShards; 0: whole tensors
  std::optional<DType> dtype = {};  // f32, bf16 or f16, for floating weights; nullopt: unchanged
  bool optimizer = true;            // include optimizer state, if any; its dtype stays
  std::string setup = {};           // directory of config.json and tokenizer; empty: `from`
  std::int64_t max_file_bytes = 5'000'000'000;  // size limit of each file model-00001-of-...
  std::function<void(std::int64_t done, std::int64_t total)> progress = {};  // bytes; may be empty
};

struct Conversion {
  int tensors = 0, states = 0;
  std::int64_t bytes = 0;                 // of all tensors written
  std::int64_t largest = 0;               // size of the largest buffer
  std::vector<std::string> carried = {};  // copied files
  std::vector<std::string> notes = {};
};

// Throws invalid_argument if `to` exists and is not an empty directory.
void check_is_new(const std::string& to);

// An adapter (nn/models/adapter.h) stays one, in parts or whole. First verifies the checksums of
// `from`, if it has any. `to` appears complete, with a marker that lists checksums, or not at all.
// Throws invalid_argument if `to` exists and is not an empty directory, or if values of `from`
// overflow in `dtype`, naming their tensors. Throws corrupt_data if `from` is incomplete, naming
// the missing parts.
Conversion convert_checkpoint(const ConvertOptions& options);

}  // namespace shoal
