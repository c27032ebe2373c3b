// State that a forward pass carries: kernels, memory, mode, tape, random coordinates, dispatcher.
// It is passed explicitly; there are no thread-locals. One per rank; the tape and random
// coordinates change between microbatches.
#pragma once

#include <functional>
#include <initializer_list>
#include <map>
#include <span>
#include <vector>

#include "shoal/nn/autograd/function.h"

namespace shoal::kernels {
class Kernels;
struct RandomSite;
struct StepState;
}  // namespace shoal::kernels

namespace shoal::nn {

class Dispatcher;
class WeightBranch;

enum class Mode { train, evaluate };  // evaluate: no dropout

struct RandomCoordinates {  // which random numbers dropout draws
  std::uint64_t seed = 42;
  const kernels::StepState* state = nullptr;
  std::uint32_t sample_first = 0, sample_stride = 1;  // of the batch being computed
};

// The slice of the batch that activations between modules hold. Parallelism may split sequences.
struct ActivationCoordinates {
  std::int64_t first_position = 0;  // of row 0 of every sample
};

class Context {  // one per rank and thread
 public:
  // All arguments must outlive the context.
  Context(kernels::Kernels& kernels, MemoryResource& memory, Dispatcher& dispatcher);

  kernels::Kernels& kernels() const { return kernels_; }
  MemoryResource& memory() const { return memory_; }
  Dispatcher& dispatcher() const { return dispatcher_; }

  Mode mode = Mode::train;
  Stream stream;                   // the kernels' stream unless it was replaced
  Tape* tape = nullptr;            // null: no gradients
  WeightBranch* branch = nullptr;  // queue for weight gradients in backward; null: `stream`
  RandomCoordinates random;
  ActivationCoordinates activation;

  bool training() const { return mode == Mode::train; }
  // An uninitialised activation.
  Tensor empty(const Shape& shape, DType dtype, MemoryTag tag = MemoryTag::activations) const;
  // Copies host values to the kernels' device, queued on `stream`. `values` may be freed on return.
  Tensor upload(const void* values, const Shape& shape, DType dtype,
                MemoryTag tag = MemoryTag::data) const;
  // `tensor` itself if the kernels can read it; otherwise a copy of the host tensor on their
  // device.
  Tensor to_device(const Tensor& tensor) const;
  // Host copies of immutable uploaded tensors, keyed by device address. Reading one (host_copy())
  // needs no synchronization.
  std::map<const void*, Tensor> host_copies;
  Tensor host_copy(const Tensor& tensor) const;  // undefined if there is none
  // The value of a one-element tensor (f32, f64 or i32). On a device, waits for work queued on
  // `stream`.
  double read(const Tensor& scalar) const;
  // Runs `body` through the dispatcher. Either list may contain undefined tensors.
  void run(std::string_view name, std::initializer_list<Tensor> inputs,
           std::initializer_list<Tensor> outputs, const std::function<void()>& body) const;

  // Every differentiable operation calls this before its kernels. True if the operation must be
  // recorded: there is a tape, and an input or a trainable parameter needs a gradient. Without a
  // tape, the parameters are noted for an enclosing checkpoint().
  bool records(std::span<const Value> inputs, std::span<Parameter* const> parameters);
  // If set, parameters used without a tape are appended here (checkpoint() sets it).
  std::vector<Parameter*>* noted_uses = nullptr;

  // Coordinates of the next random operation in the module with this path hash. The k-th call in a
  // forward pass gets ordinal k. Call begin_forward() once per forward pass; checkpoint() saves and
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
