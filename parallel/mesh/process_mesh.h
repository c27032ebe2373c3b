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
#include "shoal/parallel/replay/replayed_communicator.h"

namespace shoal::parallel {

class ProcessMesh {
 public:
  // Collective and blocking. `world` must outlive the mesh. Groups of all ranks are `world` itself,
  // so operations on them keep the order of the calls, as on one Communicator. Throws if
  // shape.size() differs from the size of `world`. `host_work` belongs to the captured steps; all
  // groups, world() too, are created for it (make_replayed_communicator()). It must outlive the
  // mesh. Null: no step is captured.
  ProcessMesh(collectives::Communicator& world, const MeshShape& shape, const Placement& placement,
              const nn::HostWork* host_work = nullptr);

  const MeshShape& shape() const { return shape_; }
  const Placement& placement() const { return placement_; }
  const MeshPlace& place() const { return place_; }  // of this rank

  collectives::Communicator& world() const { return *all_; }
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

  // For StepCaptureOptions: the host work that records operations of captured steps, null if graphs
  // hold them all; and the memory of all groups created so far.
  const nn::HostWork* host_work() const;
  const std::vector<nn::PlannedMemory*>& planned_memories() const { return *memories_; }
  // True while a step is captured: none of its work has begun, and no other rank waits for it.
  bool captured() const { return host_work_ != nullptr && host_work_->captured(); }

  // Ends the work of all ranks after this rank failed: aborts the world, then every other group,
  // whose ranks need not be in the group that failed. Their waits throw `aborted`: "rank 3 aborted:
  // WHY". If `why` is such an abort itself, it is passed on with the number of the first rank. Any
  // thread; only the first call has an effect. The mesh must not be used afterwards.
  void abort(const std::exception& why) const noexcept;

  // Runs work(). If it throws, calls abort() first. Another rank's abort is rethrown with the
  // number of the rank that began it. Wrap every call that other ranks may wait in. A failure
  // during a capture only ends the capture.
  template <typename Work>
  decltype(auto) guarded(Work&& work) const {
    try {
      return std::forward<Work>(work)();
    } catch (const std::exception& why) {
      if (captured()) throw;
      abort(why);
      throw_if_passed_on(why);
      throw;
    } catch (...) {
      if (captured()) throw;
      abort(std::runtime_error("for a reason that is no std::exception"));
      throw;
    }
  }

 private:
  collectives::Communicator* make(Axes axes);
  void throw_if_passed_on(const std::exception& why) const;

  const nn::HostWork* host_work_;
  ReplayedMemories memories_ = std::make_shared<std::vector<nn::PlannedMemory*>>();
  std::unique_ptr<collectives::Communicator> replayed_;  // of world; null: no step is captured
  collectives::Communicator* all_;                       // world's ranks
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
