// Readiness hooks: a parameter's hook fires once, after its last use over all tapes, if it is
// armed.
#include <map>

#include "nn/rig.h"
#include <gmock/gmock.h>

#include "shoal/nn/autograd/tape.h"

namespace shoal::nn {
namespace {

class Hooks : public ::testing::Test {
 protected:
  Rig rig;
  Context& context = rig.context;
  std::shared_ptr<Parameter> weight = watched("w", {8, 8}, 1);
  std::map<std::string, int> fired;
  std::map<std::string, Tensor> at_fire;  // the gradient when the hook ran

  std::shared_ptr<Parameter> watched(const std::string& name, const Shape& shape,
                                     std::uint32_t fill) {
    auto parameter = rig.parameter(name, shape, fill);
    parameter->set_ready_hook([this](Parameter& ready) {
      ++fired[ready.name()];
      at_fire[ready.name()] = rig.copy(ready.gradient);
    });
    return parameter;
  }
  Value layer(const Value& x, Parameter& parameter) {
    return linear(context, x, parameter, nullptr, {false, kernels::Activation::gelu_erf});
  }
  Value layer(const Value& x) { return layer(x, *weight); }
  const Tensor input = rig.tensor({3, 8}, 5), seed = rig.tensor({3, 8}, 6);
};

TEST_F(Hooks, FireOnceAfterTheLastUseOfASharedLayer) {
  weight->arm();
  Tape tape;
  context.tape = &tape;
  std::vector<int> before;  // how often the hook had fired when the walk reached each lower layer
  Value x = tape.leaf(input);
  for (int i = 0; i < 3; ++i) x = layer(visited(context, x, [&] { before.push_back(fired["w"]); }));
  EXPECT_EQ(weight->uses(), 3);
  tape.backward(context, x, seed);
  EXPECT_EQ(before, (std::vector<int>{0, 0, 1}));
  EXPECT_EQ(fired["w"], 1);
  EXPECT_FALSE(weight->armed());
  EXPECT_TRUE(same_bits(at_fire["w"], weight->gradient));
}

TEST_F(Hooks, FireOnlyWhenArmed) {
  const auto microbatch = [&] {
    Tape tape;
    context.tape = &tape;
    tape.backward(context, layer(tape.leaf(input)), seed);
  };
  microbatch();
  EXPECT_EQ(fired["w"], 0);
  weight->arm();
  EXPECT_EQ(fired["w"], 0) << "arming does not count as a use";
  microbatch();
  EXPECT_EQ(fired["w"], 1);
  EXPECT_TRUE(same_bits(at_fire["w"], weight->gradient));
  microbatch();
  EXPECT_EQ(fired["w"], 1) << "it fired and disarmed";
  weight->arm();
  microbatch();
  EXPECT_EQ(fired["w"], 2);
}

TEST_F(Hooks, WaitForUsesOnEveryTape) {
  Tape first, second;
  context.tape = &first;
  const Value y1 = layer(first.leaf(input));
  context.tape = &second;
  const Value y2 = layer(second.leaf(input));
  weight->arm();
  second.backward(context, y2, seed);
  EXPECT_EQ(fired["w"], 0);
  first.backward(context, y1, seed);
  EXPECT_EQ(fired["w"], 1);
  EXPECT_TRUE(same_bits(at_fire["w"], weight->gradient));
}

TEST_F(Hooks, ATapeDroppedUnwalkedEndsItsUses) {
  Tape kept;
  context.tape = &kept;
  const Value y = layer(kept.leaf(input));
  {
    Tape dropped;
    context.tape = &dropped;
    layer(layer(dropped.leaf(input)));
    EXPECT_EQ(weight->uses(), 3);
  }
  EXPECT_EQ(weight->uses(), 1);
  weight->arm();
  kept.backward(context, y, seed);
  EXPECT_EQ(fired["w"], 1);

  // This tape is walked with deferred weight gradients, but they never run.
  {
    Tape dropped;
    context.tape = &dropped;
    const Value z = layer(dropped.leaf(input));
    dropped.backward(context, z, seed, {.deferred = true});
    EXPECT_EQ(weight->uses(), 1);
  }
  EXPECT_EQ(weight->uses(), 0);
}

TEST_F(Hooks, ATapeDroppedWhileArmedFires) {
  // The other tape has added its gradient. Only the dropped tape was outstanding.
  weight->arm();
  {
    Tape dropped;
    context.tape = &dropped;
    layer(dropped.leaf(input));
    Tape walked;
    context.tape = &walked;
    walked.backward(context, layer(walked.leaf(input)), seed);
    EXPECT_EQ(fired["w"], 0);
  }
  EXPECT_EQ(fired["w"], 1);
}

TEST_F(Hooks, WaitForDeferredWork) {
  weight->arm();
  Tape tape;
  context.tape = &tape;
  tape.backward(context, layer(layer(tape.leaf(input))), seed, {.deferred = true});
  EXPECT_EQ(fired["w"], 0);
  tape.run_deferred();
  EXPECT_EQ(fired["w"], 1);
  EXPECT_TRUE(same_bits(at_fire["w"], weight->gradient));
}

TEST_F(Hooks, FrozenParametersAreNotUsed) {
  weight->set_trainable(false);
  weight->arm();
  const auto other = watched("other", {8, 8}, 2);
  other->arm();
  Tape tape;
  context.tape = &tape;
  const Value x = tape.leaf(input);
  tape.backward(context, layer(layer(layer(x), *other)), seed);
  EXPECT_EQ(fired["w"], 0);
  EXPECT_FALSE(weight->has_gradient());
  EXPECT_EQ(fired["other"], 1);
  EXPECT_TRUE(tape.gradient(x).defined());
}

// The embedding's table is the head's weight.
TEST_F(Hooks, FireOnceForTiedWeights) {
  const auto table = watched("wte", {11, 8}, 3);
  table->arm();
  weight->arm();
  const Tensor ids = rig.ids({0, 10, 3, 3}, {2, 2}), targets = rig.ids({10, 3, 3, -100}, {2, 2});
  for (const bool deferred : {false, true}) {
    fired.clear();
    for (const auto& parameter : {table, weight}) {
      rig.spoil(*parameter);
      parameter->arm();
    }
    Tape tape;
    context.tape = &tape;
    const Value hidden = layer(embedding(context, ids, *table));
    const LossResult loss = linear_cross_entropy(context, hidden, *table, targets, {});
    EXPECT_EQ(table->uses(), 2);
    tape.backward(context, loss.loss, {}, {.deferred = deferred});
    EXPECT_EQ(fired["wte"], deferred ? 0 : 1);
    tape.run_deferred();
    EXPECT_EQ(fired["wte"], 1);
    EXPECT_EQ(fired["w"], 1);
    EXPECT_TRUE(same_bits(at_fire["wte"], table->gradient));
  }
}

TEST_F(Hooks, WaitForCheckpointedUses) {
  const auto inner = watched("inner", {8, 8}, 2);
  const auto block = [&](Context&, const Value& x) {
    return layer(layer(layer(x), *inner), *inner);
  };
  for (const bool deferred : {false, true}) {
    fired.clear();
    weight->clear_gradient();
    inner->clear_gradient();
    Tape tape;
    context.tape = &tape;
    std::vector<int> inner_fired, weight_fired;
    const auto note = [&] {
      inner_fired.push_back(fired["inner"]);
      weight_fired.push_back(fired["w"]);
    };
    Value x = visited(context, tape.leaf(input), note);
    x = checkpoint(context, block, x);
    x = visited(context, x, note);
    x = layer(x);  // the weight is used outside the checkpoint too
    EXPECT_EQ(weight->uses(), 2) << "a use is noted although nothing was recorded";
    EXPECT_EQ(inner->uses(), 2);
    inner->arm();
    weight->arm();
    tape.backward(context, x, seed, {.deferred = deferred});
    EXPECT_EQ(inner_fired, deferred ? (std::vector<int>{0, 0}) : (std::vector<int>{0, 1}));
    EXPECT_EQ(weight_fired, deferred ? (std::vector<int>{0, 0}) : (std::vector<int>{0, 1}));
    tape.run_deferred();
    for (const auto& parameter : {inner, weight}) {
      EXPECT_EQ(fired[parameter->name()], 1) << parameter->name();
      EXPECT_EQ(parameter->uses(), 0);
      EXPECT_TRUE(same_bits(at_fire[parameter->name()], parameter->gradient));
    }
  }
}

TEST_F(Hooks, ADroppedCheckpointEndsItsUses) {
  {
    Tape tape;
    context.tape = &tape;
    checkpoint(
        context, [&](Context&, const Value& x) { return layer(layer(x)); }, tape.leaf(input));
    EXPECT_EQ(weight->uses(), 2);
  }
  EXPECT_EQ(weight->uses(), 0);
}

TEST_F(Hooks, ThrowingHooksEndEachUseOnce) {
  const auto bias = rig.parameter("b", {8}, 2);
  const auto fail = [](Parameter&) { throw_error(ErrorCode::peer_lost, "rank 3 is gone"); };
  for (const auto& parameter : {weight, bias}) {
    parameter->set_ready_hook(fail);
    parameter->arm();
  }
  for (const bool deferred : {false, true}) {
    Tape tape;
    context.tape = &tape;
    const Value y = linear(context, tape.leaf(input), *weight, bias.get(), {});
    EXPECT_THAT(error_of([&] {
                  tape.backward(context, y, seed, {.deferred = deferred});
                  tape.run_deferred();
                }),
                ::testing::HasSubstr("rank 3 is gone"));
    weight->arm();
    bias->arm();
  }
  EXPECT_EQ(weight->uses(), 0);
  EXPECT_EQ(bias->uses(), 0);
  weight->arm();
  {
    Tape tape;
    context.tape = &tape;
    const Value y = layer(tape.leaf(input));
    EXPECT_THAT(error_of([&] { tape.backward(context, y, seed); }),
                ::testing::HasSubstr("rank 3 is gone"));
  }
  EXPECT_EQ(weight->uses(), 0);
  // A destructor swallows the hook's error.
  weight->arm();
  {
    Tape tape;
    context.tape = &tape;
    layer(tape.leaf(input));
  }
  EXPECT_EQ(weight->uses(), 0);
}

}  // namespace
}  // namespace shoal::nn
