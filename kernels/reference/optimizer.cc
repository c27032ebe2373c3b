#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>
#include <vector>

#include "shoal/kernels/checks.h"
#include "shoal/kernels/reference/access.h"
#include "shoal/kernels/reference/families.h"

namespace shoal::kernels {
namespace {

using reference::load;
using reference::store;

class ReferenceOptimizer final : public OptimizerKernels {
 public:
  void adamw(const AdamWArgs& args, Stream) override {
    check::adamw("adamw", args);
    if (args.state->skip) return;
    const double rate = args.state->learning_rate;
    for (std::int64_t i = 0; i < args.master.shape.count(); ++i) {
      const double decayed = load(args.master, i) * (1 - rate * args.weight_decay);
      advance(args, i);
      put(args, i, decayed - rate * direction(args, i));
    }
  }

  void lion_many(std::span<const AdamWArgs> all, Stream) override {
    check::lion(all);
    for (const AdamWArgs& args : all) {
      if (args.state->skip) return;
      const double rate = args.state->learning_rate;
      for (std::int64_t i = 0; i < args.master.shape.count(); ++i) {
        const double g = load(args.gradient, i) * args.state->gradient_scale;
        const double m = load(args.first_moment, i);
        const double direction = args.beta1 * m + (1 - args.beta1) * g;
        const int sign = (direction > 0 ? 1 : 0) - (direction < 0 ? 1 : 0);
        store(args.first_moment, i, args.beta2 * m + (1 - args.beta2) * g);
        put(args, i, load(args.master, i) * (1 - rate * args.weight_decay) - rate * sign);
      }
    }
  }

  void sgd(const SgdArgs& args, Stream) override {
    check::sgd(args);
    if (args.state->skip) return;
    for (std::int64_t i = 0; i < args.master.shape.count(); ++i) {
      const double p = load(args.master, i);
      double g = load(args.gradient, i) * args.state->gradient_scale + args.weight_decay * p;
      if (args.momentum != 0) {
        const double moved = args.state->step == 1 ? g
                                                   : args.momentum * load(args.momentum_buffer, i) +
                                                         (1 - args.dampening) * g;
        store(args.momentum_buffer, i, moved);
        g = args.nesterov ? g + args.momentum * moved : moved;
      }
      put(args.master, args.parameter, i, p - args.state->learning_rate * g);
    }
  }

  void lamb_moments(const LambArgs& args, Stream) override {
    check::lamb(args);
    for (std::size_t t = 0; t < args.tensors.size(); ++t) {
      const AdamWArgs& adam = args.tensors[t];
      if (adam.state->skip) return;
      double weight = 0, update = 0;
      for (std::int64_t i = 0; i < adam.master.shape.count(); ++i) {
        advance(adam, i);
        const double p = load(adam.master, i), r = lamb_direction(adam, i);
        weight += p * p;
        update += r * r;
      }
      store(args.squares, 2 * static_cast<std::int64_t>(t), weight);
      store(args.squares, 2 * static_cast<std::int64_t>(t) + 1, update);
    }
  }

  void lamb_apply(const LambArgs& args, Stream) override {
    check::lamb(args);
    for (std::size_t t = 0; t < args.tensors.size(); ++t) {
      const AdamWArgs& adam = args.tensors[t];
      if (adam.state->skip) return;
      const double weight = std::sqrt(load(args.squares, 2 * static_cast<std::int64_t>(t)));
      const double update = std::sqrt(load(args.squares, 2 * static_cast<std::int64_t>(t) + 1));
      const double trust =
          weight > 0 && update > 0 ? std::min(weight / update, args.max_trust_ratio) : 1;
      for (std::int64_t i = 0; i < adam.master.shape.count(); ++i)
        put(adam, i,
            load(adam.master, i) - adam.state->learning_rate * trust * lamb_direction(adam, i));
    }
  }

  void adafactor_sums(const AdafactorArgs& args, Stream) override {
    check::adafactor(args);
    for_adafactor(args, [](const AdamWArgs& x, const MatrixPlace& place, double* sums) {
      std::fill_n(sums, adafactor_room(place), 0.0);
      if (!place.is_matrix()) return;
      for (std::int64_t i = 0; i < x.master.shape.count(); ++i) {
        const double g = load(x.gradient, i) * x.state->gradient_scale;
        const auto [row, column] = at(place, i);
        sums[1 + row] += g * g;
        sums[1 + place.all_rows() + column] += g * g;
      }
    });
  }

  void adafactor_moments(const AdafactorArgs& args, Stream) override {
    check::adafactor(args);
    for_adafactor(args, [&](const AdamWArgs& x, const MatrixPlace& place, double* sums) {
      const double kept = 1 - std::pow(x.state->step, args.decay_rate);
      const auto advance_by = [&](const View& moment, std::int64_t i, double mean) {
        store(moment, i, kept * load(moment, i) + (1 - kept) * (mean + x.epsilon));
      };
      for (std::int64_t r = 0; r < place.all_rows(); ++r)
        advance_by(x.first_moment, r, sums[1 + r] / static_cast<double>(place.columns));
      for (std::int64_t c = 0; c < place.all_columns(); ++c)
        advance_by(x.second_moment, c,
                   sums[1 + place.all_rows() + c] / static_cast<double>(place.rows));
      const std::vector<double> means = row_means(x, place);
      double squares = 0;
      for (std::int64_t i = 0; i < x.master.shape.count(); ++i) {
        const double g = load(x.gradient, i) * x.state->gradient_scale;
        if (!place.is_matrix()) advance_by(x.first_moment, i, g * g);
        const double u = adafactor_direction(x, place, means, i);
        squares += u * u;
      }
      sums[0] = squares;
    });
  }

  void adafactor_apply(const AdafactorArgs& args, Stream) override {
    check::adafactor(args);
    for_adafactor(args, [&](const AdamWArgs& x, const MatrixPlace& place, const double* sums) {
      const double rms = std::sqrt(sums[0] / static_cast<double>(place.count));
      const double rate = x.state->learning_rate;
      const double moves = rate / std::max(1.0, rms / args.clip_threshold);
      const std::vector<double> means = row_means(x, place);
      for (std::int64_t i = 0; i < x.master.shape.count(); ++i)
        put(x, i,
            load(x.master, i) * (1 - rate * x.weight_decay) -
                moves * adafactor_direction(x, place, means, i));
    });
  }

  void sum_of_squares(ConstView x, View out, bool accumulate, Stream) override {
    check::sum_of_squares(x, out);
    store(out, 0, squares(x) + (accumulate ? load(out, 0) : 0));
  }

  bool has_non_finite(ConstView x, Stream) override {
    check::training_float("has_non_finite", "x", x);
    for (std::int64_t i = 0; i < x.shape.count(); ++i)
      if (!std::isfinite(load(x, i))) return true;
    return false;
  }

 private:
  // Updates the moments of element i.
  static void advance(const AdamWArgs& args, std::int64_t i) {
    const double g = load(args.gradient, i) * args.state->gradient_scale;
    store(args.first_moment, i, args.beta1 * load(args.first_moment, i) + (1 - args.beta1) * g);
    store(args.second_moment, i,
          args.beta2 * load(args.second_moment, i) + (1 - args.beta2) * g * g);
  }
  // m̂ / (sqrt(v̂) + epsilon)
  static double direction(const AdamWArgs& args, std::int64_t i) {
    const double step = args.state->step;
    return load(args.first_moment, i) / (1 - std::pow(args.beta1, step)) /
           (std::sqrt(load(args.second_moment, i) / (1 - std::pow(args.beta2, step))) +
            args.epsilon);
  }
  static double lamb_direction(const AdamWArgs& args, std::int64_t i) {
    return direction(args, i) + args.weight_decay * load(args.master, i);
  }

  template <class Use>
  static void for_adafactor(const AdafactorArgs& args, const Use& use) {
    auto* sums = args.sums.as<double>();
    for (std::size_t i = 0; i < args.tensors.size(); ++i) {
      if (args.tensors[i].state->skip) return;
      use(args.tensors[i], args.places[i], sums);
      sums += adafactor_room(args.places[i]);
    }
  }
  // Row and column of element i, among those of all matrices.
  static std::pair<std::int64_t, std::int64_t> at(const MatrixPlace& place, std::int64_t i) {
    const auto element = static_cast<std::int64_t>(place.place.element(i));
    return {element / place.columns,
            element / (place.rows * place.columns) * place.columns + element % place.columns};
  }
  // Of the rows of each matrix.
  static std::vector<double> row_means(const AdamWArgs& x, const MatrixPlace& place) {
    std::vector<double> means;
    for (std::int64_t r = 0; r < place.all_rows(); ++r) {
      if (r % place.rows == 0) means.push_back(0);
      means.back() += load(x.first_moment, r) / static_cast<double>(place.rows);
    }
    return means;
  }
  static double adafactor_direction(const AdamWArgs& x, const MatrixPlace& place,
                                    const std::vector<double>& means, std::int64_t i) {
    const double g = load(x.gradient, i) * x.state->gradient_scale;
    if (!place.is_matrix()) return g / std::sqrt(load(x.first_moment, i));
    const auto [row, column] = at(place, i);
    const double mean = means[static_cast<std::size_t>(row / place.rows)];
    return g / std::sqrt(load(x.first_moment, row) / mean * load(x.second_moment, column));
  }

  static void put(const View& master, const View& parameter, std::int64_t i, double value) {
    store(master, i, value);
    if (parameter.defined()) store(parameter, i, load(master, i));
  }
  static void put(const AdamWArgs& args, std::int64_t i, double value) {
    if (!args.rounding) return put(args.master, args.parameter, i, value);
    const std::uint32_t bits =
        random_bits(args.rounding->site(args.state), 0, args.rounding->element(i));
    const auto rounded = std::bit_cast<float>(
        rounded_stochastically(std::bit_cast<std::uint32_t>(static_cast<float>(value)), bits));
    store(args.master, i, rounded);  // exact in bf16
  }

  static double squares(const ConstView& x) {
    double sum = 0;
    for (std::int64_t i = 0; i < x.shape.count(); ++i) sum += load(x, i) * load(x, i);
    return sum;
  }
};

}  // namespace

std::unique_ptr<OptimizerKernels> make_reference_optimizer() {
  return std::make_unique<ReferenceOptimizer>();
}

}  // namespace shoal::kernels
