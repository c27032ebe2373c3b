// A rank's parameters through a step: values, masters and gradients, whole or sharded. For
// ParallelModel; not for other rooms.
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

// Trainable parameters that stages on the same ranks of the pipeline hold (tied weights).
struct TiedSet {
  std::vector<int> ranks;  // of the pipeline, ascending
  bool partial = false;    // HeldParameter's
  bool operator==(const TiedSet&) const = default;
};

// A parameter of this rank's stages, and which other ranks of its replica hold it.
struct HeldParameter {
  nn::Parameter* parameter = nullptr;
  // A rank's gradient is a contribution, to be summed over tensor parallelism too.
  bool partial = false;
  int tied = -1;        // its TiedSet; -1: none
  bool counted = true;  // true on one rank of each replica's pp × tp for each element
  int number = 0;       // among the parameters of the whole model, alike on every rank
};

// Consecutive elements of a parameter whose numbers this rank updates, and keeps.
struct OwnedRun {
  nn::Parameter* parameter = nullptr;
  int number = 0;          // HeldParameter's
  std::int64_t first = 0;  // element of the parameter, row-major
  nn::Segment segment;     // for an Optimizer; of a frozen parameter: name and master, its value
  bool writes = false;     // over all ranks of the mesh, true for each element once
};

// Where a layout lets every tensor begin at a cache line, what one of f32 takes.
constexpr std::int64_t whole_lines(std::int64_t elements) { return (elements + 15) / 16 * 16; }

// Elements that a rank keeps between two steps, with the gaps of its layout. Masters: 0 where
// values are f32, or rounded stochastically, and so masters themselves.
struct KeptElements {
  std::int64_t values = 0, gradients = 0, masters = 0;
};

class ModelState {
 public:
  virtual ~ModelState() = default;
  ModelState(const ModelState&) = delete;
  ModelState& operator=(const ModelState&) = delete;

  // Gradients' memory and hooks; before the first begin_step(), and never for who only evaluates.
  virtual void make_gradients() = 0;
  // As ShardedGradients has them. After finish() gradients are sums over all ranks.
  virtual void begin_step() = 0;
  virtual void arm() = 0;
  virtual void finish() = 0;
  // `drop_tapes`: lets go of what the step has recorded. After gradients, for what a tape drops
  // counts as ready, and before values, which units that were entered let go of.
  virtual void abandon_step(const std::function<void()>& drop_tapes) = 0;
  // Takes hooks and gradients away; aborts what is in flight. Before the tapes end.
  virtual void drop_gradients() = 0;

  virtual ReducerStatistics statistics() const = 0;  // all zero without gradients
  virtual KeptElements kept() const = 0;             // as the plan has it: nothing is counted

  virtual nn::UnitObserver* observer() = 0;         // for the stages; may be null
  virtual std::vector<OwnedRun> owned() const = 0;  // trainable ones
  virtual void publish() = 0;  // after owned() were updated: starts to give the others what changed
  virtual void wait() = 0;     // until what was published is there
  virtual void refresh() = 0;  // after masters were written: rounds them into the values. Blocks
  virtual void drop_idle() = 0;  // units' values that nothing computes with
  // Ranks that share one copy of the state are a copy; of several, this rank is of the first.
  virtual bool is_first_copy() const = 0;

 protected:
  ModelState() = default;
};

// One group for each set, of all ranks that hold part `part` of `parts` of its gradients, copies
// and all; null where this rank holds none. One sum over one group: had each replica sums of its
// own, three or more summands could be added in other orders, where hosts cut replicas differently,
// and replicas would drift apart. Collective over the mesh.
std::vector<std::shared_ptr<collectives::Communicator>> make_tied_groups(
    const ProcessMesh& mesh, const std::vector<TiedSet>& tied, int parts, int part);

// Collective over the mesh, as all calls are. `tied`: of the whole model, in an order that is the
// same on every rank. options.fill is set. `held` alike on the ranks of dp, but for the sizes of
// parts. All arguments outlive the result.
std::unique_ptr<ModelState> make_whole_state(nn::Context& context, ProcessMesh& mesh,
                                             std::vector<HeldParameter> held, bool splits,
                                             const std::vector<TiedSet>& tied,
                                             const ParallelOptions& options);
// The shard group is of rdp: what tensor parallelism cuts differs in size over tp (vocabularies),
// so ranks of different tp could not share buckets. Of what is replicated over tp, or tied,
// gradients are summed over rdp to their owners and then, parts only, over all that own the same.
std::unique_ptr<ModelState> make_sharded_state(nn::Context& context, const nn::Chain& chain,
                                               ProcessMesh& mesh, std::vector<HeldParameter> held,
                                               const std::vector<TiedSet>& tied,
                                               const ParallelOptions& options);

}  // namespace shoal::parallel
