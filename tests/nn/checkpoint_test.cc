// Activation checkpointing gives the same bits with less memory.
#include "nn/rig.h"
#include <gmock/gmock.h>

#include "shoal/nn/autograd/tape.h"

namespace shoal::nn {
namespace {

using ::testing::HasSubstr;

constexpr std::int64_t kBatch = 2, kLength = 9, kChannels = 16;

// A transformer block of GPT-2 with dropout in every place.
class Block final : public Module {
 public:
  explicit Block(float dropout)
      : ln_1(*this, "ln_1", std::make_unique<LayerNorm>(kChannels, 1e-5f)),
        attn(*this, "attn",
             std::make_unique<CausalSelfAttention>(
                 CausalSelfAttentionConfig{.channels = kChannels,
                                           .heads = 4,
                                           .max_positions = 32,
                                           .attention_dropout = dropout,
                                           .std = 0.2f,
                                           .projection_std = 0.2f})),
        drop(*this, "drop", std::make_unique<Dropout>(dropout)),
        ln_2(*this, "ln_2", std::make_unique<LayerNorm>(kChannels, 1e-5f)),
        mlp(*this, "mlp",
            std::make_unique<Mlp>(MlpConfig{.channels = kChannels,
                                            .inner = 4 * kChannels,
                                            .std = 0.2f,
                                            .projection_std = 0.2f})) {}
  std::string_view kind() const override { return "Block"; }
  Value forward(Context& context, const Value& x) {
    const Value branch = attn->forward(context, ln_1->forward(context, x), {});
    const ResidualNorm middle = ln_2->forward(context, x, branch, drop->site());
    return dropout_add(context, mlp->forward(context, middle.normed), middle.sum, drop->site());
  }
  Slot<NormLike> ln_1;
  Slot<AttentionLike> attn;
  Slot<Dropout> drop;
  Slot<NormLike> ln_2;
  Slot<Mlp> mlp;
};

class Checkpoint : public ::testing::Test {
 protected:
  static constexpr int kBlocks = 4;
  Rig rig;
  Context& context = rig.context;
  std::vector<std::unique_ptr<Block>> blocks;
  std::vector<Parameter*> parameters;
  const testing::Reachable<kernels::StepState> reachable_state{{.step = 7}};
  kernels::StepState& state = *reachable_state;

  void SetUp() override {
    for (int i = 0; i < kBlocks; ++i) {
      blocks.push_back(std::make_unique<Block>(0.2f));
      blocks.back()->name_tree(fmt::format("h.{}", i));
      blocks.back()->materialize(context, DType::f32);
      for (Parameter* parameter : blocks.back()->parameters()) parameters.push_back(parameter);
    }
    allocate_gradients(context, parameters);
    context.random.state = &state;
    context.random.sample_first = 3;
  }

  struct Result {
    Tensor output, input_gradient;
    std::vector<Tensor> gradients;
    std::int64_t kept = 0, peak = 0;  // activation bytes: after forward, and at the maximum
  };
  using Forward = std::function<Value(const Value&)>;

  Result run(const Forward& forward, bool deferred = false) {
    Result result;
    for (Parameter* parameter : parameters) parameter->clear_gradient();
    context.begin_forward();
    const std::int64_t base = rig.activations();
    rig.memory.reset_peaks();
    Tape tape;
    context.tape = &tape;
    const Value x = tape.leaf(rig.tensor({kBatch, kLength, kChannels}, 5));
    Value y = forward(x);
    result.output = rig.copy(y.tensor);
    y.tensor = {};
    result.kept = rig.activations() - base;
    const auto ordinals = context.ordinals;
    tape.backward(context, y, rig.tensor({kBatch, kLength, kChannels}, 6), {deferred});
    tape.run_deferred();
    EXPECT_EQ(context.ordinals, ordinals) << "recomputation must leave no trace";
    result.peak = rig.peak_activations() - base;
    result.input_gradient = rig.copy(tape.gradient(x));
    for (Parameter* parameter : parameters) {
      EXPECT_EQ(parameter->uses(), 0) << parameter->name();
      EXPECT_TRUE(parameter->has_gradient()) << parameter->name();
      result.gradients.push_back(rig.copy(parameter->gradient));
    }
    return result;
  }
  Forward plain() {
    return [this](const Value& x) {
      Value y = x;
      for (const auto& block : blocks) y = block->forward(context, y);
      return y;
    };
  }
  Forward each_block() {
    return [this](const Value& x) {
      Value y = x;
      for (const auto& block : blocks)
        y = checkpoint(
            context,
            [part = block.get()](Context& ctx, const Value& in) { return part->forward(ctx, in); },
            y);
      return y;
    };
  }
  // Checkpoints of each half of the stack, and of each block within it.
  Forward nested() {
    return [this](const Value& x) {
      Value y = x;
      for (std::size_t half = 0; half < 2; ++half)
        y = checkpoint(
            context,
            [this, half](Context& outer, const Value& in) {
              Value z = in;
              for (std::size_t i = 2 * half; i < 2 * half + 2; ++i)
                z = checkpoint(
                    outer,
                    [this, i](Context& ctx, const Value& v) { return blocks[i]->forward(ctx, v); },
                    z);
              return z;
            },
            y);
      return y;
    };
  }
  void expect_same(const Result& a, const Result& b) {
    EXPECT_TRUE(same_bits(a.output, b.output));
    EXPECT_TRUE(same_bits(a.input_gradient, b.input_gradient));
    for (std::size_t i = 0; i < parameters.size(); ++i)
      EXPECT_TRUE(same_bits(a.gradients[i], b.gradients[i])) << parameters[i]->name();
  }
};

TEST_F(Checkpoint, GivesTheSameBitsWithDropoutOn) {
  const Result expected = run(plain());
  // Dropout is really active: another step drops other elements.
  state.step = 8;
  EXPECT_FALSE(same_bits(run(plain()).output, expected.output));
  state.step = 7;
  expect_same(run(each_block()), expected);
  expect_same(run(nested()), expected);
  expect_same(run(each_block(), true), expected);
  expect_same(run(nested(), true), expected);
}

TEST_F(Checkpoint, TakesLessMemory) {
  const Result whole = run(plain()), by_block = run(each_block()), by_half = run(nested());
  constexpr std::int64_t activation = kBatch * kLength * kChannels * 4;
  // One activation remains between blocks. (The first block's input is the caller's.)
  EXPECT_EQ(by_block.kept, (kBlocks - 1) * activation);
  EXPECT_EQ(by_half.kept, activation);
  EXPECT_GT(whole.kept, kBlocks * 10 * activation);
  // In backward, one block's activations are added.
  EXPECT_LT(by_block.peak, whole.peak / 2);
  EXPECT_LE(by_half.peak, by_block.peak);
}

TEST_F(Checkpoint, RestoresTheCoordinatesOfItsForward) {
  // Backward runs after the context has moved on to the next microbatch.
  const auto gradient = [&](bool checkpointed) {
    context.begin_forward();
    context.random.sample_first = 3;
    context.mode = Mode::train;
    Tape tape;
    context.tape = &tape;
    const Value x = tape.leaf(rig.tensor({kBatch, kLength, kChannels}, 5));
    const Value y = checkpointed ? each_block()(x) : plain()(x);
    context.begin_forward();
    context.random.sample_first = 11;
    context.mode = Mode::evaluate;
    context.tape = nullptr;
    tape.backward(context, y, rig.tensor({kBatch, kLength, kChannels}, 6));
    EXPECT_EQ(context.random.sample_first, 11u);
    EXPECT_EQ(context.mode, Mode::evaluate);
    EXPECT_EQ(context.tape, nullptr);
    EXPECT_TRUE(context.ordinals.empty());
    return rig.copy(tape.gradient(x));
  };
  EXPECT_TRUE(same_bits(gradient(true), gradient(false)));
}

TEST_F(Checkpoint, LaterOperationsSeeTheSameOrdinals) {
  // The same dropout site once inside the checkpoint and once after it: the ordinal continues as
  // without a checkpoint.
  const DropoutSite site{.probability = 0.5f, .path_hash = 99};
  const Tensor input = rig.tensor({2, 3, 8}, 5);
  const auto fn = [&](Context& ctx, const Value& x) { return dropout(ctx, x, site); };
  const auto forward = [&](bool checkpointed) {
    context.begin_forward();
    Tape tape;
    context.tape = &tape;
    Value x = tape.leaf(input);
    x = checkpointed ? checkpoint(context, fn, x) : fn(context, x);
    return dropout(context, x, site).tensor;
  };
  EXPECT_TRUE(same_bits(forward(true), forward(false)));
}

TEST_F(Checkpoint, RecomputesWithTheCacheOfItsForwardPass) {
  struct Made {
    int number = 0;
  };
  std::vector<int> seen;
  const auto fn = [&](Context& ctx, const Value& x) {
    seen.push_back(ctx.cache<Made>().number);
    return visited(ctx, x, [] {});
  };
  Tape tapes[2];
  Value outputs[2];
  for (int i = 0; i < 2; ++i) {  // two microbatches in flight
    context.tape = &tapes[i];
    context.begin_forward();
    EXPECT_EQ(context.cache<Made>().number, 0) << "a forward pass begins without values";
    context.cache<Made>().number = 10 + i;
    outputs[i] = checkpoint(context, fn, tapes[i].leaf(rig.tensor({2}, 5)));
  }
  context.tape = nullptr;
  context.begin_forward();
  for (int i = 0; i < 2; ++i) tapes[i].backward(context, outputs[i], rig.tensor({2}, 6));
  EXPECT_THAT(seen, ::testing::ElementsAre(10, 11, 10, 11));
  EXPECT_EQ(context.cache<Made>().number, 0);
}

TEST_F(Checkpoint, RecordsOnlyWhatNeedsGradients) {
  for (Parameter* parameter : parameters) parameter->set_trainable(false);
  const auto fn = [&](Context& ctx, const Value& in) { return blocks[0]->forward(ctx, in); };
  Tape tape;
  context.tape = &tape;
  const Value constant{rig.tensor({kBatch, kLength, kChannels}, 5)};
  EXPECT_FALSE(checkpoint(context, fn, constant).needs_gradient());
  EXPECT_EQ(tape.size(), 0u);
  // The input is a constant, but a parameter inside is trainable.
  Parameter* const learns = blocks[0]->parameters()[3];
  learns->set_trainable(true);
  const Value y = checkpoint(context, fn, constant);
  EXPECT_EQ(tape.size(), 1u);
  EXPECT_EQ(learns->uses(), 1);
  tape.backward(context, y, rig.tensor({kBatch, kLength, kChannels}, 6));
  EXPECT_TRUE(learns->has_gradient());
  EXPECT_GT(testing::norm_of(learns->gradient), 0);
  EXPECT_FALSE(blocks[0]->parameters()[0]->has_gradient());
}

// Two inputs and two outputs; the second input is also passed through. One output may get no
// gradient.
TEST_F(Checkpoint, TakesSeveralInputsAndOutputs) {
  const CheckpointedFunction fn = [&](Context& ctx, std::span<const Value> in) {
    const Value sum = add(ctx, blocks[0]->forward(ctx, in[0]), in[1]);
    return std::vector<Value>{blocks[1]->forward(ctx, sum), in[1]};
  };
  const auto run = [&](bool checkpointed, bool both) {
    for (Parameter* parameter : parameters) Rig::spoil(*parameter);
    Tape tape;
    context.tape = &tape;
    context.begin_forward();
    const std::vector<Value> in = {tape.leaf(rig.tensor({kBatch, kLength, kChannels}, 5)),
                                   tape.leaf(rig.tensor({kBatch, kLength, kChannels}, 6))};
    const std::vector<Value> out = checkpointed ? checkpoint(context, fn, in) : fn(context, in);
    const Tensor seed = rig.tensor({kBatch, kLength, kChannels}, 7);
    tape.backward(context, out, {seed, both ? seed : Tensor()}, {});
    context.tape = nullptr;
    std::vector<Tensor> result = {out[0].tensor, tape.gradient(in[0]), tape.gradient(in[1])};
    for (int block = 0; block < 2; ++block)
      for (Parameter* parameter : blocks[static_cast<std::size_t>(block)]->parameters()) {
        EXPECT_EQ(parameter->uses(), 0);
        result.push_back(rig.copy(parameter->gradient));
      }
    return result;
  };
  for (const bool both : {false, true}) {
    const std::vector<Tensor> plain = run(false, both), again = run(true, both);
    for (std::size_t i = 0; i < plain.size(); ++i)
      EXPECT_TRUE(same_bits(again[i], plain[i])) << i << (both ? " with both gradients" : "");
  }
}

TEST_F(Checkpoint, WithoutATapeIsThePlainCall) {
  const auto fn = [&](Context& ctx, const Value& in) { return blocks[0]->forward(ctx, in); };
  const Value x{rig.tensor({kBatch, kLength, kChannels}, 5)};
  context.begin_forward();
  const Value a = checkpoint(context, fn, x);
  context.begin_forward();
  const Value b = fn(context, x);
  EXPECT_TRUE(same_bits(a.tensor, b.tensor));
  EXPECT_FALSE(a.needs_gradient());
  for (Parameter* parameter : parameters) EXPECT_EQ(parameter->uses(), 0);
}

TEST_F(Checkpoint, NoticesAFunctionThatChanged) {
  std::int64_t columns = 8;
  const auto weight = rig.parameter("w", {8, 8}, 1), narrow = rig.parameter("n", {8, 4}, 2);
  Tape tape;
  context.tape = &tape;
  const Value y = checkpoint(
      context,
      [&](Context& ctx, const Value& x) {
        return linear(ctx, x, columns == 8 ? *weight : *narrow, nullptr, {});
      },
      tape.leaf(rig.tensor({3, 8}, 5)));
  columns = 4;
  EXPECT_THAT(error_of([&] { tape.backward(context, y, rig.tensor({3, 8}, 6)); }),
              AllOf(HasSubstr("the recomputation gave [3, 4], the first run [3, 8]"),
                    HasSubstr("must depend on its input alone")));
}

}  // namespace
}  // namespace shoal::nn
