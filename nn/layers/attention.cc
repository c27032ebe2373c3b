#include <cmath>
#include <utility>
#include <vector>

#include "shoal/kernels/kernels.h"
#include "shoal/nn/autograd/tape.h"
#include "shoal/nn/layers/dropout_args.h"
#include "shoal/nn/layers/functional_internal.h"
#include "shoal/runtime/base/error.h"

namespace shoal::nn {
namespace {

using kernels::AttentionShape;
using kernels::HeadsView;
using kernels::MutableHeadsView;

HeadsView heads(const Tensor& tensor, const void* data) {
  return {data, tensor.shape()[1] * tensor.shape()[2], tensor.shape()[2]};
}
MutableHeadsView mutable_heads(const Tensor& tensor, const void* data) {
  return {const_cast<void*>(data), tensor.shape()[1] * tensor.shape()[2], tensor.shape()[2]};
}

// Queries, keys and values: one tensor [B, T, 3·C], or three tensors [B, T, C]. With three, keys
// and values may have fewer heads.
struct Projections {
  std::vector<Tensor> tensors;

  const Tensor& of(int index) const {
    return tensors[tensors.size() == 1 ? 0 : static_cast<std::size_t>(index)];
  }
  const void* data(int index) const {
    const auto* first = static_cast<const std::byte*>(of(index).const_view().data);
    if (tensors.size() == 3) return first;
    const auto bytes =
        static_cast<std::size_t>(of(index).shape()[2] / 3) * size_of(of(index).dtype());
    return first + static_cast<std::size_t>(index) * bytes;
  }
  HeadsView view(int index) const { return heads(of(index), data(index)); }
  MutableHeadsView mutable_view(int index) const { return mutable_heads(of(index), data(index)); }
  Tensor listed(std::size_t index) const {  // for Context::run()
    return index < tensors.size() ? tensors[index] : Tensor();
  }
};

// The rows of AttentionOptions::relative_bias, or of its gradient, that belong to the call's heads:
// f32 [heads, positions].
Tensor rows_of_heads(const AttentionShape& shape, const Tensor& relative_bias) {
  const std::int64_t positions = relative_bias.shape()[-1];
  return relative_bias.reshaped({relative_bias.shape().rows(), positions})
      .narrowed(0, shape.head_offset, shape.heads);
}
Tensor converted(Context& context, const Tensor& tensor, DType dtype) {
  if (!tensor.defined() || tensor.dtype() == dtype) return tensor;
  const Tensor out = context.empty(tensor.shape(), dtype);
  context.run("attention.bias", {tensor}, {out},
              [&] { context.kernels().elementwise().cast(tensor, out.view(), context.stream); });
  return out;
}

// Optional inputs of attention() on the kernels' device; undefined if absent.
struct Extras {
  Tensor key_mask, sequences, relative_bias, kept;
};

class AttentionFunction final : public Function {
 public:
  AttentionFunction(Tape& tape, const AttentionShape& shape, const Projections& in,
                    const Tensor& out, const Tensor& log_sum_exp, const Extras& extras,
                    bool sums_bias)
      : shape_(shape),
        out_(tape, out),
        log_sum_exp_(tape, log_sum_exp),
        key_mask_(tape, extras.key_mask),
        sequences_(tape, extras.sequences),
        relative_bias_(tape, extras.relative_bias),
        kept_(tape, extras.kept),
        sums_bias_(sums_bias) {
    for (const Tensor& tensor : in.tensors) in_.emplace_back(tape, tensor);
  }
  std::string_view name() const override { return "attention"; }
  std::vector<Tensor> backward(BackwardContext& backward_context,
                               std::span<Tensor> output_gradients) override {
    Context& context = backward_context.context();
    Projections in, din;
    for (const SavedTensor& saved : in_) {
      in.tensors.push_back(saved.get(name()));
      din.tensors.push_back(context.empty(in.tensors.back().shape(), in.tensors.back().dtype()));
    }
    const Tensor out = out_.get(name()), log_sum_exp = log_sum_exp_.get(name());
    const Tensor& dout = output_gradients[0];
    Tensor key_mask;
    if (key_mask_.defined()) {
      key_mask = key_mask_.get(name());
      shape_.key_mask = key_mask;
    }
    Tensor sequences;
    if (sequences_.defined()) {
      sequences = sequences_.get(name());
      shape_.sequences = sequences;
    }
    Tensor kept;
    if (kept_.defined()) {
      kept = kept_.get(name());
      const ConstView bits = kept.const_view();  // view() would count as a write
      shape_.kept = {const_cast<void*>(bits.data), bits.shape, bits.dtype, bits.device};
    }
    Tensor bias, dbias;
    if (relative_bias_.defined()) {
      bias = relative_bias_.get(name());
      shape_.relative_bias = rows_of_heads(shape_, bias);
      if (sums_bias_) dbias = bias_gradient(context, bias);
    }
    context.run("attention.backward",
                {in.listed(0), in.listed(1), in.listed(2), out, log_sum_exp, dout, key_mask,
                 sequences, kept, bias},
                {din.listed(0), din.listed(1), din.listed(2), dbias}, [&] {
                  // Written through raw pointers, so bump their versions here.
                  for (const Tensor& tensor : din.tensors) (void)tensor.view();
                  context.kernels().attention().attention_backward(
                      shape_, in.view(0), in.view(1), in.view(2), heads(out, out.const_view().data),
                      log_sum_exp, heads(dout, dout.const_view().data), din.mutable_view(0),
                      din.mutable_view(1), din.mutable_view(2), context.stream);
                });
    if (bias.defined()) din.tensors.push_back(converted(context, dbias, out.dtype()));
    return std::move(din.tensors);
  }

 private:
  // Zero for the heads of other ranks.
  Tensor bias_gradient(Context& context, const Tensor& bias) {
    const Tensor gradient = context.empty(bias.shape(), DType::f32);
    if (shape_.heads < bias.shape()[1])
      context.run("zero", {}, {gradient}, [&] {
        context.kernels().elementwise().fill(gradient.view(), 0, context.stream);
      });
    shape_.relative_bias_gradient = rows_of_heads(shape_, gradient).view();
    return gradient;
  }

  AttentionShape shape_;
  std::vector<SavedTensor> in_;
  SavedTensor out_, log_sum_exp_, key_mask_, sequences_, relative_bias_, kept_;
  bool sums_bias_;
};

// Sets what attention() and its cached form share.
AttentionShape shape_of(const Projections& in, std::int64_t channels,
                        const AttentionOptions& options) {
  const Shape& x = in.tensors[0].shape();
  AttentionShape shape;
  shape.batch = x[0];
  shape.heads = options.heads;
  shape.key_heads = options.key_heads;
  shape.query_length = x[1];
  shape.key_length = in.of(1).shape()[1];
  shape.head_dim = channels / options.heads;
  shape.dtype = in.tensors[0].dtype();
  shape.causal = options.causal;
  shape.window = options.window;
  shape.soft_cap = options.soft_cap;
  shape.head_offset = options.head_offset;
  shape.scale =
      options.scale != 0 ? options.scale : 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
  return shape;
}

// Moves the optional inputs to the kernels' device and into `shape`.
Extras extras_of(Context& context, const AttentionOptions& options, AttentionShape& shape) {
  Extras extras{context.to_device(options.key_mask), context.to_device(options.sequences),
                converted(context, options.relative_bias.tensor, DType::f32), Tensor()};
  if (extras.key_mask.defined()) shape.key_mask = extras.key_mask;
  if (extras.sequences.defined()) shape.sequences = extras.sequences;
  if (!extras.relative_bias.defined()) return extras;
  const Shape& bias = extras.relative_bias.shape();
  SHOAL_CHECK(bias.rank() == 3 && bias[0] == 1 && shape.head_offset + shape.heads <= bias[1],
              "attention: a relative bias {} for heads [{}, {})", to_string(bias),
              shape.head_offset, shape.head_offset + shape.heads);
  shape.relative_bias = rows_of_heads(shape, extras.relative_bias);
  return extras;
}

// `inputs`: one fused Value or three; `channels`: H·D.
Value attend(Context& context, std::span<const Value> inputs, std::int64_t channels,
             const AttentionOptions& options) {
  Projections in;
  for (const Value& input : inputs) in.tensors.push_back(input.tensor);
  const Shape& x = in.tensors[0].shape();
  AttentionShape shape = shape_of(in, channels, options);
  Extras extras = extras_of(context, options, shape);
  if (drops(context, options.dropout)) {
    shape.dropout = options.dropout.probability;
    shape.site = context.next_site(options.dropout.path_hash);
    shape.max_positions = options.max_positions;
  }
  std::vector<Value> recorded(inputs.begin(), inputs.end());
  if (extras.relative_bias.defined()) recorded.push_back(options.relative_bias);
  const bool records = context.records(recorded, {});
  const Tensor out = context.empty(x.with(2, channels), shape.dtype);
  Tensor log_sum_exp;
  if (records) {
    log_sum_exp = context.empty({x[0], options.heads, x[1]}, DType::f32);
    if (const std::int64_t bytes = context.kernels().attention().kept_bytes(shape); bytes > 0) {
      extras.kept = context.empty({bytes}, DType::u8);
      shape.kept = extras.kept.view();
    }
  }
  context.run("attention",
              {in.listed(0), in.listed(1), in.listed(2), extras.key_mask, extras.sequences,
               extras.relative_bias},
              {out, log_sum_exp, extras.kept}, [&] {
                context.kernels().attention().attention(
                    shape, in.view(0), in.view(1), in.view(2), mutable_heads(out, out.view().data),
                    records ? log_sum_exp.view() : View(), context.stream);
              });
  if (!records) return Value{out};
  Tape& tape = *context.tape;
  shape.key_mask = shape.sequences = shape.relative_bias = {};
  shape.kept = {};
  return tape.record(std::make_unique<AttentionFunction>(tape, shape, in, out, log_sum_exp, extras,
                                                         options.relative_bias.needs_gradient()),
                     recorded, {}, {out})[0];
}

// Like attend(), with keys and values of earlier positions in `cache`.
Value attend_to_cache(Context& context, std::span<const Value> inputs, std::int64_t channels,
                      KeyValueCache& cache, const AttentionOptions& options) {
  Projections in;
  for (const Value& input : inputs) in.tensors.push_back(input.tensor);
  const Shape& x = in.tensors[0].shape();
  const std::int64_t batch = x[0], fresh = x[1],
                     width = in.tensors.size() == 3 ? in.tensors[1].shape()[2] : channels;
  SHOAL_CHECK(!inputs[0].needs_gradient() && !context.training(),
              "a key-value cache serves inference: set evaluate mode and no tape");
  SHOAL_CHECK(!options.sequences.defined(), "a key-value cache holds one text a row, not several");
  if (!cache.entries.defined() && cache.capacity > 0)
    cache.entries = context.empty({batch, cache.capacity, 2 * width}, in.tensors[0].dtype());
  SHOAL_CHECK(cache.entries.defined() && cache.entries.shape()[0] == batch &&
                  cache.entries.shape()[2] == 2 * width &&
                  cache.entries.dtype() == in.tensors[0].dtype(),
              "the key-value cache does not fit a batch of {} with {} channels", batch, width);
  const std::int64_t capacity = cache.entries.shape()[1], length = cache.length + fresh;
  SHOAL_CHECK(length <= capacity, "{} positions in a key-value cache of {}", length, capacity);
  AttentionShape shape = shape_of(in, channels, options);
  shape.key_length = length;
  const Extras extras = extras_of(context, options, shape);
  const Tensor out = context.empty({batch, fresh, channels}, shape.dtype);
  context.run(
      "attention.cached",
      {in.listed(0), in.listed(1), in.listed(2), cache.entries, extras.key_mask,
       extras.relative_bias},
      {out, cache.entries}, [&] {
        auto& elementwise = context.kernels().elementwise();
        for (std::int64_t b = 0; b < batch; ++b)
          for (std::int64_t t = 0; t < fresh; ++t)
            for (const int part : {1, 2}) {
              // In a fused tensor, keys and values follow the queries.
              const std::int64_t column = in.tensors.size() == 1 ? part * width : 0;
              const Tensor row =
                  in.of(part).narrowed(0, b, 1).narrowed(1, t, 1).narrowed(2, column, width);
              const Tensor slot = cache.entries.narrowed(0, b, 1)
                                      .narrowed(1, cache.length + t, 1)
                                      .narrowed(2, (part - 1) * width, width);
              elementwise.cast(row, slot.view(), context.stream);
            }
        const auto* entries = static_cast<const std::byte*>(cache.entries.const_view().data);
        const std::size_t values = static_cast<std::size_t>(width) * size_of(shape.dtype);
        context.kernels().attention().attention(shape, in.view(0), heads(cache.entries, entries),
                                                heads(cache.entries, entries + values),
                                                {out.view().data, fresh * channels, channels},
                                                View(), context.stream);
      });
  cache.length = length;
  return Value{out};
}

void check_fused(const Shape& in, const AttentionOptions& options) {
  SHOAL_CHECK(in.rank() == 3 && options.heads > 0 && in[2] % (3 * options.heads) == 0,
              "attention: qkv {} does not split into 3 x {} heads", to_string(in), options.heads);
  SHOAL_CHECK(options.key_heads == 0 || options.key_heads == options.heads,
              "attention: one tensor has as many key heads as heads ({}), not {}", options.heads,
              options.key_heads);
}

void check_apart(const Shape& in, const Shape& keys, const Shape& values,
                 const AttentionOptions& options) {
  const std::int64_t key_heads = options.key_heads > 0 ? options.key_heads : options.heads;
  SHOAL_CHECK(in.rank() == 3 && options.heads > 0 && in[2] % options.heads == 0 &&
                  keys.rank() == 3 && keys[0] == in[0] && (keys[1] == in[1] || !options.causal) &&
                  keys[2] == in[2] / options.heads * key_heads && values == keys,
              "attention: queries {}, keys {} and values {} do not split into {} heads on {} key "
              "heads",
              to_string(in), to_string(keys), to_string(values), options.heads, key_heads);
}

}  // namespace

Value attention(Context& context, const Value& qkv, const AttentionOptions& options) {
  const Shape& in = qkv.tensor.shape();
  check_fused(in, options);
  return attend(context, {&qkv, 1}, in[2] / 3, options);
}

Value attention(Context& context, const Value& queries, const Value& keys, const Value& values,
                const AttentionOptions& options) {
  check_apart(queries.tensor.shape(), keys.tensor.shape(), values.tensor.shape(), options);
  const Value inputs[] = {queries, keys, values};
  return attend(context, inputs, queries.tensor.shape()[2], options);
}

Value cached_attention(Context& context, const Value& qkv, KeyValueCache& cache,
                       const AttentionOptions& options) {
  const Shape& in = qkv.tensor.shape();
  check_fused(in, options);
  return attend_to_cache(context, {&qkv, 1}, in[2] / 3, cache, options);
}

Value cached_attention(Context& context, const Value& queries, const Value& keys,
                       const Value& values, KeyValueCache& cache, const AttentionOptions& options) {
  check_apart(queries.tensor.shape(), keys.tensor.shape(), values.tensor.shape(), options);
  const Value inputs[] = {queries, keys, values};
  return attend_to_cache(context, inputs, queries.tensor.shape()[2], cache, options);
}

}  // namespace shoal::nn
