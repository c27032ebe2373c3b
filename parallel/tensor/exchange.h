// Exchanges activations between the ranks' local parts and the tensors that the group computes
// with. Two differentiable operations, each the other's backward:
//
//   split     enter (local -> whole)             leave (partial sums of the whole -> local)
//   none      nothing; backward all_reduce       all_reduce; backward nothing
//   sequence  all_gather along T                 reduce_scatter along T
//   batch     all_gather along the first dim     reduce_scatter along the first dim
//
// local: none [B, T, C], sequence [B, T/tp, C], batch [B, T, C]; whole: [B, T, C], but [tp·B, T, C]
// under batch. Every rank calls with the same shapes. 16-bit activations are summed in f32 and
// rounded once.
#pragma once

#include "shoal/nn/autograd/context.h"
#include "shoal/nn/layers/kinds.h"
#include "shoal/parallel/tensor/tensor_parallel.h"

namespace shoal::parallel {

nn::Value enter(nn::Context& context, const TensorParallel& group, const nn::Value& x);
nn::Value leave(nn::Context& context, const TensorParallel& group, nn::Value x);

// --- for Functions that overlap computation with an exchange -------------------------------

// A running exchange, which holds its tensors. Its destructor waits if wait() was not called.
class Exchange {
 public:
  Exchange() = default;
  Exchange(Tensor result, Tensor source, collectives::WorkPtr work)
      : result_(std::move(result)), source_(std::move(source)), work_(std::move(work)) {}
  ~Exchange();
  Exchange(Exchange&&) = default;
  Exchange& operator=(Exchange&&) = delete;
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;
  // Makes later work on the context's stream wait for the exchange; on the host, the caller waits.
  // Throws the communicator's Errors. Call once.
  Tensor wait(nn::Context& context);

 private:
  Tensor result_, source_;
  collectives::WorkPtr work_;  // null: nothing to do
};
// local -> whole; under `none` the same tensor.
Exchange begin_gather(nn::Context& context, const TensorParallel& group, Tensor local);
// Partial sums of the whole -> local. Works in place under `none` if the tensor has no other
// reference.
Exchange begin_reduce(nn::Context& context, const TensorParallel& group, Tensor whole);

// Gathers per-sample data without gradients: ids, targets, masks. `batch`: [B, ..] -> [tp·B, ..];
// otherwise unchanged. Host tensors stay in host memory.
Tensor gather_samples(nn::Context& context, const TensorParallel& group, const Tensor& own);
// The AttentionInput of the group's samples, on the kernels' device, without caches. Throws
// invalid_argument for a cache where activations are split: it has only the rank's own samples. The
// first layer that gets these tensors in a forward pass gathers them; Context::cache() keeps the
// result for the others.
nn::AttentionInput gather_input(nn::Context& context, const TensorParallel& group,
                                const nn::AttentionInput& own);
// An activation in memory that the ranks of a host share, so that exchanging it copies nothing.
Tensor exchange_memory(nn::Context& context, const TensorParallel& group, const Shape& shape,
                       DType dtype);

}  // namespace shoal::parallel
