// Delivers batches in order; worker threads prepare them ahead of time.
//
// Any free worker makes batch k; next() returns the batches in order. The result is byte-identical
// with any number of workers, or with 0, where next() makes the batch itself. At most num_workers *
// prefetch_factor batches are buffered. All methods belong to one consumer thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "shoal/train/data/batch.h"
#include "shoal/train/data/sample_stream.h"
#include "shoal/train/data/sampler.h"

namespace shoal {

// Identifies the samples of a batch for a collator that draws random numbers (decision 10).
struct BatchPlace {
  SampleOrdinals ordinals = {};
  std::int64_t epoch = 0;
};

// A Collator that receives the place of its batch. Loader calls collate_at(); a plain collate()
// uses ordinals from 0.
class PlacedCollator : public Collator {
 public:
  virtual Batch collate_at(const BatchPlace& place, std::span<const Sample> samples,
                           MemoryResource& memory) const = 0;
  Batch collate(std::span<const Sample> samples, MemoryResource& memory) const final {
    return collate_at({}, samples, memory);
  }
};

struct LoaderOptions {
  std::int64_t batch_size = 8;   // samples per batch on this rank
  int num_workers = 0;           // dataloader_num_workers
  int prefetch_factor = 2;       // batches that each worker may prepare ahead
  bool drop_last_batch = false;  // dataloader_drop_last: skip a final partial batch
};

// Counted since construction.
struct LoaderStatistics {
  std::int64_t batches = 0, samples = 0;  // prepared so far
  double work_seconds = 0;                // time spent preparing them, summed over workers
  std::int64_t stalls = 0;                // calls to next() that had to wait
  double stall_seconds = 0;               // time they waited; with 0 workers, all preparation time
  // Samples per second that `workers` (0: the caller) can sustain if they never have to wait.
  double samples_per_second(int workers) const;
};
LoaderStatistics operator-(LoaderStatistics a, const LoaderStatistics& b);

class Loader {
 public:
  // `memory` and its upstreams must outlive the batches. invalid_argument: nothing to load.
  Loader(std::shared_ptr<const Dataset> dataset, std::shared_ptr<const Collator> collator,
         std::unique_ptr<Sampler> sampler, MemoryResource& memory, const LoaderOptions& options);
  // Loads an endless stream. Batches are always full and may span two epochs. BatchPlace::epoch is
  // 0, and ordinals count from the first sample of the run.
  Loader(std::unique_ptr<SampleStream> stream, std::shared_ptr<const Collator> collator,
         MemoryResource& memory, const LoaderOptions& options);
  ~Loader();  // stops and joins the workers; each first finishes its current sample

  std::int64_t batches() const;  // per epoch on this rank; invalid_argument for a stream
  // Moves to (epoch, position) and starts the workers; the next batch begins there. The position
  // must be a multiple of the number of ranks, unless it is at or past the end of the epoch.
  void seek(const SamplerState& state);
  void seek_stream(const StreamState& state);  // as seek(), for streams; takes any position
  // The next batch, or nothing at the end of the epoch (then seek() to the next one). If making
  // batch k failed, the k-th call rethrows the error with the sample's name prefixed, and the
  // loader moves on to the next batch. A stream whose shard cannot be opened does not advance.
  std::optional<Batch> next();
  // Position of the next batch. Save it after a step; pass it to seek() to resume.
  SamplerState state() const;
  const StreamState& stream_state() const;  // the same for a stream

  LoaderStatistics statistics() const;
  const Sampler& sampler() const;  // not for streams

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace shoal
