// The ring all_reduce (Patarasuk and Yuan, 2009) as arithmetic: reduce-scatter, then all-gather,
// each `size` - 1 hops to the right. Chunks are shard(count, size, chunk, granule).
#pragma once

namespace shoal::collectives::algorithm {

enum class RingAction {
  send,             // pass my own chunk on
  reduce_and_send,  // add mine to what the left passed; pass it on
  reduce_and_keep,  // the same, the sum is now complete: store it and pass it on
  store_and_send,   // store the complete chunk from the left and pass it on
  store,            // store it; the right has it already
};

struct RingStep {
  RingAction action;
  int chunk;
};

constexpr int ring_left(int rank, int size) { return (rank + size - 1) % size; }
constexpr int ring_right(int rank, int size) { return (rank + 1) % size; }

// Steps of one pass, 2 * size - 1 of them (size > 1). Each step but the first reads what the left
// neighbour passed in its step before; each but the last passes something to the right.
constexpr int ring_steps(int size) { return 2 * size - 1; }
RingStep ring_step(int rank, int size, int step);

}  // namespace shoal::collectives::algorithm
