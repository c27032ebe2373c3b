// Activations that leave memory between forward and backward (SMP's offload_activations): a tape's
// saved tensors go elsewhere and come back some tasks before their backward
// (activation_loading_horizon). Meant for what checkpointing leaves: the inputs of blocks.
//
// A host's go to a file, by a thread of their own; it has no name and goes away with the process,
// however it ends. A device's go to pinned host memory over two streams of their own; what computes
// waits for them on the device, by events, and the host does not wait.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "shoal/nn/autograd/tape.h"
#include "shoal/runtime/memory/memory_resource.h"

namespace shoal::parallel {

struct OffloadOptions {
  std::string directory = {};                      // of a file; empty: TMPDIR, else /tmp
  std::int64_t min_bytes = std::int64_t{1} << 16;  // smaller tensors stay
  // Tensors on their way out that may still take memory: saving one more waits for the oldest.
  int max_leaving = 2;
  // Tensors read back before backward asks for them: the next is begun when one is taken.
  int max_returning = 2;
  // What places of a device's tensors are taken from, as bytes of activations: pinned host memory
  // that outlives the Offloader, which keeps what it has taken. Null: its own, that nobody counts.
  MemoryResource* pinned = nullptr;
};

struct OffloadStatistics {
  std::int64_t tensors = 0, bytes = 0;  // that left
  std::int64_t early = 0;               // of these, back before backward asked for them
  double waited_seconds = 0;            // by the computing thread, for either direction of a file
  std::int64_t held_bytes = 0;          // the most that lay there at a time
};

class OffloadPlace;

// All methods belong to the computing thread.
class Offloader {
 public:
  // `memory` is what tensors come back into, and says where they are now; a device's are computed
  // on `compute`. io where the file cannot be made.
  explicit Offloader(MemoryResource& memory, const OffloadOptions& options = {},
                     Stream compute = {});
  ~Offloader();  // waits for what is on its way
  Offloader(const Offloader&) = delete;
  Offloader& operator=(const Offloader&) = delete;

  // The tensors of one tape (a microbatch).
  class Batch;
  std::shared_ptr<Batch> begin_batch();
  // For Tape::set_saved_tensor_hooks(). Saving and unpacking throw io (a full disk) with the path,
  // or out_of_memory.
  nn::SavedTensorHooks hooks(std::shared_ptr<Batch> batch);
  // Backward will ask for them soon, after what was expected before: begins to read them back, the
  // last one saved first, max_returning at a time.
  void expect(Batch& batch);

  OffloadStatistics statistics() const;

 private:
  std::int64_t min_bytes_;
  std::shared_ptr<OffloadPlace> place_;
};

}  // namespace shoal::parallel
