// Runs each operation through another dispatcher and keeps what it touched, in order: the first and
// last use of every storage. The catalogue of fusions looks through it (nn/capture); plan_memory()
// is what step capture packs lifetimes by, its own.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "shoal/nn/autograd/dispatcher.h"

namespace shoal::nn {

// One storage's life, in indices of operations (inclusive). `produced`: its first use was as an
// output, so it is an activation; otherwise it came from outside (parameters, batches). `lane`: of
// several orders of work (streams) side by side the one that it is used in.
struct StorageLifetime {
  std::int64_t bytes = 0;
  int first = 0, last = 0;
  bool produced = false;
  int lane = 0;
};

struct RecordedOperation {
  std::string name;
  std::vector<int> inputs, outputs;  // indices into lifetimes(); a storage appears once in each
};

class RecordingDispatcher final : public Dispatcher {
 public:
  explicit RecordingDispatcher(Dispatcher& next) : next_(next) {}
  void run(const Operation& operation, const std::function<void()>& body) override;

  // A storage that outlives what is recorded although its first use may write it (a gradient, a
  // bucket, a cache) is none that an arena may hold. Say so before its first use; clear() forgets.
  void keep_outside(const Tensor& tensor);

  const std::vector<RecordedOperation>& operations() const { return operations_; }
  const std::vector<StorageLifetime>& lifetimes() const { return lifetimes_; }
  void clear();

 private:
  int index_of(const Tensor& tensor, bool output);
  struct Seen {
    std::weak_ptr<Storage> storage;  // an address may be given again to another storage
    int index;
  };
  Dispatcher& next_;
  std::vector<RecordedOperation> operations_;
  std::vector<StorageLifetime> lifetimes_;
  std::unordered_map<const Storage*, Seen> seen_;
  std::unordered_map<const Storage*, std::weak_ptr<Storage>> outside_;
};

// Where each produced storage would lie in one arena (greedy by size; Pisarchyk and Lee, "Efficient
// Memory Management for Deep Neural Net Inference", 2020). Storages of two lanes share no bytes:
// that one was given back before the other was asked for says nothing of when they are used. Pure.
struct MemoryPlan {
  std::vector<std::int64_t> offsets;  // bytes; -1 for storages from outside
  std::int64_t arena_bytes = 0;
  std::int64_t live_bytes = 0;  // the largest sum alive at one operation: no plan is below it
};
MemoryPlan plan_memory(const std::vector<StorageLifetime>& lifetimes, std::int64_t alignment = 64);

}  // namespace shoal::nn
