// Additional interface of a host's Communicator for callers that decide where threads sleep:
// hierarchical, which drives the host's operations together with the network's, and PyTorch's
// backend, whose threads share a Communicator.
#pragma once

#include <atomic>

#include "shoal/collectives/work.h"

namespace shoal::collectives {

class NodeWork : public Work {
 public:
  // Sleeps for at most this long, until the host's other ranks may have made progress. Makes none
  // itself.
  virtual void doze(int milliseconds) = 0;
  // Makes progress and waits until the operation is done (true), until `until` has passed, or until
  // `wanted` is above 0, which ends a sleep only with interrupt(). Unless `may_spin`, the thread
  // never occupies a core while it waits. The operation has the deadline of test().
  virtual bool drive(const Deadline& until, const std::atomic<int>& wanted, bool may_spin) = 0;
  // From any thread, during drive().
  virtual void interrupt() = 0;
};

class NodeFace {
 public:
  virtual ~NodeFace() = default;
  // From now on callers test or wait for every operation until it is done. Ends the progress
  // thread, which would only wake up to find another thread driving.
  virtual void drive_by_hand() = 0;
};

}  // namespace shoal::collectives
