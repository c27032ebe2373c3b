// Compares gradients of an operation with finite differences, and those of one kernel
// table with another's.
#pragma once

#include "nn/rig.h"

#include "shoal/nn/autograd/tape.h"

namespace shoal::nn {

// One operation with all its inputs, on one rig and in one dtype.
struct Prepared {
  std::vector<Tensor> inputs;  // inputs whose gradient is checked
  std::vector<std::shared_ptr<Parameter>> parameters;
  // Forward from Values of `inputs`.
  std::function<std::vector<Value>(Context&, const std::vector<Value>&)> forward;
  std::shared_ptr<void> keep;  // owns a module, masks, ids
};

struct OperationCase {
  std::string name;
  std::function<Prepared(Rig&, DType)> prepare;
  double difference_tolerance = 1e-3;  // from finite differences, relative to the gradient's norm
  double table_tolerance = 2e-5;       // CPU kernels in f32, from the reference
  double bf16_tolerance = 1.5e-2;      // bf16, from the same values in f32
};
inline void PrintTo(const OperationCase& test, std::ostream* out) { *out << test.name; }

struct Gradients {
  std::vector<Tensor> outputs, gradients;
  std::vector<std::string> names;  // of the gradients
};

// sum over outputs of <weights, output>, recorded so that one walk covers all outputs.
class WeightedSum final : public Function {
 public:
  explicit WeightedSum(std::vector<Tensor> weights) : weights_(std::move(weights)) {}
  std::string_view name() const override { return "weighted_sum"; }
  std::vector<Tensor> backward(BackwardContext&, std::span<Tensor>) override {
    return std::move(weights_);
  }

 private:
  std::vector<Tensor> weights_;
};

// The weight of each output. A loss has weight 1.
inline std::vector<Tensor> output_weights(Rig& rig, const std::vector<Value>& outputs) {
  std::vector<Tensor> weights;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const Tensor& y = outputs[i].tensor;
    weights.push_back(rig.tensor(y.shape(), 1000 + static_cast<std::uint32_t>(i), y.dtype()));
    if (y.count() == 1) weights.back().data<float>()[0] = 1;
  }
  return weights;
}

inline Gradients gradients_of(Rig& rig, Prepared& prepared) {
  Tape tape;
  rig.context.tape = &tape;
  rig.context.begin_forward();
  for (const auto& parameter : prepared.parameters) Rig::spoil(*parameter);
  std::vector<Value> inputs;
  for (const Tensor& input : prepared.inputs) inputs.push_back(tape.leaf(input));
  const std::vector<Value> outputs = prepared.forward(rig.context, inputs);
  Gradients result;
  for (const Value& output : outputs) result.outputs.push_back(rig.copy(output.tensor));
  const Value sum =
      tape.record(std::make_unique<WeightedSum>(output_weights(rig, outputs)), outputs, {},
                  {Tensor::zeros({1}, DType::f32, rig.memory, MemoryTag::data)})[0];
  tape.backward(rig.context, sum);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    result.gradients.push_back(tape.gradient(inputs[i]));
    result.names.push_back(fmt::format("input {}", i));
  }
  for (const auto& parameter : prepared.parameters) {
    if (!parameter->trainable()) continue;
    result.gradients.push_back(parameter->gradient);
    result.names.push_back(parameter->name());
  }
  rig.context.tape = nullptr;
  return result;
}

// The function that WeightedSum differentiates, in double, without a tape.
inline double objective(Rig& rig, Prepared& prepared) {
  rig.context.tape = nullptr;
  rig.context.begin_forward();
  std::vector<Value> inputs;
  for (const Tensor& input : prepared.inputs) inputs.push_back(Value{input});
  const std::vector<Value> outputs = prepared.forward(rig.context, inputs);
  const std::vector<Tensor> weights = output_weights(rig, outputs);
  double sum = 0;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const std::vector<float> y = floats(outputs[i].tensor), w = floats(weights[i]);
    for (std::size_t k = 0; k < y.size(); ++k) sum += static_cast<double>(w[k]) * y[k];
  }
  return sum;
}

// Central differences of fourth order with the step 1/32 (which is exact for the values of
// `filled`): truncation and f32 rounding are both near 1e-5 of the gradient.
inline Tensor difference(Rig& rig, Prepared& prepared, const Tensor& of) {
  constexpr float kStep = 1.0f / 32;
  Tensor result = Tensor::empty(of.shape(), DType::f32, rig.memory, MemoryTag::data);
  for (std::int64_t i = 0; i < of.count(); ++i) {
    const float value = of.const_data<float>()[i];
    const auto at = [&](float steps) {
      of.data<float>()[i] = value + steps * kStep;
      return objective(rig, prepared);
    };
    const double slope = (8 * (at(1) - at(-1)) - (at(2) - at(-2))) / (12.0 * kStep);
    of.data<float>()[i] = value;
    result.data<float>()[i] = static_cast<float>(slope);
  }
  return result;
}

}  // namespace shoal::nn
