#include <utility>

#include "shoal/kernels/checks.h"
#include "shoal/nn/autograd/tape.h"
#include "shoal/nn/layers/functional.h"
#include "shoal/runtime/base/error.h"

namespace shoal::nn {
namespace {

// Positions of rows: consecutive from `first`, or given by `numbers` i32 [B, T].
struct Positions {
  std::int64_t first = 0;
  Tensor numbers;
  std::int64_t head_dim = 0;
};

Tensor turned(Context& context, std::string_view name, const Tensor& x, const Tensor& table,
              const Positions& positions, bool backward) {
  const Tensor y = may_overwrite(x) ? x : context.empty(x.shape(), x.dtype());
  context.run(name, {x, table, positions.numbers}, {y}, [&] {
    kernels::RotaryArgs args;
    args.x = x;
    args.table = table;
    if (positions.numbers.defined()) args.positions = positions.numbers;
    args.first_position = positions.first;
    args.head_dim = positions.head_dim;
    args.backward = backward;
    args.out = y.view();
    context.kernels().embedding().rotary(args, context.stream);
  });
  return y;
}

class RotaryFunction final : public Function {
 public:
  RotaryFunction(Tape& tape, const Tensor& table, const Positions& positions)
      : table_(tape, table),
        numbers_(tape, positions.numbers),
        first_(positions.first),
        head_dim_(positions.head_dim) {}
  std::string_view name() const override { return "rotary"; }
  std::vector<Tensor> backward(BackwardContext& backward_context,
                               std::span<Tensor> output_gradients) override {
    const Tensor dy = std::move(output_gradients[0]);
    const Positions positions{first_, numbers_.defined() ? numbers_.get(name()) : Tensor(),
                              head_dim_};
    return {turned(backward_context.context(), "rotary.backward", dy, table_.get(name()), positions,
                   true)};
  }

 private:
  SavedTensor table_, numbers_;
  std::int64_t first_, head_dim_;
};

class SwigluFunction final : public Function {
 public:
  SwigluFunction(Tape& tape, const Tensor& gate, const Tensor& up)
      : gate_(tape, gate), up_(tape, up) {}
  std::string_view name() const override { return "swiglu"; }
  std::vector<Tensor> backward(BackwardContext& backward_context,
                               std::span<Tensor> output_gradients) override {
    Context& context = backward_context.context();
    const Tensor gate = gate_.get(name()), up = up_.get(name());
    const Tensor& dy = output_gradients[0];
    const Tensor dgate = context.empty(gate.shape(), gate.dtype()),
                 dup = context.empty(up.shape(), up.dtype());
    context.run("swiglu.backward", {gate, up, dy}, {dgate, dup}, [&] {
      context.kernels().elementwise().swiglu_backward(gate, up, dy, dgate.view(), dup.view(),
                                                      context.stream);
    });
    return {dgate, dup};
  }

 private:
  SavedTensor gate_, up_;
};

}  // namespace

Value rotary(Context& context, Value x, const Tensor& table, std::int64_t first_position,
             const Tensor& numbers, std::int64_t head_dim) {
  if (numbers.defined() && numbers.device() != context.kernels().device())
    kernels::check::ids("rotary", numbers, table.shape()[0]);
  const Positions positions{first_position, context.to_device(numbers), head_dim};
  const bool records = context.records({&x, 1}, {});
  const Value input{{}, x.tape, x.node, x.slot};
  const Tensor y = turned(context, "rotary", std::exchange(x.tensor, {}), table, positions, false);
  if (!records) return Value{y};
  Tape& tape = *context.tape;
  return tape.record(std::make_unique<RotaryFunction>(tape, table, positions), {&input, 1}, {},
                     {y})[0];
}

Value swiglu(Context& context, const Value& gate, const Value& up) {
  const Value inputs[] = {gate, up};
  const bool records = context.records(inputs, {});
  const Tensor y = context.empty(gate.tensor.shape(), gate.tensor.dtype());
  context.run("swiglu", {gate.tensor, up.tensor}, {y}, [&] {
    context.kernels().elementwise().swiglu(gate.tensor, up.tensor, y.view(), context.stream);
  });
  if (!records) return Value{y};
  Tape& tape = *context.tape;
  return tape.record(std::make_unique<SwigluFunction>(tape, gate.tensor, up.tensor), inputs, {},
                     {y})[0];
}

}  // namespace shoal::nn
