// The ranks of a job as a mesh with axes rdp, pp and tp, and a Communicator for each group that
// parallelism uses.
#pragma once

#include <memory>

#include "shoal/collectives/communicator.h"
#include "shoal/parallel/mesh/placement.h"

namespace shoal::parallel {

class ProcessMesh {
 public:
  // Collective and blocking. `world` must outlive the mesh; groups that hold all ranks are `world`
  // itself, so operations on different groups keep the order of the calls as any do on one
  // Communicator. Throws where shape.size() is not the size of `world`.
  ProcessMesh(collectives::Communicator& world, const MeshShape& shape, const Placement& placement);

  const MeshShape& shape() const { return shape_; }
  const Placement& placement() const { return placement_; }
  const MeshPlace& place() const { return place_; }  // of this rank

  collectives::Communicator& world() const { return world_; }
  collectives::Communicator& tp() const { return *tp_; }
  collectives::Communicator& pp() const { return *pp_; }
  collectives::Communicator& rdp() const { return *rdp_; }
  collectives::Communicator& mp() const { return *mp_; }  // pp × tp
  collectives::Communicator& dp() const { return *dp_; }  // rdp × tp

 private:
  collectives::Communicator* make(Axes axes);

  collectives::Communicator& world_;
  MeshShape shape_;
  Placement placement_;
  MeshPlace place_;
  std::vector<std::unique_ptr<collectives::Communicator>> owned_;
  std::vector<std::pair<Axes, collectives::Communicator*>> made_;
  collectives::Communicator *tp_, *pp_, *rdp_, *mp_, *dp_;
};

}  // namespace shoal::parallel
