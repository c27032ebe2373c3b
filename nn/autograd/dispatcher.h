// Where every operation passes (decision 8): run it, or also record or time it.
#pragma once

#include <functional>
#include <span>
#include <string_view>

#include "shoal/runtime/tensor/tensor.h"

namespace shoal::nn {

// What an operation touches. Tensors may be undefined (an optional operand).
struct Operation {
  std::string_view name;  // "linear", "attention.backward"; lives for the call
  std::span<const Tensor> inputs;
  std::span<const Tensor> outputs;
};

// Called by the one thread that computes.
class Dispatcher {
 public:
  virtual ~Dispatcher() = default;
  virtual void run(const Operation& operation, const std::function<void()>& body) = 0;
};

// Runs each operation at once.
class DirectDispatcher final : public Dispatcher {
 public:
  void run(const Operation& operation, const std::function<void()>& body) override;
};

}  // namespace shoal::nn
