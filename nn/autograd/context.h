// State that a forward pass carries: kernels, memory, mode, tape, random coordinates, dispatcher.
//
//   // |x| of an f32 tensor in host memory, without a gradient
//   const Tensor sizes = context.empty(x.tensor.shape(), DType::f32);
//   context.run("abs", {x.tensor}, {sizes}, [&] {
//     const auto* const in = x.tensor.const_data<float>();
//     auto* const out = sizes.data<float>();
//     for (std::int64_t i = 0; i < sizes.count(); ++i) out[i] = std::abs(in[i]);
//   });
//
// It is passed explicitly; there are no thread-locals. Each computing thread has one, which no
// other thread uses. The tape and random coordinates change between microbatches. Only read() waits
// for the stream.
#pragma once

#include <any>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <span>
#include <typeindex>
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
  std::uint32_t sample_first = 0, sample_stride = 1;  // sample numbers of the current batch
};

// The positions that activations between modules hold (a slice under sequence parallelism).
struct ActivationCoordinates {
  std::int64_t first_position = 0;  // position of the first row of every sample
  // If activations [n, C] hold only some positions of samples with `length` positions: the row of
  // [B, length] of each, i32 [n] on the kernels' device. Its owner keeps it until backward.
  Tensor rows{};
  std::int64_t length = 0;
};

// The state of one forward pass, besides its input and tape. checkpoint() restores it to recompute.
struct ForwardState {
  Mode mode = Mode::train;
  RandomCoordinates random;
  ActivationCoordinates activation;
  float embedding_noise = 0;                        // alpha of noisy_embedding() (layers); 0: none
  std::map<std::uint32_t, std::uint32_t> ordinals;  // next_site()'s counters, by path hash
  using Cache = std::map<std::type_index, std::any>;
  std::shared_ptr<Cache> cached = std::make_shared<Cache>();  // values of Context::cache()
};

// Passed to the forward pass of each module.
class Context : public ForwardState {
 public:
  // All arguments must outlive the context.
  Context(kernels::Kernels& kernels, MemoryResource& memory, Dispatcher& dispatcher);

  kernels::Kernels& kernels() const { return kernels_; }
  MemoryResource& memory() const { return memory_; }
  Dispatcher& dispatcher() const { return dispatcher_; }

  Stream stream;                   // initially the kernels' stream
  Tape* tape = nullptr;            // null: no gradients
  WeightBranch* branch = nullptr;  // queue for weight gradients in backward; null: `stream`

  bool training() const { return mode == Mode::train; }
  // An uninitialised activation. Throws out_of_memory, as upload() and to_device() do.
  Tensor empty(const Shape& shape, DType dtype, MemoryTag tag = MemoryTag::activations) const;
  // Copies host values to the kernels' device, queued on `stream`. `values` may be freed on return.
  Tensor upload(const void* values, const Shape& shape, DType dtype,
                MemoryTag tag = MemoryTag::data) const;
  // `tensor` itself if the kernels can read it; otherwise a copy of the host tensor on their
  // device. Throws invalid_argument for a tensor of another device.
  Tensor to_device(const Tensor& tensor) const;
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
  // forward pass gets ordinal k.
  kernels::RandomSite next_site(std::uint32_t path_hash);
  // The value of type T that modules share during a forward pass; the first call makes a T{}. A
  // recomputation by checkpoint() gets the values of the pass that it repeats.
  template <typename T>
  T& cache() {
    std::any& value = (*cached)[typeid(T)];
    if (!value.has_value()) value.emplace<T>();
    return *std::any_cast<T>(&value);
  }
  // Call once per forward pass (of one microbatch).
  void begin_forward() {
    ordinals.clear();
    cached = std::make_shared<Cache>();
  }

 private:
  kernels::Kernels& kernels_;
  MemoryResource& memory_;
  Dispatcher& dispatcher_;
};

}  // namespace shoal::nn
