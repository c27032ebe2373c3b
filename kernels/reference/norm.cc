#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "shoal/kernels/checks.h"
#include "shoal/kernels/reference/access.h"
#include "shoal/kernels/reference/dropout.h"
#include "shoal/kernels/reference/families.h"

namespace shoal::kernels {
namespace {

using reference::load;
using reference::store;

class ReferenceNorm final : public NormKernels {
 public:
  void layer_norm(const LayerNormArgs& args, Stream) override {
    check::layer_norm(args);
    const std::int64_t rows = args.x.shape.rows(), columns = args.x.shape.columns();
    for (std::int64_t row = 0; row < rows; ++row) {
      const std::int64_t first = row * columns;
      ConstView x = args.x;
      if (args.residual.defined()) {
        for (std::int64_t i = first; i < first + columns; ++i)
          store(args.sum, i,
                load(args.residual, i) +
                    reference::dropped(args.dropout, columns, i, load(args.x, i)));
        x = args.sum;
      }
      double mean = 0, variance = 0;
      if (args.beta.defined()) {
        for (std::int64_t i = first; i < first + columns; ++i) mean += load(x, i);
        mean /= static_cast<double>(columns);
      }
      for (std::int64_t i = first; i < first + columns; ++i)
        variance += (load(x, i) - mean) * (load(x, i) - mean);
      variance /= static_cast<double>(columns);
      const double rstd = 1 / std::sqrt(variance + args.epsilon);
      for (std::int64_t j = 0; j < columns; ++j)
        store(args.y, first + j,
              (load(x, first + j) - mean) * rstd * (load(args.gamma, j) + args.gamma_offset) +
                  (args.beta.defined() ? load(args.beta, j) : 0));
      if (args.mean.defined() && columns > 0) store(args.mean, row, mean);
      if (args.rstd.defined() && columns > 0) store(args.rstd, row, rstd);
    }
  }

  void layer_norm_backward(const LayerNormBackwardArgs& args, Stream stream) override {
    if (!args.dx.defined() && !args.dx_branch.defined() && !args.dgamma.defined()) return;
    check::layer_norm_backward(args);
    if (args.dgamma.defined())
      layer_norm_weight_gradient(args.dy, args.x, args.mean, args.rstd, args.dgamma, args.dbeta,
                                 args.accumulate, stream);
    const std::int64_t rows = args.x.shape.rows(), columns = args.x.shape.columns();
    const auto width = static_cast<double>(columns);
    for (std::int64_t row = 0; row < rows; ++row) {
      const std::int64_t first = row * columns;
      const bool centred = args.mean.defined();
      const double mean = centred ? load(args.mean, row) : 0, rstd = load(args.rstd, row);
      double sum = 0, projection = 0;
      for (std::int64_t j = 0; j < columns; ++j) {
        const double g = load(args.dy, first + j) * (load(args.gamma, j) + args.gamma_offset);
        sum += g;
        projection += g * (load(args.x, first + j) - mean) * rstd;
      }
      for (std::int64_t j = 0; j < columns; ++j) {
        const double g = load(args.dy, first + j) * (load(args.gamma, j) + args.gamma_offset);
        const double normalised = (load(args.x, first + j) - mean) * rstd;
        const double average = centred ? sum / width : 0;
        double dx = rstd * (g - average - normalised * projection / width);
        if (args.dx_residual.defined()) dx += load(args.dx_residual, first + j);
        store(args.dx, first + j, dx);
        if (args.dx_branch.defined())
          store(args.dx_branch, first + j,
                reference::dropped(args.dropout, columns, first + j, load(args.dx, first + j)));
      }
    }
  }

  void layer_norm_weight_gradient(ConstView dy, ConstView x, ConstView mean, ConstView rstd,
                                  View dgamma, View dbeta, bool accumulate, Stream) override {
    check::layer_norm_weight_gradient(dy, x, mean, rstd, dgamma, dbeta);
    const std::int64_t rows = x.shape.rows(), columns = x.shape.columns();
    for (std::int64_t j = 0; j < columns; ++j) {
      const bool centred = dbeta.defined();
      double gamma = accumulate ? load(dgamma, j) : 0,
             beta = accumulate && centred ? load(dbeta, j) : 0;
      for (std::int64_t row = 0; row < rows; ++row) {
        const double g = load(dy, row * columns + j);
        gamma +=
            g * (load(x, row * columns + j) - (centred ? load(mean, row) : 0)) * load(rstd, row);
        beta += g;
      }
      store(dgamma, j, gamma);
      if (centred) store(dbeta, j, beta);
    }
  }

  void softmax(ConstView x, View y, Stream) override {
    check::same("softmax", x, y);
    const std::int64_t columns = x.shape.columns();
    for (std::int64_t first = 0; first < x.shape.count(); first += columns) {
      double largest = -std::numeric_limits<double>::infinity(), sum = 0;
      for (std::int64_t i = first; i < first + columns; ++i)
        largest = std::max(largest, load(x, i));
      for (std::int64_t i = first; i < first + columns; ++i) sum += std::exp(load(x, i) - largest);
      for (std::int64_t i = first; i < first + columns; ++i)
        store(y, i, std::exp(load(x, i) - largest) / sum);
    }
  }

  void softmax_backward(ConstView y, ConstView dy, View dx, Stream) override {
    check::same("softmax_backward", y, dy);
    check::same("softmax_backward", y, dx);
    const std::int64_t columns = y.shape.columns();
    for (std::int64_t first = 0; first < y.shape.count(); first += columns) {
      double dot = 0;
      for (std::int64_t i = first; i < first + columns; ++i) dot += load(y, i) * load(dy, i);
      for (std::int64_t i = first; i < first + columns; ++i)
        store(dx, i, load(y, i) * (load(dy, i) - dot));
    }
  }
};

}  // namespace

std::unique_ptr<NormKernels> make_reference_norm() { return std::make_unique<ReferenceNorm>(); }

}  // namespace shoal::kernels
