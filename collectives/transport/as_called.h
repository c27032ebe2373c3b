// Names a message's call as a given rank made it, for Errors.
#pragma once

#include "shoal/collectives/transport/operation.h"

namespace shoal::collectives::transport {

// Both ends of a message compare the sender's signature. Returns the call that `rank` made with
// `peer`: `signature` itself, or the matching recv if `rank` is the receiver.
inline Signature as_called(const Signature& signature, int rank, int peer) {
  Signature called = signature;
  if (called.operation == Operation::send && called.root == rank) {
    called.operation = Operation::recv;
    called.root = peer;
  }
  return called;
}

}  // namespace shoal::collectives::transport
