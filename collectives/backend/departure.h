// Additional interface of Communicators whose memory outlives their group. PyTorch's backend needs
// it: tensors keep the Communicator alive, but the caller decides when the group ends.
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
