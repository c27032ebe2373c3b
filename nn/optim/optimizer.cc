#include "shoal/nn/optim/optimizer.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "shoal/nn/autograd/device_values.h"
#include "shoal/runtime/base/error.h"

namespace shoal::nn {
namespace {

// Segments start on cache-line boundaries, so that neighbouring segments never share a line.
constexpr std::int64_t kAlignment = 16;  // f32 elements

std::int64_t aligned(std::int64_t count) {
  return (count + kAlignment - 1) / kAlignment * kAlignment;
}

void check(const Segment& segment) {
  SHOAL_CHECK(segment.gradient.defined(), "{} has no gradient memory yet", segment.name);
  const bool rounds = segment.rounding.has_value();
  SHOAL_CHECK(!rounds || (segment.master.dtype() == DType::bf16 && !segment.value.defined()),
              "{}: stochastic rounding is of bf16 parameters without masters, not of {}{}",
              segment.name, to_string(segment.master.dtype()),
              segment.value.defined() ? " masters with a copy" : "");
  SHOAL_CHECK(
      (rounds || segment.master.dtype() == DType::f32) && segment.gradient.dtype() == DType::f32,
      "{}: the master is {} and the gradient {}; both are f32", segment.name,
      to_string(segment.master.dtype()), to_string(segment.gradient.dtype()));
  SHOAL_CHECK(segment.gradient.count() == segment.master.count() &&
                  (!segment.value.defined() || segment.value.count() == segment.master.count()),
              "{}: {} numbers have a gradient of {}", segment.name, segment.master.count(),
              segment.gradient.count());
}

}  // namespace

Optimizer::Optimizer(kernels::Kernels& kernels, MemoryResource& memory,
                     std::vector<Segment> segments, std::unique_ptr<UpdateRule> rule,
                     MemoryResource* states, UpdateGroup* group)
    : kernels_(kernels),
      segments_(std::move(segments)),
      rule_(std::move(rule)),
      group_(group != nullptr ? *group : alone_),
      states_(segments_.size()) {
  for (const Segment& segment : segments_) {
    check(segment);
    SHOAL_CHECK(rule_->rounds() || !segment.rounding,
                "{}: {} has no stochastic rounding; AdamW, LAMB and Lion have", segment.name,
                rule_->name());
  }
  allocate(memory, states != nullptr ? *states : memory);
}

Optimizer::~Optimizer() = default;

void Optimizer::allocate(MemoryResource& memory, MemoryResource& states) {
  const Stream stream = kernels_.stream();
  std::int64_t total = 0;
  for (const Segment& segment : segments_) total += aligned(segment.master.count());
  for (std::size_t state = 0; state < rule_->states().size(); ++state) {
    const Tensor block = Tensor::zeros({total}, DType::f32, states, MemoryTag::optimizer, stream);
    std::int64_t offset = 0;
    for (std::size_t i = 0; i < segments_.size(); ++i) {
      const Tensor& master = segments_[i].master;
      states_[i].push_back(block.narrowed(0, offset, master.count()).reshaped(master.shape()));
      offset += aligned(master.count());
    }
  }
  if (rule_->needs_squares())
    squares_ =
        Tensor::zeros({std::ssize(segments_), 2}, DType::f64, memory, MemoryTag::workspace, stream);
  const Tensor numbers = Tensor::zeros({3}, DType::f64, memory, MemoryTag::workspace, stream);
  sum_ = numbers.narrowed(0, 0, 1);
  norm_ = numbers.narrowed(0, 1, 1);
  zero_ = numbers.narrowed(0, 2, 1);
  if (!kernels_.device().is_cpu())
    rates_ = Tensor::empty({kernels::kRates}, DType::f32, memory, MemoryTag::workspace, stream);
}

Stream Optimizer::queue(Stream stream) const {
  return stream.device.is_cpu() ? kernels_.stream() : stream;
}

StepOutcome Optimizer::step(kernels::StepState& state, const StepOptions& options, Stream stream) {
  set_step(state, options, stream);
  queue_step(state, options, stream);
  before_reading(queue(stream));
  return outcome(stream);
}

void Optimizer::set_step(kernels::StepState& state, const StepOptions& options, Stream stream) {
  kernels::StepNumbers numbers{.learning_rate = static_cast<float>(options.learning_rate),
                               .unscale = static_cast<float>(options.gradient_scale),
                               .inverse_targets = options.inverse_targets};
  if (options.update >= 0 && rates_.defined()) {
    numbers.rates = static_cast<float*>(rates_.view().data);
    numbers.update = static_cast<std::uint32_t>(options.update);
  }
  kernels_.optimizer().set_step(&state, numbers, queue(stream));
}

void Optimizer::before_reading(Stream stream) const {
  if (!kernels_.device().is_cpu()) group_.before_reading(stream);
}

void Optimizer::queue_step(kernels::StepState& state, const StepOptions& options, Stream stream) {
  stream = queue(stream);
  std::vector<ConstView> gradients;
  gradients.reserve(segments_.size());
  for (const Segment& segment : segments_)
    if (segment.in_norm) gradients.push_back(segment.gradient.const_view());
  kernels_.optimizer().sum_of_squares_many(gradients, sum_.view(), stream);
  const bool on_host = kernels_.device().is_cpu();
  if (on_host)
    write_scalar(group_.sum_squares(read_scalar(sum_, stream), options.loss), sum_, stream);
  else
    group_.sum_squares_in_place(sum_, stream);
  kernels_.optimizer().begin_update({.sum_of_squares = sum_,
                                     .max_norm = options.max_gradient_norm,
                                     .norm = norm_.view(),
                                     .state = &state,
                                     .scaling = options.scaling},
                                    stream);
  // On a device, the kernels check for themselves whether to skip.
  if (on_host && state.skip != 0) return;
  update(0, segments_.size(), state, group_, stream);
}

void Optimizer::update(std::size_t first, std::size_t count, const kernels::StepState& state,
                       UpdateGroup& group, Stream stream) {
  rule_->update({.kernels = kernels_,
                 .segments = std::span(segments_).subspan(first, count),
                 .states = std::span(states_).subspan(first, count),
                 .state = state,
                 .squares = squares_.defined()
                                ? squares_.narrowed(0, static_cast<std::int64_t>(first),
                                                    static_cast<std::int64_t>(count))
                                : Tensor(),
                 .group = group,
                 .stream = stream});
}

StepOutcome Optimizer::outcome(Stream stream) const {
  const double norm = read_scalar(norm_, queue(stream));
  return {.gradient_norm = norm, .skipped = !std::isfinite(norm)};
}

void Optimizer::begin(kernels::StepState& state, const StepOptions& options, Stream stream) {
  set_step(state, options, stream);
  kernels_.optimizer().begin_update(
      {.sum_of_squares = zero_, .norm = norm_.view(), .state = &state}, queue(stream));
  state_ = &state;
  scale_ = options.gradient_scale;
  segment_squares_.assign(segments_.size(), 0.0);
}

bool Optimizer::update_segment(std::size_t segment, Stream stream) {
  SHOAL_ASSERT(state_ != nullptr);
  stream = queue(stream);
  kernels_.optimizer().sum_of_squares(segments_[segment].gradient, sum_.view(), false, stream);
  const double squares = segment_squares_[segment] = read_scalar(sum_, stream);
  if (!std::isfinite(squares)) return false;
  update(segment, 1, *state_, alone_, stream);
  return true;
}

double Optimizer::end() {
  SHOAL_ASSERT(state_ != nullptr);
  state_ = nullptr;
  double sum = 0;  // in segment order, like queue_step()
  for (const double squares : segment_squares_) sum += squares;
  return std::sqrt(sum) * scale_;
}

std::vector<NamedTensor> Optimizer::state_tensors() const {
  const std::vector<std::string> names = rule_->states();
  std::vector<NamedTensor> tensors;
  for (std::size_t i = 0; i < segments_.size(); ++i)
    for (std::size_t state = 0; state < names.size(); ++state)
      tensors.push_back({names[state] + "/" + segments_[i].name, states_[i][state]});
  return tensors;
}

}  // namespace shoal::nn
