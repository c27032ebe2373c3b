// Batches in order, made ahead of time by worker threads.
//
// With workers, batch k is made by whichever is free and handed out k-th: the order, and every
// byte, is the same with 0 workers (made in next()) or many. At most num_workers * prefetch_factor
// batches wait. All methods belong to one consumer thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "shoal/train/data/batch.h"
#include "shoal/train/data/sample_stream.h"
#include "shoal/train/data/sampler.h"

namespace shoal {

// Which samples a batch holds, for a collator that draws random numbers (decision 10).
struct BatchPlace {
  SampleOrdinals ordinals = {};
  std::int64_t epoch = 0;
};

// A Collator that is told. A Loader calls it so; who calls it as a plain one has ordinals from 0.
class PlacedCollator : public Collator {
 public:
  virtual Batch collate_at(const BatchPlace& place, std::span<const Sample> samples,
                           MemoryResource& memory) const = 0;
  Batch collate(std::span<const Sample> samples, MemoryResource& memory) const final {
    return collate_at({}, samples, memory);
  }
};

struct LoaderOptions {
  std::int64_t batch_size = 8;   // samples a batch, of this rank
  int num_workers = 0;           // dataloader_num_workers
  int prefetch_factor = 2;       // batches a worker may be ahead
  bool drop_last_batch = false;  // dataloader_drop_last: leave out a shorter last batch
};

// Since construction.
struct LoaderStatistics {
  std::int64_t batches = 0, samples = 0;  // made
  double work_seconds = 0;                // making them: of all workers together
  std::int64_t stalls = 0;                // calls of next() that had to wait
  double stall_seconds = 0;               // what they waited; with 0 workers, all that they made
  // Samples a second that `workers` (0: the caller) make where nobody keeps them waiting.
  double samples_per_second(int workers) const;
};
LoaderStatistics operator-(LoaderStatistics a, const LoaderStatistics& b);

class Loader {
 public:
  // `memory` and its upstreams must outlive the batches. invalid_argument: nothing to load.
  Loader(std::shared_ptr<const Dataset> dataset, std::shared_ptr<const Collator> collator,
         std::unique_ptr<Sampler> sampler, MemoryResource& memory, const LoaderOptions& options);
  // Of a stream, which has no end: batches are whole, and may begin in one epoch and end in the
  // next. BatchPlace::epoch is 0, ordinals count from the run's first sample.
  Loader(std::unique_ptr<SampleStream> stream, std::shared_ptr<const Collator> collator,
         MemoryResource& memory, const LoaderOptions& options);
  ~Loader();  // stops and joins the workers, once each has done the sample that it is at

  std::int64_t batches() const;  // in one epoch of this rank; of a stream, invalid_argument
  // Goes to (epoch, position); the next batch is the one that begins there. Workers start. The
  // position must be a multiple of the ranks (the tail of a shorter batch ends the epoch).
  void seek(const SamplerState& state);
  void seek_stream(const StreamState& state);  // of a stream, to any position
  // The next batch, or nothing at the end of the epoch (then seek to the next one). What a worker
  // threw for batch k is rethrown by the k-th call, with the sample's name in front; the loader
  // then stands after that batch. (A stream whose shard cannot be opened goes no further.)
  std::optional<Batch> next();
  // Where the next batch begins: save it after a step, seek() to it when resuming.
  SamplerState state() const;
  const StreamState& stream_state() const;  // the same of a stream

  LoaderStatistics statistics() const;
  const Sampler& sampler() const;  // not of a stream

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace shoal
