// A rank's parameters during a step: values, masters and gradients, whole or sharded. Used only by
// ParallelModel.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "shoal/nn/layers/chain.h"
#include "shoal/nn/optim/optimizer.h"
#include "shoal/parallel/apply/parallel_options.h"
#include "shoal/parallel/data/reducer.h"
#include "shoal/parallel/mesh/process_mesh.h"
#include "shoal/parallel/shard/sharded_values.h"

namespace shoal::parallel {

// Trainable parameters that the same pipeline ranks share (tied weights).
struct TiedSet {
  std::vector<int> ranks;  // pipeline ranks, ascending
  bool partial = false;    // StageParameter::partial
  bool operator==(const TiedSet&) const = default;
};

// A parameter of this rank's stages, and the other ranks of its replica that hold it.
struct StageParameter {
  nn::Parameter* parameter = nullptr;
  // This rank's gradient is a partial sum, to be summed over tensor parallelism too.
  bool partial = false;
  int tied = -1;        // index of its TiedSet; -1: none
  bool counted = true;  // for each element, true on one of the replica's pp × tp ranks
  int number = 0;       // index among the parameters of the whole model, the same on every rank
};

// Consecutive elements of a parameter that this rank updates and keeps.
struct OwnedRun {
  nn::Parameter* parameter = nullptr;
  int number = 0;          // StageParameter::number
  std::int64_t first = 0;  // element of the parameter, row-major
  nn::Segment segment;     // for an Optimizer; frozen: has only a name, and the value as its master
  bool writes = false;     // true on exactly one rank of the mesh for each element
};

// f32 elements rounded up to whole cache lines.
constexpr std::int64_t whole_lines(std::int64_t elements) { return (elements + 15) / 16 * 16; }

// Elements that a rank keeps between two steps, including the gaps of its layout. If values are f32
// or rounded stochastically, there are no separate masters and `masters` is 0.
struct KeptElements {
  std::int64_t values = 0, gradients = 0, masters = 0;
};

class ModelState {
 public:
  virtual ~ModelState() = default;
  ModelState(const ModelState&) = delete;
  ModelState& operator=(const ModelState&) = delete;

  // Allocates gradients and sets hooks. Called before the first begin_step(); never in runs that
  // only evaluate.
  virtual void make_gradients() = 0;
  // Same protocol as ShardedGradients. After finish() gradients are sums over all ranks.
  virtual void begin_step() = 0;
  virtual void arm() = 0;
  virtual void finish() = 0;
  // `drop_tapes` drops the tapes of the step. It runs after gradients are abandoned, because a
  // dropped tape marks its gradients as ready. It runs before values are abandoned, because
  // dropping a tape releases the values of entered units.
  virtual void abandon_step(const std::function<void()>& drop_tapes) = 0;
  // Removes hooks and gradients, and aborts running reductions. Call before the tapes are
  // destroyed.
  virtual void drop_gradients() = 0;

  // The Reducer that sums all gradients; null if there are several, or if gradients are sharded.
  virtual Reducer* reducer() { return nullptr; }
  virtual ReducerStatistics statistics() const = 0;  // all zero without gradients
  virtual KeptElements kept() const = 0;             // computed from the plan, not measured

  virtual nn::UnitObserver* observer() = 0;         // to pass to the stages; may be null
  virtual std::vector<OwnedRun> owned() const = 0;  // runs of trainable parameters
  virtual void publish() = 0;    // call after updating owned(): starts to send the new values
  virtual void wait() = 0;       // waits for the published values
  virtual void refresh() = 0;    // call after writing masters: rounds them into the values; blocks
  virtual void drop_idle() = 0;  // drops values of units that are not computing
  // True if this rank holds part of the first copy of the state.
  virtual bool is_first_copy() const = 0;

 protected:
  ModelState() = default;
};

// For each tied set, the group of all ranks, over all replicas and stages, that hold gradient part
// number `part` (of `parts`). Null if this rank holds none. There is one group, not one for each
// replica, since replicas could add three or more terms in different orders and drift apart.
// Collective over the mesh.
std::vector<std::shared_ptr<collectives::Communicator>> make_tied_groups(
    const ProcessMesh& mesh, const std::vector<TiedSet>& tied, int parts, int part);

// Collective over the mesh, as are all calls of the result. `tied` describes the whole model, in
// the same order on every rank. options.fill must be set. `stage_parameters` is equal on all ranks
// of dp except for the sizes of parts. All arguments must outlive the result.
std::unique_ptr<ModelState> make_whole_state(nn::Context& context, ProcessMesh& mesh,
                                             std::vector<StageParameter> stage_parameters,
                                             bool has_partial, const std::vector<TiedSet>& tied,
                                             const ParallelOptions& options);
// The shard group is a part of rdp. Tensor-parallel parts differ in size over tp (vocabularies), so
// ranks of different tp could not share buckets. Gradients that are replicated over tp or tied are
// first summed over rdp to their owners. Then all owners of the same part sum that part.
std::unique_ptr<ModelState> make_sharded_state(nn::Context& context, const nn::Chain& chain,
                                               ProcessMesh& mesh,
                                               std::vector<StageParameter> stage_parameters,
                                               const std::vector<TiedSet>& tied,
                                               const ParallelOptions& options);

}  // namespace shoal::parallel
