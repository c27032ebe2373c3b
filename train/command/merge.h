// Joins an adapter with the model that it adapts.
#pragma once

#include <optional>
#include <string>

#include "shoal/runtime/tensor/dtype.h"
#include "shoal/train/checkpoint/convert.h"

namespace shoal::command {

struct MergeOptions {
  std::string from, to;             // directories; `to` must not exist, or be empty
  std::optional<DType> dtype = {};  // f32, bf16 or f16; nullopt: the adapted model's
};
// Writes a plain model with the weights W + scale·B·A. `from` may be whole or in parts. Memory
// holds the model once. `to` appears complete or not at all. Throws invalid_argument if `from` is
// no adapter, or if numbers become infinite in `dtype`.
Conversion merge_adapter(const MergeOptions& options);

}  // namespace shoal::command
