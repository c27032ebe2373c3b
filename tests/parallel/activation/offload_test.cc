// Offloading changes where activations are stored, and no result.
#include "shoal/parallel/activation/offload.h"

#include <csignal>
#include <filesystem>

#include "nn/fixture.h"
#include "support/error_text.h"
#include "support/temporary_directory.h"
#include <gmock/gmock.h>
#include <sys/resource.h>

#include "shoal/nn/models/causal_lm.h"

namespace shoal::parallel {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

nn::DecoderConfig config() {
  nn::DecoderConfig config = nn::DecoderConfig::of("gpt2");
  config.vocab_size = 61;
  config.max_position_embeddings = 32;
  config.hidden_size = 64;
  config.num_hidden_layers = 10;
  config.num_attention_heads = 4;
  return config;
}
constexpr std::int64_t kHidden = std::int64_t{4} * 32 * 64 * 4;  // bytes between units

struct Model : nn::Fixture {
  Model() : gpt2(config()) {
    context.random.state = &state;
    gpt2.materialize(context, DType::f32);
    nn::allocate_gradients(context, gpt2.parameters());
    std::vector<std::int32_t> all;
    for (int i = 0; i < 4 * 32; ++i) all.push_back(i * 7 % 61);
    input.ids = ids({4, 32}, all);
    input.targets = ids({4, 32}, all);
  }
  // Runs one microbatch's forward and returns its loss.
  float forward(nn::Tape& tape) {
    context.begin_forward();
    context.tape = &tape;
    out = gpt2.forward_head(
        context, nn::forward_units(context, gpt2, 0, gpt2.units() - 1, {}, input, 1), input);
    context.tape = nullptr;
    return static_cast<float>(context.read(out.loss_sum));
  }
  std::vector<float> gradients() {
    std::vector<float> all;
    for (nn::Parameter* parameter : gpt2.parameters()) {
      const float* data = parameter->gradient.const_data<float>();
      all.insert(all.end(), data, data + parameter->gradient.count());
      parameter->clear_gradient();
    }
    return all;
  }
  nn::CausalLm gpt2;
  const testing::Reachable<kernels::StepState> reachable_state;
  kernels::StepState& state = *reachable_state;
  nn::ChainInput input;
  nn::LossOutput out;
};

TEST(Offload, ChangesNoBitAndFreesWhatCheckpointsKeep) {
  Model model;
  float loss = 0;
  const auto peak_of = [&](Offloader* offloader, bool expected = false) {
    model.memory.reset_peaks();
    const std::int64_t before = model.memory.usage(MemoryTag::activations).current;
    {
      nn::Tape tape;
      std::shared_ptr<Offloader::Batch> batch;
      if (offloader) {
        batch = offloader->begin_batch();
        tape.set_saved_tensor_hooks(offloader->hooks(batch));
      }
      loss = model.forward(tape);
      if (expected) offloader->expect(*batch);
      tape.backward(model.context, model.out.loss);
      model.out = {};
    }
    EXPECT_EQ(model.memory.usage(MemoryTag::activations).current, before);
    return model.memory.usage(MemoryTag::activations).peak - before;
  };
  const std::int64_t kept = peak_of(nullptr);
  const float want_loss = loss;
  const std::vector<float> want = model.gradients();
  Offloader offloader(model.memory, {.min_bytes = kHidden});
  const std::int64_t left = peak_of(&offloader);
  EXPECT_EQ(loss, want_loss);
  EXPECT_EQ(model.gradients(), want);
  // Without offloading, ten blocks' inputs stay. Now two are being copied out, and one is in use.
  EXPECT_LE(left, kept - (10 - 4) * kHidden);
  const OffloadStatistics statistics = offloader.statistics();
  EXPECT_GE(statistics.tensors, 10);
  EXPECT_EQ(statistics.bytes, statistics.tensors * kHidden);
  EXPECT_EQ(statistics.peak_bytes, statistics.bytes);
  EXPECT_EQ(offloader.statistics().early, 0) << "none was announced";
  // With every batch announced, the offloader brings back at most two tensors ahead of the
  // backward.
  EXPECT_LE(peak_of(&offloader, true), left + 2 * kHidden);
  EXPECT_EQ(model.gradients(), want);
  EXPECT_GT(offloader.statistics().early, 0);
}

TEST(Offload, BringsBackWhatIsExpectedAndReusesTheFile) {
  Model model;
  Offloader offloader(model.memory, {.min_bytes = kHidden});
  std::vector<std::vector<float>> results;
  for (int step = 0; step < 3; ++step) {
    // Three microbatches are in flight; their backwards run in another order.
    std::vector<std::unique_ptr<nn::Tape>> tapes;
    std::vector<std::shared_ptr<Offloader::Batch>> batches;
    std::vector<nn::Value> losses;
    for (int i = 0; i < 3; ++i) {
      tapes.push_back(std::make_unique<nn::Tape>());
      batches.push_back(offloader.begin_batch());
      tapes.back()->set_saved_tensor_hooks(offloader.hooks(batches.back()));
      model.context.random.sample_first = static_cast<std::uint32_t>(4 * i);
      model.forward(*tapes.back());
      losses.push_back(model.out.loss);
    }
    for (const int i : {1, 0, 2}) {
      const auto at = static_cast<std::size_t>(i);
      offloader.expect(*batches[at]);
      offloader.expect(*batches[at]);  // has no effect
      model.context.random.sample_first = static_cast<std::uint32_t>(4 * i);
      tapes[at]->backward(model.context, losses[at]);
    }
    results.push_back(model.gradients());
  }
  EXPECT_EQ(results[1], results[0]);
  EXPECT_EQ(results[2], results[0]);
  EXPECT_EQ(offloader.statistics().peak_bytes, offloader.statistics().bytes / 3)
      << "places are used again";
  EXPECT_GT(offloader.statistics().early, 0);
}

TEST(Offload, ADroppedTapeFreesItsStorage) {
  Model model;
  Offloader offloader(model.memory, {.min_bytes = kHidden});
  for (int i = 0; i < 3; ++i) {
    nn::Tape tape;
    tape.set_saved_tensor_hooks(offloader.hooks(offloader.begin_batch()));
    model.forward(tape);
    model.out = {};
  }
  EXPECT_EQ(offloader.statistics().peak_bytes, offloader.statistics().bytes / 3);
}

// Every checkpoint of a decoder saves the encoder's hidden states.
TEST(Offload, ATensorThatIsSavedTwiceLeavesOnce) {
  Model model;
  Offloader offloader(model.memory, {.min_bytes = 1});
  const auto batch = offloader.begin_batch();
  nn::Tape tape;
  tape.set_saved_tensor_hooks(offloader.hooks(batch));
  Tensor shared = model.random({8, 16}, 3), other = model.random({8, 16}, 4);
  const auto values = [](const Tensor& tensor) {
    return std::vector<float>(tensor.const_data<float>(),
                              tensor.const_data<float>() + tensor.count());
  };
  const std::vector<float> want = values(shared), first_of_other = values(other);
  nn::SavedTensor first(tape, shared), apart(tape, other), second(tape, shared);
  EXPECT_EQ(offloader.statistics().tensors, 2);
  shared = {};
  offloader.expect(*batch);
  EXPECT_EQ(values(second.get("test")), want);
  second.reset();
  EXPECT_EQ(values(first.get("test")), want);
  EXPECT_EQ(values(apart.get("test")), first_of_other);
  // Once it was written to, it is another tensor.
  nn::Tape later;
  later.set_saved_tensor_hooks(offloader.hooks(batch));
  other.data<float>()[0] = 5;
  const nn::SavedTensor changed(later, other);
  EXPECT_EQ(offloader.statistics().tensors, 3);
  EXPECT_EQ(values(changed.get("test"))[0], 5);
}

TEST(Offload, SmallTensorsStay) {
  Model model;
  Offloader offloader(model.memory, {.min_bytes = kHidden + 1});
  nn::Tape tape;
  tape.set_saved_tensor_hooks(offloader.hooks(offloader.begin_batch()));
  model.forward(tape);
  tape.backward(model.context, model.out.loss);
  EXPECT_EQ(offloader.statistics().tensors, 0);
}

TEST(Offload, AFullDiskIsNamed) {
  Model model;
  EXPECT_THAT(test::error_text([&] { Offloader(model.memory, {.directory = "/nonexistent"}); }),
              AllOf(HasSubstr("no file for activations in /nonexistent"), HasSubstr("TMPDIR")));
  const testing::TemporaryDirectory directory;
  Offloader offloader(model.memory, {.directory = directory.path(), .min_bytes = kHidden});
  EXPECT_TRUE(std::filesystem::is_empty(directory.path())) << "the file has no name";
  const auto before = std::signal(SIGXFSZ, SIG_IGN);
  rlimit limit{}, old{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old), 0);
  limit = old;
  limit.rlim_cur = 3 * kHidden;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  const std::string text = test::error_text([&] {
    nn::Tape tape;
    tape.set_saved_tensor_hooks(offloader.hooks(offloader.begin_batch()));
    model.forward(tape);
  });
  model.context.tape = nullptr;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &old), 0);
  std::signal(SIGXFSZ, before);
  EXPECT_THAT(text, AllOf(HasSubstr("activations cannot be written to " + directory.path()),
                          HasSubstr("make room there")));
}

// The error is the same whether the file is read ahead or on demand.
TEST(Offload, AFileThatCannotBeReadIsNamed) {
  for (const bool ahead : {true, false}) {
    Model model;
    const testing::TemporaryDirectory directory;
    Offloader offloader(model.memory, {.directory = directory.path(),
                                       .min_bytes = kHidden,
                                       .max_leaving = 0});  // all are written at the end of forward
    const std::string text = test::error_text([&] {
      nn::Tape tape;
      const auto batch = offloader.begin_batch();
      tape.set_saved_tensor_hooks(offloader.hooks(batch));
      model.forward(tape);
      for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
        std::error_code gone;
        if (std::filesystem::read_symlink(entry, gone).string().starts_with(directory.path()))
          std::filesystem::resize_file(entry, 0);
      }
      if (ahead) offloader.expect(*batch);
      tape.backward(model.context, model.out.loss);
    });
    EXPECT_THAT(text, HasSubstr("activations cannot be read from " + directory.path()));
  }
}

}  // namespace
}  // namespace shoal::parallel
