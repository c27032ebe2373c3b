// Runs operations through another dispatcher and records, in order, the storages they touch with
// first and last use. The fusion catalogue (nn/capture) reads the record. Step capture records its
// own lifetimes and packs them with plan_memory().
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "shoal/nn/autograd/dispatcher.h"

namespace shoal::nn {

// Lifetime of one storage, as operation indices (inclusive). `produced`: the first use was as an
// output, so the storage is an activation; otherwise it is a parameter or batch. `lane`: the stream
// on which it is used.
struct StorageLifetime {
  std::int64_t bytes = 0;
  int first = 0, last = 0;
  bool produced = false;
  int lane = 0;
};

struct RecordedOperation {
  std::string name;
  std::vector<int> inputs, outputs;  // indices into lifetimes(), without duplicates
};

class RecordingDispatcher final : public Dispatcher {
 public:
  explicit RecordingDispatcher(Dispatcher& next) : next_(next) {}
  void run(const Operation& operation, const std::function<void()>& body) override;

  // Excludes a storage that outlives the recording (a gradient, bucket or cache) from the arena,
  // even if its first use writes it. Call before its first use; clear() resets this.
  void keep_outside(const Tensor& tensor);

  const std::vector<RecordedOperation>& operations() const { return operations_; }
  const std::vector<StorageLifetime>& lifetimes() const { return lifetimes_; }
  void clear();

 private:
  int index_of(const Tensor& tensor, bool output);
  struct Seen {
    std::weak_ptr<Storage> storage;  // detects an address reused by another storage
    int index;
  };
  Dispatcher& next_;
  std::vector<RecordedOperation> operations_;
  std::vector<StorageLifetime> lifetimes_;
  std::unordered_map<const Storage*, Seen> seen_;
  std::unordered_map<const Storage*, std::weak_ptr<Storage>> outside_;
};

// Placement of each produced storage in one arena (greedy by size; Pisarchyk and Lee, "Efficient
// Memory Management for Deep Neural Net Inference", 2020). Storages of different lanes share no
// bytes: host order does not order work across streams. Pure.
struct MemoryPlan {
  std::vector<std::int64_t> offsets;  // bytes; -1 for storages from outside
  std::int64_t arena_bytes = 0;
  std::int64_t live_bytes = 0;  // largest sum alive at one operation; a lower bound for any plan
};
MemoryPlan plan_memory(const std::vector<StorageLifetime>& lifetimes, std::int64_t alignment = 64);

}  // namespace shoal::nn
