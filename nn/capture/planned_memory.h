// A static memory plan for steps. One step is recorded and its allocations are packed by lifetime
// into one arena (autograd/recording_dispatcher.h). Later steps that make the same requests in the
// same order get the same addresses, as a captured step needs.
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

// The allocation calls of a step in order, and the planned position of each block.
struct MemorySequence {
  struct Call {
    int block = 0;
    std::size_t bytes = 0;  // 0: the block is freed
  };
  std::vector<Call> calls;
  std::vector<std::int64_t> offsets;  // by block; -1: outlives the step, not in the arena
  std::vector<int> lanes;             // by block: index of its stream
  std::int64_t arena_bytes = 0;
  std::int64_t live_bytes = 0;  // peak in use; a lower bound for any plan
  std::int64_t pool_bytes = 0;  // bytes that the pool would hold for the step
  int outliving = 0;            // number of blocks that outlive the step
};

// Lifetimes of a recorded step's blocks, in calls. Blocks that outlived it are not `produced`.
std::vector<StorageLifetime> lifetimes_of(const MemorySequence& sequence);
// Alignment of MemoryResource's blocks: 64 bytes on the host, 256 on a device.
std::int64_t alignment_of(Device device);

// Between begin_*() and end_*(), the calling (compute) thread's step is recorded or served. All
// other allocations come from the memory below.
class PlannedMemory final : public MemoryResource {
 public:
  // `source` is the memory below `pool`. The arena comes from it because the pool's rounding would
  // waste a fifth of the arena.
  PlannedMemory(PoolMemory& pool, MemoryResource& source);
  // For a memory without a separate pool, such as a Communicator's. The arena comes from it, too.
  explicit PlannedMemory(MemoryResource& memory);
  ~PlannedMemory() override;

  void begin_recording();
  MemorySequence end_recording();

  // Makes an arena large enough for `sequence`, after the pool has released its unused blocks. If
  // the arena is replaced, addresses served before become invalid; the caller must have waited for
  // work that used them.
  void prepare(const MemorySequence& sequence);
  bool is_prepared_for(const MemorySequence& sequence) const;
  // `sequence` must be prepared and stay valid until end_serving(). With `strict`, a deviation
  // throws an internal error; otherwise the rest of the step uses the memory below.
  void begin_serving(const MemorySequence& sequence, bool strict);
  // Empty if the step matched the recorded one; otherwise a description of the first difference.
  std::string end_serving();

  void* allocate(std::size_t bytes, MemoryTag tag, Stream stream) override;
  void deallocate(void* pointer, std::size_t bytes, MemoryTag tag, Stream stream) noexcept override;
  Device device() const override { return below_.device(); }
  std::string name() const override { return "planned over " + below_.name(); }

  std::int64_t arena_bytes() const;
  // Bytes available to a step: the arena, the pool's blocks, and free memory within the limit
  // (LimitedMemory) and on the device. None if neither is known.
  std::optional<std::int64_t> available_bytes() const;

  // Between served steps the arena is idle, and other work (a step of another shape, an evaluation)
  // allocates beside it. If the compute thread then runs out of memory, `give_back` is called. If
  // it returns true, it has freed the arena (release()), and the allocation is retried once. If
  // none is set, the allocation fails. PyTorch's allocator frees its cache likewise, but cannot
  // free the memory pools of CUDA graphs.
  void set_give_back(std::function<bool()> give_back);
  // Frees all arenas without live blocks and returns their bytes. The caller must have waited for
  // all work that used them.
  std::int64_t release();

 private:
  enum class Mode { pass, record, serve };
  struct Arena {
    ~Arena();
    Buffer buffer;
    int live = 0;               // blocks in use
    bool tracks_blocks = true;  // AddressSanitizer tracks its blocks (block_marks.h)
    bool holds(const void* pointer) const;
  };
  bool fits(const MemorySequence& sequence) const;
  void* serve(std::size_t bytes, MemoryTag tag, Stream stream);
  void* allocate_beside(std::size_t bytes, MemoryTag tag, Stream stream, bool may_give_back);
  void deviate(std::string what);

  MemoryResource& below_;
  PoolMemory* pool_;  // equals below_; null: no pool
  MemoryResource& source_;
  mutable std::mutex mutex_;
  Mode mode_ = Mode::pass;
  std::thread::id computing_;
  std::function<bool()> give_back_;
  MemorySequence recorded_;
  std::vector<const void*> streams_;               // streams of the recorded step, by lane
  std::unordered_map<const void*, int> block_of_;  // live blocks of the current step
  const MemorySequence* served_ = nullptr;
  std::size_t cursor_ = 0;
  bool strict_ = false;
  std::string deviation_;
  // the last one is served; others are freed once empty
  std::vector<std::unique_ptr<Arena>> arenas_;
};

}  // namespace shoal::nn
