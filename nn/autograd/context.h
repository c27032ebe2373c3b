// What a forward carries: kernels, memory, mode, tape, random coordinates, dispatcher. Passed down
// explicitly; there are no thread-locals. One a rank; between microbatches change tape and random.
#pragma once

#include <functional>
#include <initializer_list>
#include <map>
#include <span>
#include <vector>

#include "shoal/kernels/kernels.h"
#include "shoal/nn/autograd/device_values.h"
#include "shoal/nn/autograd/dispatcher.h"
#include "shoal/nn/autograd/tape.h"
#include "shoal/nn/autograd/weight_branch.h"

namespace shoal::nn {

enum class Mode { train, evaluate };

struct RandomCoordinates {
  std::uint64_t seed = 42;
  const kernels::StepState* state = nullptr;
  std::uint32_t sample_first = 0, sample_stride = 1;  // of the batch being computed
};

// Which part of a batch the activations between modules are: parallelism may split sequences.
struct ActivationCoordinates {
  std::int64_t first_position = 0;  // of row 0 of every sample
};

class Context {
 public:
  Context(kernels::Kernels& kernels, MemoryResource& memory, Dispatcher& dispatcher)
      : stream(kernels.stream()), kernels_(kernels), memory_(memory), dispatcher_(dispatcher) {}

  kernels::Kernels& kernels() const { return kernels_; }
  MemoryResource& memory() const { return memory_; }
  Dispatcher& dispatcher() const { return dispatcher_; }

  Mode mode = Mode::train;
  Stream stream;                   // the kernels' own, unless somebody sets another
  Tape* tape = nullptr;            // null: no gradients
  WeightBranch* branch = nullptr;  // where backward queues gradients of weights; null: on `stream`
  RandomCoordinates random;
  ActivationCoordinates activation;

  bool training() const { return mode == Mode::train; }
  // An activation, uninitialised.
  Tensor empty(const Shape& shape, DType dtype, MemoryTag tag = MemoryTag::activations) const;
  // Host values in memory of the kernels' device, queued on `stream`; they may go when it returns.
  Tensor upload(const void* values, const Shape& shape, DType dtype,
                MemoryTag tag = MemoryTag::data) const;
  // `tensor` itself where kernels can read it; a host tensor of a device's kernels: a copy there.
  Tensor to_device(const Tensor& tensor) const;
  // What the host has of tensors that it has given to a device and that stay as they are, by where
  // they begin there: who reads one on the host need not wait for it (host_copy()).
  std::map<const void*, Tensor> host_copies;
  Tensor host_copy(const Tensor& tensor) const;  // undefined: there is none
  // The one number of a tensor (f32, f64 or i32). On a device it waits for what is queued.
  double read(const Tensor& scalar) const { return read_scalar(scalar, stream); }
  // Through the dispatcher. Undefined tensors are allowed in both lists.
  void run(std::string_view name, std::initializer_list<Tensor> inputs,
           std::initializer_list<Tensor> outputs, const std::function<void()>& body) const;

  // Asked by each differentiable operation before its kernels: must it be recorded? True when there
  // is a tape and an input or a trainable parameter wants a gradient. Without a tape, the
  // parameters are noted for an enclosing checkpoint().
  bool records(std::span<const Value> inputs, std::span<Parameter* const> parameters);
  // While set, parameters used without a tape are appended (checkpoint() sets it).
  std::vector<Parameter*>* noted_uses = nullptr;

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
