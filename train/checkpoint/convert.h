// From a checkpoint in parts to whole tensors that transformers opens, and the other way round:
// tensor by tensor, so that memory holds the largest one and no more.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "shoal/runtime/tensor/dtype.h"

namespace shoal {

struct ConvertOptions {
  std::string from = {}, to = {};   // directories; `to` must not exist, or be empty
  int shards = 0;                   // 0: whole tensors
  std::optional<DType> dtype = {};  // f32, bf16, f16, of floating weights; without: as they are
  bool optimizer = true;            // its state too, where there is one; always as it is
  std::string setup = {};           // where config.json and the tokenizer are; empty: `from`
  std::int64_t max_file_bytes = 5'000'000'000;  // of model-00001-of-...
  std::function<void(std::int64_t done, std::int64_t total)> progress = {};  // bytes; may be empty
};

struct Conversion {
  int tensors = 0, states = 0;
  std::int64_t bytes = 0;                 // of all tensors written
  std::int64_t largest = 0;               // bytes of the buffer that was needed
  std::vector<std::string> carried = {};  // files copied
  std::vector<std::string> notes = {};
};

// Checks `from` against its checksums first, where it has any. `to` appears whole, with a marker
// that lists checksums, or not at all. invalid_argument: `to` exists, or numbers of `from` are
// infinite in `dtype`, with their tensors; corrupt_data: `from` is not complete, with what is
// missing.
Conversion convert_checkpoint(const ConvertOptions& options);

}  // namespace shoal
