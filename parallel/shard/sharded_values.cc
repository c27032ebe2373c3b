#include "shoal/parallel/shard/sharded_values.h"

#include <algorithm>
#include <exception>

#include "shoal/nn/optim/parameter_place.h"
#include "shoal/runtime/base/deadlines.h"
#include "shoal/runtime/base/error.h"

namespace shoal::parallel {
namespace {

void fill_and_check(nn::Parameter& parameter, const ShardedValues::Fill& fill) {
  if (fill && !parameter.value.defined()) fill(parameter);
  SHOAL_CHECK(parameter.value.defined() && parameter.value.dtype() == DType::f32,
              "{} must hold f32 numbers before it is sharded", parameter.name());
}

}  // namespace

std::size_t ShardedValues::bytes_of(int bucket) const {
  const GradientBucket& range = layout_.plan.bucket(bucket);
  return static_cast<std::size_t>(range.end - range.begin) * size_of(compute_);
}

ShardedValues::ShardedValues(const ShardLayout& layout, DType compute, kernels::Kernels& kernels,
                             MemoryResource& memory, const Fill& fill,
                             std::optional<std::uint64_t> rounding_seed, MemoryResource* masters)
    : layout_(layout), compute_(compute), rounding_seed_(rounding_seed), kernels_(kernels) {
  SHOAL_CHECK(!rounding_seed || compute == DType::bf16,
              "stochastic rounding is of bf16 parameters, not of {}", to_string(compute));
  const ShardPlan& plan = layout.plan;
  MemoryResource& symmetric = layout.groups.shard->memory_resource();
  const auto zeros = [&](std::int64_t count, DType dtype, MemoryResource& from, MemoryTag tag) {
    return Tensor::zeros({std::max<std::int64_t>(count, 1)}, dtype, from, tag, kernels.stream());
  };
  whole_ = zeros(plan.flat.count - plan.unit_count(), compute, symmetric, MemoryTag::parameters);
  unit_shard_ = zeros(plan.unit_count() / plan.shards, compute, symmetric, MemoryTag::parameters);
  if (compute != DType::f32 && !rounding_seed)
    masters_ = zeros(plan.shard_count(), DType::f32, masters != nullptr ? *masters : memory,
                     MemoryTag::optimizer);
  for (int b = 0; b < plan.buckets(); ++b) {
    Bucket bucket;
    if (is_unit_bucket(b)) {
      bucket.storage = std::make_shared<Storage>(
          Buffer(symmetric, bytes_of(b), MemoryTag::parameters, kernels.stream()));
      bucket.storage->release();
    }
    buckets_.push_back(std::move(bucket));
  }
  std::vector<std::vector<const ShardSegment*>> mine(layout.parameters.size());
  for (const ShardSegment& segment : layout.segments)
    mine[static_cast<std::size_t>(segment.parameter)].push_back(&segment);
  for (std::size_t i = 0; i < mine.size(); ++i) take_over(static_cast<int>(i), mine[i], fill);
  for (nn::Parameter* parameter : layout.frozen) {
    fill_and_check(*parameter, fill);
    if (compute == DType::f32) continue;
    const Tensor value =
        Tensor::empty(parameter->shape(), compute, memory, MemoryTag::parameters, kernels.stream());
    kernels.elementwise().cast(parameter->value, value.view(), {});
    parameter->value = value;
  }
}

// Moves one parameter's values into the flat or sharded memory and frees the parameter's own
// memory.
void ShardedValues::take_over(int index, std::span<const ShardSegment* const> mine,
                              const Fill& fill) {
  nn::Parameter& parameter = *layout_.parameters[static_cast<std::size_t>(index)];
  fill_and_check(parameter, fill);
  const std::int64_t count = parameter.shape().count();
  const Tensor original = parameter.value.reshaped({count});
  const auto bucket = layout_.buckets_of[static_cast<std::size_t>(index)].front();
  const std::int64_t offset = layout_.plan.flat.offsets[static_cast<std::size_t>(index)];
  if (is_unit_bucket(bucket)) {
    parameter.value = Tensor::over(
        at(bucket).storage,
        static_cast<std::size_t>(offset - layout_.plan.bucket(bucket).begin) * size_of(compute_),
        parameter.shape(), compute_);
  } else {
    const Tensor place = whole_.narrowed(0, offset - layout_.plan.unit_count(), count);
    if (count > 0) kernels_.elementwise().cast(original, place.view(), {});
    parameter.value = place.reshaped(parameter.shape());
  }
  for (const ShardSegment* segment : mine) {
    const Tensor from = original.narrowed(0, segment->first, segment->count);
    if (is_unit_bucket(bucket)) kernels_.elementwise().cast(from, within_part(*segment).view(), {});
    if (masters_.defined()) kernels_.elementwise().cast(from, master_of(*segment).view(), {});
  }
}

ShardedValues::~ShardedValues() {
  try {
    if (std::uncaught_exceptions() == 0) {
      wait();
      return;
    }
    for (Bucket& bucket : buckets_) {
      if (!bucket.work || bucket.work->test()) continue;
      layout_.groups.shard->abort("sharded values were destroyed while they were gathered");
      bucket.work->wait(deadlines::at_once());
    }
  } catch (const std::exception&) {  // the group has failed: nothing is written any more
    for (Bucket& bucket : buckets_) bucket.work.reset();
  }
}

// --- position of a rank's part ------------------------------------------------------------------

Tensor ShardedValues::part(int bucket) const {
  const ShardPlan& plan = layout_.plan;
  const std::int64_t count = plan.part_count(bucket);
  if (is_unit_bucket(bucket)) return unit_shard_.narrowed(0, plan.part_begin(bucket), count);
  const std::int64_t begin = plan.bucket(bucket).begin - plan.unit_count();
  return whole_.narrowed(0, begin + layout_.groups.rank() * count, count);
}

Tensor ShardedValues::within_part(const ShardSegment& segment) const {
  return part(segment.bucket)
      .narrowed(0, segment.offset - layout_.plan.part_begin(segment.bucket), segment.count);
}

Tensor ShardedValues::master_of(const ShardSegment& segment) const {
  if (!masters_.defined()) return within_part(segment);
  return masters_.narrowed(0, segment.offset, segment.count);
}

std::vector<nn::Segment> ShardedValues::segments(const ShardedGradients* gradients) const {
  std::vector<nn::Segment> segments;
  for (const ShardSegment& mine : layout_.segments) {
    const nn::Parameter& parameter = *layout_.parameters[static_cast<std::size_t>(mine.parameter)];
    nn::Segment segment{.name = parameter.name(),
                        .master = master_of(mine),
                        .gradient = {},
                        .value = {},
                        .decays = parameter.decays(),
                        .parameter = &parameter,
                        .first = mine.first};
    if (gradients != nullptr)
      segment.gradient =
          gradients->part(mine.bucket)
              .narrowed(0, mine.offset - layout_.plan.part_begin(mine.bucket), mine.count);
    if (masters_.defined()) segment.value = within_part(mine);
    if (rounding_seed_)
      segment.rounding = nn::rounding_place(parameter, *rounding_seed_, mine.first);
    segments.push_back(std::move(segment));
  }
  return segments;
}

std::vector<nn::NamedTensor> ShardedValues::masters() const {
  std::vector<nn::NamedTensor> tensors;
  for (const ShardSegment& mine : layout_.segments)
    tensors.push_back(
        {layout_.parameters[static_cast<std::size_t>(mine.parameter)]->name(), master_of(mine)});
  return tensors;
}

void ShardedValues::refresh() {
  if (masters_.defined())
    for (const ShardSegment& mine : layout_.segments)
      kernels_.elementwise().cast(master_of(mine), within_part(mine).view(), {});
  publish();
  wait();
}

// --- gathering ---------------------------------------------------------------------------------

void ShardedValues::publish() {
  for (int b = 0; b < layout_.plan.unit_buckets; ++b) release(b);
  if (layout_.groups.shards() == 1) return;
  // Buckets are planned in the order in which backward completes them; the forward needs them in
  // reverse.
  for (int b = layout_.plan.buckets(); b-- > layout_.plan.unit_buckets;) {
    const Tensor mine = part(b);
    void* const all =
        whole_.narrowed(0, layout_.plan.bucket(b).begin - layout_.plan.unit_count(), 0).view().data;
    at(b).work = layout_.groups.shard->all_gather(mine.const_view().data, all, mine.count(),
                                                  compute_, kernels_.stream());
  }
}

void ShardedValues::wait_for(const nn::Parameter& parameter) {
  const auto found = std::ranges::find(layout_.parameters, &parameter);
  if (found == layout_.parameters.end()) return;  // frozen, or a parameter of another stage
  for (const int bucket :
       layout_.buckets_of[static_cast<std::size_t>(found - layout_.parameters.begin())]) {
    gather(bucket);
    wait_for_bucket(bucket);
  }
}

void ShardedValues::wait() {
  for (int b = 0; b < layout_.plan.buckets(); ++b) wait_for_bucket(b);
}

void ShardedValues::abandon_step() {
  for (Bucket& bucket : buckets_) {
    bucket.work.reset();
    bucket.pins = 0;
    if (bucket.storage && !bucket.storage->released()) bucket.storage->release();
  }
  live_ = 0;
}

bool ShardedValues::present(int bucket) const {
  return !is_unit_bucket(bucket) || !buckets_[static_cast<std::size_t>(bucket)].storage->released();
}

void ShardedValues::gather(int index) {
  if (present(index)) return;
  Bucket& bucket = at(index);
  const Tensor mine = part(index);
  bucket.storage->rematerialise(Buffer(layout_.groups.shard->memory_resource(), bytes_of(index),
                                       MemoryTag::parameters, kernels_.stream()));
  const GradientBucket& range = layout_.plan.bucket(index);
  live_ += range.end - range.begin;
  bucket.work = layout_.groups.shard->all_gather(mine.const_view().data, bucket.storage->data(),
                                                 mine.count(), compute_, kernels_.stream());
}

void ShardedValues::wait_for_bucket(int index) {
  // Removed first: after an Error no call may wait for it again.
  if (const collectives::WorkPtr work = std::move(at(index).work))
    work->block_stream(kernels_.stream());
}

void ShardedValues::release(int index) {
  if (!is_unit_bucket(index) || !present(index)) return;
  SHOAL_CHECK(pins(index) == 0,
              "parameters of {} elements are dropped while a unit computes with them",
              layout_.plan.bucket(index).end - layout_.plan.bucket(index).begin);
  wait_for_bucket(index);
  at(index).storage->release();
  const GradientBucket& range = layout_.plan.bucket(index);
  live_ -= range.end - range.begin;
}

}  // namespace shoal::parallel
