// The hook that every operation passes through (decision 8). Dispatchers run, record or time
// operations.
#pragma once

#include <functional>
#include <span>
#include <string_view>

#include "shoal/runtime/tensor/tensor.h"

namespace shoal::nn {

// The tensors that an operation reads and writes. Optional operands may be undefined.
struct Operation {
  std::string_view name;  // for example "linear"; valid during the call
  std::span<const Tensor> inputs;
  std::span<const Tensor> outputs;
};

// Called only from the compute thread.
class Dispatcher {
 public:
  virtual ~Dispatcher() = default;
  virtual void run(const Operation& operation, const std::function<void()>& body) = 0;
};

// Runs each operation immediately.
class DirectDispatcher final : public Dispatcher {
 public:
  void run(const Operation& operation, const std::function<void()>& body) override;
};

}  // namespace shoal::nn
