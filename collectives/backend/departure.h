// Additional interface of Communicators whose memory outlives their group, for PyTorch's backend:
// its tensors keep the Communicator, but its group ends when the caller says so.
#pragma once

namespace shoal::collectives {

class Departure {
 public:
  virtual ~Departure() = default;
  // Leaves the group as the destructor does: peers that wait for this rank learn of it. Memory of
  // memory_resource() stays valid. Operations in flight and later calls throw.
  virtual void leave() = 0;
};

}  // namespace shoal::collectives
