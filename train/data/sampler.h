// Which samples a rank sees, and in which order: PyTorch's DistributedSampler semantics.
//
// An epoch is a list of dataset indices that all ranks share; rank r of R takes [r:total:R]. The
// place in that list is a sample's ordinal: the random numbers of dropout hang on it (decision 10),
// so they do not depend on R. "Ranks" are data-parallel replicas; the ranks inside one model-
// parallel replica use the same `rank`. Samplers are not thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace shoal {

// Where training is: `position` counts the samples that all ranks together have consumed in this
// epoch. It says nothing of R, so a run may resume on another number of ranks.
struct SamplerState {
  std::int64_t epoch = 0;
  std::int64_t position = 0;
  friend bool operator==(const SamplerState&, const SamplerState&) = default;
};

class Sampler {
 public:
  virtual ~Sampler() = default;
  virtual std::int64_t samples() const = 0;  // of this rank, in one epoch
  virtual std::int64_t ranks() const = 0;
  virtual std::int64_t rank() const = 0;
  virtual void set_epoch(std::int64_t epoch) = 0;
  virtual std::int64_t epoch() const = 0;
  // Dataset index of this rank's i-th sample, 0 <= i < samples().
  virtual std::int64_t index(std::int64_t i) const = 0;
  // Its place in the list that all ranks share: rank + i * ranks.
  std::int64_t ordinal(std::int64_t i) const { return rank() + i * ranks(); }
};

struct DistributedSamplerOptions {
  std::int64_t ranks = 1;
  std::int64_t rank = 0;
  std::uint64_t seed = 42;
  bool shuffle = true;  // false: dataset order
  // With shuffle: samples of like length come together (group_by_length()). Of every sample; null:
  // they do not.
  std::shared_ptr<const std::vector<std::int32_t>> lengths = {};
  std::int64_t grouped_batch = 1;  // samples that are padded to one length: of all ranks together
  // false: the list wraps from its front until R divides it; true: its tail is cut instead.
  bool drop_last = false;
};

// Training. A new permutation each epoch, from (seed, epoch) and the dataset's size (and lengths)
// alone.
class DistributedSampler final : public Sampler {
 public:
  DistributedSampler(std::int64_t dataset_size, const DistributedSamplerOptions& options);
  std::int64_t samples() const override { return total_ / options_.ranks; }
  std::int64_t total() const { return total_; }  // of all ranks, padding included
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

// Evaluation: every sample exactly once, no padding, so the last ranks may have one fewer.
class EvaluationSampler final : public Sampler {
 public:
  EvaluationSampler(std::int64_t dataset_size, std::int64_t ranks, std::int64_t rank);
  std::int64_t samples() const override;
  std::int64_t ranks() const override { return ranks_; }
  std::int64_t rank() const override { return rank_; }
  void set_epoch(std::int64_t) override {}
  std::int64_t epoch() const override { return 0; }
  std::int64_t index(std::int64_t i) const override;

  // Batches that the rank with most samples has: what every rank loops over where the forward
  // itself communicates.
  std::int64_t batches_of_longest_rank(std::int64_t batch_size) const;
  // Where the i-th sample of `rank` stands in the dataset: puts gathered predictions in order.
  static std::int64_t dataset_index(std::int64_t rank, std::int64_t ranks, std::int64_t i) {
    return rank + i * ranks;
  }

 private:
  std::int64_t size_, ranks_, rank_;
};

// One of [0, choices), without bias: Philox 4x32-10, key = seed, counter = (draw, epoch, purpose).
// Lemire's multiply-and-shift, with its rejection. `purpose` below 2^16 keeps uses apart.
std::uint64_t draw_below(std::uint64_t choices, std::uint64_t seed, std::int64_t epoch,
                         std::int64_t draw, std::uint32_t purpose);

// Fisher-Yates by draw_below (purpose 0). Draw k exchanges element k with one of [k, size). Not
// torch.randperm's numbers; the same everywhere.
std::vector<std::int64_t> permutation(std::int64_t size, std::uint64_t seed, std::int64_t epoch);

// `order` with samples of like length together, as transformers' get_length_grouped_indices():
// pieces of up to 50 batches, each sorted from its longest sample to its shortest, the longest of
// all first. `lengths` by index; `batch` above 0.
std::vector<std::int64_t> group_by_length(std::vector<std::int64_t> order,
                                          const std::vector<std::int32_t>& lengths,
                                          std::int64_t batch);

}  // namespace shoal
