// Sums gradients over data-parallel ranks while backward still runs (the fusion buffers of
// Herring; PyTorch DDP, VLDB 2020).
//
// Gradients are views of one flat f32 region from Communicator::memory_resource(), so reduction
// copies nothing. Gradients are sums, never averages (decision 11). A step:
//   reducer.begin_step();
//   for each microbatch: forward; if it is the last: reducer.arm(); backward
//   reducer.finish();
// Every rank must run the same steps; which parameters a backward reaches may differ. All calls
// and backward itself come from one thread.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "shoal/collectives/communicator.h"
#include "shoal/nn/autograd/parameter.h"
#include "shoal/parallel/data/bucket_plan.h"
#include "shoal/runtime/trace/trace.h"

namespace shoal::parallel {

struct ReducerOptions {
  std::int64_t bucket_bytes = std::int64_t{25} << 20;  // ddp_bucket_cap_mb
  Tracer* tracer = nullptr;                            // may be null
};

struct ReducerStatistics {
  std::int64_t steps = 0;
  std::int64_t reduced_bytes = 0;
  double exposed_seconds = 0;             // finish() waited for communication
  std::int64_t launched_in_backward = 0;  // buckets handed over before finish()
};

class Reducer {
 public:
  // Takes the trainable ones of `parameters`, in the same order on every rank, gives each its
  // `gradient` and its ready hook. Parameters and communicator must outlive the Reducer; the
  // gradients stay valid as long as any Tensor refers to them and the communicator lives.
  Reducer(std::span<nn::Parameter* const> parameters, collectives::Communicator& communicator,
          const ReducerOptions& options = {});
  ~Reducer();  // takes its hooks away; waits for nothing
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  // The next write into each gradient overwrites.
  void begin_step();
  // Before the last microbatch's backward: from here a parameter whose gradient is complete counts
  // as ready, and a full bucket's all_reduce starts when its turn has come. The order of turns is
  // agreed: that of registration, reversed, in the first step, then rank 0's order of that step.
  void arm();
  // Hands over what is left and waits for all of it. Parameters that backward did not reach give
  // what earlier microbatches left, or zeros. Throws the communicator's Errors.
  void finish();

  const BucketPlan& plan() const { return plan_; }
  // All gradients with their padding (zeros): for norms, clipping and flat optimizers.
  Tensor flat() const { return flat_; }
  const ReducerStatistics& statistics() const { return statistics_; }

 private:
  void on_ready(int parameter);
  void launch_full_buckets();
  void launch(int bucket);
  void agree_on_order();

  std::vector<nn::Parameter*> parameters_;
  collectives::Communicator& communicator_;
  Tracer* tracer_;
  BucketPlan plan_;
  Tensor flat_;
  std::vector<int> bucket_of_;  // by parameter
  std::vector<int> missing_;    // by bucket: parameters not ready yet
  std::vector<char> ready_;     // by parameter
  std::vector<int> turns_;      // buckets in the agreed order
  std::vector<int> completed_;  // buckets in the order in which they became full, this step
  std::size_t next_turn_ = 0;
  std::vector<std::unique_ptr<collectives::Work>> in_flight_;
  bool armed_ = false, agreed_ = false;
  ReducerStatistics statistics_;
};

}  // namespace shoal::parallel
