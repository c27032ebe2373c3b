// Selects and orders the samples of each rank, as PyTorch's DistributedSampler does.
//
// An epoch is a list of dataset indices that all ranks share; rank r of R takes [r:total:R]. A
// sample's ordinal is its position in that list. Dropout derives its random numbers from ordinals
// (decision 10), so they do not depend on R. "Ranks" are data-parallel replicas; all ranks of one
// model-parallel replica use the same `rank`. Samplers are not thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace shoal {

// Training position: `position` counts the samples that all ranks together have consumed in this
// epoch. It does not depend on R, so a run may resume on another number of ranks.
struct SamplerState {
  std::int64_t epoch = 0;
  std::int64_t position = 0;
  friend bool operator==(const SamplerState&, const SamplerState&) = default;
};

class Sampler {
 public:
  virtual ~Sampler() = default;
  virtual std::int64_t samples() const = 0;  // of this rank per epoch
  virtual std::int64_t ranks() const = 0;
  virtual std::int64_t rank() const = 0;
  virtual void set_epoch(std::int64_t epoch) = 0;
  virtual std::int64_t epoch() const = 0;
  // Dataset index of this rank's i-th sample, 0 <= i < samples().
  virtual std::int64_t index(std::int64_t i) const = 0;
  // Position of this rank's i-th sample in the order that all ranks share: rank + i * ranks.
  std::int64_t ordinal(std::int64_t i) const { return rank() + i * ranks(); }
};

struct DistributedSamplerOptions {
  std::int64_t ranks = 1;
  std::int64_t rank = 0;
  std::uint64_t seed = 42;
  bool shuffle = true;  // false: dataset order
  // With shuffle: groups samples of similar length (group_by_length()). Holds the length of every
  // sample; null: no grouping.
  std::shared_ptr<const std::vector<std::int32_t>> lengths = {};
  std::int64_t grouped_batch = 1;  // number of samples, over all ranks, padded to one length
  // true: drop the tail of the list so that R divides its length; false: wrap around to the front.
  bool drop_last = false;
};

// For training. Each epoch's permutation depends only on the seed, the epoch, the dataset's size
// and the lengths.
class DistributedSampler final : public Sampler {
 public:
  DistributedSampler(std::int64_t dataset_size, const DistributedSamplerOptions& options);
  std::int64_t samples() const override { return total_ / options_.ranks; }
  std::int64_t total() const { return total_; }  // over all ranks, padding included
  std::int64_t ranks() const override { return options_.ranks; }
  std::int64_t rank() const override { return options_.rank; }
  void set_epoch(std::int64_t epoch) override;
  std::int64_t epoch() const override { return epoch_; }
  std::int64_t index(std::int64_t i) const override;

 private:
  std::int64_t size_, total_;
  DistributedSamplerOptions options_;
  std::int64_t epoch_ = -1;
  std::vector<std::int64_t> permutation_;  // empty: dataset order
};

// For evaluation: every sample exactly once, without padding; the last ranks may have one fewer.
class EvaluationSampler final : public Sampler {
 public:
  EvaluationSampler(std::int64_t dataset_size, std::int64_t ranks, std::int64_t rank);
  std::int64_t samples() const override;
  std::int64_t ranks() const override { return ranks_; }
  std::int64_t rank() const override { return rank_; }
  void set_epoch(std::int64_t) override {}
  std::int64_t epoch() const override { return 0; }
  std::int64_t index(std::int64_t i) const override;

  // Batches of the rank with the most samples. If the forward pass communicates, every rank must
  // run this many.
  std::int64_t batches_of_longest_rank(std::int64_t batch_size) const;

 private:
  std::int64_t size_, ranks_, rank_;
};

// Unbiased draw from [0, choices): Philox 4x32-10 with key = seed, counter = (draw, epoch,
// purpose), and Lemire's multiply-and-shift with rejection. A `purpose` below 2^16 separates
// independent uses.
std::uint64_t draw_below(std::uint64_t choices, std::uint64_t seed, std::int64_t epoch,
                         std::int64_t draw, std::uint32_t purpose);

// Fisher-Yates with draw_below (purpose 0); draw k exchanges element k with one of [k, size).
// Differs from torch.randperm; the same on every platform.
std::vector<std::int64_t> permutation(std::int64_t size, std::uint64_t seed, std::int64_t epoch);

// Reorders `order` to group samples of similar length, as transformers'
// get_length_grouped_indices(). Pieces of up to 50 batches are each sorted from longest to
// shortest; the longest sample overall comes first. `lengths` is indexed by sample; `batch` must be
// above 0.
std::vector<std::int64_t> group_by_length(std::vector<std::int64_t> order,
                                          const std::vector<std::int32_t>& lengths,
                                          std::int64_t batch);

}  // namespace shoal
