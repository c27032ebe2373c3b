// Runs one operation by levels (level_plan.h), slice by slice. This rank folds its share of its
// neighbours' buffers into pinned memory. The rank's rail sums or gathers this share over the
// hosts. The pass then writes the result to the neighbours' buffers. Up to kSlots slices are in
// flight.
//
// One thread calls progress() until done(). Nothing here waits for the device or for other ranks.
// The constructor may allocate pinned memory from a pool (two slices for each slot). From the
// constructor to done(), the pass reads and writes neighbours' buffers; the caller synchronizes
// with the neighbours before and after.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "shoal/collectives/backend/device/level_plan.h"
#include "shoal/collectives/backend/device/parts.h"
#include "shoal/collectives/communicator.h"
#include "shoal/kernels/reduction.h"
#include "shoal/runtime/memory/memory_resource.h"

namespace shoal::collectives::device {

class LevelPass {
 public:
  static constexpr std::int64_t kSlots = 3;

  // Everything it points to must outlive the pass.
  struct Setup {
    Stream in, out;                      // work queued there waits for no other work
    MemoryResource* staging;             // pinned
    kernels::ReductionKernels* folds;    // the device's; null if nothing is reduced
    kernels::ReductionKernels* on_host;  // for data from the rail
    Communicator* rail;                  // null: this rank has none
    int ranks = 0;                       // in the whole group
    int local_rank = 0;
    std::int64_t slice_bytes = 0;
  };
  // The neighbours' buffers by local rank, as pointers of this rank. Null: not used.
  struct Buffers {
    std::vector<std::byte*> send, recv;
  };
  // Allocates a device slice for each slot if the operation folds something, else nothing. Throws
  // out_of_memory.
  static std::vector<Buffer> make_sums(const Call& call, const LevelPlan& plan, int hosts,
                                       std::int64_t slice_bytes, MemoryResource& memory, Stream in);
  // `sums`: from make_sums(). Throws out_of_memory and the driver's errors.
  LevelPass(Setup setup, const Call& call, LevelPlan plan, Buffers buffers,
            std::vector<Buffer> sums);

  // Returns true if there was progress. Throws the Error of the rail or the device.
  bool progress();
  bool done() const;
  // The rail's oldest Work if the pass waits for it. Null: the pass waits for the device.
  Work* awaited() const;
  std::int64_t staged_bytes() const { return staged_bytes_; }  // copied into pinned memory

 private:
  struct Slot {
    Buffer sum{};           // device memory that takes the fold
    Buffer send{}, recv{};  // pinned
    Event folded, landed;
    WorkPtr work{};
  };
  struct Bit {
    std::int64_t at = 0, staged = 0, count = 0;  // elements
    bool moves = true;
  };
  std::vector<Bit> bits_of(const std::vector<LevelPlan::Part>& parts, std::int64_t slice) const;
  void copy_from_neighbours();
  void fold(std::int64_t slice, Slot& slot);
  void start_on_rail(std::int64_t slice, Slot& slot);
  void land(std::int64_t slice, Slot& slot);
  const void* finish_on_host(std::int64_t slice, Slot& slot);
  Slot& slot_of(std::int64_t slice) {
    return slots_[static_cast<std::size_t>(slice) % slots_.size()];
  }

  const Setup setup_;
  const Call call_;
  const LevelPlan plan_;
  const Buffers buffers_;
  DeviceBackend& backend_;
  const std::int64_t element_;  // bytes of one in the user's dtype
  std::int64_t wide_ = 0;       // bytes of one on the rail
  Slicing slicing_{.number = 0};
  std::vector<Slot> slots_;
  // Number of slices that have reached each stage, in slice order.
  std::int64_t folded_ = 0, started_ = 0, arrived_ = 0, landed_ = 0;
  std::int64_t staged_bytes_ = 0;
  Event copied_;
};

}  // namespace shoal::collectives::device
