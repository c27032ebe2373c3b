#include "shoal/nn/autograd/dispatcher.h"

#include <algorithm>
#include <chrono>

#include "shoal/nn/autograd/recording_dispatcher.h"
#include "shoal/nn/autograd/timing_dispatcher.h"
#include "shoal/runtime/base/error.h"

namespace shoal::nn {

void DirectDispatcher::run(const Operation&, const std::function<void()>& body) { body(); }

void RecordingDispatcher::run(const Operation& operation, const std::function<void()>& body) {
  RecordedOperation record;
  record.name = operation.name;
  const auto add = [&](std::span<const Tensor> tensors, std::vector<int>& list, bool output) {
    for (const Tensor& tensor : tensors) {
      if (!tensor.defined()) continue;
      const int index = index_of(tensor, output);
      lifetimes_[static_cast<std::size_t>(index)].last = static_cast<int>(operations_.size());
      if (std::find(list.begin(), list.end(), index) == list.end()) list.push_back(index);
    }
  };
  add(operation.inputs, record.inputs, false);
  add(operation.outputs, record.outputs, true);
  operations_.push_back(std::move(record));
  next_.run(operation, body);
}

int RecordingDispatcher::index_of(const Tensor& tensor, bool output) {
  const Storage* key = tensor.storage().get();
  if (const auto found = seen_.find(key);
      found != seen_.end() && found->second.storage.lock() == tensor.storage())
    return found->second.index;
  if (const auto found = outside_.find(key);
      found != outside_.end() && found->second.lock() == tensor.storage())
    output = false;
  const int index = static_cast<int>(lifetimes_.size()), now = static_cast<int>(operations_.size());
  lifetimes_.push_back({static_cast<std::int64_t>(tensor.storage()->size()), now, now, output});
  seen_.insert_or_assign(key, Seen{tensor.storage(), index});
  return index;
}

void RecordingDispatcher::keep_outside(const Tensor& tensor) {
  if (tensor.defined()) outside_.insert_or_assign(tensor.storage().get(), tensor.storage());
}

void RecordingDispatcher::clear() {
  outside_.clear();
  operations_.clear();
  lifetimes_.clear();
  seen_.clear();
}

MemoryPlan plan_memory(const std::vector<StorageLifetime>& lifetimes, std::int64_t alignment) {
  SHOAL_CHECK(alignment > 0, "an alignment of {} bytes", alignment);
  MemoryPlan plan;
  plan.offsets.assign(lifetimes.size(), -1);
  const auto padded = [&](std::int64_t bytes) {
    return (bytes + alignment - 1) / alignment * alignment;
  };
  std::vector<std::size_t> order;
  std::map<int, std::int64_t> change;  // operation -> bytes allocated minus bytes freed before it
  for (std::size_t i = 0; i < lifetimes.size(); ++i) {
    if (!lifetimes[i].produced) continue;
    order.push_back(i);
    change[lifetimes[i].first] += padded(lifetimes[i].bytes);
    change[lifetimes[i].last + 1] -= padded(lifetimes[i].bytes);
  }
  std::int64_t live = 0;
  for (const auto& [operation, bytes] : change)
    plan.live_bytes = std::max(plan.live_bytes, live += bytes);

  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return lifetimes[a].bytes > lifetimes[b].bytes;
  });
  std::vector<std::size_t> placed;  // sorted by offset
  for (const std::size_t i : order) {
    // Take the smallest sufficient gap among placed storages whose lifetimes may overlap this one.
    std::int64_t end = 0, best = -1, best_gap = 0;
    const std::int64_t bytes = padded(lifetimes[i].bytes);
    for (const std::size_t j : placed) {
      const bool apart =
          lifetimes[j].last < lifetimes[i].first || lifetimes[i].last < lifetimes[j].first;
      if (apart && lifetimes[j].lane == lifetimes[i].lane) continue;
      const std::int64_t gap = plan.offsets[j] - end;
      if (gap >= bytes && (best < 0 || gap < best_gap)) best = end, best_gap = gap;
      end = std::max(end, plan.offsets[j] + padded(lifetimes[j].bytes));
    }
    plan.offsets[i] = best >= 0 ? best : end;
    plan.arena_bytes = std::max(plan.arena_bytes, plan.offsets[i] + bytes);
    placed.insert(std::upper_bound(placed.begin(), placed.end(), i,
                                   [&](std::size_t a, std::size_t b) {
                                     return plan.offsets[a] < plan.offsets[b];
                                   }),
                  i);
  }
  return plan;
}

void TimingDispatcher::run(const Operation& operation, const std::function<void()>& body) {
  const auto start = std::chrono::steady_clock::now();
  next_.run(operation, body);
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  auto found = totals_.find(operation.name);
  if (found == totals_.end()) found = totals_.emplace(std::string(operation.name), Total{}).first;
  found->second.seconds += elapsed.count();
  ++found->second.calls;
}

}  // namespace shoal::nn
