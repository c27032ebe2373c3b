// Each distributed layer compared with the unsplit one, forward and backward, on every rank: its
// part of the output, of dx, and of every gradient.
#include <latch>

#include "parallel/tensor/parts.h"
#include <gmock/gmock.h>

#include "shoal/nn/layers/decoder_layers.h"
#include "shoal/nn/layers/feed_forward.h"
#include "shoal/nn/layers/relative_positions.h"
#include "shoal/nn/layers/self_attention.h"
#include "shoal/parallel/tensor/exchange.h"
#include "shoal/parallel/tensor/linear.h"
#include "shoal/parallel/tensor/replace.h"

namespace shoal::parallel {
namespace {

using nn::Context;
using nn::Module;
using nn::Value;

constexpr std::int64_t kChannels = 24, kInner = 36, kHeads = 12, kPositions = 12, kSamples = 2;

// A root with one child of each kind.
class Holder final : public Module {
 public:
  explicit Holder(float dropout)
      : attn(*this, "attn",
             std::make_unique<nn::CausalSelfAttention>(
                 nn::CausalSelfAttentionConfig{.channels = kChannels,
                                               .heads = kHeads,
                                               .max_positions = 2 * kPositions,
                                               .attention_dropout = dropout,
                                               .std = 0.3f,
                                               .projection_std = 0.3f})),
        mlp(*this, "mlp",
            std::make_unique<nn::Mlp>(nn::MlpConfig{
                .channels = kChannels, .inner = kInner, .std = 0.3f, .projection_std = 0.3f})) {
    name_tree("block");
  }
  std::string_view kind() const override { return "Holder"; }
  nn::Slot<nn::AttentionLike> attn;
  nn::Slot<nn::Mlp> mlp;
};

// Llama's layers, with half as many key heads as heads, with Qwen3's norms, a window and a soft
// cap.
class DecoderHolder final : public Module {
 public:
  explicit DecoderHolder(float dropout, const std::string& fused = "", bool by_part = false)
      : self_attn(*this, "self_attn",
                  std::make_unique<nn::GroupedSelfAttention>(nn::GroupedSelfAttentionConfig{
                      .channels = kChannels,
                      .heads = 2 * kHeads,
                      .key_heads = fused.empty() ? kHeads : 2 * kHeads,
                      .head_dim = fused.empty() ? 6 : 8,
                      .max_positions = 2 * kPositions,
                      .attention_dropout = dropout,
                      .std = 0.3f,
                      .bias = true,
                      .output_bias = true,
                      .causal = !by_part,
                      .fused = fused,
                      .by_part = by_part,
                      .norm_epsilon = 1e-5f,
                      .soft_cap = 0.8f,
                      .window = 7,
                      .rotary = std::make_shared<nn::RotaryTable>(
                          nn::RotaryAngles{.frequencies = {1.0f, 0.2f, 0.05f}})})),
        mlp(*this, "mlp",
            std::make_unique<nn::GatedMlp>(nn::GatedMlpConfig{
                .channels = kChannels, .inner = kInner, .std = 0.3f, .bias = true})) {
    name_tree("block");
  }
  std::string_view kind() const override { return "DecoderHolder"; }
  nn::Slot<nn::AttentionLike> self_attn;
  nn::Slot<nn::MlpLike> mlp;
};

// An encoder-decoder's layers: attention with relative positions, to other states, and the MLP.
class EncoderDecoderHolder final : public Module {
 public:
  explicit EncoderDecoderHolder(float dropout, bool fused = false)
      : positions(*this, "positions",
                  std::make_unique<nn::RelativePositions>(nn::RelativePositionsConfig{
                      .heads = kHeads, .buckets = 8, .max_distance = 6})),
        self(*this, "self", attention(dropout, false, &*positions)),
        cross(*this, "cross", attention(dropout, true, nullptr)),
        mlp(*this, "mlp",
            std::make_unique<nn::FeedForward>(nn::FeedForwardConfig{.channels = kChannels,
                                                                    .inner = kInner,
                                                                    .dropout = dropout,
                                                                    .std = 0.3f,
                                                                    .gate = fused ? "" : "gate",
                                                                    .fused = fused})) {
    name_tree("block");
  }
  static std::unique_ptr<nn::SelfAttention> attention(float dropout, bool cross,
                                                      nn::RelativePositions* positions) {
    return std::make_unique<nn::SelfAttention>(
        nn::SelfAttentionConfig{.channels = kChannels,
                                .heads = kHeads,
                                .max_positions = 2 * kPositions,
                                .attention_dropout = dropout,
                                .std = 0.3f,
                                .head_dim = 3,
                                .scale = 1,
                                .cross = cross,
                                .positions = positions});
  }
  std::string_view kind() const override { return "EncoderDecoderHolder"; }
  nn::Slot<nn::RelativePositions> positions;
  nn::Slot<nn::AttentionLike> self, cross;
  nn::Slot<nn::MlpLike> mlp;
};

// The common interface of both forms of a layer.
struct Layer {
  Module& module;
  std::function<Value(Context&, const Value&)> forward;
};

struct Run {
  std::vector<float> y, dx;
};

Run run(Rig& rig, const Layer& layer, const Tensor& x, const Tensor& dy, bool deferred = false) {
  nn::Tape tape;
  rig.context.tape = &tape;
  rig.context.begin_forward();
  for (nn::Parameter* parameter : layer.module.parameters()) Rig::spoil(*parameter);
  const Value input = tape.leaf(x);
  const Value y = layer.forward(rig.context, input);
  Run out{nn::floats(y.tensor), {}};
  tape.backward(rig.context, y, rig.copy(dy), {deferred});
  if (deferred) tape.run_deferred();
  out.dx = nn::floats(tape.gradient(input));
  rig.context.tape = nullptr;
  return out;
}

// Checks that both draw the same initial values, then sets other values, so that
// biases are not zero.
void give_values(Rig& rig, const Layer& whole, const Layer& cut, DType dtype) {
  whole.module.materialize(rig.context, dtype);
  cut.module.materialize(rig.context, dtype);
  const auto wholes = whole.module.parameters(), parts = cut.module.parameters();
  ASSERT_EQ(wholes.size(), parts.size());
  nn::allocate_gradients(rig.context, wholes);
  nn::allocate_gradients(rig.context, parts);
  for (std::size_t i = 0; i < wholes.size(); ++i) {
    EXPECT_EQ(parts[i]->name(), wholes[i]->name());
    EXPECT_EQ(parts[i]->whole_shape(), wholes[i]->shape());
    EXPECT_EQ(parts[i]->decays(), wholes[i]->decays());
    EXPECT_EQ(nn::floats(parts[i]->value), boxes_of(*parts[i], nn::floats(wholes[i]->value)))
        << parts[i]->name();
    wholes[i]->value = nn::filled(wholes[i]->shape(), dtype, rig.memory,
                                  static_cast<std::uint32_t>(i) + 5, MemoryTag::parameters);
    give_boxes(*parts[i], *wholes[i]);
  }
}

// `in_part` and `out_part` select this rank's part of the whole x and y.
using Part = std::function<Tensor(Rig&, const TensorParallel&, const Tensor&)>;
struct Widths {
  std::int64_t in = kChannels, out = kChannels;
};

void compare(Rig& rig, const TensorParallel& group, const Layer& whole, const Layer& cut,
             DType dtype, const Widths& widths, const Part& in_part = local_part,
             const Part& out_part = local_part) {
  give_values(rig, whole, cut, dtype);
  const std::int64_t samples =
      group.split == ActivationSplit::batch ? kSamples * group.size() : kSamples;
  const Tensor x = rig.tensor({samples, kPositions, widths.in}, 1, dtype),
               dy = rig.tensor({samples, kPositions, widths.out}, 2, dtype);
  rig.context.random.sample_first = 7;
  const Run expected = run(rig, whole, x, dy);
  if (group.split == ActivationSplit::batch)
    rig.context.random.sample_first += static_cast<std::uint32_t>(group.rank() * kSamples);
  const double tolerance = dtype == DType::f32 ? 1e-5 : 1e-2;
  const auto part_of = [&](const Part& part, const std::vector<float>& values, std::int64_t width) {
    const Tensor tensor = rig.input({samples, kPositions, width}, DType::f32);
    testing::set_values(tensor, values);
    return nn::floats(part(rig, group, tensor));
  };
  for (const bool deferred : {false, true}) {
    const ForwardCoordinates coordinates(rig.context, group, kPositions);
    const Run ours = run(rig, cut, in_part(rig, group, x), out_part(rig, group, dy), deferred);
    EXPECT_LT(distance(ours.y, part_of(out_part, expected.y, widths.out)), tolerance);
    EXPECT_LT(distance(ours.dx, part_of(in_part, expected.dx, widths.in)), tolerance);
    const auto wholes = whole.module.parameters(), parts = cut.module.parameters();
    for (std::size_t i = 0; i < parts.size(); ++i)
      EXPECT_LT(distance(complete_gradient(group, *parts[i]),
                         boxes_of(*parts[i], nn::floats(wholes[i]->gradient))),
                tolerance)
          << parts[i]->name() << (deferred ? " deferred" : "");
  }
}

class TensorParallelLayers : public ::testing::TestWithParam<Layout> {};

// This rank's channels of a whole tensor: columns [r·n/tp, ..) of each of `blocks`.
Part channels(int blocks) {
  return [blocks](Rig& rig, const TensorParallel& group, const Tensor& whole) {
    const std::int64_t block = whole.shape()[2] / blocks, own = block / group.size(),
                       rows = whole.shape().rows(), width = whole.shape()[2];
    const Tensor part = Tensor::empty(whole.shape().with(2, blocks * own), whole.dtype(),
                                      rig.memory, MemoryTag::data);
    std::vector<char> from(whole.bytes()), to(part.bytes());
    testing::copy_to_test(from.data(), whole);
    const auto element = static_cast<std::int64_t>(size_of(whole.dtype()));
    for (std::int64_t row = 0; row < rows; ++row)
      for (std::int64_t b = 0; b < blocks; ++b)
        std::memcpy(to.data() + (row * blocks + b) * own * element,
                    from.data() + (row * width + b * block + group.rank() * own) * element,
                    static_cast<std::size_t>(own * element));
    testing::copy_from_test(part, to.data());
    return part;
  };
}

TEST_P(TensorParallelLayers, ColumnParallelLinear) {
  on_group(GetParam(), [](const TensorParallel& group) {
    for (const int blocks : {1, 3})
      for (const bool transposed : {false, true}) {
        Rig rig;
        const nn::LinearConfig config{
            .in = kChannels, .out = kInner, .activation = kernels::Activation::gelu_tanh};
        std::unique_ptr<nn::LinearLike> whole;
        if (transposed)
          whole = std::make_unique<nn::Linear>(config);
        else
          whole = std::make_unique<nn::Conv1D>(config);
        const auto cut = column_parallel(*whole, group, blocks);
        whole->name_tree("fc");
        cut->name_tree("fc");
        const auto forward = [](nn::LinearLike& layer) {
          return Layer{layer, [&](Context& c, const Value& x) { return layer.forward(c, x); }};
        };
        compare(rig, group, forward(*whole), forward(*cut), DType::f32, {kChannels, kInner},
                local_part, channels(blocks));
      }
  });
}

TEST_P(TensorParallelLayers, RowParallelLinear) {
  on_group(GetParam(), [](const TensorParallel& group) {
    for (const bool transposed : {false, true}) {
      Rig rig;
      const nn::LinearConfig config{.in = kInner, .out = kChannels};
      std::unique_ptr<nn::LinearLike> whole;
      if (transposed)
        whole = std::make_unique<nn::Linear>(config);
      else
        whole = std::make_unique<nn::Conv1D>(config);
      const auto cut = row_parallel(*whole, group);
      whole->name_tree("proj");
      cut->name_tree("proj");
      const auto forward = [](nn::LinearLike& layer) {
        return Layer{layer, [&](Context& c, const Value& x) { return layer.forward(c, x); }};
      };
      compare(rig, group, forward(*whole), forward(*cut), DType::f32, {kInner, kChannels},
              channels(1), local_part);
    }
  });
}

void compare_attention(const TensorParallel& group, DType dtype) {
  for (const bool masked : {false, true}) {
    Rig rig;
    Holder whole(0.2f), cut(0.2f);
    apply_tensor_parallelism(cut, group);
    const std::int64_t samples =
        group.split == ActivationSplit::batch ? kSamples * group.size() : kSamples;
    Tensor mask, own_mask;
    if (masked) {
      mask = rig.input({samples, kPositions}, DType::u8);
      for (std::int64_t i = 0; i < mask.count(); ++i)
        mask.data<std::uint8_t>()[i] = i % 5 != 3 ? 1 : 0;
      own_mask = group.split == ActivationSplit::batch ? local_part(rig, group, mask) : mask;
    }
    const auto forward = [](Holder& holder, const Tensor& key_mask) {
      return Layer{*holder.children()[0].module, [&holder, key_mask](Context& c, const Value& x) {
                     return holder.attn->forward(c, x, {key_mask, nullptr});
                   }};
    };
    compare(rig, group, forward(whole, mask), forward(cut, own_mask), dtype, {});
  }
}

TEST_P(TensorParallelLayers, AttentionByHeads) {
  on_group(GetParam(), [](const TensorParallel& group) { compare_attention(group, DType::f32); });
}

Layer mlp_of(Holder& holder) {
  return {*holder.mlp, [&holder](Context& c, const Value& x) { return holder.mlp->forward(c, x); }};
}

TEST_P(TensorParallelLayers, Mlp) {
  on_group(GetParam(), [](const TensorParallel& group) {
    Rig rig;
    Holder whole(0), cut(0);
    apply_tensor_parallelism(cut, group);
    compare(rig, group, mlp_of(whole), mlp_of(cut), DType::f32, {});
  });
}

TEST_P(TensorParallelLayers, GroupedAttentionAndGatedMlp) {
  on_group(GetParam(), [](const TensorParallel& group) {
    Rig rig;
    DecoderHolder whole(0.2f), cut(0.2f);
    apply_tensor_parallelism(cut, group);
    const auto attention = [](DecoderHolder& holder) {
      return Layer{*holder.self_attn,
                   [&](Context& c, const Value& x) { return holder.self_attn->forward(c, x, {}); }};
    };
    const auto mlp = [](DecoderHolder& holder) {
      return Layer{*holder.mlp,
                   [&](Context& c, const Value& x) { return holder.mlp->forward(c, x); }};
    };
    compare(rig, group, attention(whole), attention(cut), DType::f32, {});
    compare(rig, group, mlp(whole), mlp(cut), DType::f32, {});
    DecoderHolder fused(0.2f, "qkv"), cut_fused(0.2f, "qkv");
    apply_tensor_parallelism(cut_fused, group);
    compare(rig, group, attention(fused), attention(cut_fused), DType::f32, {});
    DecoderHolder by_part(0.2f, "Wqkv", true), cut_by_part(0.2f, "Wqkv", true);
    apply_tensor_parallelism(cut_by_part, group);
    compare(rig, group, attention(by_part), attention(cut_by_part), DType::f32, {});
  });
}

TEST_P(TensorParallelLayers, LayersOfEncoderDecoders) {
  on_group(GetParam(), [](const TensorParallel& group) {
    Rig rig;
    EncoderDecoderHolder whole(0.2f), cut(0.2f);
    apply_tensor_parallelism(cut, group);
    const auto self = [](EncoderDecoderHolder& holder) {
      return Layer{*holder.self,
                   [&](Context& c, const Value& x) { return holder.self->forward(c, x, {}); }};
    };
    const auto cross = [](EncoderDecoderHolder& holder) {
      return Layer{*holder.cross, [&](Context& c, const Value& x) {
                     return holder.cross->forward(c, x, {.encoded = &x});
                   }};
    };
    const auto mlp = [](EncoderDecoderHolder& holder) {
      return Layer{*holder.mlp,
                   [&](Context& c, const Value& x) { return holder.mlp->forward(c, x); }};
    };
    compare(rig, group, self(whole), self(cut), DType::f32, {});
    compare(rig, group, cross(whole), cross(cut), DType::f32, {});
    compare(rig, group, mlp(whole), mlp(cut), DType::f32, {});
    EncoderDecoderHolder fused(0.2f, true), cut_fused(0.2f, true);
    apply_tensor_parallelism(cut_fused, group);
    compare(rig, group, mlp(fused), mlp(cut_fused), DType::f32, {});
  });
}

INSTANTIATE_TEST_SUITE_P(Layouts, TensorParallelLayers, ::testing::ValuesIn(layouts({1, 2, 3, 4})),
                         [](const auto& layout) { return name_of(layout.param); });

TEST(TensorParallelLayersBf16, AttentionAndMlp) {
  for (const Layout& layout : layouts({2}))
    on_group(layout, [](const TensorParallel& group) {
      compare_attention(group, DType::bf16);
      Rig rig;
      Holder whole(0), cut(0);
      apply_tensor_parallelism(cut, group);
      compare(rig, group, mlp_of(whole), mlp_of(cut), DType::bf16, {});
    });
}

// Counts the gathers of key masks, i32 [B].
struct MaskGathers final : nn::Dispatcher {
  int count = 0;
  void run(const nn::Operation& operation, const std::function<void()>& body) override {
    if (operation.name == "tensor_parallel.gather" && operation.inputs[0].dtype() == DType::i32)
      ++count;
    body();
  }
};

TEST(GatherInput, OncePerForwardPassAndMask) {
  on_group({2, ActivationSplit::batch}, [](const TensorParallel& group) {
    MaskGathers gathers;
    nn::Rig rig(testing::make_test_kernels(1), &gathers, testing::make_test_device_memory());
    Context& context = rig.context;
    context.random.sample_first = static_cast<std::uint32_t>(group.rank() * kSamples);
    Holder block(0.2f);
    apply_tensor_parallelism(block, group);
    block.materialize(context, DType::f32);
    nn::allocate_gradients(context, block.parameters());
    Tensor masks[2];
    for (std::int32_t i = 0; i < 2; ++i) {
      masks[i] = Tensor::empty({kSamples}, DType::i32, rig.memory, MemoryTag::data);
      testing::set_values(masks[i], std::vector<std::int32_t>(kSamples, 5 + i + group.rank()));
    }
    const auto attend = [&](const Tensor& mask) {
      return [&block, mask](Context& inner, const Value& x) {
        return block.attn->forward(inner, x, {.key_mask = mask});
      };
    };
    nn::Tape tape;
    context.tape = &tape;
    context.begin_forward();
    const Tensor x = rig.tensor({kSamples, kPositions, kChannels}, 1);
    Value y = nn::checkpoint(context, attend(masks[0]), tape.leaf(x));
    y = nn::checkpoint(context, attend(masks[0]), y);
    EXPECT_EQ(gathers.count, 1) << "two layers share a mask";
    y = nn::checkpoint(context, attend(masks[1]), y);
    EXPECT_EQ(gathers.count, 2) << "another mask";
    context.tape = nullptr;
    context.begin_forward();
    attend(masks[0])(context, Value{x});
    EXPECT_EQ(gathers.count, 3) << "another forward pass";
    tape.backward(context, y, rig.copy(x));
    EXPECT_EQ(gathers.count, 3) << "recomputation finds what the first run gathered";
  });
}

// enter() and leave() by themselves, for authors of layers: each is the other's backward.
TEST(Exchange, EnterAndLeaveAreEachOthersBackward) {
  for (const Layout& layout : layouts({1, 3}))
    on_group(layout, [](const TensorParallel& group) {
      Rig rig;
      const Tensor whole = rig.tensor({3, 6, 5}, 1);  // 3 samples of the group, or of each rank
      const auto ranks = static_cast<float>(group.size());
      nn::Tape tape;
      rig.context.tape = &tape;
      const Value x = tape.leaf(local_part(rig, group, whole));
      const Value inside = enter(rig.context, group, x);
      EXPECT_TRUE(nn::same_bits(inside.tensor, whole));
      const Value y = leave(rig.context, group, inside);
      std::vector<float> times = nn::floats(x.tensor);
      for (float& value : times) value *= ranks;
      EXPECT_EQ(nn::floats(y.tensor), times);
      tape.backward(rig.context, y, local_part(rig, group, whole));
      EXPECT_EQ(nn::floats(tape.gradient(x)), times);
      rig.context.tape = nullptr;
      // Without a tape nothing is recorded. An empty tensor needs no work.
      EXPECT_FALSE(enter(rig.context, group, Value{rig.tensor({0, 6, 5}, 1)}).needs_gradient());
    });
}

// A sent tensor is kept until the other rank, which is late, has read it.
TEST(Exchange, KeepsSentTensorsAlive) {
  for (const bool reduces : {false, true})
    for (const auto split : {ActivationSplit::sequence, ActivationSplit::batch}) {
      std::latch let_go(1);
      on_group({2, split}, [&](const TensorParallel& group) {
        Rig rig;
        Context& context = rig.context;
        auto& elementwise = context.kernels().elementwise();
        const Tensor whole = rig.tensor({2, 4, 3}, 1), local = local_part(rig, group, whole);
        const Tensor& given = reduces ? whole : local;
        Tensor sent = exchange_memory(context, group, given.shape(), given.dtype());
        elementwise.cast(given, sent.view(), context.stream);
        if (group.rank() == 1) let_go.wait();
        Exchange exchange =
            (reduces ? begin_reduce : begin_gather)(context, group, std::move(sent));
        // This allocation would reuse the sent tensor's memory if it were free: size and
        // stream are the same.
        const Tensor next = exchange_memory(context, group, given.shape(), given.dtype());
        elementwise.fill(next.view(), 9, context.stream);
        if (group.rank() == 0) {
          testing::synchronise();
          let_go.count_down();
        }
        std::vector<float> want = nn::floats(reduces ? local : whole);
        if (reduces)
          for (float& value : want) value *= 2;
        EXPECT_EQ(nn::floats(exchange.wait(context)), want);
      });
    }
}

}  // namespace
}  // namespace shoal::parallel
