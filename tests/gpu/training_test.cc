// Training on real device memory: losses equal to the CPU's, the same bits in two runs, no
// synchronisation within a step, and captured steps that change no bit.
#include <cmath>
#include <cstring>
#include <memory>
#include <optional>
#include <vector>

#include "gpu.h"
#include "support/golden.h"
#include <nlohmann/json.hpp>

#include "shoal/nn/autograd/device_values.h"
#include "shoal/nn/autograd/tape.h"
#include "shoal/nn/autograd/weight_branch.h"
#include "shoal/nn/capture/step_capture.h"
#include "shoal/nn/models/causal_lm.h"
#include "shoal/nn/optim/master_weights.h"
#include "shoal/runtime/io/json.h"
#include "shoal/runtime/io/safetensors.h"

namespace shoal::nn {
namespace {

DecoderConfig tiny(double dropout) {
  DecoderConfig config = DecoderConfig::of("gpt2");
  config.vocab_size = 211;
  config.max_position_embeddings = 40;
  config.hidden_size = 64;
  config.num_hidden_layers = testing::has_little_time() ? 2 : 3;
  config.num_attention_heads = 4;
  config.hidden_dropout = config.embedding_dropout = config.attention_dropout = dropout;
  return config;
}

struct Trained {
  std::vector<double> losses;
  std::vector<std::vector<float>> masters;
  DeviceStatistics before, after;  // driver statistics around the last steps
  StepCapture::Statistics captured;
};

struct Options {
  Device device = Device::cuda(0);
  DType dtype = DType::f32;
  double dropout = 0.1;
  int steps = testing::has_little_time() ? 6 : 20;
  bool capture = false;
  bool branch = false;   // computes gradients of weights beside backward
  int microbatches = 1;  // repeats the same microbatch
  bool checkpoint = false;
};

// A world of one rank: kernels, pooled memory, a model and its optimizer.
class Trainer {
 public:
  explicit Trainer(const Options& options)
      : options_(options),
        upstream_(make_device_memory(options.device)),
        pool_(*upstream_),
        planned_(pool_, *upstream_),
        kernels_(options.device.is_cpu()
                     ? kernels::make_cpu_kernels({.threads = 2, .memory = &planned_})
                     : kernels::make_cuda_kernels(
                           {.device = options.device, .memory = &planned_, .cache_directory = {}})),
        context_(*kernels_, planned_, dispatcher_),
        state_(*kernels_, planned_),
        model_(tiny(options.dropout)) {
    context_.random.state = state_.pointer();
    model_.set_gradient_checkpointing(options.checkpoint);
    model_.materialize(context_, DType::f32);
    const auto parameters = model_.parameters();
    masters_.emplace(parameters, options.dtype, *kernels_, planned_);
    allocate_gradients(context_, parameters);
    optimizer_ = std::make_unique<Optimizer>(*kernels_, planned_, masters_->segments(),
                                             adamw({.weight_decay = 0.1}));
    ids_ = context_.empty({rows_, kLength}, DType::i32, MemoryTag::data);
    targets_ = context_.empty({rows_, kLength}, DType::i32, MemoryTag::data);
    losses_ = context_.empty({options.steps}, DType::f32, MemoryTag::data);
    if (options.capture)
      capture_.emplace(*kernels_, planned_, StepCaptureOptions{.warmup = 3, .say = {}});
    if (options.branch) context_.branch = &branch_.emplace(options.device, 5);
  }

  Trained run() {
    Trained out;
    DeviceBackend& backend = device_backend(options_.device.type);
    // One tensor for all steps' losses, because captured steps write to a fixed address.
    const Tensor loss = context_.empty({1}, DType::f32, MemoryTag::data);
    for (int step = 0; step < options_.steps; ++step) {
      if (step == options_.steps - 5) out.before = backend.statistics();
      give_batch(step);
      optimizer_->set_step(*state_, step_options_);
      const auto work = [&] {
        for (Parameter* parameter : model_.parameters()) parameter->clear_gradient();
        for (int i = 0; i < options_.microbatches; ++i) {
          Tape tape;
          context_.tape = &tape;
          const LossOutput made = model_.forward(
              context_, ids_, targets_, {.loss_scale = 1.0f / static_cast<float>(rows_ * kLength)});
          context_.tape = nullptr;
          context_.kernels().elementwise().cast(made.loss_sum, loss.view(), context_.stream);
          tape.backward(context_, made.loss);
        }
        optimizer_->queue_step(*state_, step_options_);
      };
      if (capture_)
        capture_->run("step", work);
      else
        work();
      context_.kernels().elementwise().cast(loss.const_view(), losses_.narrowed(0, step, 1).view(),
                                            context_.stream);
    }
    out.after = backend.statistics();
    std::vector<float> losses(static_cast<std::size_t>(options_.steps));
    copy_to_host(losses.data(), losses_, context_.stream);
    for (const float sum : losses)
      out.losses.push_back(static_cast<double>(sum) / static_cast<double>(rows_ * kLength));
    for (const NamedTensor& master : masters_->masters()) {
      out.masters.emplace_back(static_cast<std::size_t>(master.tensor.count()));
      copy_to_host(out.masters.back().data(), master.tensor, context_.stream);
    }
    if (capture_) out.captured = capture_->statistics();
    return out;
  }

 private:
  static constexpr std::int64_t kLength = 33;
  const std::int64_t rows_ = testing::has_little_time() ? 2 : 4;
  const StepOptions step_options_{.learning_rate = 3e-3, .max_gradient_norm = 1};

  // Copies a batch into the same tensors each step, from memory that the copy need not wait for.
  void give_batch(int step) {
    const auto bytes = static_cast<std::size_t>(rows_ * kLength) * sizeof(std::int32_t);
    // Each step has its own pinned bytes, because earlier copies may still be in flight.
    Buffer& pinned = batches_.emplace_back(*pinned_, 2 * bytes, MemoryTag::data);
    auto* values = static_cast<std::int32_t*>(pinned.data());
    auto random = static_cast<std::uint32_t>(step + 1) * 2654435761u;
    for (std::int64_t i = 0; i < 2 * rows_ * kLength; ++i) {
      random = random * 1664525u + 1013904223u;
      // Targets follow from ids, so the model can learn something.
      values[i] = i < rows_ * kLength ? static_cast<std::int32_t>(random >> 8) % 211
                                      : (values[i - rows_ * kLength] * 3 + 1) % 211;
    }
    DeviceBackend& backend = device_backend(options_.device.type);
    backend.copy(ids_.view().data, values, bytes, context_.stream);
    backend.copy(targets_.view().data, values + rows_ * kLength, bytes, context_.stream);
  }

  Options options_;
  std::unique_ptr<MemoryResource> pinned_storage_ = make_pinned_memory();
  std::unique_ptr<PoolMemory> pinned_ = std::make_unique<PoolMemory>(*pinned_storage_);
  std::vector<Buffer> batches_;
  std::unique_ptr<MemoryResource> upstream_;
  PoolMemory pool_;
  PlannedMemory planned_;
  std::unique_ptr<kernels::Kernels> kernels_;
  DirectDispatcher dispatcher_;
  Context context_;
  StepStateMemory state_;
  CausalLm model_;
  std::optional<MasterWeights> masters_;
  std::unique_ptr<Optimizer> optimizer_;
  Tensor ids_, targets_, losses_;
  std::optional<WeightBranch> branch_;
  std::optional<StepCapture> capture_;
};

Trained train(const Options& options) { return Trainer(options).run(); }

void expect_same(const Trained& a, const Trained& b) {
  EXPECT_EQ(a.losses, b.losses);
  for (std::size_t i = 0; i < a.masters.size(); ++i)
    EXPECT_EQ(
        std::memcmp(a.masters[i].data(), b.masters[i].data(), a.masters[i].size() * sizeof(float)),
        0)
        << "master " << i;
}

// Dropout must match the CPU's element for element. Otherwise the losses would differ from the
// first step.
TEST(GpuTraining, HasTheLossesOfTheCpu) {
  SHOAL_NEEDS_GPU();
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const Trained cpu = train({.device = Device::cpu(), .dtype = dtype});
    const Trained gpu = train({.dtype = dtype});
    for (std::size_t step = 0; step < cpu.losses.size(); ++step)
      EXPECT_NEAR(gpu.losses[step], cpu.losses[step],
                  (dtype == DType::f32 ? 1e-4 : 2e-2) * cpu.losses[step])
          << to_string(dtype) << " step " << step;
    EXPECT_LT(gpu.losses.back(), gpu.losses.front());
  }
}

TEST(GpuTraining, TwoRunsGiveTheSameBits) {
  SHOAL_NEEDS_GPU();
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    if (dtype == DType::f32 && testing::has_little_time()) continue;
    SCOPED_TRACE(to_string(dtype));
    expect_same(train({.dtype = dtype}), train({.dtype = dtype}));
  }
}

TEST(GpuTraining, CapturedStepsAreTheSameBits) {
  SHOAL_NEEDS_GPU();
  for (const double dropout : {0.0, 0.1}) {
    if (dropout == 0 && testing::has_little_time()) continue;
    const Trained plain = train({.dtype = DType::bf16, .dropout = dropout});
    const Trained captured = train({.dtype = DType::bf16, .dropout = dropout, .capture = true});
    EXPECT_GT(captured.captured.replayed, 0);
    expect_same(plain, captured);
  }
}

// The second microbatch adds to gradients that the first one's branch wrote. A checkpoint records
// and walks its own tape within backward.
TEST(GpuTraining, WeightsBesideBackwardAreTheSameBits) {
  SHOAL_NEEDS_GPU();
  for (const bool checkpoint : {false, true}) {
    SCOPED_TRACE(checkpoint);
    Options options{.dtype = DType::bf16, .microbatches = 2, .checkpoint = checkpoint};
    const Trained plain = train(options);
    options.branch = true;
    if (!testing::has_little_time()) expect_same(plain, train(options));
    options.capture = true;
    const Trained captured = train(options);
    EXPECT_GT(captured.captured.replayed, 0);
    expect_same(plain, captured);
  }
}

TEST(GpuTraining, SteadyStepsNeitherWaitNorAllocate) {
  SHOAL_NEEDS_GPU();
  for (const bool capture : {false, true}) {
    const int steps = testing::has_little_time() ? 9 : 20;  // five of them steady
    const Trained run =
        train({.dtype = DType::bf16, .steps = steps, .capture = capture, .branch = true});
    EXPECT_EQ(run.after.synchronizations, run.before.synchronizations) << capture;
    EXPECT_EQ(run.after.blocking_copies, run.before.blocking_copies) << capture;
    // Except pinned memory for the test's own batches: at most one block a step.
    EXPECT_LE(run.after.allocations - run.before.allocations, 5) << capture;
    EXPECT_EQ(run.after.deallocations, run.before.deallocations) << capture;
  }
}

class GpuGolden : public ::testing::TestWithParam<std::pair<const char*, DType>> {};

// Compares with PyTorch's losses and gradients (tools/golden/make_gpt2.py), on device memory.
TEST_P(GpuGolden, LossAndGradientsMatchPyTorch) {
  SHOAL_NEEDS_GPU();
  const auto [name, dtype] = GetParam();
  const bool bf16 = dtype == DType::bf16;
  const std::string directory = testing::golden_path(std::string("gpt2/") + name);
  const auto upstream = make_device_memory(Device::cuda(0));
  PoolMemory pool(*upstream);
  const auto table = kernels::make_cuda_kernels(
      {.device = Device::cuda(0), .memory = &pool, .cache_directory = {}});
  DirectDispatcher dispatcher;
  Context context(*table, pool, dispatcher);
  CausalLm model(DecoderConfig::from_file(directory + "/config.json"));
  model.materialize(context, dtype);
  model.load(directory, assign_values(context));
  allocate_gradients(context, model.parameters());
  const auto file = SafetensorsFile::open(directory + "/case_f32.safetensors");
  const auto values = [&](const char* tensor) {
    const Tensor stored = file->tensor(tensor);
    std::vector<std::int32_t> all;
    for (std::int64_t i = 0; i < stored.count(); ++i)
      all.push_back(stored.dtype() == DType::i64
                        ? static_cast<std::int32_t>(stored.const_data<std::int64_t>()[i])
                        : stored.const_data<std::int32_t>()[i]);
    return all;
  };
  const Shape shape = file->tensor("input_ids").shape();
  const std::vector<std::int32_t> labels = values("labels");
  std::vector<std::int32_t> targets(labels.size(), -100);
  std::int64_t valid = 0;
  for (std::size_t i = 0; i < labels.size(); ++i) {
    if ((i + 1) % static_cast<std::size_t>(shape[1]) != 0) targets[i] = labels[i + 1];
    valid += targets[i] >= 0;
  }
  for (Parameter* parameter : model.parameters()) parameter->clear_gradient();
  Tape tape;
  context.tape = &tape;
  const LossOutput out =
      model.forward(context, context.upload(values("input_ids").data(), shape, DType::i32),
                    context.upload(targets.data(), shape, DType::i32),
                    {.loss_scale = 1.0f / static_cast<float>(valid)});
  context.tape = nullptr;
  tape.backward(context, out.loss);
  EXPECT_TRUE(
      testing::close_relative("loss", context.read(out.loss_sum) / static_cast<double>(valid),
                              *file->tensor("loss").const_data<float>(), bf16 ? 2e-2 : 1e-5));
  std::vector<Tensor> expected;
  std::vector<ConstView> views;
  for (const Parameter* parameter : model.parameters()) {
    expected.push_back(file->tensor("grad." + parameter->name()));
    views.push_back(expected.back().const_view());
  }
  const double floor = (bf16 ? 0.05 : 1e-3) * testing::global_norm_of(views);
  for (std::size_t i = 0; i < views.size(); ++i) {
    const Tensor& gradient = model.parameters()[i]->gradient;
    std::vector<float> host(static_cast<std::size_t>(gradient.count()));
    copy_to_host(host.data(), gradient, context.stream);
    EXPECT_TRUE(testing::close_in_norm(model.parameters()[i]->name(),
                                       {host.data(), gradient.shape(), DType::f32}, views[i],
                                       bf16 ? 2e-2 : 1e-4, floor));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Cases, GpuGolden,
    ::testing::Values(std::pair{"tiny", DType::f32}, std::pair{"odd", DType::f32},
                      std::pair{"k31", DType::f32}, std::pair{"tiny", DType::bf16},
                      std::pair{"odd", DType::bf16}, std::pair{"k31", DType::bf16}),
    [](const auto& test) {
      return std::string(test.param.first) + "_" + std::string(to_string(test.param.second));
    });

}  // namespace
}  // namespace shoal::nn
