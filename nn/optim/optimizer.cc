#include "shoal/nn/optim/optimizer.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "shoal/nn/autograd/device_values.h"
#include "shoal/runtime/base/error.h"

namespace shoal::nn {
namespace {

// Segments start on cache lines, so that vector loops of neighbours do not share one.
constexpr std::int64_t kAlignment = 16;  // f32 elements

std::int64_t aligned(std::int64_t count) {
  return (count + kAlignment - 1) / kAlignment * kAlignment;
}

void check(const Segment& segment) {
  SHOAL_CHECK(segment.gradient.defined(), "{} has no gradient memory yet", segment.name);
  SHOAL_CHECK(segment.master.dtype() == DType::f32 && segment.gradient.dtype() == DType::f32,
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
        memory_(memory),
        options_(options) {
    std::int64_t largest = 0;
    for (const Segment& segment : this->segments())
      largest = std::max(largest, segment.master.count());
    updates_ = Tensor::empty({largest}, DType::f32, memory, MemoryTag::optimizer, kernels.stream());
  }

 private:
  void update(const Segment& segment, std::span<const Tensor> state, const kernels::StepState& step,
              Stream stream) override {
    lamb(segment, state, step, updates_.narrowed(0, 0, segment.master.count()), stream);
  }

  // Made of kernels that there are: lamb at rate 0 advances the moments and leaves the update; when
  // the sums of all parts are there, sgd goes along it, as far as the parameter's trust ratio says.
  void update_all(const kernels::StepState& step, const StepOptions& options,
                  Stream stream) override {
    if (!options.sum_parts) return Optimizer::update_all(step, options, stream);
    keep_updates(stream);
    before_reading(options, stream);
    std::vector<kernels::StepState> states(segments().size() + 1);
    DeviceBackend& device = device_backend(stream.device.type);
    const auto read = [&](void* to, const void* from, std::size_t bytes) {
      device.copy(to, from, bytes, stream);
      device.synchronize(stream);
    };
    read(&states.back(), &step, sizeof step);
    if (states.back().skip != 0) return;  // on all ranks
    const float rate = std::exchange(states.back().learning_rate, 0.0f);
    auto* const there = static_cast<kernels::StepState*>(states_.view().data);
    read(there, states.data(), states_.bytes());

    std::vector<Tensor> updates;
    std::int64_t offset = 0;
    for (std::size_t i = 0; i < segments().size(); ++i) {
      const Segment& segment = segments()[i];
      updates.push_back(updates_.narrowed(0, offset, segment.master.count()));
      offset += aligned(segment.master.count());
      lamb(segment, state_of(i), there[segments().size()], updates[i], stream);
      const auto at = 2 * static_cast<std::int64_t>(i);
      auto& rule = kernels().optimizer();
      rule.sum_of_squares(segment.master, squares_.narrowed(0, at, 1).view(), false, stream);
      rule.sum_of_squares(updates[i], squares_.narrowed(0, at + 1, 1).view(), false, stream);
    }
    std::vector<SquareSums> sums(segments().size());
    static_assert(sizeof(SquareSums) == 2 * sizeof(double));
    copy_to_host(sums.data(), squares_, stream);
    options.sum_parts(sums);
    for (std::size_t i = 0; i < segments().size(); ++i) {
      states[i] = states.back();
      states[i].learning_rate = static_cast<float>(trust(sums[i]) * static_cast<double>(rate));
      states[i].gradient_scale = 1;
    }
    read(there, states.data(), states_.bytes());
    for (std::size_t i = 0; i < segments().size(); ++i) {
      kernels::SgdArgs args;
      args.master = flat(segments()[i].master);
      args.gradient = updates[i];
      args.parameter = flat(segments()[i].value);
      args.state = &there[i];
      kernels().optimizer().sgd(args, stream);
    }
  }

  void lamb(const Segment& segment, std::span<const Tensor> state, const kernels::StepState& step,
            const Tensor& update, Stream stream) {
    kernels::LambArgs args;
    args.adam = adamw_args(segment, state, options_.adam, step);
    args.update = update.view();
    args.max_trust_ratio = options_.max_trust_ratio;
    kernels().optimizer().lamb(args, stream);
  }

  double trust(const SquareSums& sums) const {
    const double weight = std::sqrt(sums.weight), update = std::sqrt(sums.update);
    return weight > 0 && update > 0 ? std::min(weight / update, options_.max_trust_ratio) : 1;
  }

  // Room for the updates of all segments, from the first step that needs it.
  void keep_updates(Stream stream) {
    if (states_.defined()) return;
    std::int64_t total = 0;
    for (const Segment& segment : segments()) total += aligned(segment.master.count());
    const auto count = static_cast<std::int64_t>(segments().size());
    updates_ = {};
    updates_ = Tensor::empty({total}, DType::f32, memory_, MemoryTag::optimizer, stream);
    squares_ = Tensor::zeros({2 * count}, DType::f64, memory_, MemoryTag::workspace, stream);
    states_ = Tensor::empty({(count + 1) * static_cast<std::int64_t>(sizeof(kernels::StepState))},
                            DType::u8, memory_, MemoryTag::workspace, stream);
  }

  MemoryResource& memory_;
  LambOptions options_;
  Tensor updates_;  // [largest segment] f32; with sum_parts [all segments]
  // With sum_parts: [2 * segments] f64, and a StepState for each segment and one for all.
  Tensor squares_, states_;
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
  // A device's kernels see for themselves that nothing is to be done.
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
