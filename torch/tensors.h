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

// How elements are transferred: as their own dtype if Shoal has it, otherwise as bytes.
struct Moved {
  DType dtype;
  std::int64_t units = 1;  // per element
};
Moved moved(at::ScalarType type);

// How elements are reduced.
struct Reduced {
  at::ScalarType view;  // type under which the memory is viewed; for complex, the real type
  at::ScalarType wide;  // type in which elements are reduced; often `view`
  collectives::Reduction reduction = collectives::ReduceOp::sum;
  // For bitwise operations: every rank gathers all values and combines them.
  std::optional<c10d::ReduceOp::RedOpType> bitwise;
};
// Throws invalid_argument, naming operation and type, for a meaningless reduction: bitwise
// operations on floats, the average of integers, the minimum of complex numbers, sums of 8-bit
// floats.
Reduced reduced(at::ScalarType type, const c10d::ReduceOp& op);

// A flat view of a contiguous tensor's memory as another type. Complex numbers become pairs.
at::Tensor viewed(const at::Tensor& tensor, at::ScalarType view);

// Combines the parts in `all` into `own`, a contiguous tensor of bytes. Part i begins at `offset` +
// i * `stride` bytes.
void combine_bits(c10d::ReduceOp::RedOpType op, const at::Tensor& all, std::int64_t parts,
                  std::int64_t stride, std::int64_t offset, const at::Tensor& own);

// Throws invalid_argument unless all tensors are dense and have one dtype.
void check_tensors(const char* operation, const std::vector<at::Tensor>& tensors);
const at::Tensor& only(const char* operation, const std::vector<at::Tensor>& tensors);

// One tensor that holds all of `parts`, one after the other. It aliases them if they are contiguous
// in memory in this order.
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
