// PyTorch's tensors as the buffers of Shoal's collectives.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include "shoal/collectives/transport/operation.h"
#include "shoal/runtime/tensor/dtype.h"

namespace shoal::pytorch {

// How elements are moved: under their own dtype where Shoal has it, else as bytes.
struct Moved {
  DType dtype;
  std::int64_t units = 1;  // per element
};
Moved moved(at::ScalarType type);

// How elements are reduced.
struct Reduced {
  at::ScalarType view;  // the tensor's memory is seen as this type; complex: its real numbers
  at::ScalarType wide;  // elements are converted to this type for the reduction; often `view`
  collectives::Reduction reduction = collectives::ReduceOp::sum;
  // Bitwise operations: every rank gathers all values and combines them.
  std::optional<c10d::ReduceOp::RedOpType> bitwise;
};
// Throws invalid_argument, naming operation and type, for a reduction without a meaning: bitwise
// of floats, an average of integers, the minimum of complex numbers, sums of 8-bit floats.
Reduced reduced(at::ScalarType type, const c10d::ReduceOp& op);

// The memory of a contiguous tensor, flat, under another type; complex numbers become pairs.
at::Tensor viewed(const at::Tensor& tensor, at::ScalarType view);

// Combines into `own`, contiguous bytes, the same-sized parts that `all` holds at multiples of
// `stride` bytes.
void combine_bits(c10d::ReduceOp::RedOpType op, const at::Tensor& all, std::int64_t parts,
                  std::int64_t stride, std::int64_t offset, const at::Tensor& own);

// Throws invalid_argument unless all are dense tensors of one dtype.
void check_tensors(const char* operation, const std::vector<at::Tensor>& tensors);
const at::Tensor& only(const char* operation, const std::vector<at::Tensor>& tensors);

// One tensor that holds all of `parts`, one after the other. Without a copy where they already lie
// so in memory and `may_alias`.
struct Flat {
  at::Tensor tensor;
  bool is_alias = false;
  std::vector<std::int64_t> counts;  // elements of each part
  bool equal = true;                 // all counts are the same
};
Flat flat_like(const std::vector<at::Tensor>& parts);  // contents undefined unless it is an alias
void gather_parts(const std::vector<at::Tensor>& parts, Flat& flat);   // unless alias
void scatter_parts(const Flat& flat, std::vector<at::Tensor>& parts);  // unless alias

}  // namespace shoal::pytorch
