#include "shoal/parallel/apply/model_sums.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "shoal/collectives/watch.h"
#include "shoal/runtime/base/error.h"

namespace shoal::parallel {

using collectives::ReduceOp;

// One sum over all ranks. Separate sums per copy might add in different orders, and copies that
// clip by different norms would drift apart. Copies other than the first contribute zero and a
// veto: if any rank's sum is not finite, the result is not finite on every rank.
double ModelSums::sum_squares(double mine, double* loss) {
  collectives::Communicator& all = model_.mesh().world();
  if (all.size() == 1) return mine;
  const PhaseSpan phase(model_.options().clock, StepPhase::communication);
  double sums[] = {loss != nullptr ? *loss : 0, model_.is_first_copy() ? mine : 0,
                   std::isfinite(mine) ? 0.0 : 1.0};
  all.host().all_reduce(sums, sums, 3, DType::f64, ReduceOp::sum)->wait();
  if (loss != nullptr) *loss = sums[0];
  const bool refused = sums[2] > 0 && std::isfinite(sums[1]);
  return refused ? std::numeric_limits<double>::quiet_NaN() : sums[1];
}

void ModelSums::sum_squares_in_place(const Tensor& mine, Stream stream) {
  (void)parallel::sum_squares_in_place(model_.mesh().world(),
                                       model_.context().kernels().reduction(), mine,
                                       model_.is_first_copy(), stream);
}

bool ModelSums::has_parts() const { return model_.mesh().shape().tp > 1 || model_.sharded(); }

// Each element counts only on the rank that writes it to checkpoints. As in sum_squares(), all
// ranks of the mesh take part in one sum, so copies cannot drift apart.
void ModelSums::sum_over_parts(std::span<const std::span<double>> sums, const nn::CountOf& count) {
  const std::vector<OwnedRun> runs = model_.owned();
  SHOAL_ASSERT(runs.size() == sums.size());
  std::vector<std::size_t> begin;  // in `whole`, by parameter of the whole model
  std::size_t size = 0;
  for (const nn::Parameter* parameter : model_.parameters_of_all()) {
    begin.push_back(size);
    if (parameter->trainable()) size += static_cast<std::size_t>(count(parameter->whole_shape()));
  }
  std::vector<double> whole(size);
  const auto at = [&](std::size_t run) {
    return whole.data() + begin[static_cast<std::size_t>(runs[run].number)];
  };
  for (std::size_t i = 0; i < runs.size(); ++i)
    for (std::size_t k = 0; runs[i].writes && k < sums[i].size(); ++k) at(i)[k] += sums[i][k];
  collectives::Communicator& all = model_.mesh().world();
  if (all.size() > 1)
    all.host()
        .all_reduce(whole.data(), whole.data(), std::ssize(whole), DType::f64, ReduceOp::sum)
        ->wait();
  for (std::size_t i = 0; i < runs.size(); ++i) std::copy_n(at(i), sums[i].size(), sums[i].begin());
}

void ModelSums::before_reading(Stream stream) { collectives::watch(model_.mesh().world(), stream); }

}  // namespace shoal::parallel
