#include "shoal/parallel/shard/sharded_gradients.h"

#include <algorithm>
#include <deque>

#include "shoal/parallel/data/reducer.h"
#include "shoal/runtime/base/clock.h"
#include "shoal/runtime/base/deadlines.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/device/captured_work.h"

namespace shoal::parallel {
namespace {

std::size_t unsigned_of(int index) { return static_cast<std::size_t>(index); }

std::int64_t bytes_of(const GradientBucket& bucket) {
  return (bucket.end - bucket.begin) * static_cast<std::int64_t>(sizeof(float));
}

// Level 1 keeps all gradients until the end of the step.
class KeptGradients final : public ShardedGradients {
 public:
  KeptGradients(const ShardLayout& layout, Tracer* tracer)
      : layout_(layout),
        reducer_(layout.parameters, make_shard_reduction(layout.groups), layout.plan.flat,
                 {.tracer = tracer}) {}
  void begin_step() override { reducer_.begin_step(); }
  void arm() override { reducer_.arm(); }
  void finish() override { reducer_.finish(); }
  void abandon_step() override { reducer_.abandon_step(); }
  Tensor part(int bucket) const override {
    const std::int64_t count = layout_.plan.part_count(bucket);
    return reducer_.flat().narrowed(
        0, layout_.plan.bucket(bucket).begin + layout_.groups.rank() * count, count);
  }
  ShardedGradientStatistics statistics() const override {
    const ReducerStatistics& from = reducer_.statistics();
    return {.steps = from.steps,
            .reduced_bytes = from.reduced_bytes,
            .hidden_bytes = from.hidden_bytes,
            .launched_in_backward = from.launched_in_backward,
            .exposed_seconds = from.exposed_seconds};
  }

 private:
  const ShardLayout& layout_;
  Reducer reducer_;
};

// Levels 2 and 3 pass each bucket on when it is complete.
class PassingGradients final : public ShardedGradients {
 public:
  PassingGradients(const ShardLayout& layout, kernels::Kernels& kernels, MemoryResource& memory,
                   Tracer* tracer);
  ~PassingGradients() override;
  void begin_step() override;
  void arm() override;
  void finish() override;
  void abandon_step() override;
  Tensor part(int bucket) const override {
    return shard_.narrowed(0, layout_.plan.part_begin(bucket), layout_.plan.part_count(bucket));
  }
  ShardedGradientStatistics statistics() const override { return statistics_; }

 private:
  enum class Phase : std::uint8_t { idle, accumulating, armed };
  enum class State : std::uint8_t { absent, written, reducing };
  struct Bucket {
    std::shared_ptr<Storage> storage;  // memory of the full bucket; released while absent
    State state = State::absent;
    bool has_sum = false;  // its part of the shard holds a sum of this step
    bool is_last = false;  // nothing more will be added to it
  };
  struct InFlight {
    int bucket;
    collectives::WorkPtr work;  // null: nothing to do
  };
  void prepare(int bucket);
  void on_uses_ended(int parameter);
  void hand_over(int bucket);
  void zero_gaps(int bucket);
  void take_over(int bucket);
  void sum_over_replicas(int bucket);
  void wait_for_oldest();
  void progress();
  void give_up() noexcept;
  Bucket& at_bucket(int bucket) { return buckets_[unsigned_of(bucket)]; }

  const ShardLayout& layout_;
  kernels::Kernels& kernels_;
  Tracer* tracer_;
  Tensor shard_;  // f32 [plan.shard_count()]
  std::vector<Bucket> buckets_;
  std::deque<InFlight> reducing_;               // in the order of hand-over
  std::vector<collectives::WorkPtr> replicas_;  // reductions of parts of the shard
  Phase phase_ = Phase::idle;
  bool finishing_ = false;  // in finish(): communication is no longer hidden
  std::int64_t full_bytes_ = 0;
  ShardedGradientStatistics statistics_;
};

PassingGradients::PassingGradients(const ShardLayout& layout, kernels::Kernels& kernels,
                                   MemoryResource& memory, Tracer* tracer)
    : layout_(layout), kernels_(kernels), tracer_(tracer) {
  const ShardPlan& plan = layout.plan;
  MemoryResource& shard_memory =
      layout.groups.copies() > 1 ? layout.groups.replicas->memory_resource() : memory;
  shard_ = Tensor::zeros({std::max<std::int64_t>(plan.shard_count(), 1)}, DType::f32, shard_memory,
                         MemoryTag::gradients, kernels.stream());
  for (int b = 0; b < plan.buckets(); ++b) {
    const GradientBucket& bucket = plan.bucket(b);
    auto storage = std::make_shared<Storage>(Buffer(layout.groups.shard->memory_resource(),
                                                    static_cast<std::size_t>(bytes_of(bucket)),
                                                    MemoryTag::gradients, kernels.stream()));
    storage->release();
    buckets_.push_back({.storage = storage});
    for (const GradientBucket::Entry& entry : bucket.entries) {
      nn::Parameter& parameter = *layout.parameters[unsigned_of(entry.parameter)];
      parameter.gradient = Tensor::over(
          storage, static_cast<std::size_t>(entry.offset - bucket.begin) * sizeof(float),
          parameter.shape(), DType::f32);
      parameter.clear_gradient();
      parameter.set_prepare_hook([this, b](nn::Parameter&) { prepare(b); });
      parameter.set_ready_hook(
          [this, index = entry.parameter](nn::Parameter&) { on_uses_ended(index); });
      parameter.arm();
    }
  }
}

PassingGradients::~PassingGradients() {
  for (nn::Parameter* parameter : layout_.parameters) {
    parameter->set_prepare_hook({});
    parameter->set_ready_hook({});
  }
  give_up();
}

// As in the Reducer: buckets in flight would be written into freed memory.
void PassingGradients::give_up() noexcept {
  try {
    while (!reducing_.empty() && (!reducing_.front().work || reducing_.front().work->test()))
      reducing_.pop_front();
    while (!replicas_.empty() && replicas_.back()->test()) replicas_.pop_back();
    if (reducing_.empty() && replicas_.empty()) return;
    constexpr const char* kReason = "sharded gradients were destroyed in the middle of a step";
    layout_.groups.shard->abort(kReason);
    if (layout_.groups.replicas) layout_.groups.replicas->abort(kReason);
    if (!reducing_.empty()) reducing_.front().work->wait(deadlines::at_once());
    if (!replicas_.empty()) replicas_.front()->wait(deadlines::at_once());
  } catch (const std::exception&) {  // expected: the groups have failed or fail now
    reducing_.clear();
    replicas_.clear();
  }
}

void PassingGradients::abandon_step() {
  reducing_.clear();
  replicas_.clear();
  for (int b = 0; b < layout_.plan.buckets(); ++b) {
    Bucket& bucket = at_bucket(b);
    if (bucket.state != State::absent) bucket.storage->release();
    bucket.state = State::absent;
    for (const GradientBucket::Entry& entry : layout_.plan.bucket(b).entries)
      layout_.parameters[unsigned_of(entry.parameter)]->clear_gradient();
  }
  full_bytes_ = 0;
  finishing_ = false;
  phase_ = Phase::idle;
}

void PassingGradients::begin_step() {
  SHOAL_CHECK(phase_ == Phase::idle,
              "sharded gradients: begin_step() before finish() of the step "
              "before");
  phase_ = Phase::accumulating;
  for (Bucket& bucket : buckets_) bucket.has_sum = bucket.is_last = false;
}

void PassingGradients::arm() {
  SHOAL_CHECK(phase_ == Phase::accumulating,
              "sharded gradients: arm() twice in a step, or without begin_step()");
  phase_ = Phase::armed;
}

void PassingGradients::prepare(int index) {
  Bucket& bucket = at_bucket(index);
  if (bucket.state == State::written) return;
  SHOAL_CHECK(phase_ != Phase::idle,
              "a gradient is written between finish() and begin_step() of the next step");
  progress();
  while (bucket.state == State::reducing) wait_for_oldest();
  const std::int64_t bytes = bytes_of(layout_.plan.bucket(index));
  bucket.storage->rematerialise(Buffer(layout_.groups.shard->memory_resource(),
                                       static_cast<std::size_t>(bytes), MemoryTag::gradients,
                                       kernels_.stream()));
  bucket.state = State::written;
  full_bytes_ += bytes;
  statistics_.most_full_bytes = std::max(statistics_.most_full_bytes, full_bytes_);
}

void PassingGradients::on_uses_ended(int index) {
  layout_.parameters[unsigned_of(index)]->arm();  // the hook must run for the next microbatch too
  const int b = layout_.buckets_of[unsigned_of(index)].front();
  if (at_bucket(b).state != State::written) return;
  for (const GradientBucket::Entry& entry : layout_.plan.bucket(b).entries)
    if (layout_.parameters[unsigned_of(entry.parameter)]->uses() > 0) return;
  ++statistics_.launched_in_backward;
  hand_over(b);
}

// Zeros the gaps between entries and the gradients that backward did not write; their memory holds
// stale values.
void PassingGradients::zero_gaps(int index) {
  const GradientBucket& bucket = layout_.plan.bucket(index);
  auto* const data = static_cast<float*>(at_bucket(index).storage->data()) - bucket.begin;
  const Stream stream = kernels_.stream();
  DeviceBackend& backend = device_backend(stream.device.type);
  for (std::size_t i = 0; i < bucket.entries.size(); ++i) {
    const GradientBucket::Entry& entry = bucket.entries[i];
    nn::Parameter& parameter = *layout_.parameters[unsigned_of(entry.parameter)];
    const std::int64_t end =
        i + 1 < bucket.entries.size() ? bucket.entries[i + 1].offset : bucket.end;
    const std::int64_t from = entry.offset + (parameter.has_gradient() ? entry.count : 0);
    backend.fill(data + from, 0, static_cast<std::size_t>(end - from) * sizeof(float), stream);
    parameter.clear_gradient();
  }
}

void PassingGradients::hand_over(int index) {
  zero_gaps(index);
  progress();
  const auto limit = static_cast<std::size_t>(layout_.options.buckets_in_flight);
  while (reducing_.size() >= limit) wait_for_oldest();
  Bucket& bucket = at_bucket(index);
  bucket.state = State::reducing;
  bucket.is_last = phase_ == Phase::armed;
  const ShardGroups& groups = layout_.groups;
  const std::int64_t count = layout_.plan.part_count(index);
  auto* const data = static_cast<float*>(bucket.storage->data());
  collectives::WorkPtr work;
  if (groups.shards() > 1) {
    work = groups.shard->reduce_scatter(data, data + groups.rank() * count, count, DType::f32,
                                        collectives::ReduceOp::sum, kernels_.stream());
    statistics_.reduced_bytes += bytes_of(layout_.plan.bucket(index));
  }
  reducing_.push_back({index, std::move(work)});
  // An NCCL call waits in the stream for the calls before it: every rank must queue both groups'
  // calls in the same order.
  if (groups.copies() > 1 && groups.replicas->backend() == "nccl")
    while (!reducing_.empty()) wait_for_oldest();
  progress();
}

// This rank's part of the bucket now holds the shard group's sum. Adds it to the shard and frees
// the bucket.
void PassingGradients::take_over(int index) {
  Bucket& bucket = at_bucket(index);
  const Tensor mine = part(index);
  const Tensor added =
      Tensor::over(bucket.storage, static_cast<std::size_t>(layout_.groups.rank()) * mine.bytes(),
                   mine.shape(), DType::f32);
  if (bucket.has_sum)
    kernels_.elementwise().add(mine, added, mine.view(), {});
  else
    kernels_.elementwise().cast(added, mine.view(), {});
  bucket.has_sum = true;
  bucket.storage->release();
  bucket.state = State::absent;
  const std::int64_t bytes = bytes_of(layout_.plan.bucket(index));
  full_bytes_ -= bytes;
  if (!finishing_ && layout_.groups.shards() > 1) statistics_.hidden_bytes += bytes;
  if (bucket.is_last) sum_over_replicas(index);
}

void PassingGradients::sum_over_replicas(int index) {
  if (layout_.groups.copies() == 1) return;
  auto* const mine = static_cast<float*>(part(index).view().data);
  replicas_.push_back(
      layout_.groups.replicas->all_reduce(mine, mine, layout_.plan.part_count(index), DType::f32,
                                          collectives::ReduceOp::sum, kernels_.stream()));
}

// Takes over buckets as soon as they are seen to be reduced.
void PassingGradients::progress() {
  while (!is_repeatable_step() && !reducing_.empty() &&
         (!reducing_.front().work || reducing_.front().work->test())) {
    const int bucket = reducing_.front().bucket;
    reducing_.pop_front();
    take_over(bucket);
  }
}

void PassingGradients::wait_for_oldest() {
  SHOAL_ASSERT(!reducing_.empty());
  const auto start = Clock::now();
  // Removed first: after an Error no call may wait for it again.
  const InFlight oldest = std::move(reducing_.front());
  reducing_.pop_front();
  // On a device the stream waits and the host continues.
  if (oldest.work) oldest.work->block_stream(kernels_.stream());
  statistics_.exposed_seconds += seconds_since(start);
  take_over(oldest.bucket);
}

void PassingGradients::finish() {
  SHOAL_CHECK(phase_ == Phase::armed,
              "sharded gradients: finish() without arm() after the last forward");
  const TraceSpan span(tracer_, "comm", "wait for gradients");
  progress();
  finishing_ = true;
  for (int b = 0; b < layout_.plan.buckets(); ++b) {
    if (at_bucket(b).state != State::written) continue;
    for (const GradientBucket::Entry& entry : layout_.plan.bucket(b).entries) {
      const nn::Parameter& parameter = *layout_.parameters[unsigned_of(entry.parameter)];
      SHOAL_CHECK(parameter.uses() == 0,
                  "sharded gradients: finish() while {} uses of {} have not been walked back",
                  parameter.uses(), parameter.name());
    }
    hand_over(b);
  }
  while (!reducing_.empty()) wait_for_oldest();
  for (int b = 0; b < layout_.plan.buckets(); ++b) {
    Bucket& bucket = at_bucket(b);
    if (bucket.is_last) continue;
    if (bucket.has_sum)
      sum_over_replicas(b);
    else  // no backward of the step reached it
      kernels_.elementwise().fill(part(b).view(), 0, {});
  }
  const auto start = Clock::now();
  for (const auto& work : replicas_) work->block_stream(kernels_.stream());
  statistics_.exposed_seconds += seconds_since(start);
  replicas_.clear();
  finishing_ = false;
  phase_ = Phase::idle;
  ++statistics_.steps;
}

}  // namespace

std::unique_ptr<ShardedGradients> make_sharded_gradients(const ShardLayout& layout,
                                                         kernels::Kernels& kernels,
                                                         MemoryResource& memory, Tracer* tracer) {
  if (layout.options.level == 1) return std::make_unique<KeptGradients>(layout, tracer);
  return std::make_unique<PassingGradients>(layout, kernels, memory, tracer);
}

}  // namespace shoal::parallel
