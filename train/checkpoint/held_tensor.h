// What one rank holds of a tensor, whatever the layout (decision 13). Pure.
//
// A parameter is made of boxes of the whole tensor (nn::ParameterPiece; a fused qkv shard is
// three), and a sharded optimizer holds a range of the parameter's elements. Both come down to
// runs: consecutive elements of the whole tensor that are consecutive here.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "shoal/nn/autograd/parameter.h"

namespace shoal {

struct HeldTensor {
  std::string name;  // Hugging Face's; "exp_avg/NAME" for optimizer state
  Shape whole;       // of the tensor
  Shape local;       // of the parameter here
  std::vector<nn::ParameterPiece> pieces;
  std::int64_t begin = 0, end = 0;  // of the parameter's elements, row-major: those that are held
  DType dtype = DType::f32;
  std::int64_t count() const { return end - begin; }
};

// Of optimizer state, by the name it is held under.
inline bool is_state_name(std::string_view name) { return name.find('/') != name.npos; }

// All of a parameter, or the elements [begin, end) of it, under the name `prefix` + its own.
HeldTensor held_of(const nn::Parameter& parameter, DType dtype, const std::string& prefix = {});
HeldTensor held_of(const nn::Parameter& parameter, std::int64_t begin, std::int64_t end,
                   DType dtype, const std::string& prefix = {});
// A tensor of a model on one rank.
HeldTensor whole_tensor(std::string name, const Shape& shape, DType dtype);

struct TensorRun {
  std::int64_t whole = 0;  // element of the whole tensor, row-major
  std::int64_t held = 0;   // element of what is held, from 0
  std::int64_t count = 0;
  bool operator==(const TensorRun&) const = default;
};
// By rising `whole`; neighbours that continue in both are one.
std::vector<TensorRun> runs_of(const HeldTensor& held);

// Why these (of one name) are not each element of the tensor once: the first elements that are in
// none or in two, or shapes that differ. Empty: they are.
std::string tiling_problem(std::span<const HeldTensor> held);

nlohmann::ordered_json to_json(const HeldTensor& held);
// Throws corrupt_data, naming `source` and what is wrong.
HeldTensor held_from_json(const nlohmann::json& json, const std::string& source);

}  // namespace shoal
