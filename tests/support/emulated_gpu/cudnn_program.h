// A graph of cuDNN's operations that runs one operation after another.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cudnn_graph.h"

namespace shoal::emulated_gpu {

struct CudnnTensor {
  std::int64_t uid = 0;
  cudnnDataType_t type = CUDNN_DATA_FLOAT;
  std::array<std::int64_t, 4> sizes{}, strides{};  // [batch, heads, rows, columns], elements
  std::int64_t alignment = 1;                      // bytes
  bool is_virtual = false, by_value = false;
  // Element offsets where batch rows begin and where the last one ends; null: the first stride
  // decides.
  std::shared_ptr<const CudnnTensor> ragged;

  bool same_as(const CudnnTensor& other) const;
};

struct CudnnOperation {
  enum class Kind : std::uint8_t { matmul, pointwise, reduction, reshape };
  Kind kind = Kind::pointwise;
  cudnnPointwiseMode_t mode = CUDNN_POINTWISE_ADD;
  cudnnReduceTensorOp_t reduction = CUDNN_REDUCE_TENSOR_ADD;
  std::int64_t axis = -1;
  CudnnTensor x, y;                                 // matmul: y = x·b
  std::optional<CudnnTensor> b, t;                  // t selects x where true, else b
  std::optional<CudnnTensor> rows, columns, inner;  // limits of a matmul, i32 [batch, 1, 1, 1]

  std::string complaint() const;  // why sizes or types do not fit; empty: they do
};

// The tensors that a call passes.
struct CudnnPointers {
  std::map<std::int64_t, void*> memory;  // device pointers
  std::map<std::int64_t, float> values;  // scalars passed by value
};

class CudnnProgram {
 public:
  // Return an error text, or an empty string.
  std::string add(const CudnnOperation& operation);
  std::string bind(std::int64_t uid, void* pointer, CudnnPointers& call) const;
  std::string missing(const CudnnPointers& call) const;

  bool is_gradient() const;
  std::int64_t workspace() const;  // bytes
  void run(const CudnnPointers& call) const;

 private:
  std::string note(const CudnnTensor& tensor);

  std::vector<CudnnOperation> operations_;
  std::map<std::int64_t, CudnnTensor> tensors_;
};

}  // namespace shoal::emulated_gpu
