#include "shoal/parallel/tensor/exchange.h"

#include <utility>
#include <vector>

#include "shoal/collectives/call.h"
#include "shoal/kernels/kernels.h"
#include "shoal/nn/autograd/tape.h"
#include "shoal/runtime/base/error.h"

namespace shoal::parallel {
namespace {

using collectives::Communicator;
using collectives::ReduceOp;
using collectives::WorkPtr;
using nn::Context;
using nn::Value;

Shape scaled(const Shape& shape, int dim, std::int64_t factor) {
  return shape.with(dim, shape[dim] * factor);
}

const std::byte* at(const void* data, std::int64_t elements, DType dtype) {
  return static_cast<const std::byte*>(data) + static_cast<std::size_t>(elements) * size_of(dtype);
}
std::byte* at(void* data, std::int64_t elements, DType dtype) {
  return static_cast<std::byte*>(data) + static_cast<std::size_t>(elements) * size_of(dtype);
}

// A sample's positions are contiguous, so each sample is one call; the group runs the calls
// together.
template <class Call>
WorkPtr each_sample(Communicator& tp, std::int64_t samples, const Call& call) {
  tp.begin_group();
  for (std::int64_t b = 0; b < samples; ++b) call(b);
  return tp.end_group();
}

void check_rank(const Tensor& tensor, ActivationSplit split) {
  SHOAL_CHECK(tensor.shape().rank() >= (split == ActivationSplit::sequence ? 3 : 1),
              "an activation {} has no dimension to split by {}", to_string(tensor.shape()),
              to_string(split));
}

class EnterFunction final : public nn::Function {
 public:
  explicit EnterFunction(const TensorParallel& group) : group_(group) {}
  std::string_view name() const override { return "tensor_parallel.enter"; }
  std::vector<Tensor> backward(nn::BackwardContext& backward_context,
                               std::span<Tensor> output_gradients) override {
    Context& context = backward_context.context();
    return {begin_reduce(context, group_, std::move(output_gradients[0])).wait(context)};
  }

 private:
  TensorParallel group_;
};

class LeaveFunction final : public nn::Function {
 public:
  explicit LeaveFunction(const TensorParallel& group) : group_(group) {}
  std::string_view name() const override { return "tensor_parallel.leave"; }
  std::vector<Tensor> backward(nn::BackwardContext& backward_context,
                               std::span<Tensor> output_gradients) override {
    Context& context = backward_context.context();
    return {begin_gather(context, group_, std::move(output_gradients[0])).wait(context)};
  }

 private:
  TensorParallel group_;
};

}  // namespace

Exchange::~Exchange() {
  // The buffers belong to the work until it is done. Its error is already being thrown, or a later
  // call throws it.
  if (work_) try {
      work_->wait();
    } catch (...) {  // NOLINT(bugprone-empty-catch)
    }
}

Tensor Exchange::wait(Context& context) {
  if (work_) {
    const WorkPtr work = std::move(work_);
    context.run("tensor_parallel.wait", {source_}, {result_},
                [&] { work->block_stream(context.stream); });
    source_ = {};
  }
  return std::move(result_);
}

Tensor exchange_memory(Context& context, const TensorParallel& group, const Shape& shape,
                       DType dtype) {
  return Tensor::empty(shape, dtype, group.tp.memory_resource(), MemoryTag::activations,
                       context.stream);
}

Exchange begin_gather(Context& context, const TensorParallel& group, Tensor local) {
  if (group.size() == 1 || group.split == ActivationSplit::none) return {std::move(local), {}, {}};
  check_rank(local, group.split);
  const bool sequence = group.split == ActivationSplit::sequence;
  const Shape& shape = local.shape();
  const DType dtype = local.dtype();
  const Tensor whole =
      exchange_memory(context, group, scaled(shape, sequence ? 1 : 0, group.size()), dtype);
  if (local.count() == 0) return {whole, {}, {}};
  WorkPtr work;
  context.run("tensor_parallel.gather", {local}, {whole}, [&] {
    const void* from = local.const_view().data;
    void* to = whole.view().data;
    if (!sequence) {
      work = group.tp.all_gather(from, to, local.count(), dtype, context.stream);
      return;
    }
    const std::int64_t count = local.count() / shape[0];
    work = each_sample(group.tp, shape[0], [&](std::int64_t b) {
      group.tp.all_gather(at(from, b * count, dtype), at(to, b * count * group.size(), dtype),
                          count, dtype, context.stream);
    });
  });
  return {whole, std::move(local), std::move(work)};
}

Exchange begin_reduce(Context& context, const TensorParallel& group, Tensor whole) {
  if (group.size() == 1) return {std::move(whole), {}, {}};
  check_rank(whole, group.split);
  const Shape& shape = whole.shape();
  const DType dtype = whole.dtype();
  Tensor local;
  if (group.split == ActivationSplit::none) {
    local = nn::may_overwrite(whole) ? whole : exchange_memory(context, group, shape, dtype);
  } else {
    const int dim = group.split == ActivationSplit::sequence ? 1 : 0;
    const std::int64_t own =
        divided(shape[dim], group, dim == 1 ? "positions" : "samples of the group", "");
    local = exchange_memory(context, group, shape.with(dim, own), dtype);
  }
  if (whole.count() == 0) return {local, {}, {}};
  WorkPtr work;
  context.run("tensor_parallel.reduce", {whole}, {local}, [&] {
    const void* from = whole.const_view().data;
    void* to = local.view().data;
    const std::int64_t count = local.count();
    if (group.split == ActivationSplit::none) {
      work = group.tp.all_reduce(from, to, count, dtype, ReduceOp::sum, context.stream);
    } else if (group.split == ActivationSplit::batch) {
      work = group.tp.reduce_scatter(from, to, count, dtype, ReduceOp::sum, context.stream);
    } else {
      const std::int64_t part = count / shape[0];
      work = each_sample(group.tp, shape[0], [&](std::int64_t b) {
        group.tp.reduce_scatter(at(from, b * part * group.size(), dtype), at(to, b * part, dtype),
                                part, dtype, ReduceOp::sum, context.stream);
      });
    }
  });
  return {local, std::move(whole), std::move(work)};
}

Value enter(Context& context, const TensorParallel& group, const Value& x) {
  const bool records = context.records({&x, 1}, {});
  const Tensor whole = begin_gather(context, group, x.tensor).wait(context);
  if (!records) return Value{whole};
  return context.tape->record(std::make_unique<EnterFunction>(group), {&x, 1}, {}, {whole})[0];
}

Value leave(Context& context, const TensorParallel& group, Value x) {
  const bool records = context.records({&x, 1}, {});
  const Value from{{}, x.tape, x.node, x.slot};
  const Tensor local = begin_reduce(context, group, std::move(x.tensor)).wait(context);
  if (!records) return Value{local};
  return context.tape->record(std::make_unique<LeaveFunction>(group), {&from, 1}, {}, {local})[0];
}

Tensor gather_samples(Context& context, const TensorParallel& group, const Tensor& own) {
  if (!own.defined() || group.split != ActivationSplit::batch) return own;
  if (!own.device().is_cpu() || context.kernels().device().is_cpu())
    return begin_gather(context, group, own).wait(context);
  Communicator& host = group.tp.host();
  const Tensor all = Tensor::empty(scaled(own.shape(), 0, group.size()), own.dtype(),
                                   host.memory_resource(), MemoryTag::data);
  if (own.count() > 0)
    host.all_gather(own.const_view().data, all.view().data, own.count(), own.dtype())->wait();
  return all;
}

nn::AttentionInput gather_input(Context& context, const TensorParallel& group,
                                const nn::AttentionInput& own) {
  if (own.cache && group.split != ActivationSplit::none)
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("a key-value cache, and activations split by {}", to_string(group.split)),
        "generate with prescaled_batch and optimize = speed");
  struct Gathered {
    nn::AttentionInput own, whole;
  };
  auto& before = context.cache<std::vector<Gathered>>();
  for (const Gathered& gathered : before)
    if (same_memory(gathered.own.key_mask, own.key_mask) &&
        same_memory(gathered.own.sequences, own.sequences) &&
        same_memory(gathered.own.positions, own.positions))
      return gathered.whole;
  const auto whole = [&](const Tensor& tensor) {
    return group.uploads->to_device(context, gather_samples(context, group, tensor));
  };
  before.push_back(
      {own, {whole(own.key_mask), nullptr, whole(own.sequences), whole(own.positions)}});
  return before.back().whole;
}

}  // namespace shoal::parallel
