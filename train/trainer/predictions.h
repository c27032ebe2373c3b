// Scores of every sample of a data set, collected from the ranks in the data set's order.
#pragma once

#include <cstdint>
#include <vector>

#include "shoal/collectives/communicator.h"
#include "shoal/train/data/batch.h"

namespace shoal {

struct SamplePrediction {
  // [classes]; or [positions, classes] without padding, if the head scores each position.
  std::vector<float> scores;
  // From the collator. Labels of positions have one entry per position.
  std::vector<std::int32_t> labels;
  std::vector<float> values;
  std::vector<std::int32_t> tokens;  // generated ids, instead of scores
};

struct Predictions {
  std::int64_t classes = 0;  // number of scores per position or sample
  bool of_positions = false;
  std::vector<SamplePrediction> samples;  // in the order of the dataset

  // The class with the highest score (ties: the first) of each sample, or of each position of all
  // samples in turn.
  std::vector<std::int64_t> best_classes() const;
};

// Collects predictions. Each rank creates one and adds its own.
class GatheredPredictions {
 public:
  explicit GatheredPredictions(std::int64_t samples) : samples_(samples) {}
  // scores: f32 [n, ..] in host memory, for the batch's rows from first_row on.
  void add(const Batch& batch, std::int64_t first_row, const Tensor& scores);
  // The generated ids of a row of the batch.
  void add(const Batch& batch, std::int64_t row, const std::vector<std::int32_t>& tokens);
  // Returns the predictions of all ranks, on every rank. `ranks` null: this rank has them all.
  // Collective; blocks. Temporarily holds all predictions twice in memory. A duplicate or missing
  // sample is an internal error.
  Predictions take(collectives::Communicator* ranks);

 private:
  struct Own {
    std::int64_t index = 0;
    SamplePrediction of;
  };
  void add_labels(const Batch& batch, std::int64_t row, bool of_positions, Own& own) const;
  std::int64_t samples_, classes_ = 0;
  bool of_positions_ = false;
  std::vector<Own> own_;
};

}  // namespace shoal
