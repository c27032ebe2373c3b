#include "shoal/train/trainer/step_results.h"

#include <cmath>
#include <utility>

#include "shoal/collectives/watch.h"

namespace shoal {

void StepResults::note(const Tensor& losses, const Tensor& norm, collectives::WorkPtr last) {
  if (losses.defined())
    numbers_.note({losses, norm});
  else
    numbers_.note({norm});
  if (last) sums_.push_back(std::move(last));
  if (sums_.size() <= kAhead) return;
  // Removed before the wait, so that no later call waits for it again if this wait throws.
  const collectives::WorkPtr oldest = std::move(sums_.front());
  sums_.pop_front();
  oldest->wait();
}

void StepResults::wait_for_ranks() {
  while (!sums_.empty()) {
    const collectives::WorkPtr sum = std::move(sums_.front());
    sums_.pop_front();
    sum->wait();
  }
  collectives::watch(ranks_, stream_);
}

StepDone StepResults::last() {
  read();
  StepDone done = read_.back();
  read_.pop_back();
  return done;
}

std::vector<StepDone> StepResults::collect() {
  read();
  return std::exchange(read_, {});
}

// Adds losses in the order of ranks, so the bits do not depend on how many steps are read at a
// time.
void StepResults::read() {
  if (numbers_.records() == 0) return;
  wait_for_ranks();
  const std::vector<std::vector<double>> all = numbers_.take();
  std::vector<double> losses(all.size());
  for (std::size_t step = 0; step < all.size(); ++step)
    for (std::size_t i = 0; i + 1 < all[step].size(); ++i) losses[step] += all[step][i];
  if (host_.size() > 1) {
    const std::vector<double> own = std::exchange(losses, std::vector<double>(all.size()));
    std::vector<double> of_ranks(own.size() * static_cast<std::size_t>(host_.size()));
    host_.all_gather(own.data(), of_ranks.data(), std::ssize(own), DType::f64)->wait();
    for (std::size_t i = 0; i < of_ranks.size(); ++i) losses[i % own.size()] += of_ranks[i];
  }
  for (std::size_t step = 0; step < all.size(); ++step) {
    const double norm = all[step].back();
    read_.push_back({.loss_sum = losses[step],
                     .outcome = {.gradient_norm = norm, .skipped = !std::isfinite(norm)}});
  }
}

}  // namespace shoal
