#include "shoal/parallel/data/reducer.h"

#include <algorithm>
#include <numeric>

#include "shoal/runtime/base/deadlines.h"
#include "shoal/runtime/base/error.h"

namespace shoal::parallel {
namespace {

std::size_t at(int index) { return static_cast<std::size_t>(index); }

// plan_turns() assumes that one bucket is reduced at a time. With several at a time, they would
// share the link, and the bucket that is needed first would arrive later.
constexpr int kPlannedInFlight = 1;

std::int64_t bytes_of(const GradientBucket& bucket) {
  return (bucket.end - bucket.begin) * static_cast<std::int64_t>(sizeof(float));
}

std::vector<std::int64_t> trainable_counts(std::span<nn::Parameter* const> parameters) {
  std::vector<std::int64_t> counts;
  for (const nn::Parameter* parameter : parameters)
    if (parameter->trainable()) counts.push_back(parameter->shape().count());
  return counts;
}

}  // namespace

double ReducerStatistics::hidden_share() const {
  return reduced_bytes == 0
             ? 1.0
             : static_cast<double>(hidden_bytes) / static_cast<double>(reduced_bytes);
}

ReducerStatistics operator-(ReducerStatistics a, const ReducerStatistics& b) {
  a.steps -= b.steps;
  a.reduced_bytes -= b.reduced_bytes;
  a.hidden_bytes -= b.hidden_bytes;
  a.exposed_seconds -= b.exposed_seconds;
  a.launched_in_backward -= b.launched_in_backward;
  return a;
}

Reducer::Reducer(std::span<nn::Parameter* const> parameters,
                 collectives::Communicator& communicator, const ReducerOptions& options)
    : Reducer(parameters, make_all_reduction(communicator), options) {}

// Copies `reduction`, because the bucket plan in the same call reads it too.
Reducer::Reducer(std::span<nn::Parameter* const> parameters,
                 // NOLINTNEXTLINE(performance-unnecessary-value-param)
                 std::shared_ptr<BucketReduction> reduction, const ReducerOptions& options)
    : Reducer(parameters, reduction,
              plan_buckets(trainable_counts(parameters),
                           {.bucket_bytes = options.bucket_bytes,
                            .first_bucket_bytes = options.first_bucket_bytes,
                            .parts = reduction->parts()}),
              options) {}

Reducer::Reducer(std::span<nn::Parameter* const> parameters,
                 std::shared_ptr<BucketReduction> reduction, BucketPlan plan,
                 const ReducerOptions& options)
    : reduction_(std::move(reduction)), options_(options), plan_(std::move(plan)) {
  SHOAL_CHECK(options.buckets_in_flight >= 0,
              "{} gradient buckets in flight; give 1 or more, or 0 for no bound",
              options.buckets_in_flight);
  for (nn::Parameter* parameter : parameters) {
    if (!parameter->trainable()) continue;
    index_of_.emplace(parameter, static_cast<int>(parameters_.size()));
    parameters_.push_back(parameter);
  }
  SHOAL_CHECK(plan_.offsets.size() == parameters_.size(),
              "a plan of {} parameters for {} trainable ones", plan_.offsets.size(),
              parameters_.size());
  flat_ = Tensor::zeros({std::max<std::int64_t>(plan_.count, 1)}, DType::f32, reduction_->memory(),
                        MemoryTag::gradients, reduction_->stream());
  const std::size_t buckets = plan_.buckets.size();
  buckets_of_.resize(parameters_.size());
  ready_.resize(parameters_.size());
  missing_.resize(buckets);
  unreduced_.resize(parameters_.size());
  timings_.resize(buckets);
  turns_.resize(buckets);
  std::iota(turns_.begin(), turns_.end(), 0);
  for (std::size_t b = 0; b < buckets; ++b) {
    timings_[b] = {.bytes = bytes_of(plan_.buckets[b]), .needed = INT32_MAX};
    for (const GradientBucket::Entry& entry : plan_.buckets[b].entries) {
      buckets_of_[at(entry.parameter)].push_back(static_cast<int>(b));
      timings_[b].needed = std::min(timings_[b].needed, entry.parameter);
    }
  }
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    nn::Parameter& parameter = *parameters_[i];
    parameter.gradient =
        flat_.narrowed(0, plan_.offsets[i], parameter.shape().count()).reshaped(parameter.shape());
    parameter.clear_gradient();
    parameter.set_ready_hook(
        [this, index = static_cast<int>(i)](nn::Parameter&) { on_ready(index); });
  }
  // The plan of turns uses measured times. It leaves out the first step, which is slower because it
  // touches memory for the first time.
  if (reduction_->ranks() > 1 && buckets > 1)
    agreements_left_ = options.priority == BucketPriority::forward ? 3 : 1;
}

Reducer::~Reducer() {
  for (nn::Parameter* parameter : parameters_) parameter->set_ready_hook({});
  give_up_step();
}

// Called for a step that ended early, e.g. by an exception in backward. Buckets in flight would be
// written into freed memory, and the other ranks would wait for the rest.
void Reducer::give_up_step() noexcept {
  try {
    while (!in_flight_.empty() && in_flight_.front().work->test()) in_flight_.pop_front();
    if (in_flight_.empty()) return;
    reduction_->abort("a Reducer was destroyed in the middle of a step");
    in_flight_.front().work->wait(deadlines::at_once());
  } catch (const std::exception&) {  // expected: the communicator has failed or fails now
    in_flight_.clear();
  }
}

void Reducer::begin_step() {
  if (phase_ == Phase::armed) {
    SHOAL_CHECK(next_turn_ == 0, "Reducer: begin_step() before finish() of the step before");
    phase_ = Phase::idle;
  }
  for (nn::Parameter* parameter : parameters_) parameter->clear_gradient();
}

void Reducer::arm() {
  SHOAL_CHECK(phase_ == Phase::idle,
              "Reducer: arm() twice in a step, or before finish() of the step before");
  phase_ = Phase::armed;
  next_turn_ = 0;
  completed_.clear();
  busy_seconds_ = 0;
  armed_at_ = Clock::now();
  std::ranges::fill(ready_, char{0});
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    unreduced_[i] = static_cast<int>(buckets_of_[i].size());
  arrived_.clear();
  for (std::size_t bucket = 0; bucket < plan_.buckets.size(); ++bucket)
    missing_[bucket] = static_cast<int>(plan_.buckets[bucket].entries.size());
  for (nn::Parameter* parameter : parameters_) parameter->arm();
}

void Reducer::on_ready(int parameter) {
  if (phase_ != Phase::armed || ready_[at(parameter)]) return;
  mark_ready(parameter);
  progress();
}

void Reducer::mark_ready(int index) {
  ready_[at(index)] = 1;
  nn::Parameter& parameter = *parameters_[at(index)];
  if (!parameter.has_gradient()) {
    // No backward of this step wrote it: the memory holds the last step's gradient.
    const Tensor& gradient = parameter.gradient;
    if (gradient.count() > 0)
      device_backend(gradient.device().type)
          .fill(gradient.view().data, 0, gradient.bytes(), reduction_->stream());
    parameter.accumulate();
  }
  if (options_.on_complete) options_.on_complete(parameter);
  for (const int bucket : buckets_of_[at(index)]) {
    if (--missing_[at(bucket)] > 0) continue;
    timings_[at(bucket)].ready_seconds = seconds_since(armed_at_);
    completed_.push_back(bucket);
  }
}

void Reducer::progress() {
  // Buckets finish roughly in the order of turns. A finished bucket is noticed only after all
  // earlier ones.
  while (!in_flight_.empty() && in_flight_.front().work->test()) {
    const InFlight reduced = std::move(in_flight_.front());
    in_flight_.pop_front();
    finished(reduced);
  }
  while (next_turn_ < turns_.size() && missing_[at(turns_[next_turn_])] == 0 &&
         (options_.buckets_in_flight == 0 || std::ssize(in_flight_) < options_.buckets_in_flight))
    launch(turns_[next_turn_++]);
}

void Reducer::launch(int index) {
  if (reduction_->ranks() == 1) {
    count_reduced(index);
    return;
  }
  const GradientBucket& bucket = plan_.buckets[at(index)];
  auto* const data = static_cast<float*>(flat_.view().data) + bucket.begin;
  if (in_flight_.empty()) busy_since_ = Clock::now();
  in_flight_.push_back(
      {index, Tracer::now_ns(), reduction_->start(data, bucket.end - bucket.begin)});
  statistics_.reduced_bytes += bytes_of(bucket);
  statistics_.most_in_flight =
      std::max(statistics_.most_in_flight, static_cast<int>(in_flight_.size()));
  trace_counter(options_.tracer, "buckets in flight", static_cast<double>(in_flight_.size()));
}

// `reduced` is no longer in in_flight_.
void Reducer::finished(const InFlight& reduced) {
  count_reduced(reduced.bucket);
  const std::int64_t bytes = bytes_of(plan_.buckets[at(reduced.bucket)]);
  if (phase_ == Phase::armed) statistics_.hidden_bytes += bytes;
  if (in_flight_.empty()) busy_seconds_ += seconds_since(busy_since_);
  if (options_.tracer) {
    options_.tracer->span("comm", "bucket", reduced.begin_ns, Tracer::now_ns(), bytes);
    options_.tracer->counter("buckets in flight", static_cast<double>(in_flight_.size()));
  }
}

void Reducer::count_reduced(int bucket) {
  for (const GradientBucket::Entry& entry : plan_.buckets[at(bucket)].entries)
    if (--unreduced_[at(entry.parameter)] == 0) arrived_.push_back(entry.parameter);
}

// Not called during backward, because backward may still read the values that on_reduced changes.
void Reducer::tell_reduced() {
  if (options_.on_reduced)
    for (const int parameter : arrived_) options_.on_reduced(*parameters_[at(parameter)]);
  arrived_.clear();
}

void Reducer::wait_for_oldest() {
  SHOAL_ASSERT(!in_flight_.empty());
  // Removed first: after an Error no call may wait for it again.
  const InFlight oldest = std::move(in_flight_.front());
  in_flight_.pop_front();
  // On a device the stream waits and the host continues.
  oldest.work->block_stream(reduction_->stream());
  finished(oldest);
  progress();
}

// Reports what has arrived before it waits for more; the wait counts as exposed.
void Reducer::wait_and_tell() {
  tell_reduced();
  const auto start = Clock::now();
  wait_for_oldest();
  statistics_.exposed_seconds += seconds_since(start);
}

void Reducer::flush() {
  SHOAL_CHECK(phase_ == Phase::armed, "Reducer: flush() without arm() before the last backward");
  progress();  // buckets reduced by now were hidden behind backward
  statistics_.launched_in_backward += static_cast<std::int64_t>(next_turn_);
  phase_ = Phase::flushed;
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    if (!ready_[i]) mark_ready(static_cast<int>(i));
  progress();
}

void Reducer::wait_for(const nn::Parameter& parameter) {
  SHOAL_CHECK(phase_ != Phase::armed, "Reducer: wait_for({}) before flush()", parameter.name());
  const auto found = index_of_.find(&parameter);
  if (phase_ == Phase::idle || found == index_of_.end()) return;
  progress();
  const int& left = unreduced_[at(found->second)];
  if (left > 0) {
    const TraceSpan span(options_.tracer, "comm", "wait for a parameter");
    while (left > 0) wait_and_tell();
  }
  tell_reduced();
}

void Reducer::finish() {
  SHOAL_CHECK(phase_ != Phase::idle, "Reducer: finish() without arm() before the last backward");
  if (phase_ == Phase::armed) flush();
  {
    const TraceSpan span(options_.tracer, "comm", "wait for gradients");
    progress();
    while (!in_flight_.empty()) wait_and_tell();
    tell_reduced();
  }
  phase_ = Phase::idle;
  if (agreements_left_ > 0) agree_on_turns();
  ++statistics_.steps;
}

void Reducer::abandon_step() {
  in_flight_.clear();
  next_turn_ = 0;
  phase_ = Phase::idle;
}

std::vector<int> Reducer::chosen_turns() const {
  if (options_.priority == BucketPriority::readiness || busy_seconds_ <= 0) return completed_;
  const std::int64_t bytes = plan_.count * static_cast<std::int64_t>(sizeof(float));
  return plan_turns(timings_, static_cast<double>(bytes) / busy_seconds_, kPlannedInFlight);
}

void Reducer::agree_on_turns() {
  --agreements_left_;
  std::vector<int> chosen = chosen_turns();
  std::vector<std::int32_t> order(chosen.begin(), chosen.end());
  reduction_->agree(order);
  turns_.assign(order.begin(), order.end());
}

}  // namespace shoal::parallel
