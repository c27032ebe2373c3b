#include "shoal/collectives/algorithm/ring.h"

#include "shoal/runtime/base/error.h"

namespace shoal::collectives::algorithm {

RingStep ring_step(int rank, int size, int step) {
  SHOAL_CHECK(size > 1 && rank >= 0 && rank < size && step >= 0 && step < ring_steps(size),
              "ring step {} of rank {} of {}", step, rank, size);
  const int chunk = ((rank - step) % size + size) % size;
  if (step == 0) return {RingAction::send, chunk};
  if (step < size - 1) return {RingAction::reduce_and_send, chunk};
  if (step == size - 1) return {RingAction::reduce_and_keep, chunk};
  if (step < 2 * size - 2) return {RingAction::store_and_send, chunk};
  return {RingAction::store, chunk};
}

}  // namespace shoal::collectives::algorithm
