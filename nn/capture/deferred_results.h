// Results of device steps that the host reads some steps later. Each step queues copies into pinned
// memory, and a reader waits once for all of them. PyTorch's trainers likewise keep losses on the
// device until they log.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <vector>

#include "shoal/runtime/memory/pinned_staging.h"
#include "shoal/runtime/tensor/tensor.h"

namespace shoal::nn {

class DeferredResults {
 public:
  // `stream` computes the numbers; `pinned` is passed to PinnedStaging.
  explicit DeferredResults(Stream stream, MemoryResource* pinned = nullptr)
      : stream_(stream), staging_(stream.device, SIZE_MAX, pinned) {}
  ~DeferredResults();  // waits for its copies
  DeferredResults(const DeferredResults&) = delete;
  DeferredResults& operator=(const DeferredResults&) = delete;

  // Queues copies of a step's tensors (f32 or f64) on the stream, without waiting. Do not call
  // while a step is captured. Memory grows with the records that have not been taken.
  void note(std::initializer_list<Tensor> tensors);
  // One record per step since the last take(), in order, with the elements of its tensors
  // concatenated. Waits for the stream if there are records.
  std::vector<std::vector<double>> take();
  std::size_t records() const { return records_.size(); }

 private:
  struct Piece {
    const std::byte* at;
    std::int64_t count;
    DType dtype;
  };
  Stream stream_;
  PinnedStaging staging_;
  std::vector<std::vector<Piece>> records_;
};

}  // namespace shoal::nn
