#include "shoal/parallel/pipeline/measure_units.h"

#include <algorithm>
#include <limits>
#include <string>

#include "shoal/collectives/watch.h"
#include "shoal/nn/autograd/dispatcher.h"
#include "shoal/runtime/base/clock.h"
#include "shoal/runtime/base/error.h"

namespace shoal::parallel {
namespace {

using collectives::ReduceOp;

// Values and gradients of one unit's parameters, for its lifetime. They are zeros: a unit's costs
// do not depend on the values, and drawing those of a large table would take longer.
class UnitTensors {
 public:
  UnitTensors(nn::Context& context, std::vector<nn::Parameter*> parameters, DType dtype)
      : parameters_(std::move(parameters)) {
    for (nn::Parameter* parameter : parameters_) {
      SHOAL_CHECK(!parameter->value.defined(), "{} is materialised: units are measured before",
                  parameter->name());
      parameter->value = Tensor::zeros(parameter->shape(), dtype, context.memory(),
                                       MemoryTag::parameters, context.stream);
    }
    nn::allocate_gradients(context, parameters_);
  }
  ~UnitTensors() {
    for (nn::Parameter* parameter : parameters_) {
      parameter->value = {};
      parameter->gradient = {};
      parameter->clear_gradient();
    }
  }
  UnitTensors(const UnitTensors&) = delete;
  UnitTensors& operator=(const UnitTensors&) = delete;

 private:
  std::vector<nn::Parameter*> parameters_;
};

// Costs of one unit on this rank, or agreed by the group.
struct Measured {
  double seconds = std::numeric_limits<double>::infinity();
  std::int64_t activation_bytes = 0, peak_bytes = 0, weight_bytes = 0, split_peak_bytes = 0;
};

enum class Backward : std::uint8_t { whole, split };

// Runs one unit on a microbatch.
class Runner {
 public:
  Runner(nn::Context& context, CountingMemory& memory, nn::Chain& chain, int unit,
         const Microbatch& microbatch, collectives::Communicator& group,
         const MeasureOptions& options)
      : context_(context),
        memory_(memory),
        chain_(chain),
        unit_(unit),
        microbatch_(microbatch),
        group_(group),
        options_(options) {}

  void run(Backward backward, Measured& measured) {
    ChainStage stage(context_, chain_, {unit_, unit_ + 1}, options_.stage);
    stage.begin({&microbatch_, 1});
    DeviceBackend& device = device_backend(context_.stream.device.type);
    memory_.reset_peaks();
    const std::int64_t before = current();
    // Moved into the stage, which may keep it.
    Tensor input = unit_ > 0 ? zeros(stage.input(0)) : Tensor();
    device.synchronize(context_.stream);
    const auto began = Clock::now();
    stage.forward(0, std::move(input));
    const std::int64_t kept = current() - before;
    Tensor gradient = is_head() ? Tensor() : zeros(stage.output(0));
    stage.backward(0, std::move(gradient), backward == Backward::split);
    collectives::watch(group_, context_.stream);
    device.synchronize(context_.stream);
    const double seconds = seconds_since(began);
    const std::int64_t peak = memory_.usage(MemoryTag::activations).peak - before;
    if (backward == Backward::whole) {
      measured.seconds = std::min(measured.seconds, seconds);
      measured.activation_bytes = kept;
      measured.peak_bytes = peak;
    } else {
      measured.weight_bytes = current() - before;
      measured.split_peak_bytes = peak;
      stage.weight_backward(0);
    }
  }

  // Bytes that the unit keeps in memory when it offloads.
  std::int64_t kept_offloading(OffloadOptions offload) {
    offload.max_leaving = 0;  // every leaving tensor has left when forward is done
    Offloader offloader(context_.memory(), offload, context_.stream);
    ChainStageOptions stage_options = options_.stage;
    stage_options.offloader = &offloader;
    ChainStage stage(context_, chain_, {unit_, unit_ + 1}, stage_options);
    stage.begin({&microbatch_, 1});
    const std::int64_t before = current();
    stage.forward(0, unit_ > 0 ? zeros(stage.input(0)) : Tensor());
    return current() - before;
  }

 private:
  bool is_head() const { return unit_ == chain_.units() - 1; }
  std::int64_t current() const { return memory_.usage(MemoryTag::activations).current; }
  Tensor zeros(const Stage::Message& message) const {
    return Tensor::zeros(message.shape, message.dtype, context_.memory(), MemoryTag::activations,
                         context_.stream);
  }
  nn::Context& context_;
  CountingMemory& memory_;
  nn::Chain& chain_;
  int unit_;
  const Microbatch& microbatch_;
  collectives::Communicator& group_;
  const MeasureOptions& options_;
};

void append_kinds(nn::Module& module, std::string& text) {
  text += fmt::format("{}(", module.kind());
  for (const nn::Module::Child& child : module.children()) append_kinds(*child.module, text);
  text += ')';
}

// A text that is equal for units of equal structure.
std::string structure_of(const nn::Chain& chain, int unit) {
  // The inputs and outputs of the first and last unit differ from those of the others.
  std::string text = unit == 0 ? "first" : unit == chain.units() - 1 ? "last" : "";
  for (nn::Module* module : chain.unit_modules(unit)) append_kinds(*module, text);
  for (const nn::Parameter* parameter : chain.unit_parameters(unit))
    text += fmt::format(" {}{}", to_string(parameter->shape()), parameter->trainable() ? "" : "f");
  return text;
}

void agree(std::vector<Measured>& all, collectives::Communicator& group) {
  if (group.size() == 1) return;
  std::vector<double> seconds;
  std::vector<std::int64_t> bytes;
  for (const Measured& one : all) {
    seconds.push_back(one.seconds);
    bytes.insert(bytes.end(),
                 {one.activation_bytes, one.peak_bytes, one.weight_bytes, one.split_peak_bytes});
  }
  const auto count = static_cast<std::int64_t>(all.size());
  collectives::Communicator& host = group.host();
  host.all_reduce(seconds.data(), seconds.data(), count, DType::f64, ReduceOp::sum)->wait();
  host.all_reduce(bytes.data(), bytes.data(), 4 * count, DType::i64, ReduceOp::max)->wait();
  for (std::size_t i = 0; i < all.size(); ++i)
    all[i] = {seconds[i] / group.size(), bytes[4 * i], bytes[4 * i + 1], bytes[4 * i + 2],
              bytes[4 * i + 3]};
}

}  // namespace

std::vector<UnitCost> count_units(const nn::Chain& chain) {
  std::vector<UnitCost> units;
  std::map<const nn::Parameter*, int> numbers;
  for (int unit = 0; unit < chain.units(); ++unit) {
    UnitCost cost;
    cost.name = chain.unit_name(unit);
    for (const nn::Parameter* parameter : chain.unit_parameters(unit)) {
      const int number = numbers.emplace(parameter, static_cast<int>(numbers.size())).first->second;
      cost.parameters.emplace(number, parameter->shape().count());
      if (!parameter->trainable()) cost.frozen.insert(number);
      if (unit > 0) cost.work += static_cast<double>(parameter->shape().count());
    }
    units.push_back(std::move(cost));
  }
  return units;
}

void agree_on_parameters(std::span<UnitCost> units, collectives::Communicator& group) {
  if (group.size() == 1) return;
  std::vector<std::int64_t> counts;
  for (const UnitCost& unit : units)
    for (const auto& [number, elements] : unit.parameters) counts.push_back(elements);
  group.host()
      .all_reduce(counts.data(), counts.data(), std::ssize(counts), DType::i64, ReduceOp::max)
      ->wait();
  auto most = counts.begin();
  for (UnitCost& unit : units) {
    double all = 0;
    for (auto& [number, elements] : unit.parameters) {
      elements = *most++;
      all += static_cast<double>(elements);
    }
    if (unit.work > 0) unit.work = all;
  }
}

std::vector<UnitCost> measure_units(const nn::Context& context, nn::Chain& chain,
                                    const Microbatch& microbatch, collectives::Communicator& group,
                                    const MeasureOptions& options) {
  CountingMemory own_memory(context.memory());
  CountingMemory& memory = options.counted_by ? *options.counted_by : own_memory;
  nn::Context own(context.kernels(),
                  options.counted_by ? context.memory() : static_cast<MemoryResource&>(own_memory),
                  context.dispatcher());
  own.stream = context.stream;
  own.random = context.random;

  std::map<std::string, std::size_t> known;  // structure -> index in `all`
  std::vector<Measured> all;
  std::vector<std::size_t> measured_as;  // by unit
  for (int unit = 0; unit < chain.units(); ++unit) {
    const auto [entry, is_new] = known.emplace(structure_of(chain, unit), all.size());
    measured_as.push_back(entry->second);
    if (!is_new) continue;
    const UnitTensors tensors(own, chain.unit_parameters(unit), options.dtype);
    Measured& measured = all.emplace_back();
    Runner runner(own, memory, chain, unit, microbatch, group, options);
    for (int i = 0; i < std::max(options.repetitions, 1); ++i)
      runner.run(Backward::whole, measured);
    if (options.split_backward) runner.run(Backward::split, measured);
    if (options.offload) measured.activation_bytes = runner.kept_offloading(*options.offload);
  }
  agree(all, group);
  std::vector<UnitCost> units = count_units(chain);
  for (std::size_t unit = 0; unit < units.size(); ++unit) {
    const Measured& measured = all[measured_as[unit]];
    units[unit].seconds = measured.seconds;
    units[unit].activation_bytes = measured.activation_bytes;
    units[unit].peak_bytes = measured.peak_bytes;
    units[unit].weight_bytes = measured.weight_bytes;
    units[unit].split_peak_bytes = measured.split_peak_bytes;
  }
  return units;
}

}  // namespace shoal::parallel
