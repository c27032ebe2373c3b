#include "shoal/kernels/checks.h"

#include <algorithm>
#include <array>
#include <cstdint>

#include "shoal/runtime/base/error.h"

namespace shoal::kernels::check {
namespace {

void flat_f32(const char* operation, const char* name, const ConstView& view, std::int64_t count) {
  dtype(operation, name, view, DType::f32);
  SHOAL_CHECK(view.shape.count() == count, "{}: {} has {} elements, the master has {}", operation,
              name, view.shape.count(), count);
  SHOAL_CHECK(view.defined() || count == 0, "{}: {} is undefined", operation, name);
}

void parameter_copy(const char* operation, const View& parameter, std::int64_t count) {
  if (!parameter.defined()) return;
  SHOAL_CHECK(parameter.dtype == DType::bf16 || parameter.dtype == DType::f16,
              "{}: the parameter copy is {}; it may be bf16 or f16 (an f32 parameter is its own "
              "master)",
              operation, to_string(parameter.dtype));
  SHOAL_CHECK(parameter.shape.count() == count,
              "{}: the parameter copy has {} elements, the master has {}", operation,
              parameter.shape.count(), count);
}

// Checks the step's number on the CPU only: a GPU's StepState is in device memory, and the kernel
// checks it. Pass the gradients' device: masters and moments may be in pinned host memory although
// the update runs on a GPU.
void step_state(const char* operation, const StepState* state, Device device) {
  SHOAL_CHECK(state != nullptr, "{}: there is no StepState", operation);
  SHOAL_CHECK(!device.is_cpu() || state->step >= 1 || state->skip,
              "{}: the step is 0; updates count from 1, so advance the StepState first", operation);
}

void one_f64(const char* operation, const char* name, const ConstView& view) {
  dtype(operation, name, view, DType::f64);
  SHOAL_CHECK(view.defined() && view.shape.count() == 1, "{}: {} is {}, expected [1]", operation,
              name, to_string(view.shape));
}

}  // namespace

void shape(const char* operation, const char* name, const ConstView& view, const Shape& expected) {
  SHOAL_CHECK(view.shape == expected, "{}: {} is {}, expected {}", operation, name,
              to_string(view.shape), to_string(expected));
  SHOAL_CHECK(view.defined() || expected.count() == 0, "{}: {} is undefined", operation, name);
}

void dtype(const char* operation, const char* name, const ConstView& view, DType expected) {
  SHOAL_CHECK(view.dtype == expected, "{}: {} is {}, expected {}", operation, name,
              to_string(view.dtype), to_string(expected));
}

void training_float(const char* operation, const char* name, const ConstView& view) {
  SHOAL_CHECK(view.dtype == DType::f32 || view.dtype == DType::bf16 || view.dtype == DType::f16,
              "{}: {} is {}; it may be f32, bf16 or f16", operation, name, to_string(view.dtype));
}

void f32_or(const char* operation, const char* name, const ConstView& view, DType other) {
  SHOAL_CHECK(view.dtype == DType::f32 || view.dtype == other, "{}: {} is {}, expected f32 or {}",
              operation, name, to_string(view.dtype), to_string(other));
}

void same(const char* operation, const ConstView& a, const ConstView& b) {
  training_float(operation, "an operand", a);
  shape(operation, "an operand", b, a.shape);
  dtype(operation, "an operand", b, a.dtype);
  SHOAL_CHECK(a.defined() || a.shape.count() == 0, "{}: an operand is undefined", operation);
}

std::int64_t matrices(const ConstView& x) {
  std::int64_t count = 1;
  for (int dim = 0; dim + 2 < x.shape.rank(); ++dim) count *= x.shape[dim];
  return count;
}

void transpose(const ConstView& x, const ConstView& out) {
  SHOAL_CHECK(x.shape.rank() >= 2, "transpose: x is {}, expected [.., rows, columns]",
              to_string(x.shape));
  shape("transpose", "out", out, x.shape.with(-2, x.shape[-1]).with(-1, x.shape[-2]));
  dtype("transpose", "out", out, x.dtype);
}

void add_bias(const ConstView& x, const ConstView& bias, const ConstView& out) {
  same("add_bias", x, out);
  shape("add_bias", "bias", bias, Shape{x.shape.columns()});
  f32_or("add_bias", "bias", bias, x.dtype);
}

void dropout(const char* operation, const DropoutArgs& args, const ConstView& x) {
  SHOAL_CHECK(args.probability >= 0 && args.probability < 1, "{}: probability {} is not in [0, 1)",
              operation, args.probability);
  SHOAL_CHECK(args.rows_per_sample >= 1, "{}: {} rows per sample", operation, args.rows_per_sample);
  const std::int64_t columns = x.shape.columns();
  const std::int64_t global = args.columns ? args.columns : columns;
  SHOAL_CHECK(args.column_offset >= 0 && args.column_offset + columns <= global,
              "{}: columns [{}, {}) of {}", operation, args.column_offset,
              args.column_offset + columns, global);
  if (!args.rows.defined()) return;
  shape(operation, "rows", args.rows, Shape{x.shape.rows()});
  dtype(operation, "rows", args.rows, DType::i32);
}

void fill(const char* operation, const ConstView& out) {
  dtype(operation, "out", out, DType::f32);
  SHOAL_CHECK(out.defined() || out.shape.count() == 0, "{}: out is undefined", operation);
}

void layer_norm(const LayerNormArgs& args) {
  const char* operation = "layer_norm";
  training_float(operation, "x", args.x);
  const Shape column{args.x.shape.columns()}, row{args.x.shape.rows()};
  shape(operation, "gamma", args.gamma, column);
  f32_or(operation, "gamma", args.gamma, args.x.dtype);
  if (args.beta.defined()) {
    shape(operation, "beta", args.beta, column);
    dtype(operation, "beta", args.beta, args.gamma.dtype);
  }
  shape(operation, "y", args.y, args.x.shape);
  dtype(operation, "y", args.y, args.x.dtype);
  SHOAL_CHECK(args.beta.defined() ? args.mean.defined() == args.rstd.defined()
                                  : !args.mean.defined() || args.x.shape.count() == 0,
              "layer_norm: mean and rstd are kept together or not at all; of an RMSNorm (without "
              "beta) rstd alone");
  if (args.rstd.defined()) {
    SHOAL_CHECK((!args.mean.defined() || args.mean.shape.count() == row[0]) &&
                    args.rstd.shape.count() == row[0],
                "layer_norm: mean {} and rstd {} for {} rows", to_string(args.mean.shape),
                to_string(args.rstd.shape), row[0]);
    if (args.mean.defined()) dtype(operation, "mean", args.mean, DType::f32);
    dtype(operation, "rstd", args.rstd, DType::f32);
  }
  if (!args.residual.defined()) return;
  shape(operation, "residual", args.residual, args.x.shape);
  dtype(operation, "residual", args.residual, args.x.dtype);
  shape(operation, "sum", args.sum, args.x.shape);
  dtype(operation, "sum", args.sum, args.x.dtype);
  dropout(operation, args.dropout, args.x);
}

namespace {
void statistics(const char* operation, const ConstView& x, const ConstView& mean,
                const ConstView& rstd) {
  const std::int64_t rows = x.shape.rows();
  SHOAL_CHECK((!mean.defined() || mean.shape.count() == rows) && rstd.shape.count() == rows,
              "{}: mean {} and rstd {} for {} rows", operation, to_string(mean.shape),
              to_string(rstd.shape), rows);
  if (mean.defined()) dtype(operation, "mean", mean, DType::f32);
  dtype(operation, "rstd", rstd, DType::f32);
}
}  // namespace

void layer_norm_backward(const LayerNormBackwardArgs& args) {
  const char* operation = "layer_norm_backward";
  same(operation, args.dy, args.x);
  same(operation, args.dy, args.dx);
  if (args.dx_residual.defined()) same(operation, args.dy, args.dx_residual);
  if (args.dx_branch.defined()) {
    same(operation, args.dy, args.dx_branch);
    SHOAL_CHECK(args.dx.defined() && args.dx.data != args.dx_branch.data,
                "{}: dx_branch is made of dx, and is not dx", operation);
  }
  shape(operation, "gamma", args.gamma, Shape{args.x.shape.columns()});
  f32_or(operation, "gamma", args.gamma, args.x.dtype);
  statistics(operation, args.x, args.mean, args.rstd);
  SHOAL_CHECK(args.dgamma.defined() || !args.dbeta.defined(), "{}: dbeta without dgamma",
              operation);
  if (args.dgamma.defined())
    layer_norm_weight_gradient(args.dy, args.x, args.mean, args.rstd, args.dgamma, args.dbeta);
}

void layer_norm_weight_gradient(const ConstView& dy, const ConstView& x, const ConstView& mean,
                                const ConstView& rstd, const ConstView& dgamma,
                                const ConstView& dbeta) {
  const char* operation = "layer_norm_weight_gradient";
  same(operation, dy, x);
  statistics(operation, x, mean, rstd);
  // A tensor without elements also counts as undefined.
  SHOAL_CHECK(mean.defined() == dbeta.defined() || x.shape.count() == 0,
              "{}: an RMSNorm has neither mean nor dbeta, a LayerNorm both", operation);
  const auto of_columns = [&](const ConstView& gradient) {
    shape(operation, "a gradient", gradient, Shape{x.shape.columns()});
    dtype(operation, "a gradient", gradient, DType::f32);
  };
  of_columns(dgamma);
  if (mean.defined() || dbeta.defined()) of_columns(dbeta);
}

void embedding(const ConstView& ids, const ConstView& table, const ConstView& out) {
  dtype("embedding", "ids", ids, DType::i32);
  training_float("embedding", "table", table);
  SHOAL_CHECK(table.shape.rank() == 2, "embedding: table is {}, expected [V, C]",
              to_string(table.shape));
  dtype("embedding", "out", out, table.dtype);
  SHOAL_CHECK(out.shape.count() == ids.shape.count() * table.shape[1],
              "embedding: out is {} for {} ids and {} columns", to_string(out.shape),
              ids.shape.count(), table.shape[1]);
}

void embedding_backward(const ConstView& ids, const ConstView& dout, const ConstView& dtable) {
  dtype("embedding_backward", "ids", ids, DType::i32);
  training_float("embedding_backward", "dout", dout);
  dtype("embedding_backward", "dtable", dtable, DType::f32);
  SHOAL_CHECK(dtable.shape.rank() == 2, "embedding_backward: dtable is {}, expected [V, C]",
              to_string(dtable.shape));
  SHOAL_CHECK(dout.shape.count() == ids.shape.count() * dtable.shape[1],
              "embedding_backward: dout is {} for {} ids and {} columns", to_string(dout.shape),
              ids.shape.count(), dtable.shape[1]);
}

void position_backward(const ConstView& dout, const ConstView& dtable) {
  training_float("position_backward", "dout", dout);
  dtype("position_backward", "dtable", dtable, DType::f32);
  SHOAL_CHECK(dout.shape.rank() == 3 && dtable.shape.rank() == 2 &&
                  dtable.shape[1] == dout.shape[2] && dtable.shape[0] >= dout.shape[1],
              "position_backward: dout is {} and dtable {}, expected [B, T, C] and [>= T, C]",
              to_string(dout.shape), to_string(dtable.shape));
}

void rotary(const RotaryArgs& args) {
  const char* operation = "rotary";
  same(operation, args.x, args.out);
  dtype(operation, "table", args.table, DType::f32);
  SHOAL_CHECK(args.x.shape.rank() == 3 && args.table.shape.rank() == 2 && args.table.shape[1] > 0 &&
                  args.table.shape[1] % 2 == 0 && args.table.shape[1] <= args.head_channels() &&
                  args.x.shape[2] % args.head_channels() == 0,
              "rotary: x is {}, the table {} and a head {} channels, expected [B, T, H·D], "
              "[positions, R], R even, and D >= R",
              to_string(args.x.shape), to_string(args.table.shape), args.head_channels());
  if (args.positions.defined()) {
    SHOAL_CHECK(args.positions.dtype == DType::i32 && args.positions.shape.rank() == 2 &&
                    args.positions.shape[0] == args.x.shape[0] &&
                    args.positions.shape[1] == args.x.shape[1],
                "rotary: positions {} {} of {}", to_string(args.positions.dtype),
                to_string(args.positions.shape), to_string(args.x.shape));
    return;
  }
  SHOAL_CHECK(
      args.first_position >= 0 && args.first_position + args.x.shape[1] <= args.table.shape[0],
      "rotary: positions [{}, {}) of a table of {}", args.first_position,
      args.first_position + args.x.shape[1], args.table.shape[0]);
}

std::int64_t row_limit(const RowSelection& rows, const ConstView& x) {
  return rows.stride > 0 ? rows.stride : x.shape.rows();
}

void select_rows(const char* operation, const RowSelection& rows, const ConstView& some,
                 const ConstView& x) {
  SHOAL_CHECK(some.shape.rank() == 2 && x.shape.rank() >= 2 &&
                  some.shape.columns() == x.shape.columns() && some.dtype == x.dtype &&
                  (x.dtype == DType::i32 || x.dtype == DType::f32 || x.dtype == DType::bf16 ||
                   x.dtype == DType::f16),
              "{}: rows {} {} of {} {}; expected [n, C] of [.., C] in i32, f32, bf16 or f16",
              operation, to_string(some.dtype), to_string(some.shape), to_string(x.dtype),
              to_string(x.shape));
  const std::int64_t count = some.shape[0];
  SHOAL_CHECK(!rows.numbers.defined() ||
                  (rows.numbers.dtype == DType::i32 && rows.numbers.shape.count() == count),
              "{}: numbers {} {} of {} rows", operation, to_string(rows.numbers.dtype),
              to_string(rows.numbers.shape), count);
  const std::int64_t last =
      (count - 1) * rows.stride +
      (rows.numbers.defined() ? rows.stride > 0 ? rows.stride - 1 : 0 : rows.offset);
  SHOAL_CHECK(rows.stride >= 0 && (count == 0 || (rows.offset >= 0 && last < x.shape.rows())),
              "{}: {} rows with stride {} and offset {} of {}", operation, count, rows.stride,
              rows.offset, x.shape.rows());
}

void count_positions(const ConstView& ids, const ConstView& out) {
  dtype("count_positions", "ids", ids, DType::i32);
  dtype("count_positions", "out", out, DType::i32);
  SHOAL_CHECK(ids.shape.rank() == 2, "count_positions: ids {}, not [B, T]", to_string(ids.shape));
  shape("count_positions", "out", out, ids.shape);
}

void ids(const char* operation, const ConstView& ids, std::int64_t vocabulary) {
  const std::int64_t count = ids.shape.count();
  const auto* values = static_cast<const std::int32_t*>(ids.data);
  for (std::int64_t i = 0; i < count; ++i)
    SHOAL_CHECK(values[i] >= 0 && values[i] < vocabulary,
                "{}: id {} at position {} of {} is outside [0, {})", operation, values[i], i, count,
                vocabulary);
}

namespace {
// What AdamWArgs have for every rule that reads them.
void updated(const char* operation, const AdamWArgs& args) {
  const std::int64_t count = args.master.shape.count();
  if (args.rounding) {
    SHOAL_CHECK(args.master.dtype == DType::bf16 && !args.parameter.defined(),
                "{}: stochastic rounding is of bf16 parameters without masters, not of {}{}",
                operation, to_string(args.master.dtype),
                args.parameter.defined() ? " masters with a copy" : "");
    SHOAL_CHECK(args.master.defined() || count == 0, "{}: the parameter is undefined", operation);
  } else {
    flat_f32(operation, "master", args.master, count);
  }
  flat_f32(operation, "gradient", args.gradient, count);
  parameter_copy(operation, args.parameter, count);
  step_state(operation, args.state, args.gradient.device);
}
void first_moment_rule(const char* operation, const AdamWArgs& args) {
  updated(operation, args);
  flat_f32(operation, "first_moment", args.first_moment, args.master.shape.count());
}
}  // namespace

void adamw(const char* operation, const AdamWArgs& args) {
  first_moment_rule(operation, args);
  flat_f32(operation, "second_moment", args.second_moment, args.master.shape.count());
}

void lion(std::span<const AdamWArgs> tensors) {
  for (const AdamWArgs& one : tensors) first_moment_rule("lion", one);
  alike("lion", tensors);
}

void alike(const char* operation, std::span<const AdamWArgs> tensors) {
  for (const AdamWArgs& one : tensors)
    SHOAL_CHECK(one.state == tensors[0].state && one.beta1 == tensors[0].beta1 &&
                    one.beta2 == tensors[0].beta2 && one.epsilon == tensors[0].epsilon &&
                    one.rounding.has_value() == tensors[0].rounding.has_value(),
                "{}: tensors have different betas, epsilons or states, or some have masters",
                operation);
}

void sgd(const SgdArgs& args) {
  const std::int64_t count = args.master.shape.count();
  flat_f32("sgd", "master", args.master, count);
  flat_f32("sgd", "gradient", args.gradient, count);
  if (args.momentum != 0) flat_f32("sgd", "momentum_buffer", args.momentum_buffer, count);
  SHOAL_CHECK(!args.nesterov || (args.momentum > 0 && args.dampening == 0),
              "sgd: nesterov needs a momentum and no dampening, not {} and {}", args.momentum,
              args.dampening);
  parameter_copy("sgd", args.parameter, count);
  step_state("sgd", args.state, args.gradient.device);
}

void lamb(const LambArgs& args) {
  alike("lamb", args.tensors);
  for (const AdamWArgs& tensor : args.tensors) adamw("lamb", tensor);
  const auto count = static_cast<std::int64_t>(args.tensors.size());
  dtype("lamb", "squares", args.squares, DType::f64);
  SHOAL_CHECK(args.squares.shape.count() == 2 * count,
              "lamb: squares are {}, expected [{}, 2] for as many tensors",
              to_string(args.squares.shape), count);
}

void adafactor(const AdafactorArgs& args) {
  alike("adafactor", args.tensors);
  SHOAL_CHECK(args.places.size() == args.tensors.size(), "adafactor: {} tensors with {} places",
              args.tensors.size(), args.places.size());
  std::int64_t sums = 0;
  for (std::size_t i = 0; i < args.tensors.size(); ++i) {
    const AdamWArgs& one = args.tensors[i];
    const MatrixPlace& place = args.places[i];
    const std::int64_t count = one.master.shape.count();
    updated("adafactor", one);
    flat_f32("adafactor", "first_moment", one.first_moment,
             place.is_matrix() ? place.all_rows() : count);
    if (place.is_matrix())
      flat_f32("adafactor", "second_moment", one.second_moment, place.all_columns());
    SHOAL_CHECK(count <= place.count && (!place.is_matrix() || place.part_columns > 0),
                "adafactor: {} elements of {}, in rows of {}", count, place.count,
                place.part_columns);
    sums += adafactor_room(place);
  }
  dtype("adafactor", "sums", args.sums, DType::f64);
  SHOAL_CHECK(args.sums.shape.count() == sums, "adafactor: sums are {}, expected [{}]",
              to_string(args.sums.shape), sums);
}

void sum_of_squares(const ConstView& x, const ConstView& out) {
  training_float("sum_of_squares", "x", x);
  one_f64("sum_of_squares", "out", out);
}

void begin_update(const BeginUpdateArgs& args) {
  one_f64("begin_update", "sum_of_squares", args.sum_of_squares);
  one_f64("begin_update", "norm", args.norm);
  SHOAL_CHECK(args.state != nullptr, "begin_update: there is no StepState");
}

void reduce(std::span<const void* const> sources, std::span<void* const> destinations,
            std::int64_t count) {
  SHOAL_CHECK(!sources.empty(), "reduce: there is no source");
  SHOAL_CHECK(count >= 0, "reduce: {} elements", count);
  if (count == 0) return;
  SHOAL_CHECK(!destinations.empty() && std::ranges::count(destinations, nullptr) == 0,
              "reduce: there is no destination");
  for (std::size_t s = 0; s < sources.size(); ++s)
    SHOAL_CHECK(sources[s] != nullptr, "reduce: source {} of {} is null", s, sources.size());
}

void reduce_widened(DType dtype, std::span<const void* const> sources, const float* destination,
                    std::int64_t count) {
  SHOAL_CHECK(dtype == DType::bf16 || dtype == DType::f16,
              "reduce_widened: {} is not widened; 16-bit floats only", to_string(dtype));
  SHOAL_CHECK(reinterpret_cast<std::uintptr_t>(destination) % alignof(float) == 0,
              "reduce_widened: the destination is not aligned to f32");
  std::array<void*, 1> to{const_cast<float*>(destination)};
  reduce(sources, to, count);
}

void scale(DType dtype, std::int64_t count) {
  SHOAL_CHECK(is_floating(dtype), "scale: {} cannot be scaled; floating dtypes only",
              to_string(dtype));
  SHOAL_CHECK(count >= 0, "scale: {} elements", count);
}

}  // namespace shoal::kernels::check
