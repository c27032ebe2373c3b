// The ring all_reduce (Patarasuk and Yuan, 2009) as arithmetic: reduce-scatter, then all-gather,
// each `size` - 1 hops to the right. Chunks are shard(count, size, chunk, granule).
#pragma once

namespace shoal::collectives::algorithm {

enum class RingAction {
  send,             // send my own chunk
  reduce_and_send,  // add mine to the left neighbour's partial sum; send it on
  reduce_and_keep,  // the same, but the sum is now complete: store it and send it on
  store_and_send,   // store the complete chunk from the left and send it on
  store,            // store the complete chunk; the right neighbour already has it
};

struct RingStep {
  RingAction action;
  int chunk;
};

constexpr int ring_left(int rank, int size) { return (rank + size - 1) % size; }
constexpr int ring_right(int rank, int size) { return (rank + 1) % size; }

// Steps of one pass: 2 * size - 1 (size > 1). Each step but the first reads what the left neighbour
// sent in its previous step; each but the last sends to the right neighbour.
constexpr int ring_steps(int size) { return 2 * size - 1; }
RingStep ring_step(int rank, int size, int step);

}  // namespace shoal::collectives::algorithm
