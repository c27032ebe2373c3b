#include <cmath>
#include <limits>

#include "support.h"

namespace shoal::kernels::testing {
namespace {

SHOAL_ON_EACH_TARGET(Norm);

const Shape kShapes[] = {Shape{0, 8},    Shape{1, 1},     Shape{3, 7},     Shape{2, 3, 33},
                         Shape{5, 64},   Shape{2, 1000},  Shape{130, 768}, Shape{2111, 20},
                         Shape{9, 1600}, Shape{3, 12288}, Shape{2, 20008}};

struct Row {
  Host mean, rstd;
};
// Statistics in f32, so that all backward kernels start from the same values.
Row statistics(const Host& x) {
  const std::int64_t rows = x.shape().rows(), columns = x.shape().columns();
  Row row{Host(Shape{rows}, DType::f32), Host(Shape{rows}, DType::f32)};
  for (std::int64_t r = 0; r < rows; ++r) {
    double mean = 0, variance = 0;
    for (std::int64_t j = 0; j < columns; ++j)
      mean += x.at(r * columns + j) / static_cast<double>(columns);
    for (std::int64_t j = 0; j < columns; ++j)
      variance += std::pow(x.at(r * columns + j) - mean, 2) / static_cast<double>(columns);
    row.mean.set(r, mean);
    row.rstd.set(r, 1 / std::sqrt(variance + 1e-5));
  }
  return row;
}

TEST_P(Norm, LayerNormMatchesTheReference) {
  for (const DType dtype : kTrainingDTypes)
    for (const DType weights : {DType::f32, dtype})
      for (const Shape& shape : kShapes) {
        const Host x = Host::random(shape, dtype, 1, -1, 4);
        const Host gamma = Host::random(Shape{shape.columns()}, weights, 2);
        const Host beta = Host::random(Shape{shape.columns()}, weights, 3);
        const auto outputs = [&] {
          const Shape rows{shape.rows()};
          return Hosts{Host(shape, dtype), Host(rows, DType::f32), Host(rows, DType::f32)};
        };
        verify("layer_norm", outputs,
               [&](Kernels& k, Hosts& out) {
                 LayerNormArgs args;
                 args.x = x;
                 args.gamma = gamma;
                 if (weights == dtype) args.gamma_offset = 1;
                 args.beta = beta;
                 args.y = out[0];
                 args.mean = out[1];
                 args.rstd = out[2];
                 k.norm().layer_norm(args, {});
               },
               {2e-6, 4e-6});
      }
}

TEST_P(Norm, LayerNormFusesResidualAndDropout) {
  for (const DType dtype : kTrainingDTypes)
    for (const float probability : {0.0f, 0.2f})
      for (const Shape& shape :
           {Shape{1, 1}, Shape{9, 33}, Shape{40, 1500}, Shape{9, 1600}, Shape{2, 20008}}) {
        const Host x = Host::random(shape, dtype, 1), residual = Host::random(shape, dtype, 4);
        const Host gamma = Host::random(Shape{shape.columns()}, DType::f32, 2);
        const Host beta = Host::random(Shape{shape.columns()}, DType::f32, 3);
        Host rows(Shape{shape.rows()}, DType::i32);
        for (std::int64_t r = 0; r < rows.count(); ++r) rows.set(r, static_cast<float>(2 * r + 1));
        // Called on the device where the views must be: on the host for the reference.
        const auto arguments = [&] {
          LayerNormArgs args;
          args.x = x;
          args.residual = residual;
          args.gamma = gamma;
          args.beta = beta;
          args.dropout.probability = probability;
          args.dropout.site.seed = 3;
          args.dropout.rows_per_sample = 4;
          if (shape.columns() > 1000) args.dropout.rows = rows;
          return args;
        };
        // A sum that rounds to the other side of a tie changes y by a unit of the dtype.
        const double unit = dtype == DType::f32 ? 4e-6 : 0.03;
        verify(
            "fused", [&] { return Hosts{Host(shape, dtype), Host(shape, dtype)}; },
            [&](Kernels& k, Hosts& out) {
              LayerNormArgs args = arguments();
              args.sum = out[0];
              args.y = out[1];
              k.norm().layer_norm(args, {});
            },
            {2e-6, unit});
        // The fused form must have the bits of the two separate kernels.
        const auto kernels = make_test_kernels();
        Host sum(shape, dtype), y(shape, dtype), fused_sum(shape, dtype), fused_y(shape, dtype);
        LayerNormArgs args = arguments();
        args.sum = fused_sum;
        args.y = fused_y;
        kernels->norm().layer_norm(args, {});
        kernels->elementwise().dropout_add(args.dropout, x, residual, sum, {});
        args.x = sum;
        args.residual = {};
        args.y = y;
        kernels->norm().layer_norm(args, {});
        for (std::int64_t i = 0; i < y.count(); ++i) {
          ASSERT_EQ(sum.at(i), fused_sum.at(i)) << i;
          ASSERT_EQ(y.at(i), fused_y.at(i)) << i;
        }
      }
}

TEST_P(Norm, LayerNormBackwardMatchesTheReference) {
  for (const DType dtype : kTrainingDTypes)
    for (const bool skip : {false, true})
      for (const Shape& shape : kShapes) {
        const Host x = Host::random(shape, dtype, 1, -1, 4), dy = Host::random(shape, dtype, 2);
        const Host gamma = Host::random(Shape{shape.columns()}, dtype, 3);
        const Host residual = Host::random(shape, dtype, 4);
        const Row row = statistics(x);
        verify(
            "layer_norm_backward", [&] { return Hosts{Host(shape, dtype)}; },
            [&](Kernels& k, Hosts& out) {
              LayerNormBackwardArgs args;
              args.dy = dy;
              args.x = x;
              args.gamma = gamma;
              if (skip) args.gamma_offset = 1;
              args.mean = row.mean;
              args.rstd = row.rstd;
              args.dx = out[0];
              if (skip) args.dx_residual = residual;
              k.norm().layer_norm_backward(args, {});
            },
            // One column has variance 0. rstd is then 316 and multiplies the rounding error.
            {4e-6, shape.columns() == 1 ? 2e-4 : 8e-6});
      }
}

// One pass computes the gradient of a sub-layer's sum and, with its dropout, that of the branch. It
// must have the bits of the two separate kernels.
TEST_P(Norm, LayerNormBackwardFusesADroppedBranch) {
  for (const DType dtype : kTrainingDTypes)
    for (const bool centred : {true, false})
      for (const Shape& shape :
           {Shape{1, 1}, Shape{9, 33}, Shape{40, 1500}, Shape{9, 1600}, Shape{2, 20008}}) {
        const Host x = Host::random(shape, dtype, 1, -1, 4), dy = Host::random(shape, dtype, 2);
        const Host gamma = Host::random(Shape{shape.columns()}, dtype, 3);
        const Host residual = Host::random(shape, dtype, 4);
        const Row row = statistics(x);
        const auto arguments = [&] {
          LayerNormBackwardArgs args;
          args.dy = dy;
          args.x = x;
          args.gamma = gamma;
          if (centred) args.mean = row.mean;
          args.rstd = row.rstd;
          args.dx_residual = residual;
          args.dropout.probability = 0.2f;
          args.dropout.site.seed = 3;
          args.dropout.rows_per_sample = 4;
          return args;
        };
        const double unit = dtype == DType::f32 ? 8e-6 : 0.03;
        verify(
            "with a branch", [&] { return Hosts{Host(shape, dtype), Host(shape, dtype)}; },
            [&](Kernels& k, Hosts& out) {
              LayerNormBackwardArgs args = arguments();
              args.dx = out[0];
              args.dx_branch = out[1];
              k.norm().layer_norm_backward(args, {});
            },
            {4e-6, shape.columns() == 1 ? 2e-3 : unit});
        const auto kernels = make_test_kernels();
        Host dx(shape, dtype), branch(shape, dtype), fused(shape, dtype), dropped(shape, dtype);
        LayerNormBackwardArgs args = arguments();
        args.dx = fused;
        args.dx_branch = dropped;
        kernels->norm().layer_norm_backward(args, {});
        args.dx = dx;
        args.dx_branch = {};
        kernels->norm().layer_norm_backward(args, {});
        kernels->elementwise().dropout(args.dropout, dx, branch, {});
        for (std::int64_t i = 0; i < dx.count(); ++i) {
          ASSERT_EQ(fused.at(i), dx.at(i)) << i;
          ASSERT_EQ(dropped.at(i), branch.at(i)) << i;
        }
      }
}

TEST_P(Norm, WeightGradientsAddInFixedOrder) {
  for (const DType dtype : kTrainingDTypes)
    for (const bool accumulate : {false, true})
      for (const Shape& shape : kShapes) {
        const Host x = Host::random(shape, dtype, 1, -1, 4), dy = Host::random(shape, dtype, 2);
        const Row row = statistics(x);
        const Shape columns{shape.columns()};
        verify(
            "layer_norm_weight_gradient",
            [&] {
              return accumulate ? Hosts{Host::random(columns, DType::f32, 5),
                                        Host::random(columns, DType::f32, 6)}
                                : Hosts{Host(columns, DType::f32), Host(columns, DType::f32)};
            },
            [&](Kernels& k, Hosts& out) {
              k.norm().layer_norm_weight_gradient(dy, x, row.mean, row.rstd, out[0], out[1],
                                                  accumulate, {});
            },
            {2e-6, 1e-4});
      }
}

// dx must have the same bits with and without the weights' gradients. A GPU computes both in one
// pass if vectors are used and rows are short. 300 rows are then several for each group of warps.
TEST_P(Norm, BackwardFusesTheWeightsGradients) {
  for (const DType dtype : kTrainingDTypes)
    for (const DType weights : {DType::f32, dtype})
      for (int flags = 0; flags < 8; ++flags)
        for (const Shape& shape :
             {Shape{0, 8}, Shape{1, 8}, Shape{9, 33}, Shape{300, 48}, Shape{37, 768},
              Shape{70, 1024}, Shape{19, 1600}, Shape{6, 4096}, Shape{5, 4104}}) {
          if (has_little_time() && shape.columns() > 1024 && flags != 5) continue;
          const bool centred = (flags & 1) != 0, drops = (flags & 2) != 0, adds = (flags & 4) != 0;
          const Host x = Host::random(shape, dtype, 1, -1, 4), dy = Host::random(shape, dtype, 2);
          const Host gamma = Host::random(Shape{shape.columns()}, weights, 3);
          const Host residual = Host::random(shape, dtype, 4);
          const Row row = statistics(x);
          const Shape columns{shape.columns()};
          const auto arguments = [&](Hosts& out, bool with) {
            LayerNormBackwardArgs args;
            args.dy = dy;
            args.x = x;
            args.gamma = gamma;
            if (centred) args.mean = row.mean;
            args.rstd = row.rstd;
            args.dx = out[0];
            args.dx_residual = residual;
            if (drops) {
              args.dx_branch = out[1];
              args.dropout.probability = 0.2f;
              args.dropout.site.seed = 3;
              args.dropout.rows_per_sample = 4;
            }
            if (with) {
              args.dgamma = out[2];
              if (centred) args.dbeta = out[3];
              args.accumulate = adds;
            }
            return args;
          };
          const auto made = [&] {
            return Hosts{Host(shape, dtype), Host(shape, dtype),
                         adds ? Host::random(columns, DType::f32, 5) : Host(columns, DType::f32),
                         adds ? Host::random(columns, DType::f32, 6) : Host(columns, DType::f32)};
          };
          const double unit = dtype == DType::f32 ? 8e-6 : drops ? 0.03 : 8e-6;
          verify("layer_norm_backward with its weights", made,
                 [&](Kernels& k, Hosts& out) {
                   k.norm().layer_norm_backward(arguments(out, true), {});
                 },
                 {4e-6, std::max(unit, 1e-4)});
          Hosts both = made(), alone = made();
          const auto kernels = make_test_kernels();
          kernels->norm().layer_norm_backward(arguments(both, true), {});
          kernels->norm().layer_norm_backward(arguments(alone, false), {});
          for (std::int64_t i = 0; i < shape.count(); ++i) {
            ASSERT_EQ(both[0].at(i), alone[0].at(i)) << i;
            if (drops) {
              ASSERT_EQ(both[1].at(i), alone[1].at(i)) << i;
            }
          }
        }
}

// RMSNorm is a LayerNorm without beta and mean.
TEST_P(Norm, RmsNormMatchesTheReference) {
  for (const DType dtype : kTrainingDTypes)
    for (const DType weights : {DType::f32, dtype})
      for (const bool fused : {false, true})
        for (const Shape& shape : kShapes) {
          const Host x = Host::random(shape, dtype, 1, -1, 4),
                     residual = Host::random(shape, dtype, 4);
          const Host gamma = Host::random(Shape{shape.columns()}, weights, 2);
          verify(
              "rms_norm",
              [&] {
                return Hosts{Host(shape, dtype), Host(Shape{shape.rows()}, DType::f32),
                             Host(shape, dtype)};
              },
              [&](Kernels& k, Hosts& out) {
                LayerNormArgs args;
                args.x = x;
                args.gamma = gamma;
                if (fused) args.gamma_offset = 1;
                args.y = out[0];
                args.rstd = out[1];
                if (fused) args.residual = residual, args.sum = out[2];
                k.norm().layer_norm(args, {});
              },
              {2e-6, fused && dtype != DType::f32 ? 0.03 : 4e-6});
        }
}

TEST_P(Norm, RmsNormBackwardMatchesTheReference) {
  for (const DType dtype : kTrainingDTypes)
    for (const bool flag : {false, true})  // skip, or accumulate
      for (const Shape& shape : kShapes) {
        const Host x = Host::random(shape, dtype, 1, -1, 4), dy = Host::random(shape, dtype, 2);
        const Host gamma = Host::random(Shape{shape.columns()}, dtype, 3);
        const Host residual = Host::random(shape, dtype, 4);
        const Shape columns{shape.columns()};
        Host rstd(Shape{shape.rows()}, DType::f32);
        for (std::int64_t r = 0; r < shape.rows(); ++r) {
          double squares = 0;
          for (std::int64_t j = 0; j < shape.columns(); ++j)
            squares += std::pow(x.at(r * shape.columns() + j), 2);
          rstd.set(r, 1 / std::sqrt(squares / static_cast<double>(shape.columns()) + 1e-5));
        }
        verify(
            "rms_norm_backward", [&] { return Hosts{Host(shape, dtype)}; },
            [&](Kernels& k, Hosts& out) {
              LayerNormBackwardArgs args;
              args.dy = dy;
              args.x = x;
              args.gamma = gamma;
              if (flag) args.gamma_offset = 1;
              args.rstd = rstd;
              args.dx = out[0];
              if (flag) args.dx_residual = residual;
              k.norm().layer_norm_backward(args, {});
            },
            // With one column y is the sign of x, and dx is the rounding error of rstd·g (1 - 1).
            {4e-6, shape.columns() == 1 ? 1e-3 : 8e-6});
        verify(
            "rms_norm_weight_gradient",
            [&] {
              return Hosts{flag ? Host::random(columns, DType::f32, 5) : Host(columns, DType::f32)};
            },
            [&](Kernels& k, Hosts& out) {
              k.norm().layer_norm_weight_gradient(dy, x, {}, rstd, out[0], {}, flag, {});
            },
            {2e-6, 1e-4});
      }
}

TEST_P(Norm, SoftmaxMatchesTheReference) {
  for (const DType dtype : kTrainingDTypes)
    for (const Shape& shape : kShapes) {
      Host x = Host::random(shape, dtype, 1, -130, -70);  // their exponentials underflow
      if (shape.columns() > 1)
        for (std::int64_t i = 0; i < x.count(); i += 5)
          if (i % shape.columns()) x.set(i, -std::numeric_limits<double>::infinity());
      const Host y = Host::random(shape, dtype, 2, 0, 1), dy = Host::random(shape, dtype, 3);
      const auto poisoned = [&] { return Hosts{Host(shape, dtype)}; };
      verify("softmax", poisoned, [&](Kernels& k, Hosts& out) { k.norm().softmax(x, out[0], {}); },
             {5e-6, 1e-7});
      verify(
          "softmax in place", [&] { return Hosts{x}; },
          [&](Kernels& k, Hosts& out) { k.norm().softmax(out[0], out[0], {}); }, {5e-6, 1e-7});
      verify("softmax_backward", poisoned,
             [&](Kernels& k, Hosts& out) { k.norm().softmax_backward(y, dy, out[0], {}); },
             {2e-6, 2e-4});
    }
}

TEST(NormErrors, NameTheArgument) {
  const auto kernels = make_test_kernels();
  Host x(Shape{2, 3}, DType::f32), four(Shape{4}, DType::f32);
  LayerNormArgs args;
  args.x = x;
  args.y = x;
  args.gamma = four;
  args.beta = four;
  EXPECT_EQ(error_of([&] { kernels->norm().layer_norm(args, {}); }),
            "layer_norm: gamma is [4], expected [3]");
  Host three(Shape{3}, DType::f32), rows(Shape{2}, DType::f32);
  args.gamma = three;
  args.beta = {};
  args.mean = args.rstd = rows;
  EXPECT_EQ(error_of([&] { kernels->norm().layer_norm(args, {}); }),
            "layer_norm: mean and rstd are kept together or not at all; of an RMSNorm (without "
            "beta) rstd alone");
  EXPECT_EQ(error_of([&] {
              kernels->norm().layer_norm_weight_gradient(x, x, rows, rows, three, {}, false, {});
            }),
            "layer_norm_weight_gradient: an RMSNorm has neither mean nor dbeta, a LayerNorm both");
}

}  // namespace
}  // namespace shoal::kernels::testing
