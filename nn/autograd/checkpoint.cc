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
  CheckpointFunction(std::function<Value(Context&, const Value&)> fn, SavedTensor x,
                     bool x_needs_gradient, ForwardState state, std::vector<Parameter*> parameters,
                     Shape shape)
      : fn_(std::move(fn)),
        x_(std::move(x)),
        x_needs_gradient_(x_needs_gradient),
        state_(std::move(state)),
        parameters_(std::move(parameters)),
        shape_(shape) {}

  std::string_view name() const override { return "checkpoint"; }

  std::vector<Tensor> backward(BackwardContext& backward_context,
                               std::span<Tensor> output_gradients) override {
    Context& context = backward_context.context();
    const auto inner = std::make_shared<Tape>();
    Tensor saved = x_.get(name());
    x_.reset();
    Value x = x_needs_gradient_ ? inner->leaf(saved) : Value{saved};
    saved = {};
    Value y;
    {
      Switched switched(context, inner.get(), nullptr);
      switched.to(state_);
      y = fn_(context, x);
    }
    SHOAL_CHECK(y.tensor.shape() == shape_,
                "checkpoint: the recomputation gave {}, the first run {}; fn must depend on its "
                "input alone",
                to_string(y.tensor.shape()), to_string(shape_));
    if (!y.needs_gradient()) return {Tensor()};
    x.tensor = {};  // the inner tape keeps what backward needs
    y.tensor = {};
    inner->backward(context, y, std::move(output_gradients[0]), {backward_context.deferred()});
    if (inner->deferred() > 0)
      backward_context.weight_gradient(parameters_, [inner] { inner->run_deferred(); });
    return {x_needs_gradient_ ? inner->take_gradient(x) : Tensor()};
  }

 private:
  std::function<Value(Context&, const Value&)> fn_;
  SavedTensor x_;
  bool x_needs_gradient_;
  ForwardState state_;
  std::vector<Parameter*> parameters_;
  Shape shape_;
};

}  // namespace

Value checkpoint(Context& context, const std::function<Value(Context&, const Value&)>& fn,
                 const Value& x) {
  if (!context.tape) return fn(context, x);
  Tape& tape = *context.tape;
  ForwardState state = context;
  std::vector<Parameter*> parameters;
  Tensor y;
  {
    // Parameter uses inside fn are counted on the enclosing tape, so that no parameter becomes
    // ready before the recomputation has added its gradient.
    const Switched switched(context, nullptr, &parameters);
    y = fn(context, Value{x.tensor}).tensor;
  }
  if (!x.needs_gradient() && parameters.empty()) return Value{y};
  const Shape shape = y.shape();
  auto function = std::make_unique<CheckpointFunction>(
      fn, SavedTensor(tape, x.tensor), x.needs_gradient(), std::move(state), parameters, shape);
  return tape.record(std::move(function), {&x, 1}, parameters, {std::move(y)})[0];
}

}  // namespace shoal::nn
