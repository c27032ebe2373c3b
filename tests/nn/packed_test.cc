// Several texts in a row that do not attend to each other. A decoder's losses, scores and gradients
// equal those of the same texts in separate rows.
#include <cmath>
#include <cstdlib>
#include <exception>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "fixture.h"
#include "support/cudnn.h"
#include <gmock/gmock.h>

#include "shoal/nn/autograd/tape.h"
#include "shoal/nn/models/causal_lm.h"
#include "shoal/runtime/base/error.h"

namespace shoal::nn {
namespace {

constexpr std::int64_t kLength = 70, kVocabulary = 31;
// The lengths are one token, a tile of keys, one more or less, and a whole row. The last
// row ends with padding.
const std::vector<std::vector<std::int64_t>> kRows = {{5, 33, 1, 31}, {kLength}, {32, 21}};
constexpr std::int64_t kSequences = 5;

struct Text {
  std::int64_t row = 0, begin = 0, length = 0;
  std::int32_t id(std::int64_t t) const {
    return static_cast<std::int32_t>((7 * t + 11 * row + 5 * begin + t * t % 3) % kVocabulary);
  }
  // The target at token t is the next token. Some positions have none besides the last.
  std::int32_t target(std::int64_t t) const {
    return t + 1 < length && t % 7 != 5 ? id(t + 1) : -100;
  }
};

std::vector<Text> texts() {
  std::vector<Text> all;
  for (std::size_t row = 0; row < kRows.size(); ++row) {
    std::int64_t begin = 0;
    for (const std::int64_t length : kRows[row]) {
      all.push_back({static_cast<std::int64_t>(row), begin, length});
      begin += length;
    }
  }
  return all;
}

enum class Family : std::uint8_t { gpt2, llama };

std::unique_ptr<CausalLm> make_model(Family family, double dropout) {
  if (family == Family::gpt2) {
    DecoderConfig config = DecoderConfig::of("gpt2");
    config.vocab_size = kVocabulary;
    config.max_position_embeddings = kLength;
    config.hidden_size = 32;
    config.num_hidden_layers = 2;
    config.num_attention_heads = 2;
    config.initializer_range = 0.2;
    config.embedding_dropout = config.attention_dropout = config.hidden_dropout = dropout;
    return std::make_unique<CausalLm>(config);
  }
  DecoderConfig config = DecoderConfig::of("llama");
  config.vocab_size = kVocabulary;
  config.max_position_embeddings = kLength;
  config.hidden_size = 32;
  config.intermediate_size = 48;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 4;
  config.num_key_value_heads = 2;
  config.initializer_range = 0.2;
  config.attention_dropout = dropout;
  return std::make_unique<CausalLm>(config);
}

struct Step {
  double loss = 0;
  std::vector<float> gradients;              // all parameters
  std::vector<std::vector<float>> logits{};  // by text
};

struct Options {
  Family family = Family::gpt2;
  DType dtype = DType::f32;
  double dropout = 0;
  bool checkpoints = false;
  FixtureMemory memory = FixtureMemory::device;
  bool sees_all = false;     // rows without text boundaries
  bool first_alone = false;  // only the first text has targets
};

// A model that has the same weights every time.
class Trained {
 public:
  explicit Trained(const Options& options)
      : options_(options),
        room_(false, 2, options.memory),
        model_(make_model(options.family, options.dropout)) {
    model_->materialize(room_.context, options.dtype);
    model_->set_gradient_checkpointing(options.checkpoints);
    allocate_gradients(room_.context, model_->parameters());
    // Biases of 0 would hide where they are added.
    for (Parameter* parameter : model_->parameters()) parameter->clear_gradient();
  }

  ChainInput packed() {
    const auto rows = static_cast<std::int64_t>(kRows.size());
    std::vector<std::int32_t> ids(static_cast<std::size_t>(rows * kLength), 3),
        targets(ids.size(), -100), sequences;
    for (const Text& text : texts())
      for (std::int64_t t = 0; t < text.length; ++t) {
        const auto at = static_cast<std::size_t>(text.row * kLength + text.begin + t);
        ids[at] = text.id(t);
        if (!options_.first_alone || (text.row == 0 && text.begin == 0))
          targets[at] = text.target(t);
      }
    for (const std::vector<std::int64_t>& row : kRows) {
      std::int64_t begin = 0;
      for (std::int64_t i = 0; i < kSequences; ++i) {
        sequences.push_back(static_cast<std::int32_t>(begin));
        begin += i < std::ssize(row) ? row[static_cast<std::size_t>(i)] : kLength - begin;
      }
    }
    ChainInput input{room_.ids({rows, kLength}, ids), room_.ids({rows, kLength}, targets), {}, {}};
    if (options_.sees_all) return input;
    const auto host = make_host_memory();
    Tensor begins = Tensor::empty({rows, kSequences}, DType::i32, *host, MemoryTag::data);
    std::copy(sequences.begin(), sequences.end(), begins.data<std::int32_t>());
    const Tensor positions = positions_in(begins, kLength, *host);
    const auto* const of_tokens = positions.const_data<std::int32_t>();
    input.sequences = room_.ids({rows, kSequences}, sequences);
    input.positions = room_.ids({rows, kLength}, {of_tokens, of_tokens + positions.count()});
    return input;
  }

  Step step_packed() {
    const ChainInput input = packed();
    Step step{train(input), gradients()};
    const std::vector<float> logits = scores(input);
    for (const Text& text : texts()) {
      const auto first = logits.begin() + (text.row * kLength + text.begin) * kVocabulary;
      step.logits.emplace_back(first, first + text.length * kVocabulary);
    }
    return step;
  }
  Step step_alone() {
    Step step;
    for (const Text& text : texts()) {
      std::vector<std::int32_t> ids, targets;
      for (std::int64_t t = 0; t < text.length; ++t) {
        ids.push_back(text.id(t));
        targets.push_back(text.target(t));
      }
      const ChainInput input{
          room_.ids({1, text.length}, ids), room_.ids({1, text.length}, targets), {}, {}};
      step.loss += train(input);
      step.logits.push_back(scores(input));
      if (options_.first_alone) break;
    }
    step.gradients = gradients();
    return step;
  }

 private:
  double train(const ChainInput& input) {
    Tape tape;
    room_.context.tape = &tape;
    const LossOutput out = model_->forward(room_.context, input);
    room_.context.tape = nullptr;
    tape.backward(room_.context, out.loss);
    return room_.context.read(out.loss_sum);
  }
  std::vector<float> scores(const ChainInput& input) {
    Context& context = room_.context;
    context.mode = Mode::evaluate;
    const Tensor logits =
        score_head(context, *model_,
                   forward_units(context, *model_, 0, model_->units() - 1, {}, input), input)
            .logits;
    context.mode = Mode::train;
    return testing::values_of<float>(room_.cast(logits, DType::f32));
  }
  std::vector<float> gradients() {
    std::vector<float> all;
    for (const Parameter* parameter : model_->parameters()) {
      const std::vector<float> own = testing::values_of<float>(parameter->gradient);
      all.insert(all.end(), own.begin(), own.end());
    }
    return all;
  }

  Options options_;
  Fixture room_;
  std::unique_ptr<CausalLm> model_;
};

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

class Packed : public ::testing::TestWithParam<std::tuple<Family, DType, FixtureMemory>> {
 protected:
  Options options() const {
    return {.family = std::get<0>(GetParam()),
            .dtype = std::get<1>(GetParam()),
            .memory = std::get<2>(GetParam())};
  }
  double tolerance() const { return options().dtype == DType::f32 ? 2e-6 : 2e-2; }
};

TEST_P(Packed, TextsComputeLikeSeparateTexts) {
  const Step packed = Trained(options()).step_packed(), alone = Trained(options()).step_alone();
  EXPECT_TRUE(std::isfinite(alone.loss) && alone.loss > 100) << alone.loss;
  EXPECT_NEAR(packed.loss / alone.loss, 1, tolerance() / 4);
  EXPECT_LT(apart(packed.gradients, alone.gradients), tolerance());
  ASSERT_EQ(packed.logits.size(), alone.logits.size());
  for (std::size_t i = 0; i < alone.logits.size(); ++i)
    EXPECT_LT(apart(packed.logits[i], alone.logits[i]), tolerance()) << "text " << i;
  // The comparison is meaningful: texts that attend to each other score differently, except the
  // first.
  Options seeing = options();
  seeing.sees_all = true;
  const Step other = Trained(seeing).step_packed();
  EXPECT_GT(apart(other.gradients, alone.gradients), 0.05);
  EXPECT_LT(apart(other.logits[0], alone.logits[0]), tolerance());
  EXPECT_GT(apart(other.logits[1], alone.logits[1]), 0.05);
}

TEST_P(Packed, CheckpointedBlocksHaveTheSameBits) {
  Options again = options();
  again.checkpoints = true;
  const Step plain = Trained(options()).step_packed(), checkpointed = Trained(again).step_packed();
  EXPECT_EQ(plain.loss, checkpointed.loss);
  EXPECT_EQ(plain.gradients, checkpointed.gradients);
}

// Dropout's coordinates are those of the row. So only the first text drops the same elements as
// in a row of its own.
TEST_P(Packed, DropoutFollowsTheRow) {
  Options dropping = options();
  dropping.dropout = 0.3;
  dropping.first_alone = true;
  const Step packed = Trained(dropping).step_packed(), again = Trained(dropping).step_packed(),
             alone = Trained(dropping).step_alone();
  EXPECT_EQ(packed.gradients, again.gradients);
  EXPECT_NEAR(packed.loss / alone.loss, 1, tolerance());
  EXPECT_LT(apart(packed.gradients, alone.gradients), tolerance());
  Options kept = dropping;
  kept.dropout = 0;
  EXPECT_GT(std::abs(Trained(kept).step_packed().loss / packed.loss - 1), 1e-3)
      << "nothing dropped";
}

INSTANTIATE_TEST_SUITE_P(
    All, Packed,
    ::testing::Combine(::testing::Values(Family::gpt2, Family::llama),
                       ::testing::Values(DType::f32, DType::bf16),
                       ::testing::Values(FixtureMemory::device, FixtureMemory::job)),
    [](const auto& test) {
      return std::string(std::get<0>(test.param) == Family::gpt2 ? "Gpt2" : "Llama") + "_" +
             std::string(to_string(std::get<1>(test.param))) +
             (std::get<2>(test.param) == FixtureMemory::job ? "_from_host" : "");
    });

// If cuDNN is available, its attention over packed sequences gives the losses of Shoal's own.
TEST(PackedByCudnn, GivesTheSameLosses) {
  const testing::AttentionByCudnn there = testing::attention_by_cudnn();
  if (!there.why_not.empty()) GTEST_SKIP() << there.why_not;
  if (!there.packed_gradient)
    GTEST_SKIP() << "cuDNN's gradient of packed sequences needs compute capability 9.0";
  const auto by = [](const char* attention) {
    Step done;
    ::setenv("SHOAL_CUDA_ATTENTION", attention, 1);  // NOLINT(concurrency-mt-unsafe)
    std::thread([&] {
      try {
        done = Trained({.dtype = DType::bf16}).step_packed();
      } catch (const std::exception& e) {
        ADD_FAILURE() << attention << ": " << e.what();
      }
    }).join();
    ::unsetenv("SHOAL_CUDA_ATTENTION");  // NOLINT(concurrency-mt-unsafe)
    return done;
  };
  const Step own = by("own"), theirs = by("cudnn"), again = by("cudnn");
  EXPECT_NEAR(theirs.loss / own.loss, 1, 2e-3);
  EXPECT_LT(apart(theirs.gradients, own.gradients), 2e-2);
  EXPECT_NE(theirs.gradients, own.gradients) << "both used the same implementation";
  EXPECT_EQ(again.gradients, theirs.gradients);
}

TEST(PackedInput, PositionsBeginAnew) {
  const auto memory = make_host_memory();
  Tensor sequences = Tensor::empty({2, 3}, DType::i32, *memory, MemoryTag::data);
  const auto positions = [&](const std::vector<std::int32_t>& begins) {
    std::copy(begins.begin(), begins.end(), sequences.data<std::int32_t>());
    const Tensor made = positions_in(sequences, 4, *memory);
    const auto* const first = made.const_data<std::int32_t>();
    return std::vector<std::int32_t>(first, first + made.count());
  };
  EXPECT_EQ(positions({0, 1, 4, 0, 0, 2}), (std::vector<std::int32_t>{0, 0, 1, 2, 0, 1, 0, 1}));
  for (const std::vector<std::int32_t>& wrong :
       {std::vector<std::int32_t>{1, 2, 4, 0, 4, 4}, {0, 3, 2, 0, 4, 4}, {0, 4, 4, 0, 2, 5}})
    EXPECT_THROW(positions(wrong), Error);
}

}  // namespace
}  // namespace shoal::nn
