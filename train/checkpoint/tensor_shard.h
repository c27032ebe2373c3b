// Describes the part of a tensor that one rank holds, in any layout (decision 13). Pure.
//
// A parameter consists of boxes of the whole tensor (nn::ParameterPiece; a fused qkv shard has
// three). A sharded optimizer holds a range of the parameter's elements. Both consist of runs:
// elements that are consecutive in the whole tensor and also in the rank's part.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "shoal/nn/autograd/parameter.h"

namespace shoal {

struct TensorShard {
  std::string name;  // Hugging Face's; "exp_avg/NAME" for optimizer state
  Shape whole;       // shape of the whole tensor
  Shape local;       // shape of this rank's parameter
  std::vector<nn::ParameterPiece> pieces;
  std::int64_t begin = 0, end = 0;  // range of the parameter's elements that is held, row-major
  DType dtype = DType::f32;
  std::int64_t count() const { return end - begin; }
};

// True for optimizer state, by its name.
inline bool is_state_name(std::string_view name) { return name.find('/') != name.npos; }

// All of a parameter, or its elements [begin, end). The name is `prefix` plus the parameter's.
TensorShard shard_of(const nn::Parameter& parameter, DType dtype, const std::string& prefix = {});
TensorShard shard_of(const nn::Parameter& parameter, std::int64_t begin, std::int64_t end,
                     DType dtype, const std::string& prefix = {});
// A whole tensor on one rank.
TensorShard whole_tensor(std::string name, const Shape& shape, DType dtype);

struct TensorRun {
  std::int64_t whole = 0;  // first element in the whole tensor, row-major
  std::int64_t local = 0;  // first element in the rank's range, from 0
  std::int64_t count = 0;
  bool operator==(const TensorRun&) const = default;
};
// Sorted by `whole`; adjacent runs are merged.
std::vector<TensorRun> runs_of(const TensorShard& shard);

// Why parts of one tensor do not cover each element exactly once: the first elements in no part or
// in two, or shapes that differ. Empty if they do.
std::string tiling_problem(std::span<const TensorShard> shards);

nlohmann::ordered_json to_json(const TensorShard& shard);
// Throws corrupt_data that names `source` and the error.
TensorShard shard_from_json(const nlohmann::json& json, const std::string& source);

}  // namespace shoal
