#include "shoal/nn/capture/batch_size.h"

#include <algorithm>
#include <functional>

#include "shoal/runtime/base/error.h"

namespace shoal::nn {
namespace {

constexpr std::int64_t kMostRows = std::int64_t{1} << 20;

// Bisection. Memory grows with the rows, except for small irregularities of greedy packing.
std::int64_t most(const std::function<bool(std::int64_t)>& fits) {
  std::int64_t low = 0, high = 1;
  while (high <= kMostRows && fits(high)) low = high, high *= 2;
  while (low + 1 < high) {
    const std::int64_t middle = (low + high) / 2;
    (fits(middle) ? low : high) = middle;
  }
  return low;
}

}  // namespace

StepBytes bytes_of_step(const MemorySequence& sequence, const RecordedBatch& batch,
                        std::int64_t rows, Device device) {
  SHOAL_CHECK(batch.rows >= 1 && batch.positions >= batch.rows, "a batch of {} rows, {} positions",
              batch.rows, batch.positions);
  const auto scaled = [&](std::size_t bytes) {
    const auto was = static_cast<std::int64_t>(bytes);
    return was % batch.positions == 0 ? was / batch.rows * rows : was;
  };
  std::vector<StorageLifetime> lives = lifetimes_of(sequence);
  for (StorageLifetime& life : lives) life.bytes = scaled(static_cast<std::size_t>(life.bytes));
  StepBytes step{.planned = plan_memory(lives, alignment_of(device)).arena_bytes};
  std::vector<std::int64_t> taken(lives.size());
  std::int64_t now = 0;
  for (const MemorySequence::Call& call : sequence.calls) {
    std::int64_t& block = taken[static_cast<std::size_t>(call.block)];
    if (call.bytes == 0)
      now -= block;
    else
      now += block = static_cast<std::int64_t>(
          PoolMemory::rounded(static_cast<std::size_t>(scaled(call.bytes))));
    step.call_by_call = std::max(step.call_by_call, now);
  }
  return step;
}

LargestBatch largest_batch(std::span<const MemorySequence> sequences, const RecordedBatch& batch,
                           std::int64_t room, Device device) {
  const auto of = [&](std::int64_t rows) {
    StepBytes all;
    for (const MemorySequence& sequence : sequences) {
      const StepBytes one = bytes_of_step(sequence, batch, rows, device);
      all.planned += one.planned;
      all.call_by_call += one.call_by_call;
    }
    return all;
  };
  return {.planned = most([&](std::int64_t rows) { return of(rows).planned <= room; }),
          .call_by_call = most([&](std::int64_t rows) { return of(rows).call_by_call <= room; })};
}

}  // namespace shoal::nn
