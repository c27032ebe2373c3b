// Derives and checks the sizes of a product. Shared by all MatmulKernels implementations.
#pragma once

#include "shoal/kernels/matmul.h"
#include "shoal/runtime/base/error.h"

namespace shoal::kernels {

struct MatmulShape {
  std::int64_t groups = 1, m = 0, n = 0, k = 0;
};

// Operand that bias_gradient sums over, as stored.
inline ConstView bias_gradient_operand(const MatmulArgs& args) {
  return args.bias_gradient_of_a ? args.a : args.b;
}

// Reads [.., K] as [M, K]; if `batched`, the leading dimension of rank-3 tensors is the group.
// Throws invalid_argument with the mismatched shapes or dtypes.
inline MatmulShape matmul_shape(const MatmulArgs& args, bool batched) {
  const char* name = batched ? "batched_matmul" : "matmul";
  const int skip = batched ? 1 : 0;
  const auto fail = [&](const char* what) {
    throw_error(ErrorCode::invalid_argument, "{}: {}: a {}{} · b {}{} -> c {}", name, what,
                to_string(args.a.shape), args.transpose_a ? "ᵀ" : "", to_string(args.b.shape),
                args.transpose_b ? "ᵀ" : "", to_string(args.c.shape));
  };
  const auto rank_ok = [&](const Shape& s) { return batched ? s.rank() == 3 : s.rank() >= 1; };
  if (!rank_ok(args.a.shape) || !rank_ok(args.b.shape) || !rank_ok(args.c.shape) ||
      (!batched && args.b.shape.rank() != 2))
    fail("the ranks do not fit");
  const auto rows = [&](const Shape& s) { return batched ? s[1] : s.rows(); };
  MatmulShape shape;
  shape.m = args.transpose_a ? args.a.shape.columns() : rows(args.a.shape);
  shape.k = args.transpose_a ? rows(args.a.shape) : args.a.shape.columns();
  shape.n = args.transpose_b ? args.b.shape[skip] : args.b.shape[skip + 1];
  const std::int64_t k_of_b = args.transpose_b ? args.b.shape[skip + 1] : args.b.shape[skip];
  if (shape.k != k_of_b) fail("the inner sizes differ");
  if (rows(args.c.shape) != shape.m || args.c.shape.columns() != shape.n)
    fail("c has another shape");
  if (batched) {
    shape.groups = args.a.shape[0];
    if (args.b.shape[0] != shape.groups || args.c.shape[0] != shape.groups)
      fail("the groups differ");
    if (args.bias.defined() || args.activation != Activation::none ||
        args.pre_activation.defined() || args.activation_input.defined() ||
        args.bias_gradient.defined())
      fail("a batched product takes no bias and no activation");
  }
  const bool input_ok =
      args.a.dtype == DType::f32 || args.a.dtype == DType::bf16 || args.a.dtype == DType::f16;
  SHOAL_CHECK(input_ok && args.b.dtype == args.a.dtype &&
                  (args.c.dtype == args.a.dtype || args.c.dtype == DType::f32),
              "{}: {} · {} -> {} is not offered; inputs are both f32, bf16 or f16, the result the "
              "same or f32",
              name, to_string(args.a.dtype), to_string(args.b.dtype), to_string(args.c.dtype));
  if (args.accumulate && (args.bias.defined() || args.activation != Activation::none ||
                          args.activation_input.defined()))
    fail("an accumulating product takes no bias and no activation");
  if (args.bias.defined()) {
    if (args.bias.shape.count() != shape.n) fail("the bias has another length than N");
    SHOAL_CHECK(args.bias.dtype == DType::f32 || args.bias.dtype == args.a.dtype,
                "{}: a bias of {} with inputs of {}", name, to_string(args.bias.dtype),
                to_string(args.a.dtype));
  }
  if (args.pre_activation.defined() && (args.pre_activation.dtype != args.c.dtype ||
                                        args.pre_activation.shape.count() != shape.m * shape.n))
    fail("pre_activation is not like c");
  if (args.activation_input.defined()) {
    if (args.activation_input.dtype != args.c.dtype ||
        args.activation_input.shape.count() != shape.m * shape.n)
      fail("activation_input is not like c");
    if (args.bias.defined() || args.pre_activation.defined())
      fail("a product through an activation's derivative takes no bias and keeps nothing");
    if (args.activation_input.data == args.c.data) fail("activation_input is c");
  }
  if (args.bias_gradient.defined()) {
    const bool of_a = args.bias_gradient_of_a;
    if (args.bias.defined() || args.activation != Activation::none ||
        args.pre_activation.defined() || args.activation_input.defined())
      fail("a product with a bias's gradient takes no bias and no activation");
    if (of_a ? !args.transpose_a : args.transpose_b)
      fail("a bias's gradient sums the rows of an operand that is not stored in K rows");
    if (args.bias_gradient.dtype != DType::f32 ||
        args.bias_gradient.shape.count() != (of_a ? shape.m : shape.n))
      fail("bias_gradient is not f32 of the operand's columns");
  }
  return shape;
}

}  // namespace shoal::kernels
