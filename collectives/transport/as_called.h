// What a rank called, for Errors.
#pragma once

#include "shoal/collectives/transport/operation.h"

namespace shoal::collectives::transport {

// Both sides of a message compare its sender's signature. How `rank` called what it compares with
// `peer`: a recv, where it is the receiver itself.
inline Signature as_called(const Signature& signature, int rank, int peer) {
  Signature called = signature;
  if (called.operation == Operation::send && called.root == rank) {
    called.operation = Operation::recv;
    called.root = peer;
  }
  return called;
}

}  // namespace shoal::collectives::transport
