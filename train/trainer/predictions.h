// What a model says of every sample of a set, put together from the ranks in the set's order.
#pragma once

#include <cstdint>
#include <vector>

#include "shoal/collectives/communicator.h"
#include "shoal/train/data/batch.h"

namespace shoal {

struct SamplePrediction {
  // [classes], or, where the head has scores of each position, [positions, classes] without those
  // of the padding.
  std::vector<float> scores;
  // As the collator made them; those of positions are as many as these.
  std::vector<std::int32_t> labels;
  std::vector<float> values;
};

struct Predictions {
  std::int64_t classes = 0;  // scores of one position or sample
  bool of_positions = false;
  std::vector<SamplePrediction> samples;  // in the order of the dataset

  // The class with the highest score, the first of equals: of each sample, or position after
  // position of all samples.
  std::vector<std::int64_t> best_classes() const;
};

// On each rank one.
class GatheredPredictions {
 public:
  explicit GatheredPredictions(std::int64_t samples) : samples_(samples) {}
  // scores f32 [n, ..] in host memory, of the batch's rows from first_row on.
  void add(const Batch& batch, std::int64_t first_row, const Tensor& scores);
  // All ranks' (null: this one is all), on each of them. Collective; blocks. Memory holds them
  // twice meanwhile. A sample that is there twice or not at all is an internal error.
  Predictions take(collectives::Communicator* ranks);

 private:
  struct Own {
    std::int64_t index = 0;
    SamplePrediction of;
  };
  std::int64_t samples_, classes_ = 0;
  bool of_positions_ = false;
  std::vector<Own> own_;
};

}  // namespace shoal
