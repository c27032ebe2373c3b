// Activation offloading (SMP's offload_activations): a tape's saved tensors leave memory between
// forward and backward. They return `activation_loading_horizon` tasks before their backward.
// Offloading is meant for the tensors that checkpointing keeps: the inputs of blocks.
//
// A separate thread writes host tensors to a file. The file has no name and disappears with the
// process, however the process ends. The Offloader copies device tensors to pinned host memory on
// two streams of its own. The computing stream waits for the copies through events; the host does
// not wait.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "shoal/nn/autograd/tape.h"
#include "shoal/runtime/memory/memory_resource.h"

namespace shoal::parallel {

struct OffloadOptions {
  std::string directory = {};  // directory of the file; empty: TMPDIR, else /tmp
  std::int64_t min_bytes = std::int64_t{1} << 16;  // smaller tensors are not offloaded
  // Maximum number of saved tensors that still hold memory while they are copied out. Saving one
  // more waits for the oldest.
  int max_leaving = 2;
  // Maximum number of tensors that are brought back ahead of backward. When backward takes one, the
  // next one follows.
  int max_returning = 2;
  // Pinned host memory for device tensors; must outlive the Offloader. Null: the Offloader's own
  // memory, which no statistics count.
  MemoryResource* pinned = nullptr;
};

struct OffloadStatistics {
  std::int64_t tensors = 0, bytes = 0;  // offloaded
  std::int64_t early = 0;       // offloaded tensors that were back before backward asked for them
  double waited_seconds = 0;    // time that the computing thread waited for reads and writes
  std::int64_t peak_bytes = 0;  // peak of the bytes in the file or pinned memory
};

class OffloadPlace;

// All methods belong to the computing thread.
class Offloader {
 public:
  // Tensors are restored into `memory`, which must be on the tensors' device. `compute` is the
  // stream that computes with device tensors. Throws io if the file cannot be created.
  explicit Offloader(MemoryResource& memory, const OffloadOptions& options = {},
                     Stream compute = {});
  ~Offloader();  // waits for running transfers
  Offloader(const Offloader&) = delete;
  Offloader& operator=(const Offloader&) = delete;

  // The tensors of one tape (a microbatch).
  class Batch;
  std::shared_ptr<Batch> begin_batch();
  // For Tape::set_saved_tensor_hooks(). Saving and unpacking throw io (a full disk) with the path,
  // or out_of_memory.
  nn::SavedTensorHooks hooks(std::shared_ptr<Batch> batch);
  // Announces that backward will soon need this batch, after the batches announced before. Starts
  // to read its tensors back, last saved first, max_returning at a time.
  void expect(Batch& batch);

  OffloadStatistics statistics() const;

 private:
  std::int64_t min_bytes_;
  std::shared_ptr<OffloadPlace> place_;
};

}  // namespace shoal::parallel
