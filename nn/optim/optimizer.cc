#include "shoal/nn/optim/optimizer.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "shoal/nn/autograd/device_values.h"
#include "shoal/nn/optim/parameter_place.h"
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

kernels::MatrixPlace place_of(const Segment& segment) {
  if (segment.parameter == nullptr)
    return matrix_place(segment.master.shape(), segment.master.shape());
  const Parameter& parameter = *segment.parameter;
  kernels::MatrixPlace place = matrix_place(parameter.whole_shape(), parameter.shape());
  place.place = element_place(parameter, segment.first);
  return place;
}

}  // namespace

Optimizer::Optimizer(kernels::Kernels& kernels, MemoryResource& memory,
                     std::vector<Segment> segments, std::unique_ptr<UpdateRule> rule,
                     MemoryResource* states, UpdateGroup* group)
    : kernels_(kernels),
      segments_(std::move(segments)),
      rule_(std::move(rule)),
      group_(group != nullptr ? *group : alone_),
      kinds_(segments_.size()),
      states_(segments_.size()) {
  for (const Segment& segment : segments_) {
    check(segment);
    SHOAL_CHECK(rule_->rounds() || !segment.rounding,
                "{}: {} has no stochastic rounding; AdamW, LAMB, Lion and Adafactor have",
                segment.name, rule_->name());
  }
  allocate(memory, states != nullptr ? *states : memory);
}

Optimizer::~Optimizer() = default;

void Optimizer::allocate(MemoryResource& memory, MemoryResource& states) {
  const Stream stream = kernels_.stream();
  const auto shape = [](const RuleState& state, const Segment& segment) {
    return state.mean_over == 0 ? segment.master.shape() : state_shape(state, whole_shape(segment));
  };
  std::map<std::string, std::int64_t> totals, offsets;  // by a state's name
  sums_at_.push_back(0);
  for (std::size_t i = 0; i < segments_.size(); ++i) {
    const Shape parameter = whole_shape(segments_[i]);
    kinds_[i] = rule_->states(parameter);
    for (const RuleState& state : kinds_[i])
      totals[state.name] += aligned(shape(state, segments_[i]).count());
    sums_at_.push_back(sums_at_.back() + rule_->sums(parameter));
    if (rule_->needs_places()) places_.push_back(place_of(segments_[i]));
  }
  std::map<std::string, Tensor> blocks;
  for (const auto& [name, total] : totals)
    blocks[name] = Tensor::zeros({total}, DType::f32, states, MemoryTag::optimizer, stream);
  for (std::size_t i = 0; i < segments_.size(); ++i)
    for (const RuleState& state : kinds_[i]) {
      const Shape own = shape(state, segments_[i]);
      std::int64_t& offset = offsets[state.name];
      states_[i].push_back(blocks[state.name].narrowed(0, offset, own.count()).reshaped(own));
      offset += aligned(own.count());
    }
  if (sums_at_.back() > 0)
    sums_ = Tensor::zeros({sums_at_.back()}, DType::f64, memory, MemoryTag::workspace, stream);
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
                 .sums = sums_.defined() ? sums_.narrowed(0, sums_at_[first],
                                                          sums_at_[first + count] - sums_at_[first])
                                         : Tensor(),
                 .places = places_.empty() ? std::span<const kernels::MatrixPlace>()
                                           : std::span(places_).subspan(first, count),
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

std::vector<StateTensor> Optimizer::state_tensors() const {
  std::vector<StateTensor> tensors;
  for (std::size_t i = 0; i < segments_.size(); ++i)
    for (std::size_t state = 0; state < kinds_[i].size(); ++state)
      tensors.push_back({i, kinds_[i][state], states_[i][state]});
  return tensors;
}

}  // namespace shoal::nn
