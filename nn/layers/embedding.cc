#include <vector>

#include "shoal/kernels/checks.h"
#include "shoal/nn/layers/functional.h"
#include "shoal/runtime/base/error.h"

namespace shoal::nn {
namespace {

// The kernels add to rows; whoever writes a gradient first zeroes it.
void begin_rows(Context& context, Parameter& table) {
  if (table.accumulate()) return;
  context.run("zero", {}, {table.gradient}, [&] {
    context.kernels().elementwise().fill(table.gradient.view(), 0, context.stream);
  });
}

class EmbeddingFunction final : public Function {
 public:
  EmbeddingFunction(Tape& tape, Parameter& table, const Tensor& ids)
      : table_(table), ids_(tape, ids) {}
  std::string_view name() const override { return "embedding"; }
  std::vector<Tensor> backward(BackwardContext& backward_context,
                               std::span<Tensor> output_gradients) override {
    Context& context = backward_context.context();
    Parameter* const parameters[] = {&table_};
    backward_context.weight_gradient(
        parameters, [&context, &table = table_, ids = ids_.get(name()), dy = output_gradients[0]] {
          begin_rows(context, table);
          context.run("embedding.backward", {ids, dy}, {table.gradient}, [&] {
            context.kernels().embedding().embedding_backward(ids, dy, table.gradient.view(),
                                                             context.stream);
          });
        });
    return {};
  }

 private:
  Parameter& table_;
  SavedTensor ids_;
};

class AddPositionsFunction final : public Function {
 public:
  AddPositionsFunction(Parameter& table, std::int64_t first) : table_(table), first_(first) {}
  std::string_view name() const override { return "add_positions"; }
  std::vector<Tensor> backward(BackwardContext& backward_context,
                               std::span<Tensor> output_gradients) override {
    Context& context = backward_context.context();
    Parameter* const parameters[] = {&table_};
    const Tensor& dy = output_gradients[0];
    backward_context.weight_gradient(parameters, [&context, &table = table_, first = first_, dy] {
      begin_rows(context, table);
      const Tensor rows = table.gradient.narrowed(0, first, dy.shape()[1]);
      context.run("positions.backward", {dy}, {table.gradient}, [&] {
        context.kernels().embedding().position_backward(dy, rows.view(), context.stream);
      });
    });
    return {dy};
  }

 private:
  Parameter& table_;
  std::int64_t first_;
};

Shape with_channels(const Shape& shape, std::int64_t channels) {
  std::vector<std::int64_t> sizes(shape.sizes().begin(), shape.sizes().end());
  sizes.push_back(channels);
  return Shape(std::span<const std::int64_t>(sizes));
}

}  // namespace

Value embedding(Context& context, const Tensor& given, Parameter& table) {
  SHOAL_CHECK(given.dtype() == DType::i32, "{}: ids are {}, not i32", table.name(),
              to_string(given.dtype()));
  // Kernels of a device could only complain later.
  if (given.device() != context.kernels().device())
    kernels::check::ids("embedding", given, table.shape()[0]);
  const Tensor ids = context.to_device(given);
  Parameter* const parameters[] = {&table};
  const bool records = context.records({}, parameters);
  const Tensor y = context.empty(with_channels(ids.shape(), table.shape()[1]), table.value.dtype());
  context.run("embedding", {ids, table.value}, {y}, [&] {
    context.kernels().embedding().embedding(ids, table.value, y.view(), false, context.stream);
  });
  if (!records) return Value{y};
  Tape& tape = *context.tape;
  return tape.record(std::make_unique<EmbeddingFunction>(tape, table, ids), {}, parameters, {y})[0];
}

Value add_positions(Context& context, Value x, Parameter& table, std::int64_t first_position) {
  const Shape shape = x.tensor.shape();
  SHOAL_CHECK(shape.rank() == 3 && shape[2] == table.shape()[1],
              "{}: positions of {} channels are added to {}", table.name(), table.shape()[1],
              to_string(shape));
  SHOAL_CHECK(first_position >= 0 && first_position + shape[1] <= table.shape()[0],
              "{}: positions {} to {} of a model of {} positions; shorten the sequence",
              table.name(), first_position, first_position + shape[1], table.shape()[0]);
  Parameter* const parameters[] = {&table};
  const bool records = context.records({&x, 1}, parameters);
  const Value input{{}, x.tape, x.node, x.slot};
  const Tensor in = std::move(x.tensor);
  const Tensor rows = table.value.narrowed(0, first_position, shape[1]);
  const Tensor y = may_overwrite(in) ? in : context.empty(shape, in.dtype());
  context.run("add_positions", {in, table.value}, {y}, [&] {
    // One row of [T · C] for every sample.
    const std::int64_t size = shape[1] * shape[2];
    context.kernels().elementwise().add_bias(in.reshaped({shape[0], size}), rows.reshaped({size}),
                                             y.reshaped({shape[0], size}).view(), context.stream);
  });
  if (!records) return Value{y};
  return context.tape->record(std::make_unique<AddPositionsFunction>(table, first_position),
                              {&input, 1}, parameters, {y})[0];
}

}  // namespace shoal::nn
