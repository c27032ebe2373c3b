// Sums gradients over data-parallel ranks while backward still runs (the fusion buffers of
// Herring; PyTorch DDP, VLDB 2020).
//
// Gradients are views of one flat f32 region from Communicator::memory_resource(), so reduction
// copies nothing. Gradients are sums, never averages (decision 11). A step:
//   reducer.begin_step();
//   for each microbatch: forward; if it is the last: reducer.arm(); backward
//   reducer.finish();
// Who needs no norm over all gradients may let the next forward begin before they are all there:
//   ... backward; reducer.flush();
//   reducer.begin_step(); forward: reducer.wait_for(parameter), update it, use it
//   reducer.finish(); reducer.arm(); backward ...
// Every rank must run the same steps; which parameters a backward reaches may differ. All calls
// and backward itself come from one thread. From arm() until finish() returns nobody else may
// call the communicator: when a bucket is handed over is this rank's own matter. (A split of it may
// be used.)
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "shoal/collectives/communicator.h"
#include "shoal/nn/autograd/parameter.h"
#include "shoal/parallel/data/bucket_plan.h"
#include "shoal/parallel/data/bucket_reduction.h"
#include "shoal/runtime/trace/trace.h"

namespace shoal::parallel {

// Which of several waiting buckets goes first. `readiness`: the one that was ready first, best
// where finish() waits for all. `forward`: the one that the next forward needs first, for who uses
// wait_for(); planned on rank 0 (plan_turns).
enum class BucketPriority { readiness, forward };

// What was measured of these: docs/performance.md, "Data-parallel step beside PyTorch DDP".
struct ReducerOptions {
  std::int64_t bucket_bytes = std::int64_t{25} << 20;       // ddp_bucket_cap_mb
  std::int64_t first_bucket_bytes = std::int64_t{1} << 20;  // ddp_first_bucket_cap_mb
  // ddp_buckets_in_flight. 0: no bound of the Reducer's: what is ready is handed over in the agreed
  // order at once, and the communicator carries out as much at a time as fills its wires. A bound
  // lets the next bucket go only when backward or the caller comes by.
  int buckets_in_flight = 0;
  BucketPriority priority = BucketPriority::readiness;
  // Called during wait_for() and finish(), once a step for each trainable parameter, as soon as its
  // gradient is seen to be the sum over all ranks; may be empty. It may read gradients and write
  // values, and calls nothing of the Reducer's.
  std::function<void(nn::Parameter&)> on_reduced = {};
  // Called once a step for each trainable parameter when this rank's gradient is complete, before
  // any of it is handed over; may be empty. Mostly from inside backward.
  std::function<void(nn::Parameter&)> on_complete = {};
  Tracer* tracer = nullptr;  // may be null
  // Of steps that are captured although hosts take part in sums (make_replayed_reduction()); may be
  // null, and outlives the Reducer.
  const nn::HostWork* host_work = nullptr;
};

struct ReducerStatistics {
  std::int64_t steps = 0;
  std::int64_t reduced_bytes = 0;
  std::int64_t hidden_bytes = 0;          // of these, seen reduced before backward had ended
  double exposed_seconds = 0;             // finish() and wait_for() waited for communication
  std::int64_t launched_in_backward = 0;  // buckets handed over before flush() or finish()
  int most_in_flight = 0;
  // Of the bytes: 1 when nothing was left to wait for after backward, or nothing to reduce.
  double hidden_share() const;
};
ReducerStatistics operator-(ReducerStatistics a, const ReducerStatistics& b);  // between two calls

class Reducer {
 public:
  // Takes the trainable ones of `parameters`, in the same order on every rank, gives each its
  // `gradient` and its ready hook. Parameters and communicator must outlive the Reducer; the
  // gradients stay valid as long as any Tensor refers to them and the communicator lives.
  Reducer(std::span<nn::Parameter* const> parameters, collectives::Communicator& communicator,
          const ReducerOptions& options = {});
  // The same with another way to sum; "the sum over all ranks" below is then what it makes.
  Reducer(std::span<nn::Parameter* const> parameters, std::shared_ptr<BucketReduction> reduction,
          const ReducerOptions& options = {});
  // The same in buckets that somebody else planned for the trainable ones, whose lengths divide
  // into reduction->parts(); options.bucket_bytes is passed over.
  Reducer(std::span<nn::Parameter* const> parameters, std::shared_ptr<BucketReduction> reduction,
          BucketPlan plan, const ReducerOptions& options);
  // Takes its hooks away, waits for nothing; aborts where buckets are in flight (mpi: see work.h).
  ~Reducer();
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  // The next write into each gradient overwrites. Between flush() and finish() nobody may write
  // into a gradient before wait_for() its parameter.
  void begin_step();
  // Before the last microbatch's backward: from here a parameter whose gradient is complete counts
  // as ready, and a full bucket's all_reduce starts when its turn has come and fewer than
  // buckets_in_flight are on their way. The order of turns is agreed: that of registration,
  // reversed, in the first step, then what rank 0 made of that step.
  void arm();
  // Backward has ended. Hands over what is left, as far as a bound in flight allows; later calls
  // hand over the rest. Parameters that backward did not reach give what earlier microbatches
  // left, or zeros. Does not wait.
  void flush();
  // After flush(): waits until this parameter's gradient is the sum over all ranks. Every rank
  // must end the step with finish(), whatever it waited for.
  void wait_for(const nn::Parameter& parameter);
  // flush(), unless it was called, and waits for everything; on a device the communicator's stream
  // does, as in wait_for(), and the host goes on. Throws the communicator's Errors.
  void finish();

  // Instead of finish(), of a step that was to be captured and could not be, so that nothing it
  // handed over has begun: forgets it.
  void abandon_step();

  const BucketPlan& plan() const { return plan_; }
  std::span<const int> turns() const { return turns_; }  // buckets in the agreed order
  // All gradients with their padding (zeros): for norms, clipping and flat optimizers.
  Tensor flat() const { return flat_; }
  const ReducerStatistics& statistics() const { return statistics_; }

 private:
  enum class Phase : std::uint8_t { idle, armed, flushed };
  struct InFlight {
    int bucket;
    std::int64_t begin_ns;
    collectives::WorkPtr work;
  };
  void give_up_step() noexcept;
  void on_ready(int parameter);
  void mark_ready(int parameter);
  void progress();
  void launch(int bucket);
  void finished(const InFlight& reduced);
  void count_reduced(int bucket);
  void tell_reduced();
  void wait_for_oldest();
  void wait_and_tell();
  void agree_on_turns();
  std::vector<int> chosen_turns() const;

  std::vector<nn::Parameter*> parameters_;
  std::unordered_map<const nn::Parameter*, int> index_of_;
  std::shared_ptr<BucketReduction> reduction_;
  ReducerOptions options_;
  BucketPlan plan_;
  Tensor flat_;
  std::vector<std::vector<int>> buckets_of_;  // by parameter
  std::vector<int> missing_;                  // by bucket: parameters not ready yet
  std::vector<int> unreduced_;                // by parameter: buckets not reduced yet
  std::vector<int> arrived_;                  // parameters that on_reduced has not been told of
  std::vector<char> ready_;                   // by parameter
  std::vector<BucketTiming> timings_;         // by bucket, of this step
  std::vector<int> turns_;
  std::vector<int> completed_;  // buckets in the order in which they became full, this step
  std::size_t next_turn_ = 0;
  std::deque<InFlight> in_flight_;
  Phase phase_ = Phase::idle;
  int agreements_left_ = 0;
  Clock::time_point armed_at_, busy_since_;
  double busy_seconds_ = 0;  // something was in flight, this step
  ReducerStatistics statistics_;
};

}  // namespace shoal::parallel
