// Samples of several lengths in a batch: a byte mask and lengths give the same results in every
// implementation of attention.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <exception>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "fixture.h"
#include "support/cudnn.h"

#include "shoal/nn/autograd/tape.h"
#include "shoal/nn/models/encoder/model.h"
#include "shoal/runtime/base/error.h"

namespace shoal::nn {
namespace {

constexpr std::int64_t kRows = 3, kLength = 70;
constexpr std::int64_t kTexts[kRows] = {33, kLength, 64};

struct Step {
  double loss = 0;
  std::vector<float> gradients;  // all parameters
};

EncoderConfig config() {
  EncoderConfig config = EncoderConfig::of("bert");
  config.vocab_size = 31;
  config.hidden_size = 64;  // heads of 32, for which cuDNN has plans
  config.num_attention_heads = 2;
  config.num_hidden_layers = 2;
  config.intermediate_size = 48;
  config.max_position_embeddings = kLength;
  config.hidden_dropout_prob = 0;
  config.attention_probs_dropout_prob = 0;
  return config;
}

enum class Padding { masked, by_lengths, left_out };

// Runs a step of a model that has the same weights every time.
Step step(DType dtype, Padding padding, float dropout = 0) {
  const auto host = make_host_memory();
  Fixture room(false, 2, FixtureMemory::device);
  EncoderConfig sizes = config();
  sizes.hidden_dropout_prob = sizes.attention_probs_dropout_prob = dropout;
  Encoder model(sizes, EncoderTask::masked_lm);
  model.materialize(room.context, dtype);
  allocate_gradients(room.context, model.parameters());
  std::vector<std::int32_t> ids, targets, counts;
  std::vector<std::uint8_t> mask;
  for (std::int64_t b = 0; b < kRows; ++b)
    for (std::int64_t t = 0; t < kLength; ++t) {
      const bool text = t < kTexts[b];
      ids.push_back(text ? static_cast<std::int32_t>((7 * t + 11 * b) % 30 + 1) : 0);
      targets.push_back(text && t % 5 == 2 ? static_cast<std::int32_t>((3 * t + b) % 31) : -100);
      mask.push_back(text ? 1 : 0);
    }
  for (const std::int64_t text : kTexts) counts.push_back(static_cast<std::int32_t>(text));
  ChainInput input;
  input.ids = room.ids({kRows, kLength}, ids);
  input.targets = room.ids({kRows, kLength}, targets);
  input.key_mask = padding == Padding::masked
                       ? room.context.upload(mask.data(), {kRows, kLength}, DType::u8)
                       : room.ids({kRows}, counts);
  if (padding == Padding::left_out) {
    const VisibleRows rows = visible_rows(testing::on_host(input.key_mask), kLength, 16, *host);
    EXPECT_EQ(rows.rows.count(), 176) << "167 visible positions, and filling";
    input.visible = {room.cast(rows.rows, DType::i32), room.cast(rows.places, DType::i32)};
  }
  Tape tape;
  room.context.tape = &tape;
  const LossOutput out = model.forward(room.context, input);
  room.context.tape = nullptr;
  tape.backward(room.context, out.loss);
  Step done{room.context.read(out.loss_sum), {}};
  for (const Parameter* parameter : model.parameters()) {
    const Tensor gradient = testing::on_host(parameter->gradient);
    done.gradients.insert(done.gradients.end(), gradient.const_data<float>(),
                          gradient.const_data<float>() + gradient.count());
  }
  return done;
}

// Runs in a new thread, whose kernels read the variable again.
Step step_by(const char* attention, DType dtype, Padding padding) {
  Step done;
  ::setenv("SHOAL_CUDA_ATTENTION", attention, 1);
  std::thread([&] {
    try {
      done = step(dtype, padding);
    } catch (const std::exception& e) {
      ADD_FAILURE() << attention << ": " << e.what();
    }
  }).join();
  ::unsetenv("SHOAL_CUDA_ATTENTION");
  return done;
}

// |a - b| / |b|
double apart(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0, whole = 0;
  EXPECT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size() && i < b.size(); ++i) {
    const double off = static_cast<double>(a[i]) - b[i];
    difference += off * off;
    whole += static_cast<double>(b[i]) * b[i];
  }
  return std::sqrt(difference / whole);
}

TEST(RightPadding, LengthsAndMaskGiveTheSameResults) {
  for (DType dtype : {DType::f32, DType::bf16}) {
    const Step by_mask = step_by("auto", dtype, Padding::masked),
               by_lengths = step_by("own", dtype, Padding::by_lengths);
    EXPECT_TRUE(std::isfinite(by_mask.loss) && by_mask.loss > 0);
    // With a mask, a GPU's kernels also process tiles that they skip with lengths, and
    // so round differently.
    const double tolerance = !testing::on_cuda() ? 0 : dtype == DType::f32 ? 1e-5 : 2e-2;
    EXPECT_NEAR(by_lengths.loss / by_mask.loss, 1, tolerance) << to_string(dtype);
    EXPECT_LE(apart(by_lengths.gradients, by_mask.gradients), tolerance) << to_string(dtype);
  }
}

// Also with dropout, which draws by a token's place in its sample.
TEST(RightPadding, LeftOutGivesTheSameResults) {
  for (const float dropout : {0.0f, 0.3f}) {
    const Step padded = step(DType::f32, Padding::by_lengths, dropout),
               packed = step(DType::f32, Padding::left_out, dropout);
    EXPECT_NEAR(packed.loss / padded.loss, 1, 2e-6) << dropout;
    EXPECT_LE(apart(packed.gradients, padded.gradients), 1e-5) << dropout;
  }
  EXPECT_GT(std::abs(step(DType::f32, Padding::left_out, 0.3f).loss -
                     step(DType::f32, Padding::left_out).loss),
            1e-3);
}

TEST(VisibleRows, AreThoseOfTheLengths) {
  const auto host = make_host_memory();
  const std::int32_t values[] = {2, 0, 5};
  const Tensor lengths = Tensor::empty({3}, DType::i32, *host, MemoryTag::data);
  std::copy(std::begin(values), std::end(values), lengths.data<std::int32_t>());
  const VisibleRows some = visible_rows(lengths, 5, 4, *host);
  const auto entries = [](const Tensor& of) {
    const auto* const first = of.const_data<std::int32_t>();
    return std::vector<std::int32_t>(first, first + of.count());
  };
  EXPECT_EQ(entries(some.rows), (std::vector<std::int32_t>{0, 1, 5, 10, 11, 12, 13, 14}));
  EXPECT_EQ(entries(some.places),
            (std::vector<std::int32_t>{0, 1, -1, -1, -1, 2, -1, -1, -1, -1, 3, 4, 5, 6, 7}));
  EXPECT_EQ(visible_rows(lengths, 5, 6, *host).rows.count(), 12) << "with filling";
  EXPECT_FALSE(visible_rows(lengths, 5, 14, *host).defined()) << "14 of 15 rows save too little";
  EXPECT_THROW((void)visible_rows(lengths, 4, 4, *host), Error);
}

// If cuDNN is available, its attention gives the losses of Shoal's own.
TEST(RightPadding, CudnnGivesTheSameLosses) {
  if (const auto cudnn = testing::attention_by_cudnn(); !cudnn.why_not.empty())
    GTEST_SKIP() << cudnn.why_not;
  const Step own = step_by("own", DType::bf16, Padding::by_lengths),
             theirs = step_by("cudnn", DType::bf16, Padding::by_lengths),
             again = step_by("cudnn", DType::bf16, Padding::by_lengths);
  EXPECT_NEAR(theirs.loss / own.loss, 1, 2e-3);
  EXPECT_LT(apart(theirs.gradients, own.gradients), 2e-2);
  EXPECT_NE(theirs.gradients, own.gradients) << "both used the same implementation";
  EXPECT_EQ(again.loss, theirs.loss);
  EXPECT_EQ(again.gradients, theirs.gradients);
}

}  // namespace
}  // namespace shoal::nn
