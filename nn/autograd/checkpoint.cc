#include <algorithm>
#include <optional>
#include <utility>

#include "shoal/nn/autograd/context.h"
#include "shoal/nn/autograd/tape.h"
#include "shoal/runtime/base/error.h"

namespace shoal::nn {
namespace {

// Runs a scope with another tape and, after to(), another state. The destructor restores both.
class Switched {
 public:
  Switched(Context& context, Tape* tape, std::vector<Parameter*>* uses)
      : context_(context), tape_(context.tape), uses_(context.noted_uses) {
    context.tape = tape;
    context.noted_uses = uses;
  }
  void to(const ForwardState& state) {
    before_ = context_;
    static_cast<ForwardState&>(context_) = state;
  }
  ~Switched() {
    context_.tape = tape_;
    context_.noted_uses = uses_;
    if (before_) static_cast<ForwardState&>(context_) = std::move(*before_);
  }
  Switched(const Switched&) = delete;
  Switched& operator=(const Switched&) = delete;

 private:
  Context& context_;
  std::optional<ForwardState> before_;
  Tape* tape_;
  std::vector<Parameter*>* uses_;
};

class CheckpointFunction final : public Function {
 public:
  CheckpointFunction(CheckpointedFunction fn, Tape& tape, std::span<const Value> inputs,
                     ForwardState state, std::vector<Parameter*> parameters,
                     std::vector<Shape> shapes)
      : fn_(std::move(fn)),
        state_(std::move(state)),
        parameters_(std::move(parameters)),
        shapes_(std::move(shapes)) {
    for (const Value& input : inputs)
      inputs_.push_back({SavedTensor(tape, input.tensor), input.needs_gradient()});
  }

  std::string_view name() const override { return "checkpoint"; }

  std::vector<Tensor> backward(BackwardContext& backward_context,
                               std::span<Tensor> output_gradients) override {
    Context& context = backward_context.context();
    const auto inner = std::make_shared<Tape>();
    std::vector<Value> inputs;
    for (Input& input : inputs_) {
      Tensor saved = input.saved.get(name());
      input.saved.reset();
      inputs.push_back(input.needs_gradient ? inner->leaf(std::move(saved))
                                            : Value{std::move(saved)});
    }
    std::vector<Value> outputs = recomputed(context, *inner, inputs);
    for (Value& input : inputs) input.tensor = {};  // the inner tape keeps what backward needs
    std::vector<Tensor> gradients;
    std::size_t kept = 0;
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      if (!outputs[i].needs_gradient() || !output_gradients[i].defined()) continue;
      gradients.push_back(std::move(output_gradients[i]));
      outputs[i].tensor = {};
      std::swap(outputs[kept++], outputs[i]);
    }
    outputs.resize(kept);
    if (outputs.empty()) return std::vector<Tensor>(inputs.size());
    inner->backward(context, outputs, std::move(gradients), {backward_context.deferred()});
    if (inner->deferred() > 0)
      backward_context.weight_gradient(parameters_, [inner] { inner->run_deferred(); });
    std::vector<Tensor> result;
    for (const Value& input : inputs)
      result.push_back(input.needs_gradient() ? inner->take_gradient(input) : Tensor());
    return result;
  }

 private:
  std::vector<Value> recomputed(Context& context, Tape& tape, std::span<const Value> inputs) {
    Switched switched(context, &tape, nullptr);
    switched.to(state_);
    std::vector<Value> outputs = fn_(context, inputs);
    bool same = outputs.size() == shapes_.size();
    for (std::size_t i = 0; same && i < outputs.size(); ++i)
      same = outputs[i].tensor.shape() == shapes_[i];
    SHOAL_CHECK(same,
                "checkpoint: the recomputation gave {}, the first run {}; fn must depend on "
                "its input alone",
                to_string(outputs.front().tensor.shape()), to_string(shapes_.front()));
    return outputs;
  }

  struct Input {
    SavedTensor saved;
    bool needs_gradient;
  };
  CheckpointedFunction fn_;
  std::vector<Input> inputs_;
  ForwardState state_;
  std::vector<Parameter*> parameters_;
  std::vector<Shape> shapes_;
};

}  // namespace

std::vector<Value> checkpoint(Context& context, const CheckpointedFunction& fn,
                              std::span<const Value> inputs) {
  if (!context.tape) return fn(context, inputs);
  Tape& tape = *context.tape;
  ForwardState state = context;
  std::vector<Parameter*> parameters;
  std::vector<Value> outputs;
  {
    // Parameter uses inside fn are counted on the enclosing tape, so that no parameter becomes
    // ready before the recomputation has added its gradient.
    const Switched switched(context, nullptr, &parameters);
    std::vector<Value> constants;
    for (const Value& input : inputs) constants.push_back(Value{input.tensor});
    outputs = fn(context, constants);
  }
  const bool needs_gradient = std::ranges::any_of(inputs, &Value::needs_gradient);
  if (!needs_gradient && parameters.empty()) return outputs;
  std::vector<Shape> shapes;
  std::vector<Tensor> tensors;
  for (Value& output : outputs) {
    shapes.push_back(output.tensor.shape());
    tensors.push_back(std::move(output.tensor));
  }
  auto function = std::make_unique<CheckpointFunction>(fn, tape, inputs, std::move(state),
                                                       parameters, std::move(shapes));
  return tape.record(std::move(function), inputs, parameters, std::move(tensors));
}

Value checkpoint(Context& context, const std::function<Value(Context&, const Value&)>& fn,
                 const Value& x) {
  const auto whole = [fn](Context& inner, std::span<const Value> inputs) {
    return std::vector<Value>{fn(inner, inputs.front())};
  };
  return checkpoint(context, whole, {&x, 1}).front();
}

}  // namespace shoal::nn
