#include "shoal/nn/optim/optimizer.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "shoal/nn/autograd/device_values.h"
#include "shoal/runtime/base/error.h"

namespace shoal::nn {
namespace {

// Segments start on cache lines, so that vector loops over neighbours do not share one.
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

View flat(const Tensor& tensor) {
  return tensor.defined() ? tensor.reshaped({tensor.count()}).view() : View{};
}
ConstView flat_const(const Tensor& tensor) {
  return tensor.reshaped({tensor.count()}).const_view();
}

kernels::AdamWArgs adamw_args(const Segment& segment, std::span<const Tensor> state,
                              const AdamWOptions& options, const kernels::StepState& step) {
  kernels::AdamWArgs args;
  args.master = flat(segment.master);
  args.first_moment = flat(state[0]);
  args.second_moment = flat(state[1]);
  args.gradient = flat_const(segment.gradient);
  args.parameter = flat(segment.value);
  args.rounding = segment.rounding;
  args.beta1 = options.beta1;
  args.beta2 = options.beta2;
  args.epsilon = options.epsilon;
  args.weight_decay = segment.decays ? options.weight_decay : 0;
  args.state = &step;
  return args;
}

class AdamW final : public Optimizer {
 public:
  AdamW(kernels::Kernels& kernels, MemoryResource& memory, std::vector<Segment> segments,
        const AdamWOptions& options, MemoryResource* states)
      : Optimizer(kernels, memory, std::move(segments), {"exp_avg", "exp_avg_sq"}, states),
        options_(options) {}

 private:
  void update(const Segment& segment, std::span<const Tensor> state, const kernels::StepState& step,
              Stream stream) override {
    kernels().optimizer().adamw(adamw_args(segment, state, options_, step), stream);
  }
  void update_all(const kernels::StepState& step, const StepOptions&, Stream stream) override {
    std::vector<kernels::AdamWArgs> all;
    all.reserve(segments().size());
    for (std::size_t i = 0; i < segments().size(); ++i)
      all.push_back(adamw_args(segments()[i], state_of(i), options_, step));
    kernels().optimizer().adamw_many(all, stream);
  }
  AdamWOptions options_;
};

class Sgd final : public Optimizer {
 public:
  Sgd(kernels::Kernels& kernels, MemoryResource& memory, std::vector<Segment> segments,
      const SgdOptions& options, MemoryResource* states)
      : Optimizer(kernels, memory, std::move(segments),
                  options.momentum != 0 ? std::vector<std::string>{"momentum_buffer"}
                                        : std::vector<std::string>{},
                  states),
        options_(options) {
    SHOAL_CHECK(!options.nesterov || (options.momentum > 0 && options.dampening == 0),
                "Nesterov momentum needs a momentum and no dampening, not {} and {}",
                options.momentum, options.dampening);
    for (const Segment& segment : this->segments())
      SHOAL_CHECK(!segment.rounding, "{}: SGD has no stochastic rounding; AdamW and LAMB have",
                  segment.name);
  }

 private:
  void update(const Segment& segment, std::span<const Tensor> state, const kernels::StepState& step,
              Stream stream) override {
    kernels::SgdArgs args;
    args.master = flat(segment.master);
    if (!state.empty()) args.momentum_buffer = flat(state[0]);
    args.gradient = flat_const(segment.gradient);
    args.parameter = flat(segment.value);
    args.momentum = options_.momentum;
    args.dampening = options_.dampening;
    args.weight_decay = segment.decays ? options_.weight_decay : 0;
    args.nesterov = options_.nesterov;
    args.state = &step;
    kernels().optimizer().sgd(args, stream);
  }
  SgdOptions options_;
};

class Lamb final : public Optimizer {
 public:
  Lamb(kernels::Kernels& kernels, MemoryResource& memory, std::vector<Segment> segments,
       const LambOptions& options, MemoryResource* states)
      : Optimizer(kernels, memory, std::move(segments), {"exp_avg", "exp_avg_sq"}, states),
        options_(options),
        squares_(Tensor::zeros({std::ssize(this->segments()), 2}, DType::f64, memory,
                               MemoryTag::workspace, kernels.stream())) {}

 private:
  void update(const Segment& segment, std::span<const Tensor> state, const kernels::StepState& step,
              Stream stream) override {
    const kernels::AdamWArgs args = adamw_args(segment, state, options_.adam, step);
    run({&args, 1}, nullptr, stream);
  }
  void update_all(const kernels::StepState& step, const StepOptions& options,
                  Stream stream) override {
    std::vector<kernels::AdamWArgs> all;
    all.reserve(segments().size());
    for (std::size_t i = 0; i < segments().size(); ++i)
      all.push_back(adamw_args(segments()[i], state_of(i), options_.adam, step));
    run(all, options.sum_parts ? &options : nullptr, stream);
  }

  void run(std::span<const kernels::AdamWArgs> tensors, const StepOptions* parts, Stream stream) {
    const Tensor squares = squares_.narrowed(0, 0, std::ssize(tensors));
    const kernels::LambArgs args{tensors, squares.view(), options_.max_trust_ratio};
    kernels().optimizer().lamb_moments(args, stream);
    if (parts != nullptr) {
      before_reading(*parts, stream);
      std::vector<SquareSums> sums(tensors.size());
      static_assert(sizeof(SquareSums) == 2 * sizeof(double));
      copy_to_host(sums.data(), squares, stream);
      parts->sum_parts(sums);
      DeviceBackend& device = device_backend(stream.device.type);
      device.copy(squares.view().data, sums.data(), squares.bytes(), stream);
      device.synchronize(stream);
    }
    kernels().optimizer().lamb_apply(args, stream);
  }

  LambOptions options_;
  Tensor squares_;  // [segments, 2] f64, of one update
};

}  // namespace

Optimizer::Optimizer(kernels::Kernels& kernels, MemoryResource& memory,
                     std::vector<Segment> segments, std::vector<std::string> state_names,
                     MemoryResource* states)
    : kernels_(kernels),
      segments_(std::move(segments)),
      state_names_(std::move(state_names)),
      states_(segments_.size()) {
  std::int64_t total = 0;
  for (const Segment& segment : segments_) {
    check(segment);
    total += aligned(segment.master.count());
  }
  for (std::size_t state = 0; state < state_names_.size(); ++state) {
    const Tensor block = Tensor::zeros({total}, DType::f32, states != nullptr ? *states : memory,
                                       MemoryTag::optimizer, kernels.stream());
    std::int64_t offset = 0;
    for (std::size_t i = 0; i < segments_.size(); ++i) {
      const Tensor& master = segments_[i].master;
      states_[i].push_back(block.narrowed(0, offset, master.count()).reshaped(master.shape()));
      offset += aligned(master.count());
    }
  }
  const Tensor numbers =
      Tensor::zeros({3}, DType::f64, memory, MemoryTag::workspace, kernels.stream());
  sum_ = numbers.narrowed(0, 0, 1);
  norm_ = numbers.narrowed(0, 1, 1);
  zero_ = numbers.narrowed(0, 2, 1);
  if (!kernels.device().is_cpu())
    rates_ = Tensor::empty({kernels::kRates}, DType::f32, memory, MemoryTag::workspace,
                           kernels.stream());
}

Stream Optimizer::queue(Stream stream) const {
  return stream.device.is_cpu() ? kernels_.stream() : stream;
}

StepOutcome Optimizer::step(kernels::StepState& state, const StepOptions& options, Stream stream) {
  set_step(state, options, stream);
  queue_step(state, options, stream);
  before_reading(options, queue(stream));
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

void Optimizer::before_reading(const StepOptions& options, Stream stream) const {
  if (options.before_reading && !kernels_.device().is_cpu()) options.before_reading(stream);
}

void Optimizer::queue_step(kernels::StepState& state, const StepOptions& options, Stream stream) {
  stream = queue(stream);
  std::vector<ConstView> gradients;
  gradients.reserve(segments_.size());
  for (const Segment& segment : segments_)
    if (segment.in_norm) gradients.push_back(segment.gradient.const_view());
  kernels_.optimizer().sum_of_squares_many(gradients, sum_.view(), stream);
  if (options.sum_in_place && !kernels_.device().is_cpu()) {
    options.sum_in_place(sum_, stream);
  } else if (options.sum_over_shards) {
    before_reading(options, stream);
    write_scalar(options.sum_over_shards(read_scalar(sum_, stream)), sum_, stream);
  }
  kernels_.optimizer().begin_update({.sum_of_squares = sum_,
                                     .max_norm = options.max_gradient_norm,
                                     .norm = norm_.view(),
                                     .state = &state,
                                     .scaling = options.scaling},
                                    stream);
  // On a device, the kernels check for themselves whether to skip.
  if (kernels_.device().is_cpu() && state.skip != 0) return;
  update_all(state, options, stream);
}

StepOutcome Optimizer::outcome(Stream stream) const {
  const double norm = read_scalar(norm_, queue(stream));
  return {.gradient_norm = norm, .skipped = !std::isfinite(norm)};
}

void Optimizer::begin(kernels::StepState& state, double learning_rate, double scale,
                      Stream stream) {
  stream = queue(stream);
  kernels_.optimizer().set_step(
      &state,
      {.learning_rate = static_cast<float>(learning_rate), .unscale = static_cast<float>(scale)},
      stream);
  kernels_.optimizer().begin_update(
      {.sum_of_squares = zero_, .norm = norm_.view(), .state = &state}, stream);
}

double Optimizer::sum_of_squares(std::size_t segment, Stream stream) {
  stream = queue(stream);
  kernels_.optimizer().sum_of_squares(segments_[segment].gradient, sum_.view(), false, stream);
  return read_scalar(sum_, stream);
}

void Optimizer::update_all(const kernels::StepState& step, const StepOptions&, Stream stream) {
  for (std::size_t i = 0; i < segments_.size(); ++i) update_segment(i, step, stream);
}

std::vector<NamedTensor> Optimizer::state_tensors() const {
  std::vector<NamedTensor> tensors;
  for (std::size_t i = 0; i < segments_.size(); ++i)
    for (std::size_t state = 0; state < state_names_.size(); ++state)
      tensors.push_back({state_names_[state] + "/" + segments_[i].name, states_[i][state]});
  return tensors;
}

std::int64_t Optimizer::state_bytes() const {
  std::int64_t bytes = 0;
  for (const NamedTensor& entry : state_tensors())
    bytes += static_cast<std::int64_t>(entry.tensor.bytes());
  return bytes;
}

std::unique_ptr<Optimizer> make_adamw(kernels::Kernels& kernels, MemoryResource& memory,
                                      std::vector<Segment> segments, const AdamWOptions& options,
                                      MemoryResource* states) {
  return std::make_unique<AdamW>(kernels, memory, std::move(segments), options, states);
}
std::unique_ptr<Optimizer> make_sgd(kernels::Kernels& kernels, MemoryResource& memory,
                                    std::vector<Segment> segments, const SgdOptions& options,
                                    MemoryResource* states) {
  return std::make_unique<Sgd>(kernels, memory, std::move(segments), options, states);
}
std::unique_ptr<Optimizer> make_lamb(kernels::Kernels& kernels, MemoryResource& memory,
                                     std::vector<Segment> segments, const LambOptions& options,
                                     MemoryResource* states) {
  return std::make_unique<Lamb>(kernels, memory, std::move(segments), options, states);
}

}  // namespace shoal::nn
