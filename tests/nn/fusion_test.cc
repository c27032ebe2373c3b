// The catalogue finds chains that a fused operation would replace, and the models' blocks
// contain none of them.
#include <functional>
#include <vector>

#include "capture_memory.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shoal/nn/autograd/device_values.h"
#include "shoal/nn/autograd/tape.h"
#include "shoal/nn/capture/fusion_catalogue.h"
#include "shoal/nn/capture/step_capture.h"
#include "shoal/nn/layers/functional.h"
#include "shoal/nn/models/causal_lm.h"
#include "shoal/nn/models/encoder/model.h"
#include "shoal/nn/optim/master_weights.h"
#include "shoal/runtime/base/error.h"

namespace shoal::nn {
namespace {

struct Recorded {
  std::unique_ptr<MemoryResource> host = make_host_memory();
  std::unique_ptr<kernels::Kernels> kernels = kernels::make_cpu_kernels({.threads = 1});
  DirectDispatcher direct;
  RecordingDispatcher record{direct};
  Context context{*kernels, *host, record};
  StepStateMemory state{*kernels, *host};

  Recorded() { context.random.state = state.pointer(); }
  std::string chains() const { return describe(record, find_chains(record)); }
  int count(std::string_view name) const {
    int found = 0;
    for (const RecordedOperation& operation : record.operations()) found += operation.name == name;
    return found;
  }
  Tensor ids() const {
    std::vector<std::int32_t> all;
    for (int i = 0; i < 4 * 16; ++i) all.push_back(i * 7 % 61);
    return context.upload(all.data(), {4, 16}, DType::i32);
  }
  // Forward and backward of a whole step.
  template <typename Model>
  void step(Model& model, const std::function<LossOutput(Model&)>& forward) {
    model.materialize(context, DType::f32);
    allocate_gradients(context, model.parameters());
    record.clear();
    Tape tape;
    context.tape = &tape;
    const LossOutput out = forward(model);
    context.tape = nullptr;
    tape.backward(context, out.loss);
  }
};

TEST(FusionCatalogue, TheModelsStepsLeaveNoneApart) {
  const LossOptions loss{.loss_scale = 1.0f / 64};
  {
    Recorded gpt2;
    DecoderConfig config = DecoderConfig::of("gpt2");
    config.vocab_size = 61;
    config.max_position_embeddings = config.hidden_size = 32;
    config.num_hidden_layers = 3;
    config.num_attention_heads = 4;
    config.bos_token_id = config.eos_token_id = 0;
    CausalLm model(config);
    const Tensor ids = gpt2.ids();
    gpt2.step<CausalLm>(model,
                        [&](CausalLm& m) { return m.forward(gpt2.context, ids, ids, loss); });
    // This is the embeddings' dropout, once a step. Its sum does not belong to a sub-layer.
    EXPECT_EQ(gpt2.chains(),
              "1 x layer_norm.backward with its branch: layer_norm.backward, dropout.backward "
              "(8192 bytes a step)");
    EXPECT_EQ(gpt2.count("residual_layer_norm"), 6);
    EXPECT_EQ(gpt2.count("dropout.backward"), 1)
        << "the sub-layers' dropout is fused with their norms";
    EXPECT_EQ(gpt2.count("gradient_sum"), 0);
  }
  {
    Recorded llama;
    DecoderConfig config = DecoderConfig::of("llama");
    config.vocab_size = 61;
    config.hidden_size = 32;
    config.intermediate_size = 48;
    config.num_hidden_layers = 3;
    config.num_attention_heads = 4;
    config.num_key_value_heads = 2;
    config.max_position_embeddings = 16;
    config.bos_token_id = config.eos_token_id = 0;
    CausalLm model(config);
    const Tensor ids = llama.ids();
    llama.step<CausalLm>(model,
                         [&](CausalLm& m) { return m.forward(llama.context, ids, ids, loss); });
    EXPECT_EQ(llama.chains(), "");
    EXPECT_EQ(llama.count("gradient_sum"), 0)
        << "three products a block read one norm, two another";
  }
  {
    Recorded bert;
    EncoderConfig config = EncoderConfig::of("bert");
    config.vocab_size = 61;
    config.hidden_size = 32;
    config.num_hidden_layers = 3;
    config.num_attention_heads = 4;
    config.intermediate_size = 48;
    config.max_position_embeddings = 16;
    Encoder model(config, EncoderTask::masked_lm);
    ChainInput input;
    input.ids = input.targets = bert.ids();
    input.loss = loss;
    bert.step<Encoder>(model, [&](Encoder& m) { return m.forward(bert.context, input); });
    EXPECT_EQ(bert.chains(), "");
    EXPECT_EQ(bert.count("gradient_sum"), 0);
  }
}

// Deliberately unfused operations are found, with the bytes that pass between them.
TEST(FusionCatalogue, FindsUnfusedChains) {
  Recorded rig;
  const auto parameter = [&](const char* name, Shape shape) {
    auto made = std::make_unique<Parameter>(name, shape, Initializer{Initializer::Kind::ones});
    made->value = Tensor::zeros(shape, DType::f32, *rig.host, MemoryTag::parameters);
    made->gradient = Tensor::zeros(shape, DType::f32, *rig.host, MemoryTag::gradients);
    return made;
  };
  const auto gamma = parameter("gamma", {8}), beta = parameter("beta", {8});
  {
    const Tensor x = Tensor::zeros({4, 8}, DType::f32, *rig.host, MemoryTag::activations);
    const Tensor branch = Tensor::zeros({4, 8}, DType::f32, *rig.host, MemoryTag::activations);
    const Value sum = add(rig.context, Value{branch}, Value{x});
    const Value y = layer_norm(rig.context, sum, *gamma, *beta, 1e-5f);
    (void)add(rig.context, y, sum);
  }
  const std::vector<FoundChain> chains = find_chains(rig.record);
  ASSERT_EQ(chains.size(), 1U);
  EXPECT_EQ(chains[0].first, 0);
  EXPECT_EQ(chains[0].second, 1);
  EXPECT_EQ(chains[0].fusion, "residual_layer_norm");
  EXPECT_EQ(chains[0].bytes_saved, 4 * 8 * 4);
  EXPECT_EQ(rig.chains(), "1 x residual_layer_norm: dropout_add, layer_norm (128 bytes a step)");
}

// If the other summand comes after the product, the product could not have been added to it.
TEST(FusionCatalogue, SkipsChainsThatCannotBeFused) {
  Recorded rig;
  const auto tensor = [&] {
    return Tensor::zeros({16}, DType::f32, *rig.host, MemoryTag::activations);
  };
  const auto run = [&](const char* name, const Tensor& a, const Tensor& b, const Tensor& out) {
    rig.context.run(name, {a, b}, {out}, [] {});
  };
  const Tensor dy = tensor(), before = tensor(), dx = tensor(), late = tensor(), sum = tensor();
  run("linear.backward_input", dy, {}, dx);
  run("attention.backward", dy, {}, late);
  run("gradient_sum", dx, late, sum);
  EXPECT_EQ(rig.chains(), "");
  rig.record.clear();
  run("attention.backward", dy, {}, before);
  run("linear.backward_input", dy, {}, dx);
  run("gradient_sum", before, dx, sum);
  EXPECT_EQ(find_chains(rig.record).size(), 1U);
  run("transpose_samples", dx, {}, late);  // another operation needs the product itself
  EXPECT_EQ(rig.chains(), "");
}

// The log of a captured kind of step lists the chains that remain, as seen in the kind's first
// step.
TEST(FusionCatalogue, IsSearchedForEachKindOfCapturedStep) {
  test::CaptureMemory memory;
  const auto kernels = kernels::make_cpu_kernels({.threads = 1, .memory = &memory.planned});
  DirectDispatcher direct;
  StepRecorder recorder(direct);
  Context context(*kernels, memory.planned, recorder);
  StepCapture capture(*kernels, memory.planned, {.operations = &recorder});
  const auto host = make_host_memory();
  const auto parameter = [&](const char* name) {
    auto made = std::make_unique<Parameter>(name, Shape{8}, Initializer{Initializer::Kind::ones});
    made->value = Tensor::zeros({8}, DType::f32, *host, MemoryTag::parameters);
    return made;
  };
  const auto gamma = parameter("gamma"), beta = parameter("beta");
  const Tensor x = Tensor::zeros({4, 8}, DType::f32, *host, MemoryTag::activations);
  const Tensor branch = Tensor::zeros({4, 8}, DType::f32, *host, MemoryTag::activations);
  const auto apart = [&] {
    const Value sum = add(context, Value{branch}, Value{x});
    (void)add(context, layer_norm(context, sum, *gamma, *beta, 1e-5f), sum);
  };
  for (int step = 0; step < 5; ++step) capture.run("apart", apart);
  EXPECT_EQ(capture.statistics().operations, 3);
  EXPECT_THAT(
      capture.describe(),
      ::testing::HasSubstr("chains left to fuse among 3 operations: 1 x residual_layer_norm: "
                           "dropout_add, layer_norm (128 bytes a step)"));

  EXPECT_THROW(capture.run("fails",
                           [&] {
                             apart();
                             throw_error(ErrorCode::internal, "the first of its kind");
                           }),
               Error);
  EXPECT_EQ(recorder.end().count, 0) << "a failed step leaves no record";
  const auto fused = [&] {
    (void)residual_layer_norm(context, Value{x}, Value{branch}, {}, *gamma, *beta, 1e-5f);
  };
  for (int step = 0; step < 5; ++step) capture.run("fused", fused);
  EXPECT_EQ(capture.statistics().operations, 1);
  EXPECT_THAT(capture.describe(),
              ::testing::HasSubstr("chains left to fuse among 1 operations: none"));
}

}  // namespace
}  // namespace shoal::nn
