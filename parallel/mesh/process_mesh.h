// The ranks of a job as a mesh with axes rdp, pp and tp, with a Communicator for each group that
// parallelism uses.
#pragma once

#include <atomic>
#include <exception>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <utility>
#include <vector>

#include "shoal/collectives/communicator.h"
#include "shoal/parallel/mesh/placement.h"

namespace shoal::parallel {

class ProcessMesh {
 public:
  // Collective and blocking. `world` must outlive the mesh. Groups of all ranks are `world` itself,
  // so operations on them keep the order of the calls, as on one Communicator. Throws if
  // shape.size() differs from the size of `world`.
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

  // Communicator::split() of one of the mesh's groups; abort() ends the new group too. Null for
  // color < 0. Collective over `group`, blocking. The mesh keeps the group until the next split()
  // after its last other owner is gone: a group released by unwinding must still receive an abort.
  std::shared_ptr<collectives::Communicator> split(collectives::Communicator& group, int color,
                                                   int key) const;

  // Ends the work of all ranks after this rank failed: aborts the world, then every other group,
  // whose ranks need not be in the group that failed. Their waits throw `aborted`: "rank 3 aborted:
  // WHY". If `why` is such an abort itself, it is passed on with the number of the first rank. Any
  // thread; only the first call has an effect. The mesh must not be used afterwards. False: nothing
  // is ended, because the calling thread captures a step, which no other rank waits for.
  bool abort(const std::exception& why) const noexcept;

  // Runs work(). If it throws, calls abort() first. Another rank's abort is rethrown with the
  // number of the rank that began it. Wrap every call that other ranks may wait in.
  template <typename Work>
  decltype(auto) guarded(Work&& work) const {
    try {
      return std::forward<Work>(work)();
    } catch (const std::exception& why) {
      abort(why);
      throw_if_passed_on(why);
      throw;
    } catch (...) {
      abort(std::runtime_error("for a reason that is no std::exception"));
      throw;
    }
  }

 private:
  collectives::Communicator* make(Axes axes);
  void throw_if_passed_on(const std::exception& why) const;

  collectives::Communicator& world_;
  MeshShape shape_;
  Placement placement_;
  MeshPlace place_;
  std::vector<std::unique_ptr<collectives::Communicator>> owned_;
  std::vector<std::pair<Axes, collectives::Communicator*>> made_;
  collectives::Communicator *tp_, *pp_, *rdp_, *mp_, *dp_;
  mutable std::atomic<bool> aborted_{false};
  mutable std::mutex mutex_;  // guards splits_
  mutable std::vector<std::shared_ptr<collectives::Communicator>> splits_;
};

}  // namespace shoal::parallel
