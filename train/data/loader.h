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

class Loader {
 public:
  // `memory` and its upstreams must outlive the batches. invalid_argument: nothing to load.
  Loader(std::shared_ptr<const Dataset> dataset, std::shared_ptr<const Collator> collator,
         std::unique_ptr<Sampler> sampler, MemoryResource& memory, const LoaderOptions& options);
  ~Loader();  // stops and joins the workers, whatever they do

  std::int64_t batches() const;  // in one epoch of this rank
  // Goes to (epoch, position); the next batch is the one that begins there. Workers start. The
  // position must be a multiple of the ranks (the tail of a shorter batch ends the epoch).
  void seek(const SamplerState& state);
  // The next batch, or nothing at the end of the epoch (then seek to the next one). What a worker
  // threw for batch k is rethrown by the k-th call; the loader then stands after that batch.
  std::optional<Batch> next();
  // Where the next batch begins: save it after a step, seek() to it when resuming.
  SamplerState state() const;

  double stall_seconds() const;  // spent in next() with no batch ready, since construction
  std::int64_t stalls() const;   // calls of next() that had to wait
  const Sampler& sampler() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace shoal
