// One operation on its way through the levels (level_plan.h): slice by slice this rank folds its
// share out of its neighbours' buffers into pinned memory, its rail sums or gathers that over the
// hosts, and what comes is left in the neighbours' buffers. Up to kSlots slices are under way.
//
// For one thread, which calls progress() until done(). Nothing here waits for the device or for
// others; the constructor may ask the driver for pinned memory, which pools keep: two slices for
// each slot. Neighbours' buffers may be read and written from then on; the caller meets them before
// and after.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "shoal/collectives/backend/device/level_plan.h"
#include "shoal/collectives/backend/device/parts.h"
#include "shoal/kernels/reduction.h"
#include "shoal/runtime/memory/memory_resource.h"

namespace shoal::collectives::device {

class LevelPass {
 public:
  static constexpr std::int64_t kSlots = 3;

  // What outlives it.
  struct Setup {
    Stream in, out;                      // what it queues there waits for nothing
    MemoryResource* staging;             // pinned
    kernels::ReductionKernels* folds;    // the device's; null where nothing is reduced
    kernels::ReductionKernels* on_host;  // of what comes from the rail
    Communicator* rail;                  // null: this rank has none
    int ranks = 0;                       // of the whole group
    int local_rank = 0;
    std::int64_t slice_bytes = 0;
  };
  // By local rank, as pointers of this one: the neighbours' buffers; null where nobody asks.
  struct Buffers {
    std::vector<std::byte*> send, recv;
  };
  // Where something is folded: a slice on the device for each slot. Throws out_of_memory.
  static std::vector<Buffer> make_sums(const Call& call, const LevelPlan& plan, int hosts,
                                       std::int64_t slice_bytes, MemoryResource& memory, Stream in);
  // `sums`: of make_sums(). Throws out_of_memory, and what the driver says.
  LevelPass(Setup setup, const Call& call, LevelPlan plan, Buffers buffers,
            std::vector<Buffer> sums);

  bool progress();  // true: something went on. Throws the Error of the rail or the device.
  bool done() const;
  // What it waits for: the rail's oldest Work, or null where it is the device.
  Work* awaited() const;
  std::int64_t staged_bytes() const { return staged_bytes_; }  // copied into pinned memory

 private:
  struct Slot {
    Buffer sum{};           // on the device: what is folded
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
  const std::int64_t element_;  // bytes of the user's
  std::int64_t wide_ = 0;       // of the rail's
  Slicing slicing_{.number = 0};
  std::vector<Slot> slots_;
  // Slices that have got so far, each in the order of the slices.
  std::int64_t folded_ = 0, started_ = 0, arrived_ = 0, landed_ = 0;
  std::int64_t staged_bytes_ = 0;
  Event copied_;
};

}  // namespace shoal::collectives::device
