// Where offloaded tensors wait: what an Offloader asks of it. Not for other rooms.
//
// A tensor that is saved keeps its memory while it leaves; of these `max_leaving` may. Of those
// that are expected, the next ones are brought back, `max_returning` at a time; one that has not
// left by then stays.
#pragma once

#include <memory>
#include <span>

#include "shoal/parallel/activation/offload.h"

namespace shoal::parallel {

// One tensor's way out and back.
struct OffloadedTensor {
  virtual ~OffloadedTensor() = default;
  bool expected = false;  // expect() has told of it
};

// All methods belong to the computing thread.
class OffloadPlace {
 public:
  virtual ~OffloadPlace() = default;  // waits for what is on its way
  virtual std::shared_ptr<OffloadedTensor> save(const Tensor& tensor) = 0;
  virtual Tensor load(const std::shared_ptr<OffloadedTensor>& tensor) = 0;
  // The tape no longer needs it: its memory and its place are free again.
  virtual void forget(const std::shared_ptr<OffloadedTensor>& tensor) noexcept = 0;
  // In the order of their backwards, behind what was expected before.
  virtual void expect(std::span<const std::shared_ptr<OffloadedTensor>> tensors) = 0;
  virtual OffloadStatistics statistics() const = 0;
};

// Of host tensors. io where the file cannot be made.
std::unique_ptr<OffloadPlace> make_file_place(MemoryResource& memory,
                                              const OffloadOptions& options);
// Of a device's, which `compute` works on: host memory that its copies need not wait for.
std::unique_ptr<OffloadPlace> make_pinned_place(MemoryResource& memory,
                                                const OffloadOptions& options, Stream compute);

}  // namespace shoal::parallel
