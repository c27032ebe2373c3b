#include "shoal/parallel/pipeline/measure_units.h"

#include <algorithm>
#include <limits>

#include "shoal/runtime/base/clock.h"
#include "shoal/runtime/base/error.h"

namespace shoal::parallel {
namespace {

// Values and gradients of one unit's parameters, for as long as it lives.
class Held {
 public:
  Held(nn::Context& context, std::vector<nn::Parameter*> parameters, DType dtype)
      : parameters_(std::move(parameters)) {
    for (const nn::Parameter* parameter : parameters_)
      SHOAL_CHECK(!parameter->value.defined(), "{} is materialised: units are measured before",
                  parameter->name());
    nn::materialize(context, parameters_, dtype);
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

struct Measured {
  double seconds = std::numeric_limits<double>::infinity();
  std::int64_t activation_bytes = 0;
};

void run_once(nn::Context& context, const CountingMemory& memory, nn::Chain& chain, int unit,
              const nn::ChainInput& input, const Tensor& hidden, const MeasureOptions& options,
              Measured& measured) {
  const auto began = Clock::now();
  const std::int64_t before = memory.usage(MemoryTag::activations).current;
  nn::Tape tape;
  context.tape = &tape;
  context.begin_forward();
  nn::ResidualStream stream;
  if (unit > 0) stream.residual = tape.leaf(hidden);
  nn::Value end;
  Tensor gradient;
  if (unit == chain.units() - 1) {
    end = chain.forward_head(context, std::move(stream), input).loss;
  } else {
    end = nn::forward_units(context, chain, unit, unit + 1, std::move(stream), input,
                            options.checkpoint_group)
              .collapse(context);
    gradient = context.empty(end.tensor.shape(), end.tensor.dtype());
    context.kernels().elementwise().fill(gradient.view(), 1, context.stream);
    end.tensor = {};
  }
  context.tape = nullptr;
  measured.activation_bytes =
      memory.usage(MemoryTag::activations).current - before -
      (gradient.defined() ? static_cast<std::int64_t>(gradient.bytes()) : 0);
  if (end.needs_gradient()) tape.backward(context, end, std::move(gradient));
  measured.seconds =
      std::min(measured.seconds, std::chrono::duration<double>(Clock::now() - began).count());
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
      if (unit > 0) cost.seconds += static_cast<double>(parameter->shape().count()) * 1e-9;
    }
    units.push_back(std::move(cost));
  }
  return units;
}

std::vector<UnitCost> measure_units(nn::Context& context, CountingMemory& memory, nn::Chain& chain,
                                    const nn::ChainInput& input, collectives::Communicator& group,
                                    const MeasureOptions& options) {
  std::vector<UnitCost> units = count_units(chain);
  if (group.rank() == 0) {
    const Shape& ids = input.ids.shape();
    const Tensor hidden =
        Tensor::zeros({ids[0], ids[1], chain.channels()}, options.dtype, memory, MemoryTag::data);
    for (int unit = 0; unit < chain.units(); ++unit) {
      const Held held(context, chain.unit_parameters(unit), options.dtype);
      Measured measured;
      for (int i = 0; i < std::max(options.repetitions, 1); ++i)
        run_once(context, memory, chain, unit, input, hidden, options, measured);
      UnitCost& cost = units[static_cast<std::size_t>(unit)];
      // The input, which is not the unit's own, lives as long: every unit's backward needs it.
      cost.activation_bytes =
          measured.activation_bytes + (unit > 0 ? static_cast<std::int64_t>(hidden.bytes()) : 0);
      cost.seconds = measured.seconds;
    }
  }
  std::vector<double> told;
  for (const UnitCost& cost : units) {
    told.push_back(cost.seconds);
    told.push_back(static_cast<double>(cost.activation_bytes));
  }
  if (group.size() > 1)
    group.broadcast(told.data(), static_cast<std::int64_t>(told.size()), DType::f64, 0)->wait();
  for (std::size_t unit = 0; unit < units.size(); ++unit) {
    units[unit].seconds = told[2 * unit];
    units[unit].activation_bytes = static_cast<std::int64_t>(told[2 * unit + 1]);
  }
  return units;
}

}  // namespace shoal::parallel
