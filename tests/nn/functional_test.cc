// Operations compared with plain double-precision versions, and the coordinates of
// their random numbers.
#include <algorithm>
#include <cmath>

#include "nn/rig.h"
#include <gmock/gmock.h>

#include "shoal/nn/autograd/recording_dispatcher.h"
#include "shoal/nn/autograd/tape.h"
#include "shoal/nn/layers/functional_internal.h"

namespace shoal::nn {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

class Functional : public ::testing::Test {
 protected:
  Rig rig;
  Context& context = rig.context;
  const testing::Reachable<kernels::StepState> reachable_state{{.step = 3}};
  kernels::StepState& state = *reachable_state;
  Functional() {
    context.random.state = &state;
    context.random.seed = 1234;
  }
  Tensor ones(const Shape& shape) {
    Tensor tensor = Tensor::empty(shape, DType::f32, rig.memory, MemoryTag::data);
    std::fill_n(tensor.data<float>(), tensor.count(), 1.0f);
    return tensor;
  }
  // One forward over a batch. The first sample is `first`, and the indices increase by `stride`.
  Tensor dropped(const Tensor& x, const DropoutSite& site, std::uint32_t first = 0,
                 std::uint32_t stride = 1) {
    context.begin_forward();
    context.random.sample_first = first;
    context.random.sample_stride = stride;
    return dropout(context, Value{x}, site).tensor;
  }
};

// Gradients of x, two weights and two biases of proj(gelu(fc(x))), with `between` applied to the
// hidden layer, and the operations that ran.
struct MlpGradients {
  std::vector<Tensor> gradients;
  std::vector<std::string> operations;
  bool ran(const std::string& name) const {
    return std::find(operations.begin(), operations.end(), name) != operations.end();
  }
};
MlpGradients mlp_gradients(DType dtype, kernels::Activation activation, bool transposed,
                           const std::function<Value(Context&, const Value&)>& between) {
  static const std::unique_ptr<MemoryResource> host = make_host_memory();
  DirectDispatcher direct;
  RecordingDispatcher recording(direct);
  Rig rig(kernels::make_cpu_kernels(), &recording);
  const auto weight = [&](std::int64_t in, std::int64_t out) {
    return transposed ? Shape{out, in} : Shape{in, out};
  };
  const auto fc = rig.parameter("fc", weight(8, 32), 1, dtype),
             fc_bias = rig.parameter("fc_bias", {32}, 2, dtype),
             proj = rig.parameter("proj", weight(32, 8), 3, dtype),
             proj_bias = rig.parameter("proj_bias", {8}, 4, dtype);
  Tape tape;
  rig.context.tape = &tape;
  const Value x = tape.leaf(rig.tensor({3, 5, 8}, 5, dtype));
  const Value hidden = linear(rig.context, x, *fc, fc_bias.get(), {transposed, activation});
  const Value y = linear(rig.context, between(rig.context, hidden), *proj, proj_bias.get(),
                         {transposed, kernels::Activation::none});
  tape.backward(rig.context, y, rig.tensor({3, 5, 8}, 6, dtype));
  MlpGradients out;
  for (const Tensor& gradient :
       {tape.gradient(x), fc->gradient, fc_bias->gradient, proj->gradient, proj_bias->gradient}) {
    Tensor kept = Tensor::empty(gradient.shape(), gradient.dtype(), *host, MemoryTag::data);
    std::memcpy(kept.view().data, gradient.const_view().data, gradient.bytes());
    out.gradients.push_back(kept);
  }
  for (const RecordedOperation& operation : recording.operations())
    out.operations.push_back(operation.name);
  return out;
}

// proj's backward product applies gelu' if it is the only reader of the hidden layer.
TEST_F(Functional, AnActivationGoesBackWithTheProductThatReadsIt) {
  const auto nothing = [](Context&, const Value& x) { return x; };
  const auto visit = [](Context& ctx, const Value& x) { return visited(ctx, x, [] {}); };
  const auto twice = [](Context& ctx, const Value& x) { return add(ctx, x, x); };
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16})
    for (const bool transposed : {false, true})
      for (const auto activation :
           {kernels::Activation::gelu_tanh, kernels::Activation::gelu_erf}) {
        const MlpGradients fused = mlp_gradients(dtype, activation, transposed, nothing),
                           apart = mlp_gradients(dtype, activation, transposed, visit);
        EXPECT_FALSE(fused.ran("activation.backward"));
        EXPECT_TRUE(apart.ran("activation.backward")) << "another operation reads it";
        for (std::size_t i = 0; i < fused.gradients.size(); ++i)
          EXPECT_TRUE(same_bits(fused.gradients[i], apart.gradients[i]))
              << "gradient " << i << " " << to_string(dtype);
      }
  EXPECT_TRUE(mlp_gradients(DType::f32, kernels::Activation::gelu_tanh, false, twice)
                  .ran("activation.backward"));
  // A second reader, whose gradient also arrives.
  Rig own;
  const auto weight = own.parameter("w", {8, 8}, 1), other = own.parameter("v", {8, 8}, 2);
  const auto input_gradient = [&](bool in_between) {
    Tape tape;
    own.context.tape = &tape;
    const Value x = tape.leaf(own.tensor({4, 8}, 3));
    const Value hidden =
        linear(own.context, x, *weight, nullptr, {false, kernels::Activation::gelu_tanh});
    const Value read = in_between ? visited(own.context, hidden, [] {}) : hidden;
    const Value y = add(own.context, hidden, linear(own.context, read, *other, nullptr, {}));
    tape.backward(own.context, y, own.tensor({4, 8}, 4));
    return own.copy(tape.gradient(x));
  };
  EXPECT_TRUE(same_bits(input_gradient(false), input_gradient(true)));
}

// Three products of one input, like queries, keys and values: each adds its part to the input's
// gradient as it stores it. In 16 bits this rounds once for each stored part, and never more.
TEST_F(Functional, ProductsOfOneInputAddUpItsGradient) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    SCOPED_TRACE(to_string(dtype));
    const Tensor x = rig.tensor({3, 5, 32}, 1, dtype);
    std::vector<std::shared_ptr<Parameter>> weights;
    for (std::uint32_t i = 0; i < 3; ++i)
      weights.push_back(rig.parameter("w", {32, 24}, 2 + i, dtype));
    // d(input) for products of one input, and for products of separate copies.
    std::vector<float> together, apart;
    std::int64_t largest = 0;
    {
      Tape tape;
      context.tape = &tape;
      const Value leaf = tape.leaf(x);
      Value sum;
      for (const auto& weight : weights) {
        const Value y = linear(context, leaf, *weight, nullptr, {});
        sum = sum.tensor.defined() ? add(context, sum, y) : y;
      }
      rig.memory.reset_peaks();
      const std::int64_t before = rig.activations();
      tape.backward(context, sum, rig.tensor(sum.tensor.shape(), 9, dtype));
      largest = rig.memory.usage(MemoryTag::activations).peak - before;
      together = floats(tape.gradient(leaf));
    }
    for (const auto& weight : weights) {
      Tape tape;
      context.tape = &tape;
      const Value leaf = tape.leaf(x);
      const Value y = linear(context, leaf, *weight, nullptr, {});
      tape.backward(context, y, rig.tensor(y.tensor.shape(), 9, dtype));
      const std::vector<float> part = floats(tape.gradient(leaf));
      apart.resize(part.size());
      for (std::size_t i = 0; i < part.size(); ++i) apart[i] += part[i];
    }
    context.tape = nullptr;
    EXPECT_LE(largest, static_cast<std::int64_t>(x.bytes()))
        << "more than one gradient was allocated";
    const float unit = dtype == DType::f32 ? 1e-6f : dtype == DType::bf16 ? 0x1p-7f : 0x1p-10f;
    for (std::size_t i = 0; i < apart.size(); ++i)
      ASSERT_NEAR(together[i], apart[i], 3 * unit * (8 + std::abs(apart[i]))) << i;
  }
}

TEST_F(Functional, DropoutKeepsTheRateAndTheMean) {
  const Tensor x = ones({8, 128, 64});
  for (const float probability : {0.1f, 0.5f, 0.9f}) {
    double kept = 0, sum = 0;
    for (const float value : floats(dropped(x, {.probability = probability, .path_hash = 5}))) {
      if (value != 0) {
        EXPECT_FLOAT_EQ(value, 1 / (1 - probability));
        ++kept;
      }
      sum += value;
    }
    // The tolerance is five standard deviations.
    const double count = static_cast<double>(x.count()), p = static_cast<double>(probability);
    EXPECT_NEAR(kept / count, 1 - p, 5 * std::sqrt(p * (1 - p) / count));
    EXPECT_NEAR(sum / count, 1, 5 * std::sqrt(p / (1 - p) / count));
  }
}

TEST_F(Functional, DropoutIsReproducibleAndEachSiteDropsOtherElements) {
  const Tensor x = ones({2, 16, 32});
  const DropoutSite site{.probability = 0.5f, .path_hash = 5};
  const Tensor mask = dropped(x, site);
  EXPECT_TRUE(same_bits(dropped(x, site), mask));
  std::vector<Tensor> others;
  others.push_back(dropped(x, {.probability = 0.5f, .path_hash = 6}));
  others.push_back(dropout(context, Value{x}, {.probability = 0.5f, .path_hash = 6}).tensor);
  state.step = 4;
  others.push_back(dropped(x, site));
  state.step = 3;
  others.push_back(dropped(x, site, 2));
  context.random.seed = 1235;
  others.push_back(dropped(x, site));
  others.push_back(mask);
  for (std::size_t i = 0; i < others.size(); ++i)
    for (std::size_t j = i + 1; j < others.size(); ++j) {
      const std::vector<float> a = floats(others[i]), b = floats(others[j]);
      double agree = 0;
      for (std::size_t k = 0; k < a.size(); ++k) agree += (a[k] != 0) == (b[k] != 0);
      EXPECT_NEAR(agree / static_cast<double>(a.size()), 0.5, 5 * 0.5 / std::sqrt(1024.0))
          << i << " and " << j;
    }
}

TEST_F(Functional, DropoutIsOffInEvaluationAndAtZero) {
  const Tensor x = rig.tensor({2, 3, 8}, 1);
  EXPECT_TRUE(same_bits(dropped(x, {.probability = 0, .path_hash = 5}), x));
  context.mode = Mode::evaluate;
  EXPECT_TRUE(same_bits(dropped(x, {.probability = 0.5f, .path_hash = 5}), x));
  EXPECT_TRUE(context.ordinals.empty()) << "an inactive site takes no ordinal";
}

// Four samples in one batch, in two consecutive halves, and distributed to two ranks in turn.
TEST_F(Functional, DropoutDoesNotKnowTheBatching) {
  const Tensor x = ones({4, 7, 9});
  const DropoutSite site{.probability = 0.5f, .path_hash = 5};
  const Tensor whole = dropped(x, site, 40);
  const auto expect = [&](const Tensor& part, std::int64_t row, std::int64_t sample) {
    EXPECT_TRUE(same_bits(part.narrowed(0, row, 1), whole.narrowed(0, sample, 1)))
        << "sample " << sample;
  };
  const Tensor half = ones({2, 7, 9});
  const Tensor first = dropped(half, site, 40), second = dropped(half, site, 42);
  const Tensor even = dropped(half, site, 40, 2), odd = dropped(half, site, 41, 2);
  for (std::int64_t b = 0; b < 2; ++b) {
    expect(first, b, b);
    expect(second, b, 2 + b);
    expect(even, b, 2 * b);
    expect(odd, b, 2 * b + 1);
  }
}

// A rank that holds some positions or channels drops the same elements as the whole.
TEST_F(Functional, DropoutDoesNotKnowTheSplitOfAnActivation) {
  const Tensor x = ones({2, 8, 12});
  const DropoutSite site{.probability = 0.5f, .path_hash = 5};
  const std::vector<float> whole = floats(dropped(x, site));
  context.activation.first_position = 4;
  const std::vector<float> late = floats(dropped(ones({2, 4, 12}), site));
  context.activation.first_position = 0;
  DropoutSite part = site;
  part.column_offset = 8;
  part.columns = 12;
  const std::vector<float> right = floats(dropped(ones({2, 8, 4}), part));
  for (std::size_t b = 0; b < 2; ++b)
    for (std::size_t t = 0; t < 8; ++t)
      for (std::size_t c = 0; c < 12; ++c) {
        const float expected = whole[(b * 8 + t) * 12 + c];
        if (t >= 4) {
          EXPECT_EQ(late[(b * 4 + t - 4) * 12 + c], expected);
        }
        if (c >= 8) {
          EXPECT_EQ(right[(b * 8 + t) * 4 + c - 8], expected);
        }
      }
}

// Uniform, at most alpha / sqrt(length · channels), and 0 in evaluation. A rank that holds the
// later positions of one sample adds the same.
TEST_F(Functional, NoiseOnEmbeddingsIsUniformAndKnowsNoSplit) {
  const auto noisy = [&](DType dtype, std::int64_t first, const Shape& shape,
                         std::uint32_t sample) {
    const Tensor x = Tensor::empty(shape, dtype, rig.memory, MemoryTag::data);
    context.kernels().elementwise().fill(x.view(), 1, context.stream);
    context.begin_forward();
    context.random.sample_first = sample;
    context.activation.first_position = first;
    return floats(noisy_embedding(context, Value{x}, 5, 80).tensor);
  };
  EXPECT_THAT(noisy(DType::f32, 0, {2, 80, 51}, 0), Each(1.0f));
  context.embedding_noise = 20;
  const float most = 20 / std::sqrt(80.0f * 51);
  const std::vector<float> whole = noisy(DType::f32, 0, {2, 80, 51}, 6);
  double sum = 0, squares = 0;
  for (const float value : whole) {
    ASSERT_LE(std::abs(value - 1), most * 1.0001);
    sum += value - 1;
    squares += (value - 1.0) * (value - 1.0);
  }
  const auto count = static_cast<double>(whole.size());
  EXPECT_NEAR(sum / count, 0, 5 * most / std::sqrt(3 * count));
  EXPECT_NEAR(squares / count, most * most / 3, 0.03 * most * most);
  const std::vector<float> late = noisy(DType::f32, 40, {1, 40, 51}, 7);
  EXPECT_TRUE(std::equal(late.begin(), late.end(), whole.end() - std::ssize(late)));
  const std::vector<float> narrow = noisy(DType::bf16, 0, {2, 80, 51}, 6);
  for (std::size_t i = 0; i < whole.size(); ++i) ASSERT_NEAR(narrow[i], whole[i], 0.006);
  EXPECT_NE(noisy(DType::f32, 0, {2, 80, 51}, 8), whole);
  context.mode = Mode::evaluate;
  EXPECT_THAT(noisy(DType::f32, 0, {2, 80, 51}, 6), Each(1.0f));
}

TEST_F(Functional, FusedDropoutIsThePlainOne) {
  const Tensor x = rig.tensor({2, 3, 9}, 1), residual = rig.tensor({2, 3, 9}, 2);
  const auto gamma = rig.parameter("gamma", {9}, 3), beta = rig.parameter("beta", {9}, 4);
  const DropoutSite site{.probability = 0.5f, .path_hash = 5};
  const Tensor mask = dropped(x, site);
  const Tensor plain = add(context, Value{mask}, Value{residual}).tensor;
  context.begin_forward();
  EXPECT_TRUE(same_bits(dropout_add(context, Value{x}, Value{residual}, site).tensor, plain));
  context.begin_forward();
  const ResidualNorm fused =
      residual_layer_norm(context, Value{residual}, Value{x}, site, *gamma, *beta, 1e-5f);
  EXPECT_TRUE(same_bits(fused.sum.tensor, plain));
  EXPECT_TRUE(same_bits(fused.normed.tensor,
                        layer_norm(context, Value{plain}, *gamma, *beta, 1e-5f).tensor));
}

// --- attention --------------------------------------------------------------------------------

// Plain attention over qkv [B, T, 3·H·D] in double. Its dropout follows the definition in random.h.
std::vector<double> plain_attention(const Tensor& qkv, const AttentionOptions& options,
                                    const kernels::RandomSite* site) {
  const std::int64_t batch = qkv.shape()[0], length = qkv.shape()[1], channels = qkv.shape()[2] / 3,
                     depth = channels / options.heads;
  const std::vector<float> x = floats(qkv);
  std::vector<double> out(static_cast<std::size_t>(batch * length * channels));
  const double scale = options.scale != 0 ? static_cast<double>(options.scale)
                                          : 1 / std::sqrt(static_cast<double>(depth));
  const auto at = [&](std::int64_t b, std::int64_t t, std::int64_t part, std::int64_t h,
                      std::int64_t d) {
    return static_cast<double>(x[static_cast<std::size_t>((b * length + t) * 3 * channels +
                                                          part * channels + h * depth + d)]);
  };
  for (std::int64_t b = 0; b < batch; ++b)
    for (std::int64_t h = 0; h < options.heads; ++h)
      for (std::int64_t q = 0; q < length; ++q) {
        std::vector<double> weights(static_cast<std::size_t>(length), 0.0);
        double total = 0;
        for (std::int64_t k = 0; k < (options.causal ? q + 1 : length); ++k) {
          if (options.key_mask.defined() &&
              options.key_mask.const_data<std::uint8_t>()[b * length + k] == 0)
            continue;
          double score = 0;
          for (std::int64_t d = 0; d < depth; ++d) score += at(b, q, 0, h, d) * at(b, k, 1, h, d);
          total += weights[static_cast<std::size_t>(k)] = std::exp(score * scale);
        }
        for (std::int64_t k = 0; k < length; ++k) {
          double weight = total > 0 ? weights[static_cast<std::size_t>(k)] / total : 0;
          if (site) {
            const auto element = static_cast<std::uint64_t>(
                ((h + options.head_offset) * options.max_positions + q) * options.max_positions +
                k);
            const std::uint32_t sample =
                site->sample_first + static_cast<std::uint32_t>(b) * site->sample_stride;
            const float p = options.dropout.probability;
            weight *= kernels::random_bits(*site, sample, element) < kernels::dropout_threshold(p)
                          ? 0
                          : 1 / (1 - static_cast<double>(p));
          }
          for (std::int64_t d = 0; d < depth; ++d)
            out[static_cast<std::size_t>((b * length + q) * channels + h * depth + d)] +=
                weight * at(b, k, 2, h, d);
        }
      }
  return out;
}

TEST_F(Functional, AttentionIsThePlainOne) {
  const std::int64_t lengths[] = {1, 5, 33, 70};
  for (const std::int64_t length : lengths)
    for (const bool causal : {false, true})
      for (const bool mask : {false, true})
        for (const float probability : {0.0f, 0.3f}) {
          const Tensor qkv = rig.tensor({2, length, 3 * 2 * 8}, 7);
          AttentionOptions options{.heads = 2, .causal = causal};
          options.dropout = {.probability = probability, .path_hash = 21};
          options.max_positions = 96;
          options.head_offset = 4;
          if (mask) {
            options.key_mask = Tensor::empty({2, length}, DType::u8, rig.memory, MemoryTag::data);
            for (std::int64_t i = 0; i < 2 * length; ++i)
              options.key_mask.data<std::uint8_t>()[i] = i % 3 != 0;  // hides sample 0's key 0
          }
          context.begin_forward();
          const kernels::RandomSite site = context.next_site(21);
          context.begin_forward();
          const std::vector<float> actual = floats(attention(context, Value{qkv}, options).tensor);
          const std::vector<double> expected =
              plain_attention(qkv, options, probability > 0 ? &site : nullptr);
          double worst = 0;
          for (std::size_t i = 0; i < actual.size(); ++i)
            worst = std::max(worst, std::abs(static_cast<double>(actual[i]) - expected[i]));
          EXPECT_LT(worst, 2e-6) << "length " << length << (causal ? " causal" : "")
                                 << (mask ? " mask" : "") << " dropout " << probability;
        }
}

TEST_F(Functional, AttentionDropoutDoesNotKnowTheLayout) {
  // Two samples of four heads: together, by sample, and by pairs of heads.
  const Tensor qkv = rig.tensor({2, 9, 3 * 16}, 7);
  AttentionOptions options{.heads = 4};
  options.dropout = {.probability = 0.5f, .path_hash = 21};
  options.max_positions = 12;
  const auto run = [&](const Tensor& x, const AttentionOptions& how, std::uint32_t first) {
    context.begin_forward();
    context.random.sample_first = first;
    return attention(context, Value{x}, how).tensor;
  };
  const Tensor whole = run(qkv, options, 6);
  EXPECT_TRUE(same_bits(run(rig.copy(qkv.narrowed(0, 1, 1)), options, 7), whole.narrowed(0, 1, 1)));
  Tensor half = Tensor::empty({2, 9, 24}, DType::f32, rig.memory, MemoryTag::data);
  for (std::int64_t row = 0; row < 18; ++row)
    for (std::int64_t part = 0; part < 3; ++part)
      std::copy_n(qkv.const_data<float>() + row * 48 + part * 16 + 8, 8,
                  half.data<float>() + row * 24 + part * 8);
  options.heads = 2;
  options.head_offset = 2;
  const Tensor upper = run(half, options, 6);
  for (std::int64_t row = 0; row < 18; ++row)
    for (std::int64_t c = 0; c < 8; ++c)
      EXPECT_FLOAT_EQ(upper.const_data<float>()[row * 8 + c],
                      whole.const_data<float>()[row * 16 + 8 + c]);
}

// --- the head -----------------------------------------------------------------------------------

TEST_F(Functional, TheLossIsASumOverValidTargets) {
  const std::int64_t vocabulary = 11, channels = 5;
  const auto weight = rig.parameter("wte", {vocabulary, channels}, 1);
  const Tensor x = rig.tensor({2, 3, channels}, 2);
  const std::vector<std::int32_t> wanted{0, -100, 10, 3, -1, 3};
  const Tensor targets = rig.ids(wanted, {2, 3});
  for (const float smoothing : {0.0f, 0.1f}) {
    const std::vector<float> h = floats(x), w = floats(weight->value);
    double expected = 0;
    for (std::size_t row = 0; row < wanted.size(); ++row) {
      if (wanted[row] < 0) continue;
      double total = 0, mean = 0, target = 0;
      for (std::size_t v = 0; v < 11; ++v) {
        double logit = 0;
        for (std::size_t c = 0; c < 5; ++c)
          logit += static_cast<double>(h[row * 5 + c]) * static_cast<double>(w[v * 5 + c]);
        total += std::exp(logit);
        mean += logit / 11;
        if (v == static_cast<std::size_t>(wanted[row])) target = logit;
      }
      const double s = static_cast<double>(smoothing);
      expected += std::log(total) - (1 - s) * target - s * mean;
    }
    const LossResult result = linear_cross_entropy(
        context, Value{x}, *weight, targets, {.loss_scale = 0.5f, .label_smoothing = smoothing});
    EXPECT_EQ(result.targets, 4);
    EXPECT_NEAR(context.read(result.loss_sum), expected, 2e-6 * expected);
    EXPECT_DOUBLE_EQ(context.read(result.loss.tensor), 0.5 * context.read(result.loss_sum));
    EXPECT_FALSE(weight->has_gradient()) << "without a tape there is no backward";
  }
}

TEST_F(Functional, ALossWithoutTargetsIsZeroAndSoAreItsGradients) {
  for (const std::int64_t rows : {0, 3}) {
    const auto weight = rig.parameter("wte", {11, 5}, 1);
    const Tensor targets =
        rig.ids(std::vector<std::int32_t>(static_cast<std::size_t>(rows), -100), {1, rows});
    Tape tape;
    context.tape = &tape;
    const Value x = tape.leaf(rig.tensor({1, rows, 5}, 2));
    const LossResult result = linear_cross_entropy(context, x, *weight, targets, {});
    EXPECT_EQ(result.targets, 0);
    EXPECT_EQ(context.read(result.loss_sum), 0.0);
    tape.backward(context, result.loss);
    EXPECT_THAT(floats(weight->gradient), Each(0.0f)) << rows << " rows";
    EXPECT_THAT(floats(tape.gradient(x)), Each(0.0f));
    context.tape = nullptr;
  }
}

TEST_F(Functional, TiedWeightsAddTheEmbeddingsGradientToTheHeads) {
  const Tensor ids = rig.ids({0, 10, 3, 3}, {2, 2}), targets = rig.ids({10, 3, 3, -100}, {2, 2});
  const auto gradient = [&](Parameter& table, Parameter& head, int microbatches) {
    for (int i = 0; i < microbatches; ++i) {
      Tape tape;
      context.tape = &tape;
      const Value hidden = embedding(context, ids, table);
      tape.backward(context, linear_cross_entropy(context, hidden, head, targets, {}).loss);
    }
    context.tape = nullptr;
  };
  const auto tied = rig.parameter("tied", {11, 5}, 1);
  const auto table = rig.parameter("table", {11, 5}, 1), head = rig.parameter("head", {11, 5}, 1);
  for (const int microbatches : {1, 3}) {
    for (const auto& parameter : {tied, table, head}) rig.spoil(*parameter);
    gradient(*tied, *tied, microbatches);
    gradient(*table, *head, microbatches);
    Tensor sum = rig.copy(table->gradient);
    for (std::int64_t i = 0; i < sum.count(); ++i)
      sum.data<float>()[i] += head->gradient.const_data<float>()[i];
    EXPECT_GT(testing::norm_of(table->gradient), 0.1);
    EXPECT_GT(testing::norm_of(head->gradient), 0.1);
    EXPECT_TRUE(testing::close_in_norm("tied", tied->gradient, sum, 1e-6));
  }
}

TEST_F(Functional, TheLossAcceptsOnlyOneAsItsGradient) {
  SHOAL_CPU_ONLY("reading the gradient would wait for the device");
  const auto weight = rig.parameter("wte", {11, 5}, 1);
  Tape tape;
  context.tape = &tape;
  const LossResult result = linear_cross_entropy(context, Value{rig.tensor({2, 5}, 2)}, *weight,
                                                 rig.ids({1, 2}, {2}), {});
  Tensor two = ones({1});
  *two.data<float>() = 2;
  EXPECT_THAT(error_of([&] { tape.backward(context, result.loss, two); }),
              AllOf(HasSubstr("started with 2"), HasSubstr("loss_scale")));
}

// --- errors -------------------------------------------------------------------------------------

TEST_F(Functional, ShapesThatDoNotFitAreNamed) {
  const auto weight = rig.parameter("h.0.c_fc.weight", {8, 4}, 1);
  const auto gamma = rig.parameter("ln_f.weight", {8}, 3), beta = rig.parameter("b", {8}, 4);
  const auto table = rig.parameter("wpe", {4, 8}, 5);
  const Value x{rig.tensor({2, 3, 7}, 1)}, y{rig.tensor({2, 3, 8}, 1)};
  EXPECT_THAT(error_of([&] { linear(context, x, *weight, nullptr, {}); }),
              HasSubstr("h.0.c_fc.weight: an input [2, 3, 7] for a layer of 8 inputs"));
  EXPECT_THAT(error_of([&] { layer_norm(context, x, *gamma, *beta, 1e-5f); }),
              HasSubstr("ln_f.weight: an input [2, 3, 7] for a norm of 8 channels"));
  EXPECT_THAT(error_of([&] { add(context, x, y); }), HasSubstr("sum of [2, 3, 7] and [2, 3, 8]"));
  EXPECT_THAT(error_of([&] { residual_layer_norm(context, x, y, {}, *gamma, *beta, 1e-5f); }),
              HasSubstr("a residual [2, 3, 7] and a branch [2, 3, 8]"));
  EXPECT_THAT(error_of([&] { add_positions(context, y, *table, 2); }),
              HasSubstr("wpe: positions 2 to 5 of a model of 4 positions; shorten the sequence"));
  EXPECT_THAT(error_of([&] { attention(context, y, {.heads = 5}); }),
              HasSubstr("qkv [2, 3, 8] does not split into 3 x 5 heads"));
  EXPECT_THAT(error_of([&] { embedding(context, rig.ids({4}, {1}), *table); }), HasSubstr("4"));
  EXPECT_THAT(error_of([&] { embedding(context, rig.ids({-1}, {1}), *table); }), HasSubstr("-1"));
  EXPECT_THAT(error_of([&] { embedding(context, rig.tensor({1}, 1), *table); }),
              HasSubstr("wpe: ids are f32, not i32"));
  EXPECT_THAT(error_of([&] { linear_cross_entropy(context, y, *table, rig.ids({1, 2}, {2}), {}); }),
              HasSubstr("wpe: targets i32 [2] for hidden states [2, 3, 8]"));
  EXPECT_THAT(error_of([&] {
                linear_cross_entropy(context, Value{rig.tensor({1, 8}, 1)}, *table,
                                     rig.ids({4}, {1}), {});
              }),
              HasSubstr("target 4 of row 0 is outside the vocabulary of 4"));
}

TEST_F(Functional, EmptyBatchesPass) {
  const auto weight = rig.parameter("w", {8, 24}, 1), bias = rig.parameter("b", {24}, 2);
  const auto gamma = rig.parameter("gamma", {8}, 3), beta = rig.parameter("beta", {8}, 4);
  const auto table = rig.parameter("wte", {4, 8}, 5), places = rig.parameter("wpe", {4, 8}, 5);
  Tape tape;
  context.tape = &tape;
  Value x = add_positions(context, embedding(context, rig.ids({}, {0, 3}), *table), *places, 0);
  x = layer_norm(context, x, *gamma, *beta, 1e-5f);
  x = linear(context, x, *weight, bias.get(), {false, kernels::Activation::gelu_tanh});
  x = attention(context, x, {.heads = 2});
  const LossResult loss = linear_cross_entropy(context, x, *table, rig.ids({}, {0, 3}), {});
  tape.backward(context, loss.loss);
  EXPECT_EQ(context.read(loss.loss_sum), 0.0);
  for (const auto& parameter : {weight, bias, gamma, beta, table, places})
    EXPECT_THAT(floats(parameter->gradient), Each(0.0f)) << parameter->name();
}

TEST_F(Functional, PositionsAreAddedInPlaceOnlyIfNotShared) {
  const auto places = rig.parameter("wpe", {4, 8}, 5);
  const Tensor held = rig.tensor({2, 3, 8}, 1), before = rig.copy(held);
  const Tensor sum = add_positions(context, Value{held}, *places, 1).tensor;
  EXPECT_TRUE(same_bits(held, before));
  Tensor own = rig.copy(held);
  const void* const address = own.const_view().data;
  const Tensor in_place = add_positions(context, Value{std::move(own)}, *places, 1).tensor;
  EXPECT_EQ(in_place.const_view().data, address);
  EXPECT_TRUE(same_bits(in_place, sum));
  // Every sample gets the same rows, starting at the first position.
  for (std::int64_t i = 0; i < sum.count(); ++i)
    EXPECT_EQ(sum.const_data<float>()[i],
              held.const_data<float>()[i] + places->value.const_data<float>()[8 + i % (3 * 8)]);
}

}  // namespace
}  // namespace shoal::nn
