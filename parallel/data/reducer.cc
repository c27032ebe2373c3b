#include "shoal/parallel/data/reducer.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "shoal/runtime/base/error.h"

namespace shoal::parallel {
namespace {

std::size_t at(int index) { return static_cast<std::size_t>(index); }

}  // namespace

Reducer::Reducer(std::span<nn::Parameter* const> parameters,
                 collectives::Communicator& communicator, const ReducerOptions& options)
    : communicator_(communicator), tracer_(options.tracer) {
  std::vector<std::int64_t> counts;
  for (nn::Parameter* parameter : parameters) {
    if (!parameter->trainable()) continue;
    parameters_.push_back(parameter);
    counts.push_back(parameter->shape().count());
  }
  BucketOptions buckets;
  buckets.bucket_bytes = options.bucket_bytes;
  buckets.first_bucket_bytes = std::min(buckets.first_bucket_bytes, options.bucket_bytes);
  plan_ = plan_buckets(counts, buckets);
  flat_ = Tensor::zeros({std::max<std::int64_t>(plan_.count, 1)}, DType::f32,
                        communicator.memory_resource(), MemoryTag::gradients);
  bucket_of_.resize(parameters_.size());
  ready_.resize(parameters_.size());
  missing_.resize(plan_.buckets.size());
  turns_.resize(plan_.buckets.size());
  std::iota(turns_.begin(), turns_.end(), 0);
  for (std::size_t bucket = 0; bucket < plan_.buckets.size(); ++bucket)
    for (const GradientBucket::Entry& entry : plan_.buckets[bucket].entries) {
      nn::Parameter& parameter = *parameters_[at(entry.parameter)];
      bucket_of_[at(entry.parameter)] = static_cast<int>(bucket);
      parameter.gradient = flat_.narrowed(0, entry.offset, entry.count).reshaped(parameter.shape());
      parameter.clear_gradient();
      parameter.set_ready_hook(
          [this, index = entry.parameter](nn::Parameter&) { on_ready(index); });
    }
}

Reducer::~Reducer() {
  for (nn::Parameter* parameter : parameters_) parameter->set_ready_hook({});
}

void Reducer::begin_step() {
  SHOAL_CHECK(in_flight_.empty(), "Reducer: begin_step() before finish() of the step before");
  armed_ = false;
  for (nn::Parameter* parameter : parameters_) parameter->clear_gradient();
}

void Reducer::arm() {
  SHOAL_CHECK(!armed_, "Reducer: arm() twice in a step");
  armed_ = true;
  next_turn_ = 0;
  completed_.clear();
  std::ranges::fill(ready_, char{0});
  for (std::size_t bucket = 0; bucket < plan_.buckets.size(); ++bucket)
    missing_[bucket] = static_cast<int>(plan_.buckets[bucket].entries.size());
  for (nn::Parameter* parameter : parameters_) parameter->arm();
}

void Reducer::on_ready(int parameter) {
  if (!armed_ || ready_[at(parameter)]) return;
  ready_[at(parameter)] = 1;
  const int bucket = bucket_of_[at(parameter)];
  if (--missing_[at(bucket)] > 0) return;
  completed_.push_back(bucket);
  launch_full_buckets();
}

void Reducer::launch_full_buckets() {
  while (next_turn_ < turns_.size() && missing_[at(turns_[next_turn_])] == 0) {
    launch(turns_[next_turn_]);
    ++next_turn_;
  }
}

void Reducer::launch(int index) {
  const GradientBucket& bucket = plan_.buckets[at(index)];
  auto* const base = static_cast<float*>(flat_.view().data);
  for (const GradientBucket::Entry& entry : bucket.entries) {
    // No backward of this step wrote it: what lies there is the step before's.
    nn::Parameter& parameter = *parameters_[at(entry.parameter)];
    if (parameter.has_gradient() || entry.count == 0) continue;
    std::memset(base + entry.offset, 0, static_cast<std::size_t>(entry.count) * sizeof(float));
    parameter.accumulate();
  }
  if (communicator_.size() == 1) return;
  const std::int64_t count = bucket.end - bucket.begin;
  if (tracer_) tracer_->instant("comm", "bucket");
  in_flight_.push_back(communicator_.all_reduce(base + bucket.begin, base + bucket.begin, count,
                                                DType::f32, collectives::ReduceOp::sum));
  statistics_.reduced_bytes += count * static_cast<std::int64_t>(sizeof(float));
}

void Reducer::finish() {
  SHOAL_CHECK(armed_, "Reducer: finish() without arm() before the last backward");
  armed_ = false;
  statistics_.launched_in_backward += static_cast<std::int64_t>(next_turn_);
  for (std::size_t bucket = 0; bucket < missing_.size(); ++bucket) {
    if (missing_[bucket] == 0) continue;
    missing_[bucket] = 0;
    completed_.push_back(static_cast<int>(bucket));
  }
  launch_full_buckets();
  {
    const TraceSpan span(tracer_, "comm", "wait for gradients");
    const auto start = Clock::now();
    // Taken out first: after an Error nothing may wait for them again.
    auto works = std::move(in_flight_);
    in_flight_.clear();
    for (const auto& work : works) work->wait();
    statistics_.exposed_seconds += seconds_since(start);
  }
  if (!agreed_) agree_on_order();
  ++statistics_.steps;
}

void Reducer::agree_on_order() {
  agreed_ = true;
  if (communicator_.size() == 1 || completed_.size() <= 1) return;
  std::vector<std::int32_t> order(completed_.begin(), completed_.end());
  communicator_.broadcast(order.data(), static_cast<std::int64_t>(order.size()), DType::i32, 0)
      ->wait();
  turns_.assign(order.begin(), order.end());
}

}  // namespace shoal::parallel
