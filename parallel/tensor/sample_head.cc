#include "shoal/parallel/tensor/sample_head.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "shoal/kernels/kernels.h"
#include "shoal/parallel/tensor/exchange.h"
#include "shoal/runtime/base/error.h"

namespace shoal::parallel {
namespace {

// A host copy of the targets with those outside samples [first, last) blanked.
Tensor targets_of(nn::Context& context, const Tensor& given, std::int64_t first,
                  std::int64_t last) {
  SHOAL_CHECK(given.dtype() == DType::i32 || given.dtype() == DType::f32,
              "targets are {}, not i32 or f32", to_string(given.dtype()));
  const Tensor targets = host_values(context, given);
  Tensor own = context.kernels().device().is_cpu()
                   ? Tensor::empty(targets.shape(), targets.dtype(), context.memory(),
                                   MemoryTag::activations, context.stream)
                   : host_tensor(targets.shape(), targets.dtype());
  const std::int64_t each = targets.count() / std::max<std::int64_t>(targets.shape()[0], 1);
  const auto blank = [&](auto* to, auto none) {
    std::memcpy(to, targets.const_view().data, targets.bytes());
    std::fill(to, to + first * each, none);
    std::fill(to + last * each, to + targets.count(), none);
  };
  if (targets.dtype() == DType::i32)
    blank(own.data<std::int32_t>(), std::int32_t{-100});
  else
    blank(own.data<float>(), std::numeric_limits<float>::quiet_NaN());
  return own;
}

}  // namespace

nn::Value SharedSampleHead::logits(nn::Context& context, const nn::Value& hidden,
                                   const nn::ChainInput& input) {
  return whole_->logits(context, enter(context, group_, hidden), input);
}

nn::LossOutput SharedSampleHead::forward(nn::Context& context, const nn::Value& hidden,
                                         const nn::ChainInput& input) {
  const std::int64_t samples = input.ids.shape()[0];
  nn::ChainInput own = input;
  own.targets = targets_of(context, input.targets, samples * group_.rank() / group_.size(),
                           samples * (group_.rank() + 1) / group_.size());
  const nn::Value sequences = enter(context, group_, hidden);
  nn::LossOutput out;
  {
    const GroupCoordinates coordinates(context, group_, samples);
    out = whole_->forward(context, sequences, own);
  }
  const Tensor sum = exchange_memory(context, group_, {1}, DType::f32);
  context.run("sample_head.loss", {out.loss_sum}, {sum}, [&] {
    group_.tp
        .all_reduce(out.loss_sum.const_view().data, sum.view().data, 1, DType::f32,
                    collectives::ReduceOp::sum, context.stream)
        ->block_stream(context.stream);
  });
  out.loss_sum = sum;
  std::int64_t targets = out.targets;
  group_.tp.host()
      .all_reduce(&targets, &targets, 1, DType::i64, collectives::ReduceOp::sum)
      ->wait();
  out.targets = targets;
  return out;
}

}  // namespace shoal::parallel
