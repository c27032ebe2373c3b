// The tape: order, sums, errors, and the lifetimes of tensors.
#include "nn/rig.h"
#include <gmock/gmock.h>

#include "shoal/nn/autograd/tape.h"

namespace shoal::nn {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

constexpr LinearOptions kPlain{};
constexpr LinearOptions kGelu{false, kernels::Activation::gelu_tanh};

class Autograd : public ::testing::Test {
 protected:
  Rig rig;
  Context& context = rig.context;
  std::shared_ptr<Parameter> weight = rig.parameter("w", {8, 8}, 1),
                             bias = rig.parameter("b", {8}, 2);

  Value layer(const Value& x, const LinearOptions& options = kGelu) {
    return linear(context, x, *weight, bias.get(), options);
  }
};

TEST_F(Autograd, SumsTheGradientsOfEachConsumer) {
  Tape tape;
  context.tape = &tape;
  const Value a = tape.leaf(rig.tensor({3, 4}, 5)), b = tape.leaf(rig.tensor({3, 4}, 6));
  const Value s = add(context, a, b);  // both inputs get this gradient, which they share
  const Value t = add(context, s, a);
  const Value u = add(context, t, s);  // u = 3a + 2b
  const Tensor seed = rig.tensor({3, 4}, 7);
  const Tensor before = rig.copy(seed);
  tape.backward(context, u, seed);
  EXPECT_TRUE(same_bits(seed, before)) << "the caller's gradient was overwritten";
  const std::vector<float> da = floats(tape.gradient(a)), db = floats(tape.gradient(b)),
                           g = floats(seed);
  for (std::size_t i = 0; i < g.size(); ++i) {
    EXPECT_EQ(da[i], 3 * g[i]);
    EXPECT_EQ(db[i], 2 * g[i]);
  }
}

TEST_F(Autograd, WalksSeveralTapesInAnyOrder) {
  const Tensor inputs[] = {rig.tensor({3, 8}, 10), rig.tensor({3, 8}, 11), rig.tensor({3, 8}, 12)};
  const Tensor seed = rig.tensor({3, 8}, 13);
  const auto run = [&](const std::vector<int>& order) {
    rig.spoil(*weight);
    rig.spoil(*bias);
    std::vector<Tape> tapes(3);
    std::vector<Value> x(3), y(3);
    for (std::size_t i = 0; i < 3; ++i) {  // all forwards first, as a pipeline's warmup
      context.tape = &tapes[i];
      x[i] = tapes[i].leaf(inputs[i]);
      y[i] = layer(layer(x[i]), kPlain);
    }
    std::vector<Tensor> gradients(3);
    for (const int i : order) {
      const auto k = static_cast<std::size_t>(i);
      tapes[k].backward(context, y[k], seed);
      gradients[k] = tapes[k].gradient(x[k]);
    }
    gradients.push_back(rig.copy(weight->gradient));
    gradients.push_back(rig.copy(bias->gradient));
    return gradients;
  };
  const auto forward = run({0, 1, 2}), other = run({1, 2, 0}), again = run({1, 2, 0});
  for (std::size_t i = 0; i < 3; ++i) EXPECT_TRUE(same_bits(forward[i], other[i])) << i;
  EXPECT_TRUE(testing::close_in_norm("weight", other[3], forward[3], 1e-6));
  EXPECT_TRUE(testing::close_in_norm("bias", other[4], forward[4], 1e-6));
  for (std::size_t i = 0; i < 5; ++i) EXPECT_TRUE(same_bits(again[i], other[i])) << i;
}

TEST_F(Autograd, IsWalkedOnce) {
  Tape tape;
  context.tape = &tape;
  const Value y = layer(tape.leaf(rig.tensor({2, 8}, 5)));
  const Tensor seed = rig.tensor({2, 8}, 6);
  tape.backward(context, y, seed);
  EXPECT_THAT(error_of([&] { tape.backward(context, y, seed); }), HasSubstr("walked twice"));
  EXPECT_THAT(error_of([&] { layer(y); }), HasSubstr("linear is recorded on a tape that has been"));
  EXPECT_THAT(error_of([&] { tape.leaf(rig.tensor({1}, 1)); }), HasSubstr("use a new tape"));
  EXPECT_EQ(weight->uses(), 0);
}

TEST_F(Autograd, RefusesWhatDoesNotFit) {
  Tape tape, other;
  context.tape = &tape;
  const Value x = tape.leaf(rig.tensor({2, 8}, 5));
  const Value y = layer(x);
  EXPECT_THAT(error_of([&] { tape.backward(context, y); }), HasSubstr("more than one element"));
  EXPECT_THAT(error_of([&] { tape.backward(context, y, rig.tensor({2, 7}, 1)); }),
              HasSubstr("a gradient [2, 7] for an output [2, 8]"));
  EXPECT_THAT(error_of([&] { other.backward(context, y, rig.tensor({2, 8}, 1)); }),
              HasSubstr("not on this tape"));
  EXPECT_THAT(error_of([&] { tape.backward(context, Value{x.tensor}, x.tensor); }),
              HasSubstr("not on this tape"));
  EXPECT_THAT(error_of([&] { (void)tape.gradient(y); }), HasSubstr("only leaves"));
  context.tape = &other;
  EXPECT_THAT(error_of([&] { layer(x); }), HasSubstr("another tape"));
  context.tape = &tape;
  // None of these calls consumed the tape.
  tape.backward(context, y, rig.tensor({2, 8}, 1));
  EXPECT_TRUE(tape.gradient(x).defined());
}

TEST_F(Autograd, DropsWhatTheWalkDoesNotReach) {
  Tape tape;
  context.tape = &tape;
  const Value x = tape.leaf(rig.tensor({2, 8}, 5));
  const Value y = layer(x, kPlain);
  const auto unreached = rig.parameter("unreached", {8, 8}, 3);
  linear(context, x, *unreached, nullptr, kPlain);  // before the output, and
  const Value z = layer(y, kPlain);
  const Value late = tape.leaf(rig.tensor({2, 8}, 6));
  linear(context, late, *unreached, nullptr, kPlain);  // after it
  EXPECT_EQ(unreached->uses(), 2);
  tape.backward(context, z, rig.tensor({2, 8}, 1));
  EXPECT_EQ(unreached->uses(), 0);
  EXPECT_FALSE(unreached->has_gradient());
  EXPECT_THAT(floats(unreached->gradient), Each(77.0f));
  EXPECT_TRUE(tape.gradient(x).defined());
  EXPECT_FALSE(tape.gradient(late).defined());
}

TEST_F(Autograd, ALeafMayBeTheOutput) {
  Tape tape;
  context.tape = &tape;
  const Value x = tape.leaf(rig.tensor({1}, 5));
  tape.backward(context, x);
  EXPECT_EQ(floats(tape.gradient(x)), std::vector<float>{1.0f});
}

// The walk starts from several outputs, of which one may be a leaf or another's input, and one may
// have no gradient.
TEST_F(Autograd, WalksFromSeveralOutputs) {
  Tape tape;
  context.tape = &tape;
  const Value a = tape.leaf(rig.tensor({3, 4}, 5)), b = tape.leaf(rig.tensor({3, 4}, 6));
  const Value s = add(context, a, b), t = add(context, s, a), u = add(context, t, t);
  const std::vector<Value> outputs = {t, a, s, u};
  const Tensor seed = rig.tensor({3, 4}, 7);
  tape.backward(context, outputs, {seed, seed, seed, Tensor()}, {});
  const std::vector<float> da = floats(tape.gradient(a)), db = floats(tape.gradient(b)),
                           g = floats(seed);
  for (std::size_t i = 0; i < g.size(); ++i) {
    EXPECT_EQ(da[i], 4 * g[i]);  // t = 2a + b, a, s = a + b
    EXPECT_EQ(db[i], 2 * g[i]);
  }
}

TEST_F(Autograd, AccumulatesOverMicrobatchesAndOverwritesTheFirst) {
  const Tensor x = rig.tensor({3, 8}, 10), seed = rig.tensor({3, 8}, 13);
  const auto microbatch = [&] {
    Tape tape;
    context.tape = &tape;
    const Value y = layer(Value{x}, kPlain);
    tape.backward(context, y, seed);
  };
  EXPECT_FALSE(weight->has_gradient());
  microbatch();
  EXPECT_TRUE(weight->has_gradient());
  const std::vector<float> once = floats(weight->gradient), bias_once = floats(bias->gradient);
  microbatch();
  const std::vector<float> twice = floats(weight->gradient), bias_twice = floats(bias->gradient);
  for (std::size_t i = 0; i < once.size(); ++i) EXPECT_FLOAT_EQ(twice[i], 2 * once[i]);
  for (std::size_t i = 0; i < bias_once.size(); ++i)
    EXPECT_FLOAT_EQ(bias_twice[i], 2 * bias_once[i]);
  weight->clear_gradient();
  bias->clear_gradient();
  microbatch();
  EXPECT_EQ(floats(weight->gradient), once);
  EXPECT_EQ(floats(bias->gradient), bias_once);
}

TEST_F(Autograd, AGradientNeedsItsMemory) {
  Parameter parameter("h.0.w", {2, 3}, {});
  EXPECT_THAT(error_of([&] { parameter.accumulate(); }),
              AllOf(HasSubstr("h.0.w"), HasSubstr("no gradient memory")));
  EXPECT_FALSE(parameter.has_gradient());
  parameter.gradient = rig.tensor({3, 2}, 1);
  EXPECT_THAT(error_of([&] { parameter.accumulate(); }),
              HasSubstr("is f32 [3, 2], not f32 [2, 3]"));
  parameter.gradient = rig.tensor({2, 3}, 1, DType::bf16);
  EXPECT_THAT(error_of([&] { parameter.accumulate(); }), HasSubstr("is bf16"));
  parameter.gradient = rig.tensor({2, 3}, 1);
  EXPECT_FALSE(parameter.accumulate());
  EXPECT_TRUE(parameter.accumulate());
}

TEST_F(Autograd, DeferredWeightGradientsWaitAndAreTheSameBits) {
  const auto gamma = rig.parameter("gamma", {8}, 3), beta = rig.parameter("beta", {8}, 4);
  const auto table = rig.parameter("table", {5, 8}, 5), places = rig.parameter("places", {4, 8}, 6);
  const std::vector<std::shared_ptr<Parameter>> all{weight, bias, gamma, beta, table, places};
  const Tensor ids = rig.ids({4, 0, 4, 1, 2, 4}, {2, 3}), seed = rig.tensor({2, 3, 8}, 7);
  const auto forward = [&](Tape& tape, Value& leaf) {
    context.tape = &tape;
    leaf = tape.leaf(rig.tensor({2, 3, 8}, 8));
    Value x = add_positions(context, embedding(context, ids, *table), *places, 1);
    x = add(context, x, leaf);
    return layer(layer_norm(context, layer(x), *gamma, *beta, 1e-5f));
  };
  std::vector<Tensor> plain;
  Tensor plain_input;
  {
    Tape tape;
    Value leaf;
    tape.backward(context, forward(tape, leaf), seed);
    plain_input = tape.gradient(leaf);
    for (const auto& parameter : all) plain.push_back(rig.copy(parameter->gradient));
  }
  for (const auto& parameter : all) rig.spoil(*parameter);
  const std::int64_t empty = rig.activations();
  int ready = 0;
  for (const auto& parameter : all) {
    parameter->set_ready_hook([&](Parameter&) { ++ready; });
    parameter->arm();
  }
  Tape tape;
  Value leaf;
  tape.backward(context, forward(tape, leaf), seed, {.deferred = true});
  EXPECT_TRUE(same_bits(tape.gradient(leaf), plain_input));
  EXPECT_EQ(tape.deferred(), 4u);
  EXPECT_EQ(ready, 2) << "a norm's work would hold more than it costs: it does not wait";
  for (const auto& parameter : {weight, bias, table, places}) {
    EXPECT_FALSE(parameter->has_gradient()) << parameter->name();
    EXPECT_THAT(floats(parameter->gradient), Each(77.0f)) << parameter->name();
    EXPECT_GT(parameter->uses(), 0) << parameter->name();
  }
  // The weight gradients' inputs are alive: x and dy of both linears. So is the leaf's gradient,
  // but no norm's tensors.
  EXPECT_GE(rig.activations() - empty, 4 * 6 * 8 * 4);
  EXPECT_LE(rig.activations() - empty, 6 * 6 * 8 * 4);
  tape.run_deferred();
  EXPECT_EQ(ready, 6);
  EXPECT_EQ(tape.deferred(), 0u);
  for (std::size_t i = 0; i < all.size(); ++i) {
    EXPECT_TRUE(same_bits(all[i]->gradient, plain[i])) << all[i]->name();
    EXPECT_EQ(all[i]->uses(), 0);
  }
  // Only the leaf's gradient remains: the tape has released what the deferred work needed.
  EXPECT_LE(rig.activations() - empty, 6 * 8 * 4);
  const std::int64_t with_it = rig.activations();
  EXPECT_TRUE(tape.take_gradient(leaf).defined());
  EXPECT_EQ(with_it - rig.activations(), 6 * 8 * 4);
  tape.run_deferred();  // nothing is left to run
  EXPECT_TRUE(same_bits(weight->gradient, plain[0]));
}

TEST_F(Autograd, DeferredWorkOfOneTapeRunsWhileAnotherIsRecorded) {
  const Tensor x = rig.tensor({2, 8}, 5), seed = rig.tensor({2, 8}, 6);
  Tape first, second;
  context.tape = &first;
  first.backward(context, layer(first.leaf(x)), seed, {.deferred = true});
  EXPECT_EQ(context.tape, &first) << "backward must leave the context as it was";
  context.tape = &second;
  const Value leaf = second.leaf(x);
  const Value y = layer(leaf);
  const std::size_t recorded = second.size();
  first.run_deferred();
  EXPECT_EQ(second.size(), recorded);
  const Tensor once = rig.copy(weight->gradient);
  second.backward(context, y, seed, {.deferred = true});
  EXPECT_TRUE(same_bits(weight->gradient, once));
  second.run_deferred();
  for (std::int64_t i = 0; i < once.count(); ++i)
    EXPECT_FLOAT_EQ(weight->gradient.const_data<float>()[i], 2 * once.const_data<float>()[i]);
}

TEST_F(Autograd, ATensorWrittenAfterItWasSavedIsNoticed) {
  SHOAL_CPU_ONLY("what is saved of ids in host memory is their copy on the device");
  const auto gamma = rig.parameter("gamma", {8}, 3), beta = rig.parameter("beta", {8}, 4);
  const auto table = rig.parameter("table", {5, 8}, 5);
  const Tensor seed = rig.tensor({2, 3, 8}, 7);
  const auto attempt = [&](const Tensor& touched, const std::function<Value(const Value&)>& fn,
                           const Tensor& input, const Tensor& gradient) {
    Tape tape;
    context.tape = &tape;
    const Value y = fn(tape.leaf(input));
    (void)touched.view();  // a request for write access counts
    return error_of([&] { tape.backward(context, y, gradient); });
  };
  const Tensor x = rig.tensor({2, 3, 8}, 8);
  const std::string line = attempt(x, [&](const Value& v) { return layer(v, kPlain); }, x, seed);
  EXPECT_THAT(line, HasSubstr("linear: a tensor [2, 3, 8] saved for backward was written to"));
  EXPECT_THAT(line, HasSubstr("do not write in place"));
  EXPECT_THAT(
      attempt(
          x, [&](const Value& v) { return layer_norm(context, v, *gamma, *beta, 1e-5f); }, x, seed),
      HasSubstr("layer_norm: a tensor"));
  const Tensor qkv = rig.tensor({2, 3, 24}, 9);
  EXPECT_THAT(
      attempt(
          qkv, [&](const Value& v) { return attention(context, v, {.heads = 2}); }, qkv, seed),
      HasSubstr("attention: a tensor"));
  const Tensor ids = rig.ids({0, 1, 2, 3, 4, 0}, {2, 3});
  EXPECT_THAT(
      attempt(
          ids, [&](const Value& v) { return add(context, v, embedding(context, ids, *table)); }, x,
          seed),
      HasSubstr("embedding: a tensor"));
  EXPECT_THAT(attempt(
                  x,
                  [&](const Value& v) {
                    return checkpoint(
                        context, [&](Context&, const Value& in) { return layer(in); }, v);
                  },
                  x, seed),
              HasSubstr("checkpoint: a tensor"));
}

TEST_F(Autograd, SavedTensorHooksChangeOnlyWhereTensorsAreStored) {
  const auto gamma = rig.parameter("gamma", {8}, 3), beta = rig.parameter("beta", {8}, 4);
  const auto projection = rig.parameter("qkv", {8, 24}, 9);
  const std::vector<std::shared_ptr<Parameter>> all{weight, bias, gamma, beta, projection};
  const Tensor input = rig.tensor({2, 3, 8}, 8), seed = rig.tensor({2, 3, 8}, 7);
  int packed = 0, unpacked = 0;
  std::int64_t on_tape = 0;
  const auto run = [&](const SavedTensorHooks* hooks) {
    for (const auto& parameter : all) rig.spoil(*parameter);
    Tape tape;
    if (hooks) tape.set_saved_tensor_hooks(*hooks);
    context.tape = &tape;
    const Value x = tape.leaf(input);
    const std::int64_t before = rig.activations();
    Value y;
    {
      const Value h = layer_norm(context, layer(x), *gamma, *beta, 1e-5f);
      const Value qkv = linear(context, h, *projection, nullptr, kPlain);
      y = layer(attention(context, qkv, {.heads = 2}));
    }
    on_tape = rig.activations() - before;
    tape.backward(context, y, seed);
    std::vector<Tensor> out{tape.gradient(x)};
    for (const auto& parameter : all) out.push_back(rig.copy(parameter->gradient));
    return out;
  };
  const std::vector<Tensor> plain = run(nullptr);
  const std::int64_t kept = on_tape;
  // Offloading: a copy with another tag, restored on demand.
  const SavedTensorHooks offload{[&](const Tensor& tensor) -> std::function<Tensor()> {
    ++packed;
    return [this, &unpacked, away = rig.copy(tensor)] {
      ++unpacked;
      return rig.copy(away);
    };
  }};
  const std::vector<Tensor> offloaded = run(&offload);
  EXPECT_GT(packed, 8);
  EXPECT_EQ(packed, unpacked);
  // Only the output is still an activation.
  EXPECT_LT(on_tape, kept / 4);
  // Identity: the hook holds the tensor itself. Selective: the hook leaves all other tensors alone.
  const SavedTensorHooks identity{
      [](const Tensor& tensor) -> std::function<Tensor()> { return [tensor] { return tensor; }; }};
  int turn = 0;
  const SavedTensorHooks selective{[&](const Tensor& tensor) -> std::function<Tensor()> {
    if (++turn % 2 == 0) return {};
    return [this, away = rig.copy(tensor)] { return rig.copy(away); };
  }};
  const std::vector<Tensor> same = run(&identity), mixed = run(&selective);
  for (std::size_t i = 0; i < plain.size(); ++i) {
    EXPECT_TRUE(same_bits(offloaded[i], plain[i])) << i;
    EXPECT_TRUE(same_bits(same[i], plain[i])) << i;
    EXPECT_TRUE(same_bits(mixed[i], plain[i])) << i;
  }
}

TEST_F(Autograd, WithoutATapeNothingIsRecordedOrKept) {
  const auto gamma = rig.parameter("gamma", {8}, 3), beta = rig.parameter("beta", {8}, 4);
  const auto projection = rig.parameter("qkv", {8, 24}, 9);
  const Tensor x = rig.tensor({2, 3, 8}, 8);
  const auto forward = [&](const Value& in) {
    const Value h = layer_norm(context, layer(in), *gamma, *beta, 1e-5f);
    const Value qkv = linear(context, h, *projection, nullptr, kPlain);
    return layer(attention(context, qkv, {.heads = 2}));
  };
  const Value y = forward(Value{x});
  EXPECT_FALSE(y.needs_gradient());
  EXPECT_EQ(rig.activations(), 2 * 3 * 8 * 4);  // y
  for (const auto& parameter : {weight, bias, gamma, beta, projection})
    EXPECT_EQ(parameter->uses(), 0);
  // The same with a tape, but nothing requires a gradient.
  for (const auto& parameter : {weight, bias, gamma, beta, projection})
    parameter->set_trainable(false);
  Tape tape;
  context.tape = &tape;
  const Value z = forward(Value{x});
  EXPECT_FALSE(z.needs_gradient());
  EXPECT_EQ(tape.size(), 0u);
  EXPECT_EQ(rig.activations(), 2 * 2 * 3 * 8 * 4);
  EXPECT_TRUE(same_bits(y.tensor, z.tensor));
}

TEST_F(Autograd, AFrozenLinearKeepsNoInput) {
  weight->set_trainable(false);
  Tape tape;
  context.tape = &tape;
  Value x = tape.leaf(context.empty({64, 8}, DType::f32));
  std::fill_n(x.tensor.data<float>(), 64 * 8, 0.5f);
  x.tensor = linear(context, x, *weight, nullptr, kPlain).tensor;
  EXPECT_EQ(rig.activations(), 64 * 8 * 4) << "only the output";
}

TEST_F(Autograd, BackwardFreesTensorsAsItGoes) {
  constexpr int kLayers = 6;
  constexpr std::int64_t kActivation = 64 * 8 * 4;
  std::vector<std::int64_t> seen;
  Tape tape;
  context.tape = &tape;
  Value x = tape.leaf(rig.tensor({64, 8}, 5));
  for (int i = 0; i < kLayers; ++i)
    x = visited(context, layer(x), [&] { seen.push_back(rig.activations()); });
  const Value y = std::exchange(x, {});
  // Each layer keeps its output and the value before its activation.
  EXPECT_EQ(rig.activations(), kLayers * 2 * kActivation);
  rig.memory.reset_peaks();
  tape.backward(context, y, rig.tensor({64, 8}, 6));
  ASSERT_EQ(seen.size(), static_cast<std::size_t>(kLayers));
  // Each layer frees two activations, and the first one allocates the gradient.
  for (std::size_t i = 1; i < seen.size(); ++i)
    EXPECT_LE(seen[i], seen[i - 1] - kActivation) << "layer " << i << " from the end";
  EXPECT_LE(seen.back(), 4 * kActivation);
  // The peak is at the start of the walk: at most two gradients above what forward kept.
  EXPECT_LE(rig.peak_activations(), (kLayers * 2 + 2) * kActivation);
}

// x + layer(x), repeated: each sum of two gradients reuses the memory of one of them.
TEST_F(Autograd, AResidualStackWalksBackInTheMemoryOfItsForward) {
  constexpr int kLayers = 5;
  constexpr std::int64_t kActivation = 64 * 8 * 4;
  Tape tape;
  context.tape = &tape;
  Value x = tape.leaf(rig.tensor({64, 8}, 5));
  for (int i = 0; i < kLayers; ++i) x = add(context, x, layer(x, kPlain));
  const Value y = std::exchange(x, {});
  // Each layer keeps its input, except the first, whose input is the test's. The stack's
  // output is kept too.
  EXPECT_EQ(rig.activations(), kLayers * kActivation);
  rig.memory.reset_peaks();
  tape.backward(context, y, rig.tensor({64, 8}, 6));
  // A layer's gradient reuses the memory of the input that it freed.
  EXPECT_EQ(rig.peak_activations(), kLayers * kActivation);
}

class Misbehaving final : public Function {
 public:
  enum class Kind { count, stranger, throws };
  Misbehaving(Kind kind, Parameter& parameter) : kind_(kind), parameter_(parameter) {}
  std::string_view name() const override { return "misbehaving"; }
  std::vector<Tensor> backward(BackwardContext& context, std::span<Tensor>) override {
    Parameter* const parameters[] = {&parameter_};
    if (kind_ == Kind::stranger) context.weight_gradient(parameters, [] {});
    if (kind_ == Kind::throws)
      context.weight_gradient(parameters, [] { throw_error(ErrorCode::internal, "on purpose"); });
    return std::vector<Tensor>(3);
  }

 private:
  Kind kind_;
  Parameter& parameter_;
};

TEST_F(Autograd, NamesAFunctionThatMisbehaves) {
  const auto run = [&](Misbehaving::Kind kind, bool recorded) {
    Tape tape;
    context.tape = &tape;
    const Value x = tape.leaf(rig.tensor({1}, 5));
    Parameter* const parameters[] = {recorded ? weight.get() : nullptr};
    const Value y = tape.record(std::make_unique<Misbehaving>(kind, *weight), {&x, 1}, parameters,
                                {rig.tensor({1}, 6)})[0];
    std::string line = error_of([&] { tape.backward(context, y); });
    EXPECT_EQ(context.tape, &tape) << "an error must leave the context as it was";
    return line;
  };
  EXPECT_THAT(run(Misbehaving::Kind::count, true),
              HasSubstr("misbehaving returned 3 gradients for 1 inputs"));
  EXPECT_THAT(run(Misbehaving::Kind::stranger, false),
              HasSubstr("misbehaving computes the gradient of w, which it did not record"));
  EXPECT_THAT(run(Misbehaving::Kind::throws, true), HasSubstr("on purpose"));
  EXPECT_EQ(weight->uses(), 0);
}

}  // namespace
}  // namespace shoal::nn
