// A step's memory as a static plan: one step is recorded, its allocations are packed by their
// lifetimes into one arena (autograd/recording_dispatcher.h), and later steps that ask for the same
// sizes in the same order get the same addresses, as a captured step needs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "shoal/nn/autograd/recording_dispatcher.h"
#include "shoal/runtime/memory/memory_resource.h"

namespace shoal::nn {

// What a step asked for, in its order, and where that lies.
struct MemorySequence {
  struct Call {
    int block = 0;
    std::size_t bytes = 0;  // 0: the block is given back
  };
  std::vector<Call> calls;
  std::vector<std::int64_t> offsets;  // by block; -1: it outlived the step, no arena can hold it
  std::vector<int> lanes;             // by block: the same number, the same stream
  std::int64_t arena_bytes = 0;
  std::int64_t live_bytes = 0;  // the most that was alive at once: no plan is below it
  std::int64_t pool_bytes = 0;  // what the pool kept for such steps
  int outliving = 0;            // blocks
};

// Of a recorded step's blocks, by call; those that outlived it are from outside.
std::vector<StorageLifetime> lifetimes_of(const MemorySequence& sequence);
std::int64_t alignment_of(
    Device device);  // of MemoryResource: 64 bytes on the host, 256 on a device

// Between begin_*() and end_*(), which the computing thread calls, it is that thread's step that is
// recorded or served; everything else, and every other thread, gets memory from below.
class PlannedMemory final : public MemoryResource {
 public:
  // The arena comes from `source`, which is what `pool` is over: rounding up would cost a fifth.
  PlannedMemory(PoolMemory& pool, MemoryResource& source);
  // Over what keeps freed blocks itself, or need not: a Communicator's memory, say. The arena is of
  // it too.
  explicit PlannedMemory(MemoryResource& memory);
  ~PlannedMemory() override;

  void begin_recording();
  MemorySequence end_recording();

  // Makes room for the largest of the sequences served; what the pool keeps unused is given back
  // first. Where the arena had to become another, addresses that were served before are void; what
  // used them must have been waited for.
  void prepare(const MemorySequence& sequence);
  bool is_prepared_for(const MemorySequence& sequence) const;
  // `sequence` was prepared and stays until end_serving(). strict: what deviates throws internal;
  // else the rest of the step gets the pool's memory.
  void begin_serving(const MemorySequence& sequence, bool strict);
  // Empty: the step was the recorded one. Else what differed, for a log.
  std::string end_serving();

  void* allocate(std::size_t bytes, MemoryTag tag, Stream stream) override;
  void deallocate(void* pointer, std::size_t bytes, MemoryTag tag, Stream stream) noexcept override;
  Device device() const override { return below_.device(); }
  std::string name() const override { return "planned over " + below_.name(); }

  std::int64_t arena_bytes() const;
  // What a step can have: the arena, what the pool keeps, and what is free below them, of a limit
  // (LimitedMemory) or of the device; none: nobody knows.
  std::optional<std::int64_t> room() const;

  // Between two served steps the arena lies idle, and what runs then (a step of another shape, an
  // evaluation) has its memory beside it. Where that has no room, and the thread that computes
  // asked, `give_back` is called; where it says true, the arena has gone (release()), and the
  // allocation is tried once more. As PyTorch's allocator gives cached blocks back before it fails,
  // whose graphs' pools it cannot. Empty: it fails.
  void set_give_back(std::function<bool()> give_back);
  // The arenas that no block lies in go, after all that used them has been waited for; how many
  // bytes.
  std::int64_t release();

 private:
  enum class Mode { pass, record, serve };
  struct Arena {
    ~Arena();
    Buffer buffer;
    int live = 0;            // blocks handed out
    bool told_apart = true;  // its blocks, by AddressSanitizer (block_marks.h)
    bool holds(const void* pointer) const;
  };
  bool fits(const MemorySequence& sequence) const;
  void* serve(std::size_t bytes, MemoryTag tag, Stream stream);
  void* allocate_beside(std::size_t bytes, MemoryTag tag, Stream stream, bool may_give_back);
  void deviate(std::string what);

  MemoryResource& below_;
  PoolMemory* pool_;  // below_; null: it is none
  MemoryResource& source_;
  mutable std::mutex mutex_;
  Mode mode_ = Mode::pass;
  std::thread::id computing_;
  std::function<bool()> give_back_;
  MemorySequence recorded_;
  std::vector<const void*> streams_;               // of the recorded step, by lane
  std::unordered_map<const void*, int> block_of_;  // of this step's live blocks
  const MemorySequence* served_ = nullptr;
  std::size_t cursor_ = 0;
  bool strict_ = false;
  std::string deviation_;
  std::vector<std::unique_ptr<Arena>> arenas_;  // the last one is served; others empty first
};

}  // namespace shoal::nn
