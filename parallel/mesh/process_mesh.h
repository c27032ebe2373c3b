// The ranks of a job as a mesh with axes rdp, pp and tp, and a Communicator for each group that
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
  // Collective and blocking. `world` must outlive the mesh; groups that hold all ranks are `world`
  // itself, so operations on different groups keep the order of the calls as any do on one
  // Communicator. Throws where shape.size() is not the size of `world`. `host_work`: of the steps
  // that are captured, for which all groups are made (make_replayed_communicator()), world() too;
  // outlives the mesh. Null: none is.
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

  // Communicator::split() of one of the groups, which abort() ends too. Null for color < 0.
  // Collective over `group`, blocking. The mesh keeps it until the next split() after its last
  // other owner: what unwinding lets go must still hear of an abort.
  std::shared_ptr<collectives::Communicator> split(collectives::Communicator& group, int color,
                                                   int key) const;

  // Of captured steps, for StepCaptureOptions: what their operations are noted in, where hosts take
  // part in them, else null; and the memory of all groups made so far.
  const nn::HostWork* host_work() const;
  const std::vector<nn::PlannedMemory*>& planned_memories() const { return *memories_; }
  // A step is being captured: nothing of it has begun, and no other rank waits for any of it.
  bool captured() const { return host_work_ != nullptr && host_work_->captured(); }

  // A rank that fails ends the work of all: gives up the world, then every other group, whose
  // ranks need not be in the one where it failed. Their waits throw `aborted`: "rank 3 aborted:
  // WHY". Where `why` is such an abort, it is passed on with the number of the rank that began it.
  // Any thread; the first call counts. The mesh is of no use afterwards.
  void abort(const std::exception& why) const noexcept;

  // work(); where it throws, abort() first. Another rank's abort is thrown on under the number of
  // the rank that began it. For every call that other ranks may wait in. What fails while a step is
  // captured ends the capture alone.
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
  std::unique_ptr<collectives::Communicator> replayed_;  // world's; null: no step is captured
  collectives::Communicator* all_;                       // world's ranks
  MeshShape shape_;
  Placement placement_;
  MeshPlace place_;
  std::vector<std::unique_ptr<collectives::Communicator>> owned_;
  std::vector<std::pair<Axes, collectives::Communicator*>> made_;
  collectives::Communicator *tp_, *pp_, *rdp_, *mp_, *dp_;
  mutable std::atomic<bool> aborted_{false};
  mutable std::mutex mutex_;  // of splits_
  mutable std::vector<std::shared_ptr<collectives::Communicator>> splits_;
};

}  // namespace shoal::parallel
