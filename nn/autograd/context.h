// What a forward carries: kernels, memory, mode, tape, random coordinates, dispatcher. Passed down
// explicitly; there are no thread-locals. One Context a rank and microbatch in flight.
#pragma once

#include <functional>
#include <map>
#include <span>
#include <string_view>

#include "shoal/kernels/kernels.h"
#include "shoal/nn/autograd/tape.h"

namespace shoal::nn {

// Every operation passes here (decision 8): run it, or also record what it touched, for memory
// planning, fusion and capture.
struct Operation {
  std::string_view name;
  std::span<const Tensor> inputs;
  std::span<const Tensor> outputs;
};

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

// Runs each operation and keeps (name, storages, sizes, order): first and last use of every storage.
class RecordingDispatcher;  // recording_dispatcher.h

enum class Mode { train, evaluate };

struct RandomCoordinates {
  std::uint64_t seed = 42;
  const kernels::StepState* state = nullptr;
  std::uint32_t sample_first = 0, sample_stride = 1;  // of the batch being computed
};

class Context {
 public:
  Context(kernels::Kernels& kernels, MemoryResource& memory, Dispatcher& dispatcher)
      : kernels_(kernels), memory_(memory), dispatcher_(dispatcher) {}

  kernels::Kernels& kernels() const { return kernels_; }
  MemoryResource& memory() const { return memory_; }

  Mode mode = Mode::train;
  Stream stream{};
  Tape* tape = nullptr;  // null: no gradients
  RandomCoordinates random;

  bool training() const { return mode == Mode::train; }
  // An activation, uninitialised.
  Tensor empty(const Shape& shape, DType dtype, MemoryTag tag = MemoryTag::activations) const;
  void run(const Operation& operation, const std::function<void()>& body) const;

  // The coordinates of the next random operation of the module with this path hash: its k-th call
  // in this forward gets ordinal k. Call begin_forward() once a forward; checkpoint() saves and
  // restores the ordinals around recomputation.
  kernels::RandomSite next_site(std::uint32_t path_hash);
  void begin_forward() { ordinals_.clear(); }
  using Ordinals = std::map<std::uint32_t, std::uint32_t>;
  const Ordinals& ordinals() const { return ordinals_; }
  void set_ordinals(Ordinals ordinals) { ordinals_ = std::move(ordinals); }

 private:
  kernels::Kernels& kernels_;
  MemoryResource& memory_;
  Dispatcher& dispatcher_;
  Ordinals ordinals_;
};

}  // namespace shoal::nn
