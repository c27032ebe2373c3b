// Reductions over a mesh that an update of a ParallelModel needs: the gradient norm, and sums over
// whole parameters.
#pragma once

#include <span>

#include "shoal/nn/optim/update_rule.h"
#include "shoal/parallel/apply/parallel_model.h"

namespace shoal::parallel {

// Results have the same bits on every rank.
class ModelSums final : public nn::UpdateGroup {
 public:
  // `model` must outlive the object.
  explicit ModelSums(ParallelModel& model) : model_(model) {}

  // With several copies of the state, only the first counts. If any rank's sum is not finite, in
  // any copy, all results are not finite.
  double sum_squares(double mine, double* loss) override;
  void sum_squares_in_place(const Tensor& mine, Stream stream) override;
  bool has_parts() const override;
  // `sums`: one for each run of ParallelModel::owned(), in that order.
  void sum_over_parts(std::span<const std::span<double>> sums, const nn::CountOf& count) override;
  void before_reading(Stream stream) override;

 private:
  ParallelModel& model_;
};

}  // namespace shoal::parallel
