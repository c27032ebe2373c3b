// Default implementations of OptimizerKernels, for state in host memory.
#include "shoal/kernels/optimizer.h"

#include <algorithm>
#include <cmath>

#include "shoal/kernels/checks.h"

namespace shoal::kernels {

void OptimizerKernels::set_step(StepState* state, const StepNumbers& numbers, Stream) {
  set_numbers(*state, numbers);
}

void OptimizerKernels::begin_update(const BeginUpdateArgs& args, Stream) {
  check::begin_update(args);
  StepState& state = *args.state;
  const double unscale = static_cast<double>(state.unscale) / static_cast<double>(state.loss_scale);
  const double norm = std::sqrt(*args.sum_of_squares.as<double>()) * unscale;
  *args.norm.as<double>() = norm;
  state.skip = std::isfinite(norm) ? 0 : 1;
  follow(args.scaling, state.skip != 0, state);
  if (state.skip != 0) return;
  const double clip = args.max_norm > 0 ? std::min(1.0, args.max_norm / (norm + 1e-6)) : 1.0;
  state.gradient_scale = static_cast<float>(unscale * clip);
  ++state.step;
}

void OptimizerKernels::adamw_many(std::span<const AdamWArgs> args, Stream stream) {
  for (const AdamWArgs& one : args) adamw(one, stream);
}

void OptimizerKernels::sum_of_squares_many(std::span<const ConstView> xs, View out, Stream stream) {
  for (std::size_t i = 0; i < xs.size(); ++i) sum_of_squares(xs[i], out, i > 0, stream);
  if (xs.empty()) *out.as<double>() = 0;
}

}  // namespace shoal::kernels
