#include "shoal/parallel/pipeline/measure_units.h"

#include <algorithm>
#include <limits>
#include <string>

#include "shoal/runtime/base/clock.h"
#include "shoal/runtime/base/error.h"

namespace shoal::parallel {
namespace {

using collectives::ReduceOp;

// Values and gradients of one unit's parameters, for as long as it lives. Zeros: what a unit takes
// does not depend on its numbers, and drawing those of a large table would take longer.
class Held {
 public:
  Held(nn::Context& context, std::vector<nn::Parameter*> parameters, DType dtype)
      : parameters_(std::move(parameters)) {
    for (nn::Parameter* parameter : parameters_) {
      SHOAL_CHECK(!parameter->value.defined(), "{} is materialised: units are measured before",
                  parameter->name());
      parameter->value = Tensor::zeros(parameter->shape(), dtype, context.memory(),
                                       MemoryTag::parameters, context.stream);
    }
    nn::allocate_gradients(context, parameters_);
  }
  ~Held() {
    for (nn::Parameter* parameter : parameters_) {
      parameter->value = {};
      parameter->gradient = {};
      parameter->clear_gradient();
    }
  }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;

 private:
  std::vector<nn::Parameter*> parameters_;
};

// One unit's, or the group's of it.
struct Measured {
  double seconds = std::numeric_limits<double>::infinity();
  std::int64_t activation_bytes = 0;
};

void run_once(nn::Context& context, const CountingMemory& memory, nn::Chain& chain, int unit,
              const Microbatch& microbatch, const MeasureOptions& options, Measured& measured) {
  const bool is_head = unit == chain.units() - 1;
  ChainStage stage(context, chain, {unit, unit + 1}, options.stage);
  stage.begin({&microbatch, 1});
  const Stage::Message message = stage.input(0);
  const auto zeros = [&] {
    return Tensor::zeros(message.shape, message.dtype, context.memory(), MemoryTag::data,
                         context.stream);
  };
  const Tensor input = unit > 0 ? zeros() : Tensor();
  Tensor gradient = is_head ? Tensor() : zeros();
  DeviceBackend& device = device_backend(context.stream.device.type);
  device.synchronize(context.stream);

  const std::int64_t before = memory.usage(MemoryTag::activations).current;
  const auto began = Clock::now();
  stage.forward(0, input);
  // The input, which is not the unit's own, lives as long: every unit's backward needs it.
  measured.activation_bytes = memory.usage(MemoryTag::activations).current - before +
                              static_cast<std::int64_t>(input.defined() ? input.bytes() : 0);
  stage.backward(0, std::move(gradient), false);
  device.synchronize(context.stream);
  measured.seconds =
      std::min(measured.seconds, std::chrono::duration<double>(Clock::now() - began).count());
}

void append_kinds(nn::Module& module, std::string& text) {
  text += fmt::format("{}(", module.kind());
  for (const nn::Module::Child& child : module.children()) append_kinds(*child.module, text);
  text += ')';
}

// Equal for units alike.
std::string structure_of(const nn::Chain& chain, int unit) {
  // The ends have inputs and outputs of their own.
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
    bytes.push_back(one.activation_bytes);
  }
  const auto count = static_cast<std::int64_t>(all.size());
  group.all_reduce(seconds.data(), seconds.data(), count, DType::f64, ReduceOp::sum)->wait();
  group.all_reduce(bytes.data(), bytes.data(), count, DType::i64, ReduceOp::max)->wait();
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = {seconds[i] / group.size(), bytes[i]};
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
      if (unit > 0) cost.work += static_cast<double>(parameter->shape().count());
    }
    units.push_back(std::move(cost));
  }
  return units;
}

std::vector<UnitCost> measure_units(const nn::Context& context, nn::Chain& chain,
                                    const Microbatch& microbatch, collectives::Communicator& group,
                                    const MeasureOptions& options) {
  CountingMemory memory(context.memory());
  nn::Context own(context.kernels(), memory, context.dispatcher());
  own.stream = context.stream;
  own.random = context.random;

  std::map<std::string, std::size_t> known;  // structure: its place in `all`
  std::vector<Measured> all;
  std::vector<std::size_t> measured_as;  // by unit
  for (int unit = 0; unit < chain.units(); ++unit) {
    const auto [entry, is_new] = known.emplace(structure_of(chain, unit), all.size());
    measured_as.push_back(entry->second);
    if (!is_new) continue;
    const Held held(own, chain.unit_parameters(unit), options.dtype);
    Measured& measured = all.emplace_back();
    for (int i = 0; i < std::max(options.repetitions, 1); ++i)
      run_once(own, memory, chain, unit, microbatch, options, measured);
  }
  agree(all, group);
  std::vector<UnitCost> units = count_units(chain);
  for (std::size_t unit = 0; unit < units.size(); ++unit) {
    units[unit].seconds = all[measured_as[unit]].seconds;
    units[unit].activation_bytes = all[measured_as[unit]].activation_bytes;
  }
  return units;
}

}  // namespace shoal::parallel
