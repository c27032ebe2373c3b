#include <vector>

#include "shoal/kernels/checks.h"
#include "shoal/nn/autograd/tape.h"
#include "shoal/nn/layers/functional_internal.h"
#include "shoal/runtime/base/error.h"

namespace shoal::nn {
namespace {

// The kernels add to rows, so the gradient is zeroed before the first addition of a step.
void begin_rows(Context& context, Parameter& table) {
  if (table.accumulate() || table.gradient.count() == 0) return;
  context.run("zero", {}, {table.gradient}, [&] {
    context.kernels().elementwise().fill(table.gradient.view(), 0, context.stream);
  });
}

class EmbeddingFunction final : public Function {
 public:
  EmbeddingFunction(Tape& tape, Parameter& table, const Tensor& ids, std::int64_t padding)
      : table_(table), ids_(tape, ids), padding_(padding) {}
  std::string_view name() const override { return "embedding"; }
  std::vector<Tensor> backward(BackwardContext& backward_context,
                               std::span<Tensor> output_gradients) override {
    Context& context = backward_context.context();
    Parameter* const parameters[] = {&table_};
    backward_context.weight_gradient(parameters, [&context, &table = table_, ids = ids_.get(name()),
                                                  dy = output_gradients[0], padding = padding_] {
      add_embedding_gradient(context, table, ids, dy, padding);
    });
    return {};
  }

 private:
  Parameter& table_;
  SavedTensor ids_;
  std::int64_t padding_;
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

class AddEmbeddingFunction final : public Function {
 public:
  AddEmbeddingFunction(Tape& tape, Parameter& table, const Tensor& ids, std::int64_t padding)
      : table_(table), ids_(tape, ids), padding_(padding) {}
  std::string_view name() const override { return "add_embedding"; }
  std::vector<Tensor> backward(BackwardContext& backward_context,
                               std::span<Tensor> output_gradients) override {
    Context& context = backward_context.context();
    Parameter* const parameters[] = {&table_};
    const Tensor& dy = output_gradients[0];
    backward_context.weight_gradient(
        parameters, [&context, &table = table_, ids = ids_.get(name()), dy, padding = padding_] {
          add_embedding_gradient(context, table, ids, dy, padding);
        });
    return {dy};
  }

 private:
  Parameter& table_;
  SavedTensor ids_;
  std::int64_t padding_;
};

// Slices positions [first, first + count) of every sample.
Tensor positions_of(Context& context, const Tensor& ids, std::int64_t first, std::int64_t count) {
  if (ids.shape()[1] == count) return ids;
  const std::int64_t samples = ids.shape()[0];
  const Tensor part = context.empty({samples, count}, DType::i32);
  context.run("positions", {ids}, {part}, [&] {
    for (std::int64_t b = 0; b < samples; ++b)
      context.kernels().elementwise().cast(ids.narrowed(0, b, 1).narrowed(1, first, count),
                                           part.narrowed(0, b, 1).view(), context.stream);
  });
  return part;
}

Shape with_channels(const Shape& shape, std::int64_t channels) {
  std::vector<std::int64_t> sizes(shape.sizes().begin(), shape.sizes().end());
  sizes.push_back(channels);
  return Shape(std::span<const std::int64_t>(sizes));
}

}  // namespace

void add_embedding_gradient(Context& context, Parameter& table, const Tensor& ids, const Tensor& dy,
                            std::int64_t padding) {
  begin_rows(context, table);
  if (ids.count() == 0) return;
  // Saves the padding row and restores it afterwards.
  Tensor row, kept;
  if (padding >= 0 && padding < table.shape()[0]) {
    row = table.gradient.narrowed(0, padding, 1);
    kept = context.empty(row.shape(), DType::f32, MemoryTag::workspace);
  }
  context.run("embedding.backward", {ids, dy}, {table.gradient, kept}, [&] {
    auto& elementwise = context.kernels().elementwise();
    if (kept.defined()) elementwise.cast(row, kept.view(), context.stream);
    context.kernels().embedding().embedding_backward(ids, dy, table.gradient.view(),
                                                     context.stream);
    if (kept.defined()) elementwise.cast(kept, row.view(), context.stream);
  });
}

Value embedding(Context& context, const Tensor& given, Parameter& table, std::int64_t padding) {
  SHOAL_CHECK(given.dtype() == DType::i32, "{}: ids are {}, not i32", table.name(),
              to_string(given.dtype()));
  // Check on the host, since device kernels can only report errors later.
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
  return tape.record(std::make_unique<EmbeddingFunction>(tape, table, ids, padding), {}, parameters,
                     {y})[0];
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
    // One row of [T · C] per sample.
    const std::int64_t size = shape[1] * shape[2];
    context.kernels().elementwise().add_bias(in.reshaped({shape[0], size}), rows.reshaped({size}),
                                             y.reshaped({shape[0], size}).view(), context.stream);
  });
  if (!records) return Value{y};
  return context.tape->record(std::make_unique<AddPositionsFunction>(table, first_position),
                              {&input, 1}, parameters, {y})[0];
}

Value add_embedding(Context& context, Value x, Parameter& table, const Tensor& given,
                    std::int64_t padding) {
  const Shape shape = x.tensor.shape();
  const std::int64_t first = context.activation.first_position;
  SHOAL_CHECK(shape.rank() == 3 && shape[2] == table.shape()[1] && given.dtype() == DType::i32 &&
                  given.shape().rank() == 2 && given.shape()[0] == shape[0] &&
                  first + shape[1] <= given.shape()[1],
              "{}: rows of {} channels by ids {} {} are added to {} from position {}", table.name(),
              table.shape()[1], to_string(given.dtype()), to_string(given.shape()),
              to_string(shape), first);
  if (given.device().is_cpu()) kernels::check::ids("add_embedding", given, table.shape()[0]);
  const Tensor ids = positions_of(context, context.to_device(given), first, shape[1]);
  Parameter* const parameters[] = {&table};
  const bool records = context.records({&x, 1}, parameters);
  const Value input{{}, x.tape, x.node, x.slot};
  const Tensor in = std::move(x.tensor);
  const bool in_place = may_overwrite(in);
  const Tensor y = in_place ? in : context.empty(shape, in.dtype());
  context.run("add_embedding", {in, ids, table.value}, {y}, [&] {
    if (!in_place) context.kernels().elementwise().cast(in, y.view(), context.stream);
    context.kernels().embedding().embedding(ids, table.value, y.view(), true, context.stream);
  });
  if (!records) return Value{y};
  Tape& tape = *context.tape;
  return tape.record(std::make_unique<AddEmbeddingFunction>(tape, table, ids, padding), {&input, 1},
                     parameters, {y})[0];
}

}  // namespace shoal::nn
