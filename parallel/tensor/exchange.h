// Where activations pass between what each rank holds and what the group computes on. Two
// differentiable operations, each the other's backward:
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

// --- for Functions that compute meanwhile ---------------------------------------------------

// One in flight; holds its tensors. Dropped without wait() (an exception), it waits.
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
  // What is queued on the context's stream from now on waits for it; on the host's, the caller
  // does. Throws the communicator's Errors. Once.
  Tensor wait(nn::Context& context);

 private:
  Tensor result_, source_;
  collectives::WorkPtr work_;  // null: nothing to do
};
// local -> whole; under `none` the tensor itself.
Exchange begin_gather(nn::Context& context, const TensorParallel& group, Tensor local);
// Partial sums of the whole -> local; in place where nobody else holds them and nothing is cut.
Exchange begin_reduce(nn::Context& context, const TensorParallel& group, Tensor whole);

// Of each sample, no gradient: ids, targets, masks. `batch`: [B, ..] -> [tp·B, ..]; else unchanged.
// Host tensors stay in host memory.
Tensor gather_samples(nn::Context& context, const TensorParallel& group, const Tensor& own);
// Of an AttentionInput, on the kernels' device: what a layer computes the group's samples with. The
// first of a microbatch's layers gathers where of_group keeps it for the others.
nn::GroupAttentionInput gather_input(nn::Context& context, const TensorParallel& group,
                                     const nn::AttentionInput& own);
// An activation in memory that the ranks of a host share, so that exchanging it copies nothing.
Tensor exchange_memory(nn::Context& context, const TensorParallel& group, const Shape& shape,
                       DType dtype);

}  // namespace shoal::parallel
