// A rank's own call, for Errors.
#pragma once

#include "shoal/collectives/transport/operation.h"

namespace shoal::collectives::transport {

// Both sides of a message compare the sender's signature. Returns it as `rank` called it towards
// `peer`: as a recv if `rank` is the receiver.
inline Signature as_called(const Signature& signature, int rank, int peer) {
  Signature called = signature;
  if (called.operation == Operation::send && called.root == rank) {
    called.operation = Operation::recv;
    called.root = peer;
  }
  return called;
}

}  // namespace shoal::collectives::transport
