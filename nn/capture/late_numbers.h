// Numbers that a device's steps leave behind, read some steps later: each step queues copies of its
// own into pinned memory, and whoever wants to know them waits once for all of them (as PyTorch's
// trainers keep losses on the device until they log).
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <vector>

#include "shoal/runtime/memory/pinned_staging.h"
#include "shoal/runtime/tensor/tensor.h"

namespace shoal::nn {

class LateNumbers {
 public:
  // `stream` is what the numbers are computed on; `pinned`: PinnedStaging's.
  explicit LateNumbers(Stream stream, MemoryResource* pinned = nullptr)
      : stream_(stream), staging_(stream.device, SIZE_MAX, pinned) {}
  ~LateNumbers();  // waits for its copies
  LateNumbers(const LateNumbers&) = delete;
  LateNumbers& operator=(const LateNumbers&) = delete;

  // A step's tensors (f32 or f64) as they are when what is queued has run. Not while a step is
  // captured. Waits for nothing; memory grows with the records that are not taken.
  void note(std::initializer_list<Tensor> tensors);
  // Of each step since the last take(), in order, all elements of its tensors one after the other.
  // Waits for the stream, where there are any.
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
