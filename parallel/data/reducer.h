// Sums gradients over data-parallel ranks while backward still runs (the fusion buffers of
// Herring; PyTorch DDP, VLDB 2020).
//
// Gradients are views of one flat f32 region from Communicator::memory_resource(), so reduction
// copies nothing. Gradients are sums, never averages (decision 11). A step:
//   reducer.begin_step();
//   for each microbatch: forward; if it is the last: reducer.arm(); backward
//   reducer.finish();
// If no norm over all gradients is needed, the next forward may begin before all sums have arrived:
//   ... backward; reducer.flush();
//   reducer.begin_step(); forward: reducer.wait_for(parameter), update it, use it
//   reducer.finish(); reducer.arm(); backward ...
// Every rank must run the same steps, but its backward may reach different parameters. All calls
// and backward itself come from one thread. From arm() until finish() returns, no other caller may
// use the communicator, because each rank decides by itself when to hand over a bucket. (A split of
// the communicator may be used.)
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
#include "shoal/runtime/base/clock.h"
#include "shoal/runtime/trace/trace.h"

namespace shoal::parallel {

// The waiting bucket that goes first. `readiness`: the bucket that was ready first; best if
// finish() waits for all. `forward`: the bucket that the next forward needs first, for callers of
// wait_for(); planned on rank 0 (plan_turns).
enum class BucketPriority { readiness, forward };

// Measurements: docs/lab/2026-11-measurements.md, "Data-parallel step beside PyTorch DDP".
struct ReducerOptions {
  std::int64_t bucket_bytes = std::int64_t{25} << 20;       // ddp_bucket_cap_mb
  std::int64_t first_bucket_bytes = std::int64_t{1} << 20;  // ddp_first_bucket_cap_mb
  // ddp_buckets_in_flight. 0: the Reducer sets no limit. Ready buckets are handed over at once in
  // the agreed order, and the communicator limits what it runs at a time. With a limit, the next
  // bucket starts only when backward or the caller calls the Reducer.
  int buckets_in_flight = 0;
  BucketPriority priority = BucketPriority::readiness;
  // Called during wait_for() and finish(), once per step and trainable parameter, as soon as the
  // parameter's gradient is found to be the sum over all ranks. May be empty. It may read gradients
  // and write values; it must not call the Reducer.
  std::function<void(nn::Parameter&)> on_reduced = {};
  // Called once per step and trainable parameter when this rank's gradient is complete, before any
  // of it is handed over. May be empty. Mostly called inside backward.
  std::function<void(nn::Parameter&)> on_complete = {};
  Tracer* tracer = nullptr;  // may be null
};

struct ReducerStatistics {
  std::int64_t steps = 0;
  std::int64_t reduced_bytes = 0;
  std::int64_t hidden_bytes = 0;          // bytes known to be reduced before backward ended
  double exposed_seconds = 0;             // waiting for communication in finish() and wait_for()
  std::int64_t launched_in_backward = 0;  // buckets handed over before flush() or finish()
  int most_in_flight = 0;
  // hidden_bytes as a share of all bytes, 0 to 1; 1 if nothing was reduced.
  double hidden_share() const;
};
ReducerStatistics operator-(ReducerStatistics a, const ReducerStatistics& b);  // between two calls

class Reducer {
 public:
  // Uses the trainable ones of `parameters`, in the same order on every rank. Sets the `gradient`
  // and the ready hook of each. Parameters and communicator must outlive the Reducer. The gradients
  // stay valid as long as a Tensor refers to them and the communicator lives.
  Reducer(std::span<nn::Parameter* const> parameters, collectives::Communicator& communicator,
          const ReducerOptions& options = {});
  // The same with another reduction than the sum over all ranks. Where comments below say "the sum
  // over all ranks", they mean the result of `reduction`.
  Reducer(std::span<nn::Parameter* const> parameters, std::shared_ptr<BucketReduction> reduction,
          const ReducerOptions& options = {});
  // The same with buckets that the caller planned for the trainable parameters. Their lengths must
  // be multiples of reduction->parts(); options.bucket_bytes is ignored.
  Reducer(std::span<nn::Parameter* const> parameters, std::shared_ptr<BucketReduction> reduction,
          BucketPlan plan, const ReducerOptions& options);
  // Removes its hooks and waits for nothing; aborts if buckets are in flight (mpi: see work.h).
  ~Reducer();
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  // The next write into each gradient overwrites it. Between flush() and finish(), call wait_for()
  // before writing into a parameter's gradient.
  void begin_step();
  // Call before the last microbatch's backward. From then on a parameter whose gradient is complete
  // counts as ready. A full bucket's all_reduce starts at its turn if fewer than buckets_in_flight
  // are running. All ranks agree on the turns: in the first step the reverse order of registration,
  // later an order that rank 0 plans from measured steps.
  void arm();
  // Call after backward. Hands over the remaining buckets as far as buckets_in_flight allows; later
  // calls hand over the rest. A parameter that backward did not reach contributes its gradient from
  // earlier microbatches, or zeros. Does not wait.
  void flush();
  // After flush(): waits until this parameter's gradient is the sum over all ranks. Every rank must
  // still end the step with finish().
  void wait_for(const nn::Parameter& parameter);
  // Calls flush() if it was not called, and waits for everything. On a device the communicator's
  // stream waits and the host continues, as in wait_for(). Throws the communicator's Errors.
  void finish();

  // Call instead of finish() if the capture of the step failed: then nothing that the step handed
  // over has begun. Forgets the step.
  void abandon_step();

  const BucketPlan& plan() const { return plan_; }
  std::span<const int> turns() const { return turns_; }  // buckets in the agreed order
  // All gradients with their zero padding: for norms, clipping and flat optimizers.
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
  std::vector<int> arrived_;                  // parameters not yet reported to on_reduced
  std::vector<char> ready_;                   // by parameter
  std::vector<BucketTiming> timings_;         // by bucket, of this step
  std::vector<int> turns_;
  std::vector<int> completed_;  // buckets in the order in which they became full, this step
  std::size_t next_turn_ = 0;
  std::deque<InFlight> in_flight_;
  Phase phase_ = Phase::idle;
  int agreements_left_ = 0;
  Clock::time_point armed_at_, busy_since_;
  double busy_seconds_ = 0;  // time with a bucket in flight, in this step
  ReducerStatistics statistics_;
};

}  // namespace shoal::parallel
