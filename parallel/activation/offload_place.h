// Interface between the Offloader and the storage of offloaded tensors. Private to this folder.
//
// A saved tensor keeps its memory while it is copied out; at most `max_leaving` tensors may do so.
// The next `max_returning` of the expected tensors are brought back. A tensor that still has its
// memory when backward asks for it is used in place.
#pragma once

#include <memory>
#include <span>

#include "shoal/parallel/activation/offload.h"

namespace shoal::parallel {

// One offloaded tensor.
struct OffloadedTensor {
  virtual ~OffloadedTensor() = default;
  bool expected = false;  // expect() has announced it
};

// All methods belong to the computing thread.
class OffloadPlace {
 public:
  virtual ~OffloadPlace() = default;  // waits for running transfers
  virtual std::shared_ptr<OffloadedTensor> save(const Tensor& tensor) = 0;
  virtual Tensor load(const std::shared_ptr<OffloadedTensor>& tensor) = 0;
  // Frees the tensor's memory and storage; called when the tape no longer needs it.
  virtual void forget(const std::shared_ptr<OffloadedTensor>& tensor) noexcept = 0;
  // Appends tensors to the order in which backward will need them.
  virtual void expect(std::span<const std::shared_ptr<OffloadedTensor>> tensors) = 0;
  virtual OffloadStatistics statistics() const = 0;
};

// For host tensors. Throws io if the file cannot be created.
std::unique_ptr<OffloadPlace> make_file_place(MemoryResource& memory,
                                              const OffloadOptions& options);
// For tensors of the device that `compute` runs on; they go to pinned host memory.
std::unique_ptr<OffloadPlace> make_pinned_place(MemoryResource& memory,
                                                const OffloadOptions& options, Stream compute);

}  // namespace shoal::parallel
