#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "shoal/kernels/kernels.h"
#include "shoal/kernels/matmul.h"
#include "shoal/nn/autograd/tape.h"
#include "shoal/nn/layers/functional_internal.h"
#include "shoal/parallel/tensor/exchange.h"
#include "shoal/parallel/tensor/vocabulary.h"
#include "shoal/runtime/base/error.h"

namespace shoal::parallel {
namespace {

using nn::Context;
using nn::Parameter;
using nn::Value;

constexpr std::int64_t kSliceBytes = std::int64_t{64} << 20;  // bytes of f32 logits per slice

// One forward of the head over the group's rows, with backward if wanted.
class LossPass {
 public:
  LossPass(Context& context, const TensorParallel& group, Parameter& weight, Parameter* bias,
           float soft_cap, const nn::LossOptions& options)
      : context_(context),
        group_(group),
        weight_(weight),
        bias_(bias),
        soft_cap_(soft_cap),
        options_(options) {}

  // x [.., C] and targets [..] cover the whole group. take() requires targets in host memory.
  void take(const Tensor& x, const Tensor& targets);
  void take_all(const Tensor& x, const Tensor& targets);
  void run(std::int64_t slice_rows, bool wants_dx, bool wants_dweight, bool wants_dbias);

  Tensor loss_sum();  // [1] f32
  std::int64_t targets() const { return count_; }
  Tensor dx(Context& context) { return dx_ ? dx_->wait(context) : Tensor(); }

 private:
  // A slice from start() to finish(): rows [first, first + count) of the rows that have a target.
  struct Slice {
    std::int64_t first = 0, count = 0;
    Tensor logits;  // [count, Vl] f32; finish() turns them into exponentials
    std::unique_ptr<Exchange> statistics;
  };
  Slice start(std::int64_t first, std::int64_t count, const Tensor& buffer);
  Tensor finish(Slice& slice, const Tensor& dlogits);
  void input_gradient(const Slice& slice, const Tensor& dlogits);
  void weight_gradient(const Slice& slice, const Tensor& dlogits);
  void bias_gradient(const Tensor& dlogits);
  void begin_dx_reduction();

  std::int64_t own() const { return weight_.shape()[0]; }
  std::int64_t channels() const { return weight_.shape()[1]; }

  Context& context_;
  TensorParallel group_;
  Parameter& weight_;
  Parameter* bias_;  // null: none
  float soft_cap_;   // LmHeadConfig::soft_cap
  nn::LossOptions options_;
  Shape whole_;                    // shape of the group's x
  Tensor x_, targets_;             // rows that have a target: [n, C], i32 [n]
  std::vector<std::int32_t> row_;  // row in the group's x; empty if every row has a target
  std::int64_t count_ = 0;
  Tensor losses_;   // [n] f32
  Tensor dx_rows_;  // [n, C]; plus a row of zeros if not every row has a target
  std::unique_ptr<Exchange> dx_;
};

// Skips rows without a target.
void LossPass::take(const Tensor& x, const Tensor& targets) {
  whole_ = x.shape();
  const std::int64_t rows = whole_.rows();
  std::vector<std::int32_t> valid, target;
  const std::int32_t* given = rows > 0 ? targets.const_data<std::int32_t>() : nullptr;
  for (std::int64_t i = 0; i < rows; ++i) {
    SHOAL_CHECK(given[i] < weight_.whole_shape()[0],
                "{}: target {} of row {} is outside the vocabulary of {}", weight_.name(), given[i],
                i, weight_.whole_shape()[0]);
    if (given[i] < 0) continue;
    valid.push_back(static_cast<std::int32_t>(i));
    target.push_back(given[i]);
  }
  count_ = static_cast<std::int64_t>(valid.size());
  if (count_ == rows) {
    x_ = x.reshaped({rows, channels()});
    targets_ = group_.uploads->to_device(context_, targets.reshaped({rows}));
    return;
  }
  if (count_ == 0) return;
  row_ = std::move(valid);
  const Tensor places = group_.uploads->upload(context_, row_.data(), {count_}, DType::i32);
  targets_ = group_.uploads->upload(context_, target.data(), {count_}, DType::i32);
  x_ = context_.empty({count_, channels()}, x.dtype());
  context_.run("vocabulary_loss.rows", {x, places}, {x_}, [&] {
    context_.kernels().embedding().embedding(places, x.reshaped({rows, channels()}), x_.view(),
                                             false, context_.stream);
  });
}

// Takes every row, including those without a target.
void LossPass::take_all(const Tensor& x, const Tensor& targets) {
  whole_ = x.shape();
  count_ = whole_.rows();
  x_ = x.reshaped({count_, channels()});
  targets_ = targets.reshaped({count_});
}

LossPass::Slice LossPass::start(std::int64_t first, std::int64_t count, const Tensor& buffer) {
  Slice slice{first, count, buffer.narrowed(0, 0, count), nullptr};
  const Tensor x = x_.narrowed(0, first, count), targets = targets_.narrowed(0, first, count);
  if (own() > 0)
    context_.run("vocabulary_loss.logits", {x, weight_.value}, {slice.logits}, [&] {
      kernels::MatmulArgs args;
      args.a = x;
      args.b = weight_.value;
      args.transpose_b = true;
      if (bias_) args.bias = bias_->value;
      args.c = slice.logits.view();
      context_.kernels().matmul().matmul(args, context_.stream);
    });
  const Tensor mine =
      exchange_memory(context_, group_, {count, kernels::kShardStatistics}, DType::f32);
  const Tensor all = exchange_memory(context_, group_,
                                     {group_.size(), count, kernels::kShardStatistics}, DType::f32);
  collectives::WorkPtr work;
  context_.run("vocabulary_loss.statistics", {slice.logits, targets}, {slice.logits, mine, all},
               [&] {
                 context_.kernels().loss().shard_statistics(slice.logits.view(), targets,
                                                            weight_.pieces()[0].whole[0], soft_cap_,
                                                            mine.view(), context_.stream);
                 work = group_.tp.all_gather(mine.const_view().data, all.view().data, mine.count(),
                                             DType::f32, context_.stream);
               });
  slice.statistics = std::make_unique<Exchange>(all, mine, std::move(work));
  return slice;
}

// Computes the losses of a slice. If `dlogits` is defined, returns their gradient in its memory.
Tensor LossPass::finish(Slice& slice, const Tensor& dlogits) {
  const Tensor all = slice.statistics->wait(context_);
  const Tensor loss = losses_.narrowed(0, slice.first, slice.count);
  Tensor gradient;
  if (dlogits.defined())
    gradient = dlogits.dtype() == DType::f32 ? slice.logits : dlogits.narrowed(0, 0, slice.count);
  kernels::ShardCrossEntropyArgs args;
  args.exponentials = slice.logits.view();
  args.statistics = all;
  args.rank = group_.rank();
  args.targets = targets_.narrowed(0, slice.first, slice.count);
  args.first_class = weight_.pieces()[0].whole[0];
  args.classes = weight_.whole_shape()[0];
  args.soft_cap = soft_cap_;
  args.label_smoothing = options_.label_smoothing;
  args.loss_scale = options_.loss_scale;
  args.state = options_.state;
  args.token_loss = loss.view();
  if (gradient.defined()) args.dlogits = gradient.view();
  context_.run("vocabulary_loss.losses", {slice.logits, all, targets_}, {loss, gradient},
               [&] { context_.kernels().loss().shard_cross_entropy(args, context_.stream); });
  return gradient;
}

// The host sums in f64; a device's sum stays on the device.
Tensor LossPass::loss_sum() {
  if (context_.kernels().device().is_cpu()) {
    double sum = 0;
    for (std::int64_t i = 0; i < count_; ++i)
      sum += static_cast<double>(losses_.const_data<float>()[i]);
    const auto rounded = static_cast<float>(sum);
    return context_.upload(&rounded, {1}, DType::f32);
  }
  const Tensor sum = context_.empty({1}, DType::f32);
  context_.run("vocabulary_loss.sum", {losses_}, {sum}, [&] {
    if (count_ == 0)
      context_.kernels().elementwise().fill(sum.view(), 0, context_.stream);
    else
      context_.kernels().matmul().sum_rows(losses_.reshaped({count_, 1}), sum.view(), false,
                                           context_.stream);
  });
  return sum;
}

void LossPass::input_gradient(const Slice& slice, const Tensor& dlogits) {
  const Tensor dx = dx_rows_.narrowed(0, slice.first, slice.count);
  context_.run("vocabulary_loss.backward_input", {dlogits, weight_.value}, {dx}, [&] {
    if (own() == 0) {
      context_.kernels().elementwise().fill(dx.view(), 0, context_.stream);
      return;
    }
    kernels::MatmulArgs args;
    args.a = dlogits;
    args.b = weight_.value;
    args.c = dx.view();
    context_.kernels().matmul().matmul(args, context_.stream);
  });
}

void LossPass::weight_gradient(const Slice& slice, const Tensor& dlogits) {
  const bool accumulate = weight_.accumulate();
  if (own() == 0) return;
  const Tensor x = x_.narrowed(0, slice.first, slice.count);
  context_.run("vocabulary_loss.backward_weight", {dlogits, x}, {weight_.gradient}, [&] {
    kernels::MatmulArgs args;
    args.a = dlogits;
    args.transpose_a = true;
    args.b = x;
    args.accumulate = accumulate;
    args.c = weight_.gradient.view();
    context_.kernels().matmul().matmul(args, context_.stream);
  });
}

void LossPass::bias_gradient(const Tensor& dlogits) {
  const bool accumulate = bias_->accumulate();
  if (own() == 0) return;
  context_.run("vocabulary_loss.backward_bias", {dlogits}, {bias_->gradient}, [&] {
    context_.kernels().matmul().sum_rows(dlogits, bias_->gradient.view(), accumulate,
                                         context_.stream);
  });
}

// Puts gradient rows back at their original positions; rows without a target get zeros.
void LossPass::begin_dx_reduction() {
  Tensor dx;
  if (row_.empty() && count_ > 0) {
    dx = std::exchange(dx_rows_, {}).reshaped(whole_);
  } else {
    dx = exchange_memory(context_, group_, whole_, weight_.value.dtype());
    if (row_.empty()) {
      context_.run("vocabulary_loss.rows", {}, {dx}, [&] {
        if (dx.count() > 0) context_.kernels().elementwise().fill(dx.view(), 0, context_.stream);
      });
    } else {
      std::vector<std::int32_t> from(static_cast<std::size_t>(whole_.rows()),
                                     static_cast<std::int32_t>(count_));
      for (std::size_t i = 0; i < row_.size(); ++i)
        from[static_cast<std::size_t>(row_[i])] = static_cast<std::int32_t>(i);
      const Tensor sources =
          group_.uploads->upload(context_, from.data(), {whole_.rows()}, DType::i32);
      context_.run("vocabulary_loss.rows", {dx_rows_, sources}, {dx}, [&] {
        auto& kernels = context_.kernels();
        kernels.elementwise().fill(dx_rows_.narrowed(0, count_, 1).view(), 0, context_.stream);
        kernels.embedding().embedding(sources, dx_rows_,
                                      dx.reshaped({whole_.rows(), channels()}).view(), false,
                                      context_.stream);
      });
    }
  }
  dx_ = std::make_unique<Exchange>(begin_reduce(context_, group_, std::move(dx)));
}

void LossPass::run(std::int64_t slice_rows, bool wants_dx, bool wants_dweight, bool wants_dbias) {
  if (count_ == 0) {
    if (wants_dx) begin_dx_reduction();
    for (Parameter* parameter : {wants_dweight ? &weight_ : nullptr, wants_dbias ? bias_ : nullptr})
      if (parameter && !parameter->accumulate() && parameter->gradient.count() > 0)
        context_.run("zero", {}, {parameter->gradient}, [&] {
          context_.kernels().elementwise().fill(parameter->gradient.view(), 0, context_.stream);
        });
    return;
  }
  // Sized by the widest shard, so that all ranks use equal slices.
  const std::int64_t widest = (weight_.whole_shape()[0] + group_.size() - 1) / group_.size();
  if (slice_rows <= 0)
    slice_rows = std::max<std::int64_t>(kSliceBytes / (std::max<std::int64_t>(widest, 1) * 4), 1);
  const std::int64_t slices = (count_ + slice_rows - 1) / slice_rows;
  slice_rows = (count_ + slices - 1) / slices;

  const bool backward = wants_dx || wants_dweight || wants_dbias;
  std::array<Tensor, 2> buffers;
  for (std::size_t i = 0; i < (slices > 1 ? 2u : 1u); ++i)
    buffers[i] = context_.empty({slice_rows, own()}, DType::f32, MemoryTag::workspace);
  const DType dtype = x_.dtype();
  Tensor dlogits;  // f32: the logits' own memory
  if (backward)
    dlogits = dtype == DType::f32
                  ? buffers[0]
                  : context_.empty({slice_rows, own()}, dtype, MemoryTag::workspace);
  losses_ = context_.empty({count_}, DType::f32);
  if (wants_dx)
    dx_rows_ =
        exchange_memory(context_, group_, {count_ + (row_.empty() ? 0 : 1), channels()}, dtype);

  Slice now = start(0, std::min(slice_rows, count_), buffers[0]);
  for (std::int64_t k = 0; k < slices; ++k) {
    const std::int64_t next_first = now.first + now.count;
    Slice next;
    if (next_first < count_)
      next = start(next_first, std::min(slice_rows, count_ - next_first),
                   buffers[static_cast<std::size_t>((k + 1) % 2)]);
    const Tensor gradient = finish(now, dlogits);
    if (wants_dx) input_gradient(now, gradient);
    if (wants_dx && k + 1 == slices) begin_dx_reduction();  // overlaps the last weight gradient
    if (wants_dweight) weight_gradient(now, gradient);
    if (wants_dbias) bias_gradient(gradient);
    now = std::move(next);
  }
}

// y [N, M] += bias [N] in every column.
void add_to_rows(Context& context, const Tensor& bias, const Tensor& y) {
  const Tensor ones = context.empty({1, y.shape()[1]}, y.dtype(), MemoryTag::workspace);
  context.kernels().elementwise().fill(ones.view(), 1, context.stream);
  kernels::MatmulArgs args;
  args.a = bias.reshaped({bias.count(), 1});
  args.b = ones;
  args.accumulate = true;
  args.c = y.view();
  context.kernels().matmul().matmul(args, context.stream);
}

}  // namespace

VocabularyParallelHead::VocabularyParallelHead(const TensorParallel& group,
                                               const nn::LmHeadConfig& config)
    : group_(group), weight_(config.tied), soft_cap_(config.soft_cap) {
  const std::int64_t vocabulary = weight_ ? weight_->whole_shape()[0] : config.vocabulary;
  const VocabularyRows own = vocabulary_rows(vocabulary, group.rank(), group.size());
  if (weight_) {
    SHOAL_CHECK(weight_->pieces().size() == 1 && weight_->pieces()[0].whole[0] == own.first &&
                    weight_->shape()[0] == own.count,
                "{} is not rank {}'s part of a vocabulary", weight_->name(), group.rank());
    share_parameter(config.weight, weight_);
  } else {
    weight_ = add_parameter(config.weight, {own.count, config.channels},
                            {nn::Initializer::Kind::normal, config.std});
    weight_->set_part({vocabulary, config.channels},
                      {{{own.count, config.channels}, {0, 0}, {own.first, 0}}});
  }
  if (config.bias) {
    bias_ = add_parameter("bias", {own.count}, {nn::Initializer::Kind::zeros, 0}, false);
    bias_->set_part({vocabulary}, {{{own.count}, {0}, {own.first}}});
  } else if (!config.constant_bias.empty()) {
    bias_ = add_parameter(config.constant_bias, {1, own.count}, {nn::Initializer::Kind::zeros, 0},
                          false);
    bias_->set_part({1, vocabulary}, {{{1, own.count}, {0, 0}, {0, own.first}}});
    bias_->set_trainable(false);
  }
}

VocabularyParallelHead::VocabularyParallelHead(const TensorParallel& group, std::int64_t vocabulary,
                                               std::int64_t channels, float std)
    : VocabularyParallelHead(group, {.vocabulary = vocabulary, .channels = channels, .std = std}) {}

VocabularyParallelHead::VocabularyParallelHead(const TensorParallel& group,
                                               std::shared_ptr<Parameter> tied)
    : VocabularyParallelHead(group, nn::LmHeadConfig{.tied = std::move(tied)}) {}

nn::LossOutput VocabularyParallelHead::forward(Context& context, const Value& hidden,
                                               const Tensor& targets,
                                               const nn::LossOptions& options) {
  SHOAL_CHECK(hidden.tensor.shape().rank() >= 1 && hidden.tensor.shape()[-1] == weight_->shape()[1],
              "{}: hidden states {} for {} channels", weight_->name(),
              to_string(hidden.tensor.shape()), weight_->shape()[1]);
  SHOAL_CHECK(targets.dtype() == DType::i32, "{}: targets are {}, not i32", weight_->name(),
              to_string(targets.dtype()));
  Parameter* const parameters[] = {weight_.get(), bias_.get()};
  const bool records = context.records({&hidden, 1}, parameters);
  LossPass pass(context, group_, *weight_, bias_.get(), soft_cap_, options);
  // True if the host knows which rows have a target.
  const bool counts = !context.training() || known_on_host(context, targets).defined();
  {
    const Tensor all =
        gather_samples(context, group_, counts ? host_values(context, targets) : targets);
    const Tensor x = begin_gather(context, group_, hidden.tensor).wait(context);
    SHOAL_CHECK(all.count() == x.shape().rows(),
                "{}: targets {} for hidden states {} of the group; under optimize = memory every "
                "rank passes the targets of all positions",
                weight_->name(), to_string(all.shape()), to_string(x.shape()));
    counts ? pass.take(x, all) : pass.take_all(x, all);
  }
  pass.run(slice_rows_, records && hidden.needs_gradient(), records && weight_->trainable(),
           records && bias_ && bias_->trainable());
  const Tensor dx = pass.dx(context);

  nn::LossOutput result;
  result.loss_sum = pass.loss_sum();
  result.targets = counts ? pass.targets() : -1;
  const Tensor loss = context.empty({1}, DType::f32);
  context.run("scale_loss", {result.loss_sum}, {loss}, [&] {
    context.kernels().elementwise().scale(result.loss_sum, options.loss_scale, loss.view(),
                                          context.stream);
  });
  if (!records) {
    result.loss = Value{loss};
    return result;
  }
  nn::Tape& tape = *context.tape;
  result.loss = tape.record(
      nn::computed_loss(tape, "vocabulary_cross_entropy", dx, {weight_.get(), bias_.get()}),
      {&hidden, 1}, parameters, {loss})[0];
  return result;
}

Tensor VocabularyParallelHead::logits(Context& context, const Tensor& hidden) {
  const Tensor x = begin_gather(context, group_, hidden).wait(context);
  const std::int64_t rows = x.shape().rows(), channels = weight_->shape()[1],
                     own = weight_->shape()[0], vocabulary = weight_->whole_shape()[0];
  // Transposed, so that the ranks' parts are contiguous.
  const Tensor mine = exchange_memory(context, group_, {own, rows}, x.dtype()),
               all = exchange_memory(context, group_, {vocabulary, rows}, x.dtype());
  const Tensor logits = context.empty({rows, vocabulary}, x.dtype());
  if (rows > 0)
    context.run("vocabulary_logits", {x, weight_->value}, {mine, all, logits}, [&] {
      if (own > 0) {
        kernels::MatmulArgs args;
        args.a = weight_->value;
        args.b = x.reshaped({rows, channels});
        args.transpose_b = true;
        args.c = mine.view();
        context.kernels().matmul().matmul(args, context.stream);
        if (bias_) add_to_rows(context, bias_->value, mine);
      }
      std::vector<std::int64_t> counts;
      for (int rank = 0; rank < group_.size(); ++rank)
        counts.push_back(vocabulary_rows(vocabulary, rank, group_.size()).count * rows);
      group_.tp
          .all_gather_v(mine.const_view().data, all.view().data, counts, x.dtype(), context.stream)
          ->block_stream(context.stream);
      context.kernels().elementwise().transpose(all, logits.view(), context.stream);
    });
  const Tensor capped = nn::soft_capped(context, Value{logits}, soft_cap_).tensor;
  const Shape shape = x.shape().with(-1, vocabulary);
  if (group_.split != ActivationSplit::batch) return capped.reshaped(shape);
  const std::int64_t samples = hidden.shape()[0];
  return capped.reshaped(shape).narrowed(0, group_.rank() * samples, samples);
}

}  // namespace shoal::parallel
