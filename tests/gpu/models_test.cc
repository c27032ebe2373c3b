// Training steps of encoders and decoders on device memory, with each head and all inputs there.
// The losses must be the CPU's, a steady step makes no driver call that waits or allocates, and
// capture must not change a bit.
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gpu.h"
#include <nlohmann/json.hpp>

#include "shoal/nn/autograd/device_values.h"
#include "shoal/nn/autograd/tape.h"
#include "shoal/nn/autograd/weight_branch.h"
#include "shoal/nn/capture/step_capture.h"
#include "shoal/nn/models/causal_lm.h"
#include "shoal/nn/models/encoder/model.h"
#include "shoal/nn/models/headed_decoder.h"
#include "shoal/nn/optim/master_weights.h"

namespace shoal::nn {
namespace {

constexpr std::int64_t kRows = 3, kLength = 13, kVocabulary = 61;
constexpr int kSteps = 4;

// A model and its batch, in host memory.
struct Work {
  std::unique_ptr<Chain> chain;
  std::function<LossOutput(Context&, const ChainInput&)> loss;
  ChainInput input;
};

class Batches {
 public:
  Tensor i32(const Shape& shape, const std::function<std::int64_t(std::int64_t)>& value) {
    Tensor made = Tensor::empty(shape, DType::i32, *memory_, MemoryTag::data);
    for (std::int64_t i = 0; i < made.count(); ++i)
      made.data<std::int32_t>()[i] = static_cast<std::int32_t>(value(i));
    return made;
  }
  // The rows have lengths 13, 10 and 5.
  ChainInput padded(std::int64_t padding) {
    ChainInput input;
    const auto shown = [](std::int64_t i) { return i % kLength < kLength - i / kLength * 4 + 1; };
    input.ids = i32({kRows, kLength}, [&](std::int64_t i) {
      return shown(i) ? 2 + i * 7 % (kVocabulary - 2) : padding;
    });
    input.key_mask = Tensor::empty({kRows, kLength}, DType::u8, *memory_, MemoryTag::data);
    for (std::int64_t i = 0; i < input.key_mask.count(); ++i)
      input.key_mask.data<std::uint8_t>()[i] = shown(i) ? 1 : 0;
    return input;
  }
  MemoryResource& memory() { return *memory_; }

 private:
  std::unique_ptr<MemoryResource> memory_ = make_host_memory();
};

EncoderConfig encoder(const std::string& family) {
  EncoderConfig config = EncoderConfig::of(family);
  config.vocab_size = kVocabulary;
  config.hidden_size = 16;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 2;
  config.intermediate_size = 32;
  config.max_position_embeddings = kLength + 3;
  if (config.embedding_size > 0) config.embedding_size = 8;
  config.hidden_dropout_prob = config.attention_probs_dropout_prob = 0.1;
  if (config.local_attention > 0) {  // windows of 2 positions to each side in the second layer
    config.local_attention = 4;
    config.global_every = 2;
    config.mlp_dropout = 0.1;
    config.pad_token_id = 0;
  }
  return config;
}

Work encoder_with(const EncoderConfig& config, EncoderTask task, ChainInput input) {
  auto model = std::make_unique<Encoder>(config, task);
  Encoder* const own = model.get();
  return {std::move(model),
          [own](Context& context, const ChainInput& in) { return own->forward(context, in); },
          std::move(input)};
}

// Llama, or another decoder of these sizes.
nlohmann::json decoder(const std::string& family = "llama") {
  nlohmann::json config = {
      {"model_type", family},     {"vocab_size", kVocabulary},
      {"hidden_size", 16},        {"intermediate_size", 32},
      {"num_hidden_layers", 2},   {"num_attention_heads", 4},
      {"num_key_value_heads", 2}, {"max_position_embeddings", 64},
      {"attention_dropout", 0.1}, {"bos_token_id", 0},
      {"eos_token_id", 0},        {"pad_token_id", 1},
      {"num_labels", 3},          {"id2label", {{"0", "a"}, {"1", "b"}, {"2", "c"}}}};
  if (family == "gpt_neox") config.update({{"hidden_dropout", 0.1}, {"rotary_pct", 0.5}});
  if (family.starts_with("gemma")) config["head_dim"] = 6;
  if (family == "gemma2" || family == "gemma3_text")
    config.update({{"sliding_window", 5}, {"query_pre_attn_scalar", 6}});
  if (family == "gemma2")
    config.update({{"attn_logit_softcapping", 1.5}, {"final_logit_softcapping", 3.0}});
  if (family == "gemma3_text") config["sliding_window_pattern"] = 2;
  return config;
}

Work masked_tokens(const EncoderConfig& config, Batches& batches) {
  const Shape whole{kRows, kLength};
  ChainInput input = batches.padded(*config.pad_token_id);
  input.targets = batches.i32(whole, [](std::int64_t i) { return i % 5 == 1 ? i : -100; });
  if (config.type_vocab_size > 1)
    input.token_types = batches.i32(whole, [](std::int64_t i) { return i % kLength / 4 % 2; });
  input.target_rows = rows_with_targets(input.targets, 3, batches.memory());
  return encoder_with(config, EncoderTask::masked_lm, input);
}

Work next_token(const std::string& family, Batches& batches) {
  auto model = std::make_unique<CausalLm>(DecoderConfig::from_json(decoder(family), family));
  CausalLm* const own = model.get();
  ChainInput input = batches.padded(1);
  input.targets =
      batches.i32({kRows, kLength}, [](std::int64_t i) { return i % 4 == 3 ? -100 : i; });
  return {std::move(model),
          [own](Context& context, const ChainInput& in) {
            return own->forward(context, in.ids, in.targets, in.loss, in.key_mask);
          },
          input};
}

// The family in "bert_masked_tokens"; empty if the name has another end.
std::string family_before(const std::string& name, std::string_view end) {
  return name.ends_with(end) ? name.substr(0, name.size() - end.size()) : std::string();
}

Work work_of(const std::string& name, Batches& batches) {
  const Shape whole{kRows, kLength};
  if (const std::string family = family_before(name, "_masked_tokens"); !family.empty())
    return masked_tokens(encoder(family == "xlm_roberta" ? "xlm-roberta" : family), batches);
  if (const std::string family = family_before(name, "_next_token"); !family.empty())
    return next_token(family, batches);
  if (name == "modernbert_mean") {
    ChainInput input = batches.padded(0);
    input.targets = batches.i32({kRows}, [](std::int64_t i) { return i % 2; });
    EncoderConfig config = encoder("modernbert");
    config.pooling = "mean";
    return encoder_with(config, EncoderTask::sequence_classification, input);
  }
  if (name == "roberta_numbers") {
    ChainInput input = batches.padded(1);
    input.targets = Tensor::empty({kRows, 1}, DType::f32, batches.memory(), MemoryTag::data);
    for (std::int64_t b = 0; b < kRows; ++b)
      input.targets.data<float>()[b] =
          b == 1 ? std::numeric_limits<float>::quiet_NaN() : 0.5f * static_cast<float>(b);
    EncoderConfig config = encoder("roberta");
    config.num_labels = 1;
    return encoder_with(config, EncoderTask::sequence_classification, input);
  }
  if (name == "distilbert_tokens") {
    ChainInput input = batches.padded(0);
    input.targets = batches.i32(whole, [](std::int64_t i) { return i % 3 - 1; });
    return encoder_with(encoder("distilbert"), EncoderTask::token_classification, input);
  }
  if (name == "albert_answers") {
    ChainInput input = batches.padded(0);
    input.targets = batches.i32({kRows, 2}, [](std::int64_t i) { return i == 3 ? -1 : i; });
    EncoderConfig config = encoder("albert");
    config.hidden_dropout_prob = 0;  // albert's own; a residual and its branch share a gradient
    return encoder_with(config, EncoderTask::question_answering, input);
  }
  std::unique_ptr<HeadedDecoder> model =
      make_headed_decoder(decoder(), "llama", DecoderHead::sequence_classification);
  HeadedDecoder* const own = model.get();
  ChainInput input = batches.padded(1);
  input.targets = batches.i32({kRows}, [](std::int64_t i) { return i; });
  if (name == "llama_classes")
    input.ends = batches.i32({kRows}, [](std::int64_t i) { return kLength - 1 - 4 * i; });
  return {std::move(model),
          [own](Context& context, const ChainInput& in) { return own->forward(context, in); },
          input};
}

struct Trained {
  std::vector<double> losses;
  std::vector<float> masters;
  DeviceStatistics before, after;  // driver statistics around the last step
  std::int64_t replayed = 0;
};

// `beside`: computes gradients of weights beside backward.
Trained train(const std::string& name, Device device, DType dtype, bool captures,
              bool beside = false) {
  const auto upstream = make_device_memory(device);
  PoolMemory pool(*upstream);
  PlannedMemory memory(pool, *upstream);
  const auto kernels = device.is_cpu()
                           ? kernels::make_cpu_kernels({.threads = 2, .memory = &memory})
                           : kernels::make_cuda_kernels(
                                 {.device = device, .memory = &memory, .cache_directory = {}});
  DirectDispatcher dispatcher;
  Context context(*kernels, memory, dispatcher);
  const StepStateMemory state(*kernels, memory);
  context.random.state = state.pointer();
  Batches batches;
  Work work = work_of(name, batches);
  const std::vector<Parameter*> parameters = work.chain->parameters();
  work.chain->materialize(context, DType::f32);
  MasterWeights masters(parameters, dtype, *kernels, memory);
  allocate_gradients(context, parameters);
  Optimizer optimizer(*kernels, memory, masters.segments(), nn::adamw({.weight_decay = 0.1}));
  work.input.loss.loss_scale = 1.0f / 8;
  const auto upload = [&](Tensor& tensor) {
    if (tensor.defined())
      tensor = context.upload(tensor.const_view().data, tensor.shape(), tensor.dtype());
  };
  for (Tensor* tensor : work.input.tensors()) upload(*tensor);
  upload(work.input.target_rows);
  const Tensor losses = context.empty({kSteps}, DType::f32, MemoryTag::data),
               loss = context.empty({1}, DType::f32, MemoryTag::data);
  std::optional<StepCapture> capture;
  std::optional<WeightBranch> branch;
  if (beside) context.branch = &branch.emplace(device);
  if (captures) capture.emplace(*kernels, memory, StepCaptureOptions{.warmup = 2, .say = {}});

  Trained out;
  DeviceBackend& backend = device_backend(device.type);
  const StepOptions options{.learning_rate = 3e-3, .max_gradient_norm = 1};
  for (int step = 0; step < kSteps; ++step) {
    if (step == kSteps - 1) out.before = backend.statistics();
    optimizer.set_step(*state, options);
    const auto run = [&] {
      for (Parameter* parameter : parameters) parameter->clear_gradient();
      // Two microbatches, so gradients are accumulated.
      for (int i = 0; i < 2; ++i) {
        Tape tape;
        context.tape = &tape;
        const LossOutput made = work.loss(context, work.input);
        context.tape = nullptr;
        kernels->elementwise().cast(made.loss_sum, loss.view(), context.stream);
        tape.backward(context, made.loss);
      }
      optimizer.queue_step(*state, options);
    };
    if (capture)
      capture->run("step", run);
    else
      run();
    kernels->elementwise().cast(loss, losses.narrowed(0, step, 1).view(), context.stream);
  }
  out.after = backend.statistics();
  std::vector<float> sums(kSteps);
  copy_to_host(sums.data(), losses, context.stream);
  out.losses.assign(sums.begin(), sums.end());
  for (const NamedTensor& master : masters.masters()) {
    const std::size_t begin = out.masters.size();
    out.masters.resize(begin + static_cast<std::size_t>(master.tensor.count()));
    copy_to_host(out.masters.data() + begin, master.tensor, context.stream);
  }
  if (capture) out.replayed = capture->statistics().replayed;
  return out;
}

class GpuModels : public ::testing::TestWithParam<const char*> {};

// Runs with dropout. If its bits differed from the CPU's, the losses would differ from the first
// step.
TEST_P(GpuModels, HaveTheLossesOfTheCpu) {
  SHOAL_NEEDS_GPU();
  const Trained cpu = train(GetParam(), Device::cpu(), DType::f32, false),
                gpu = train(GetParam(), Device::cuda(0), DType::f32, false);
  for (std::size_t step = 0; step < cpu.losses.size(); ++step)
    EXPECT_NEAR(gpu.losses[step], cpu.losses[step], 2e-4 * cpu.losses[step]) << "step " << step;
}

TEST_P(GpuModels, CapturedStepsAreTheSameBits) {
  SHOAL_NEEDS_GPU();
  for (const bool beside : {false, true}) {
    SCOPED_TRACE(beside);
    const DType dtype = beside ? DType::bf16 : DType::f32;
    const Trained plain = train(GetParam(), Device::cuda(0), dtype, false),
                  captured = train(GetParam(), Device::cuda(0), dtype, true, beside);
    EXPECT_GT(captured.replayed, 0);
    EXPECT_EQ(captured.losses, plain.losses);
    ASSERT_EQ(captured.masters.size(), plain.masters.size());
    EXPECT_EQ(std::memcmp(captured.masters.data(), plain.masters.data(),
                          plain.masters.size() * sizeof(float)),
              0);
    for (const Trained* run : {&plain, &captured}) {
      EXPECT_EQ(run->after.synchronizations, run->before.synchronizations);
      EXPECT_EQ(run->after.blocking_copies, run->before.blocking_copies);
      EXPECT_EQ(run->after.deallocations, run->before.deallocations);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, GpuModels,
                         ::testing::Values("bert_masked_tokens", "roberta_numbers",
                                           "distilbert_tokens", "albert_answers",
                                           "llama_next_token", "llama_classes",
                                           "llama_classes_at_the_last", "xlm_roberta_masked_tokens",
                                           "electra_masked_tokens", "modernbert_masked_tokens",
                                           "modernbert_mean", "gpt_neox_next_token",
                                           "gemma_next_token", "gemma2_next_token",
                                           "gemma3_text_next_token"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace shoal::nn
