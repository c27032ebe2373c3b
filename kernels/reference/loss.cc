#include "shoal/kernels/loss.h"

#include <cmath>
#include <vector>

#include "shoal/kernels/loss_checks.h"
#include "shoal/kernels/loss_scale.h"
#include "shoal/kernels/reference/access.h"
#include "shoal/kernels/reference/families.h"

namespace shoal::kernels {
namespace {

using reference::load;
using reference::store;

struct RowLoss {
  double loss = 0;
  bool valid = false, correct = false;
};

double capped(double logit, double cap) { return cap > 0 ? cap * std::tanh(logit / cap) : logit; }
// The derivative of a capped logit by the logit.
double slope_of(double capped, double cap) {
  return cap > 0 ? 1 - capped / cap * (capped / cap) : 1;
}

// Loss of one row. Replaces the logits by their gradients: softmax - smoothed one-hot, scaled.
RowLoss row_loss(std::vector<double>& logits, std::int32_t target, double smoothing, double scale,
                 double cap = 0) {
  if (target < 0) {
    std::fill(logits.begin(), logits.end(), 0.0);
    return {};
  }
  const auto at = static_cast<std::size_t>(target);
  for (double& logit : logits) logit = capped(logit, cap);
  double largest = logits[0], sum = 0, total = 0;
  std::size_t best = 0;
  for (std::size_t j = 0; j < logits.size(); ++j) {
    if (logits[j] > largest) largest = logits[best = j];
    total += logits[j];
  }
  for (double logit : logits) sum += std::exp(logit - largest);
  const double log_sum = largest + std::log(sum), n = static_cast<double>(logits.size());
  double loss = (1 - smoothing) * (log_sum - logits[at]);
  // Skipped for 0, since `total` is -inf if a class is masked.
  if (smoothing > 0) loss += smoothing * (log_sum - total / n);
  for (std::size_t j = 0; j < logits.size(); ++j)
    logits[j] = scale *
                (std::exp(logits[j] - log_sum) - smoothing / n - (j == at ? 1 - smoothing : 0)) *
                slope_of(logits[j], cap);
  return {loss, true, best == at};
}

class ReferenceLoss final : public LossKernels {
 public:
  void linear_cross_entropy(const LinearCrossEntropyArgs& args, Stream) override {
    check_linear_cross_entropy(args);
    const std::int64_t rows = args.x.shape.rows(), columns = args.x.shape.columns(),
                       vocabulary = args.weight.shape[0];
    const auto count = static_cast<std::size_t>(vocabulary);
    std::vector<double> logits(count), dbias(count, 0),
        dweight(args.dweight.defined() ? count * static_cast<std::size_t>(columns) : 0, 0);
    double total = 0;
    std::int32_t correct = 0;
    for (std::int64_t i = 0; i < rows; ++i) {
      const std::int32_t target = args.targets.as<std::int32_t>()[i];
      for (std::int64_t j = 0; j < vocabulary; ++j) {
        double dot = args.bias.defined() ? load(args.bias, j) : 0;
        for (std::int64_t c = 0; c < columns; ++c)
          dot += load(args.x, i * columns + c) * load(args.weight, j * columns + c);
        logits[static_cast<std::size_t>(j)] = dot;
      }
      const RowLoss row = row_loss(logits, target, static_cast<double>(args.label_smoothing),
                                   static_cast<double>(whole_scale(args.loss_scale, args.state)),
                                   static_cast<double>(args.soft_cap));
      total += row.loss;
      correct += row.correct ? 1 : 0;
      if (args.token_loss.defined()) store(args.token_loss, i, row.loss);
      for (std::size_t j = 0; j < count; ++j) dbias[j] += logits[j];
      for (std::int64_t c = 0; c < columns; ++c) {
        double sum = 0;
        for (std::int64_t j = 0; j < vocabulary; ++j) {
          const double gradient = logits[static_cast<std::size_t>(j)];
          if (args.dx.defined()) sum += gradient * load(args.weight, j * columns + c);
          if (args.dweight.defined())
            dweight[static_cast<std::size_t>(j * columns + c)] +=
                gradient * load(args.x, i * columns + c);
        }
        if (args.dx.defined()) store(args.dx, i * columns + c, sum);
      }
    }
    store(args.loss_sum, 0, total);
    if (args.correct.defined()) store(args.correct, 0, correct);
    for (std::int64_t t = 0; args.dweight.defined() && t < vocabulary * columns; ++t)
      store(args.dweight, t,
            (args.accumulate_dweight ? load(args.dweight, t) : 0) +
                dweight[static_cast<std::size_t>(t)]);
    for (std::int64_t j = 0; args.dbias.defined() && j < vocabulary; ++j)
      store(
          args.dbias, j,
          (args.accumulate_dweight ? load(args.dbias, j) : 0) + dbias[static_cast<std::size_t>(j)]);
  }

  void cross_entropy(const CrossEntropyArgs& args, Stream) override {
    const auto& [logits, targets, label_smoothing, loss_scale, state, loss_sum, dlogits] = args;
    check_cross_entropy(logits, targets, label_smoothing, loss_sum, dlogits);
    const std::int64_t rows = logits.shape.rows(), vocabulary = logits.shape.columns();
    double total = 0;
    std::vector<double> row(static_cast<std::size_t>(vocabulary));
    for (std::int64_t i = 0; i < rows; ++i) {
      for (std::int64_t j = 0; j < vocabulary; ++j)
        row[static_cast<std::size_t>(j)] = load(logits, i * vocabulary + j);
      total += row_loss(row, targets.as<std::int32_t>()[i], static_cast<double>(label_smoothing),
                        static_cast<double>(whole_scale(loss_scale, state)))
                   .loss;
      for (std::int64_t j = 0; dlogits.defined() && j < vocabulary; ++j)
        store(dlogits, i * vocabulary + j, row[static_cast<std::size_t>(j)]);
    }
    store(loss_sum, 0, total);
  }

  void shard_statistics(View logits, ConstView targets, std::int64_t first_class, float soft_cap,
                        View statistics, Stream) override {
    check_shard_statistics(logits, targets, first_class, soft_cap, statistics);
    const auto cap = static_cast<double>(soft_cap);
    const std::int64_t rows = targets.shape.count(), columns = logits.shape[1];
    for (std::int64_t i = 0; i < rows; ++i) {
      double largest = -INFINITY, sum = 0, total = 0, at_target = 0;
      for (std::int64_t j = 0; j < columns; ++j) {
        const double logit = capped(load(logits, i * columns + j), cap);
        if (!(logit <= largest)) largest = logit;
        total += logit;
        if (targets.as<std::int32_t>()[i] == first_class + j) at_target = logit;
      }
      for (std::int64_t j = 0; j < columns; ++j) {
        const double logit = capped(load(logits, i * columns + j), cap);
        const double value = logit == -INFINITY ? 0 : std::exp(logit - largest);
        store(logits, i * columns + j, cap > 0 ? logit : value);
        sum += value;
      }
      const double numbers[] = {largest, sum, at_target, total};
      for (std::int64_t k = 0; k < kShardStatistics; ++k)
        store(statistics, i * kShardStatistics + k, numbers[k]);
    }
  }

  void squared_error(const SquaredErrorArgs& args, Stream) override {
    const auto& [x, targets, loss_scale, state, loss_sum, dx] = args;
    const auto scale = static_cast<double>(whole_scale(loss_scale, state));
    check_squared_error(x, targets, loss_sum, dx);
    double sum = 0;
    for (std::int64_t i = 0; i < x.shape.count(); ++i) {
      const double target = load(targets, i), apart = std::isnan(target) ? 0 : load(x, i) - target;
      sum += apart * apart;
      if (dx.defined()) store(dx, i, 2 * scale * apart);
    }
    store(loss_sum, 0, sum);
  }

  void shard_cross_entropy(const ShardCrossEntropyArgs& args, Stream) override {
    check_shard_cross_entropy(args);
    const std::int64_t ranks = args.statistics.shape[0], rows = args.targets.shape.count(),
                       columns = args.exponentials.shape[1];
    const auto smoothing = static_cast<double>(args.label_smoothing),
               cap = static_cast<double>(args.soft_cap);
    const auto scale = static_cast<double>(whole_scale(args.loss_scale, args.state)),
               n = static_cast<double>(args.classes);
    for (std::int64_t i = 0; i < rows; ++i) {
      const auto number = [&](std::int64_t rank, std::int64_t k) {
        return load(args.statistics, (rank * rows + i) * kShardStatistics + k);
      };
      double largest = -INFINITY, sum = 0, at_target = 0, total = 0;
      for (std::int64_t r = 0; r < ranks; ++r) largest = std::fmax(largest, number(r, 0));
      for (std::int64_t r = 0; r < ranks; ++r) {
        if (number(r, 1) != 0) sum += number(r, 1) * std::exp(number(r, 0) - largest);
        at_target += number(r, 2);
        total += number(r, 3);
      }
      const std::int32_t target = args.targets.as<std::int32_t>()[i];
      const double log_sum = largest + std::log(sum);
      double loss = (1 - smoothing) * (log_sum - at_target);
      if (smoothing > 0) loss += smoothing * (log_sum - total / n);
      store(args.token_loss, i, target < 0 ? 0 : loss);
      for (std::int64_t j = 0; args.dlogits.defined() && j < columns; ++j) {
        const double kept = load(args.exponentials, i * columns + j),
                     softmax = cap > 0 ? std::exp(kept - log_sum)
                                       : kept * std::exp(number(args.rank, 0) - log_sum);
        const double wanted = smoothing / n + (target == args.first_class + j ? 1 - smoothing : 0);
        store(args.dlogits, i * columns + j,
              target < 0 ? 0 : scale * (softmax - wanted) * slope_of(kept, cap));
      }
    }
  }
};

}  // namespace

std::unique_ptr<LossKernels> make_reference_loss() { return std::make_unique<ReferenceLoss>(); }

}  // namespace shoal::kernels
