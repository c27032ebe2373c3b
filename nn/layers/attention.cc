#include <cmath>

#include "shoal/nn/layers/dropout_args.h"
#include "shoal/runtime/base/error.h"

namespace shoal::nn {
namespace {

using kernels::AttentionShape;
using kernels::HeadsView;
using kernels::MutableHeadsView;

// Part 0, 1, 2 of qkv [B, T, 3·C]: queries, keys, values.
const void* part(const Tensor& qkv, int index) {
  const auto bytes = static_cast<std::size_t>(qkv.shape()[2] / 3) * size_of(qkv.dtype());
  return static_cast<const std::byte*>(qkv.const_view().data) +
         static_cast<std::size_t>(index) * bytes;
}
HeadsView heads(const Tensor& tensor, const void* data) {
  return {data, tensor.shape()[1] * tensor.shape()[2], tensor.shape()[2]};
}
MutableHeadsView mutable_heads(const Tensor& tensor, const void* data) {
  return {const_cast<void*>(data), tensor.shape()[1] * tensor.shape()[2], tensor.shape()[2]};
}

class AttentionFunction final : public Function {
 public:
  AttentionFunction(Tape& tape, const AttentionShape& shape, const Tensor& qkv, const Tensor& out,
                    const Tensor& log_sum_exp, const Tensor& key_mask)
      : shape_(shape),
        qkv_(tape, qkv),
        out_(tape, out),
        log_sum_exp_(tape, log_sum_exp),
        key_mask_(tape, key_mask) {}
  std::string_view name() const override { return "attention"; }
  std::vector<Tensor> backward(BackwardContext& backward_context,
                               std::span<Tensor> output_gradients) override {
    Context& context = backward_context.context();
    const Tensor qkv = qkv_.get(name()), out = out_.get(name());
    const Tensor log_sum_exp = log_sum_exp_.get(name());
    const Tensor& dout = output_gradients[0];
    Tensor key_mask;
    if (key_mask_.defined()) {
      key_mask = key_mask_.get(name());
      shape_.key_mask = key_mask;
    }
    const Tensor dqkv = context.empty(qkv.shape(), qkv.dtype());
    context.run("attention.backward", {qkv, out, log_sum_exp, dout, key_mask}, {dqkv}, [&] {
      (void)dqkv.view();  // written through raw pointers: tell its version
      context.kernels().attention().attention_backward(
          shape_, heads(qkv, part(qkv, 0)), heads(qkv, part(qkv, 1)), heads(qkv, part(qkv, 2)),
          heads(out, out.const_view().data), log_sum_exp, heads(dout, dout.const_view().data),
          mutable_heads(dqkv, part(dqkv, 0)), mutable_heads(dqkv, part(dqkv, 1)),
          mutable_heads(dqkv, part(dqkv, 2)), context.stream);
    });
    return {dqkv};
  }

 private:
  AttentionShape shape_;
  SavedTensor qkv_, out_, log_sum_exp_, key_mask_;
};

}  // namespace

Value attention(Context& context, const Value& qkv, const AttentionOptions& options) {
  const Shape& in = qkv.tensor.shape();
  SHOAL_CHECK(in.rank() == 3 && options.heads > 0 && in[2] % (3 * options.heads) == 0,
              "attention: qkv {} does not split into 3 x {} heads", to_string(in), options.heads);
  AttentionShape shape;
  shape.batch = in[0];
  shape.heads = options.heads;
  shape.query_length = shape.key_length = in[1];
  shape.head_dim = in[2] / (3 * options.heads);
  shape.dtype = qkv.tensor.dtype();
  shape.causal = options.causal;
  shape.scale =
      options.scale != 0 ? options.scale : 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
  const Tensor key_mask = context.to_device(options.key_mask);
  if (key_mask.defined()) shape.key_mask = key_mask;
  if (drops(context, options.dropout)) {
    shape.dropout = options.dropout.probability;
    shape.site = context.next_site(options.dropout.path_hash);
    shape.max_positions = options.max_positions;
    shape.head_offset = options.head_offset;
  }
  const bool records = context.records({&qkv, 1}, {});
  const Tensor out = context.empty(in.with(2, in[2] / 3), qkv.tensor.dtype());
  Tensor log_sum_exp;
  if (records) log_sum_exp = context.empty({in[0], options.heads, in[1]}, DType::f32);
  context.run("attention", {qkv.tensor, key_mask}, {out, log_sum_exp}, [&] {
    const Tensor& x = qkv.tensor;
    context.kernels().attention().attention(
        shape, heads(x, part(x, 0)), heads(x, part(x, 1)), heads(x, part(x, 2)),
        mutable_heads(out, out.view().data), records ? log_sum_exp.view() : View(), context.stream);
  });
  if (!records) return Value{out};
  Tape& tape = *context.tape;
  shape.key_mask = {};
  return tape.record(
      std::make_unique<AttentionFunction>(tape, shape, qkv.tensor, out, log_sum_exp, key_mask),
      {&qkv, 1}, {}, {out})[0];
}

}  // namespace shoal::nn
