// Activations of a device that are offloaded to pinned host memory: no number changes, no thread
// waits, and the memory is what the formula of docs/internals/layouts.md predicts.
#include "shoal/parallel/activation/offload.h"

#include <cstring>
#include <memory>
#include <optional>
#include <vector>

#include "gpu.h"
#include "support/error_text.h"
#include <gmock/gmock.h>

#include "shoal/collectives/communicator.h"
#include "shoal/collectives/communicator_options.h"
#include "shoal/nn/autograd/device_values.h"
#include "shoal/nn/capture/step_capture.h"
#include "shoal/nn/models/causal_lm.h"
#include "shoal/nn/optim/master_weights.h"
#include "shoal/parallel/apply/layout_memory.h"
#include "shoal/parallel/pipeline/executor.h"
#include "shoal/parallel/pipeline/generate.h"
#include "shoal/parallel/pipeline/measure_units.h"
#include "shoal/runtime/rendezvous/store.h"
#include "shoal/runtime/rendezvous/world.h"

namespace shoal::parallel {
namespace {

constexpr std::int64_t kRows = 2, kLength = 8, kChannels = 32, kLayers = 6;

nn::DecoderConfig config() {
  nn::DecoderConfig config = nn::DecoderConfig::of("gpt2");
  config.vocab_size = 29;
  config.max_position_embeddings = kLength;
  config.hidden_size = kChannels;
  config.num_hidden_layers = kLayers;
  config.num_attention_heads = 2;
  config.hidden_dropout = config.embedding_dropout = config.attention_dropout = 0.1;
  return config;
}

// Memory as in `shoal train`, kernels, and a model on a GPU.
struct Gpu {
  explicit Gpu(DType dtype_in)
      : dtype(dtype_in),
        source(make_device_memory(Device::cuda(0))),
        kernels(kernels::make_cuda_kernels(
            {.device = Device::cuda(0), .memory = &memory, .cache_directory = {}})),
        context(*kernels, memory, dispatcher),
        state(*kernels, memory),
        gpt2(config()) {
    context.random.state = state.pointer();
    std::vector<std::int32_t> all;
    for (int i = 0; i <= kRows * kLength; ++i) all.push_back(i * 7 % 29);
    input.ids = context.upload(all.data(), {kRows, kLength}, DType::i32);
    input.targets = context.upload(all.data() + 1, {kRows, kLength}, DType::i32);
    input.loss.loss_scale = 1.0f / (kRows * kLength);
  }
  double stream_bytes() const {
    return static_cast<double>(kRows * kLength * kChannels) * static_cast<double>(size_of(dtype));
  }
  std::vector<std::vector<float>> on_host(const std::vector<nn::NamedTensor>& tensors) const {
    std::vector<std::vector<float>> all;
    for (const nn::NamedTensor& entry : tensors) {
      all.emplace_back(static_cast<std::size_t>(entry.tensor.count()));
      nn::copy_to_host(all.back().data(), entry.tensor, context.stream);
    }
    return all;
  }
  // Call it while no parameter has a value.
  std::vector<UnitCost> measure() {
    const auto store = make_hash_store();
    const auto alone = collectives::make_communicator({}, *store);
    return measure_units(context, gpt2, {.input = input}, *alone,
                         {.dtype = dtype, .repetitions = 1});
  }

  DType dtype;
  std::unique_ptr<MemoryResource> source;
  PoolMemory pool{*source};
  nn::PlannedMemory planned{pool, *source};
  CountingMemory memory{planned};
  std::unique_ptr<MemoryResource> host_source = make_pinned_memory();
  CountingMemory pinned{*host_source};
  std::unique_ptr<kernels::Kernels> kernels;
  nn::DirectDispatcher dispatcher;
  nn::Context context;
  nn::StepStateMemory state;
  nn::CausalLm gpt2;
  nn::ChainInput input;
};

struct Options {
  DType dtype = DType::f32;
  bool offloads = false, capture = false;
  int steps = 6;
  std::int64_t min_bytes = 1;  // smaller tensors are not offloaded
};

struct Trained {
  std::vector<float> losses;
  std::vector<std::vector<float>> masters;
  std::int64_t peak = 0;  // of activations
  double formula = 0;
  std::int64_t pinned = 0, pinned_of_others = 0;  // host bytes for activations, and for the rest
  double pinned_formula = 0;
  DeviceStatistics before, after;  // driver statistics around the last two steps
  OffloadStatistics offload;
  nn::StepCapture::Statistics captured;
};

Trained train(const Options& o) {
  Gpu gpu(o.dtype);
  Trained out;
  const std::vector<UnitCost> units = gpu.measure();
  const std::vector<UnitRange> stages{{0, static_cast<int>(units.size())}};
  const ActivationRequest request{.units = units,
                                  .stream_bytes = gpu.stream_bytes(),
                                  .checkpoint_group = 1,
                                  .offloads = o.offloads,
                                  .offload = {.min_bytes = o.min_bytes}};
  const Schedule schedule = make_schedule({.ranks = 1, .microbatches = 1});
  out.formula = peak_activations(schedule, stages, 0, request);
  out.pinned_formula = peak_offloaded(schedule, stages, 0, request);
  gpu.gpt2.set_gradient_checkpointing(true);
  gpu.gpt2.materialize(gpu.context, DType::f32);
  nn::MasterWeights masters(gpu.gpt2.parameters(), o.dtype, *gpu.kernels, gpu.memory);
  nn::allocate_gradients(gpu.context, gpu.gpt2.parameters());
  nn::Optimizer optimizer(*gpu.kernels, gpu.memory, masters.segments(),
                          nn::adamw({.weight_decay = 0.1}));
  const nn::StepOptions step_options{.learning_rate = 1e-2, .max_gradient_norm = 1};
  std::optional<Offloader> offloader;
  if (o.offloads)
    offloader.emplace(gpu.memory, OffloadOptions{.min_bytes = o.min_bytes, .pinned = &gpu.pinned},
                      gpu.context.stream);
  std::optional<nn::StepCapture> capture;
  if (o.capture)
    capture.emplace(*gpu.kernels, gpu.planned, nn::StepCaptureOptions{.warmup = 2, .say = {}});
  const Tensor loss = gpu.context.empty({1}, DType::f32, MemoryTag::data);
  const Tensor losses = gpu.context.empty({o.steps}, DType::f32, MemoryTag::data);
  const auto work = [&] {
    for (nn::Parameter* parameter : gpu.gpt2.parameters()) parameter->clear_gradient();
    nn::Tape tape;
    std::shared_ptr<Offloader::Batch> batch;
    if (offloader) {
      batch = offloader->begin_batch();
      tape.set_saved_tensor_hooks(offloader->hooks(batch));
    }
    gpu.context.tape = &tape;
    gpu.context.begin_forward();
    const nn::LossOutput made =
        gpu.gpt2.forward(gpu.context, gpu.input.ids, gpu.input.targets, gpu.input.loss);
    gpu.context.tape = nullptr;
    gpu.kernels->elementwise().cast(made.loss_sum, loss.view(), gpu.context.stream);
    if (batch) offloader->expect(*batch);
    tape.backward(gpu.context, made.loss);
    optimizer.queue_step(*gpu.state, step_options);
  };
  DeviceBackend& backend = device_backend(DeviceType::cuda);
  gpu.memory.reset_peaks();
  const std::int64_t before = gpu.memory.usage(MemoryTag::activations).current;
  for (int step = 0; step < o.steps; ++step) {
    if (step == o.steps - 2) out.before = backend.statistics();
    optimizer.set_step(*gpu.state, step_options);
    if (capture)
      capture->run("step", work);
    else
      work();
    gpu.kernels->elementwise().cast(loss.const_view(), losses.narrowed(0, step, 1).view(),
                                    gpu.context.stream);
  }
  out.after = backend.statistics();
  out.peak = gpu.memory.usage(MemoryTag::activations).peak - before;
  EXPECT_EQ(gpu.memory.usage(MemoryTag::activations).current, before);
  out.losses.resize(static_cast<std::size_t>(o.steps));
  nn::copy_to_host(out.losses.data(), losses, gpu.context.stream);
  out.masters = gpu.on_host(masters.masters());
  out.pinned = gpu.pinned.usage(MemoryTag::activations).peak;
  out.pinned_of_others = gpu.pinned.total().peak - out.pinned;
  if (offloader) out.offload = offloader->statistics();
  if (capture) out.captured = capture->statistics();
  return out;
}

// As in docs/internals/layouts.md: units measured alone fuse less, and in pipelines two messages of
// `message` bytes may live longer.
void expect_formula(std::int64_t counted, double formula, std::int64_t message = 0) {
  EXPECT_NEAR(static_cast<double>(counted), formula,
              0.05 * formula + 2 * static_cast<double>(message));
}

class GpuOffload : public ::testing::TestWithParam<DType> {};

TEST_P(GpuOffload, ChangesNoBitAndUsesThePredictedMemory) {
  SHOAL_NEEDS_GPU();
  const Trained kept = train({.dtype = GetParam()});
  for (const bool capture : {false, true}) {
    SCOPED_TRACE(capture ? "captured" : "call by call");
    const Trained left = train({.dtype = GetParam(), .offloads = true, .capture = capture});
    EXPECT_EQ(left.losses, kept.losses);
    EXPECT_EQ(left.masters, kept.masters);
    EXPECT_EQ(left.captured.replayed, capture ? 4 : 0);
    const auto input = kRows * kLength * kChannels * static_cast<std::int64_t>(size_of(GetParam()));
    expect_formula(kept.peak, kept.formula);
    expect_formula(left.peak, left.formula);
    // The current input and the two in transfer remain on the device; the other three are
    // offloaded.
    EXPECT_EQ(kept.peak - left.peak, (kLayers - 3) * input);
    EXPECT_EQ(kept.formula - left.formula, static_cast<double>((kLayers - 3) * input));
    EXPECT_GT(left.offload.tensors, kLayers);
    EXPECT_GT(left.offload.early, 0);
    EXPECT_EQ(left.after, left.before) << "a steady step must not wait or allocate";
  }
}

// On the host each offloaded tensor has a fixed slot: the inputs of the blocks, and for the head
// its norm's input and its own.
TEST_P(GpuOffload, PinsThePredictedMemory) {
  SHOAL_NEEDS_GPU();
  const auto input = kRows * kLength * kChannels * static_cast<std::int64_t>(size_of(GetParam()));
  for (const bool capture : {false, true}) {
    const Trained left =
        train({.dtype = GetParam(), .offloads = true, .capture = capture, .min_bytes = input});
    EXPECT_EQ(left.pinned, (kLayers + 2) * input);
    EXPECT_EQ(left.pinned_formula, static_cast<double>(left.pinned));
    EXPECT_EQ(left.pinned_of_others, 0);
  }
  EXPECT_EQ(train({.dtype = GetParam()}).pinned_formula, 0);
}

INSTANTIATE_TEST_SUITE_P(Types, GpuOffload, ::testing::Values(DType::f32, DType::bf16),
                         [](const auto& test) { return std::string(to_string(test.param)); });

struct Piped {
  double loss = 0;
  std::vector<std::vector<float>> gradients;
  std::int64_t peak = 0;
  double formula = 0;
  std::int64_t pinned = 0;
  double pinned_formula = 0;
  DeviceStatistics before, after;  // driver statistics around the second step
};

// Runs one rank's stages with several microbatches in flight.
Piped pipe(const ScheduleOptions& options, bool offloads) {
  Gpu gpu(DType::f32);
  Piped out;
  const std::vector<UnitCost> units = gpu.measure();
  const int all = static_cast<int>(units.size());
  std::vector<UnitRange> ranges{{0, all}};
  if (options.chunks == 2) ranges = {{0, all / 2}, {all / 2, all}};
  const Schedule schedule = make_schedule(options);
  const OffloadOptions offload{.min_bytes = kRows * kLength * kChannels * 4, .pinned = &gpu.pinned};
  const ActivationRequest request{.units = units,
                                  .stream_bytes = gpu.stream_bytes(),
                                  .checkpoint_group = 1,
                                  .offloads = offloads,
                                  .offload = offload};
  out.formula = peak_activations(schedule, ranges, 0, request);
  out.pinned_formula = peak_offloaded(schedule, ranges, 0, request);
  gpu.gpt2.materialize(gpu.context, DType::f32);
  nn::allocate_gradients(gpu.context, gpu.gpt2.parameters());
  std::optional<Offloader> offloader;
  if (offloads) offloader.emplace(gpu.memory, offload, gpu.context.stream);
  std::vector<std::unique_ptr<ChainStage>> stages;
  std::map<int, Stage*> table;
  for (const UnitRange& range : ranges) {
    stages.push_back(std::make_unique<ChainStage>(
        gpu.context, gpu.gpt2, range,
        ChainStageOptions{.checkpoint_group = 1, .offloader = offloader ? &*offloader : nullptr}));
    table.emplace(static_cast<int>(table.size()), stages.back().get());
  }
  const auto store = make_hash_store();
  const auto alone = collectives::make_communicator({}, *store);
  PipelineExecutor executor(schedule, *alone, table, nullptr, offloads ? 4 : 0);
  std::vector<Microbatch> microbatches;
  for (int i = 0; i < options.microbatches; ++i)
    microbatches.push_back({gpu.input, static_cast<std::uint32_t>(i * kRows)});
  DeviceBackend& backend = device_backend(DeviceType::cuda);
  for (int step = 0; step < 2; ++step) {
    for (nn::Parameter* parameter : gpu.gpt2.parameters()) parameter->clear_gradient();
    for (const auto& stage : stages) stage->begin(microbatches);
    gpu.memory.reset_peaks();
    const std::int64_t held = gpu.memory.usage(MemoryTag::activations).current;
    out.before = backend.statistics();
    executor.run();
    out.after = backend.statistics();
    out.peak = gpu.memory.usage(MemoryTag::activations).peak - held;
    out.loss = stages.back()->loss().sum;
  }
  out.pinned = gpu.pinned.usage(MemoryTag::activations).peak;
  std::vector<nn::NamedTensor> gradients;
  for (const nn::Parameter* parameter : gpu.gpt2.parameters())
    gradients.push_back({parameter->name(), parameter->gradient});
  out.gradients = gpu.on_host(gradients);
  return out;
}

TEST(GpuOffloadStages, SupportSeveralMicrobatchesInFlight) {
  SHOAL_NEEDS_GPU();
  for (const auto& [kind, chunks] :
       {std::pair{ScheduleKind::simple, 1}, std::pair{ScheduleKind::virtual_interleaved, 2}}) {
    SCOPED_TRACE(name(kind));
    const ScheduleOptions options{.kind = kind, .ranks = 1, .microbatches = 3, .chunks = chunks};
    const Piped kept = pipe(options, false), left = pipe(options, true);
    EXPECT_EQ(left.loss, kept.loss);
    EXPECT_EQ(left.gradients, kept.gradients);
    constexpr std::int64_t kMessage = kRows * kLength * kChannels * 4;
    expect_formula(kept.peak, kept.formula, kMessage);
    expect_formula(left.peak, left.formula, kMessage);
    EXPECT_LT(left.peak, kept.peak);
    EXPECT_EQ(static_cast<double>(left.pinned), left.pinned_formula);
    EXPECT_EQ(left.after, left.before) << "a steady step must not wait or allocate";
  }
}

TEST(GpuOffloadStages, NeedTheStreamThatComputes) {
  SHOAL_NEEDS_GPU();
  const auto memory = make_device_memory(Device::cuda(0));
  EXPECT_THAT(test::error_text([&] { Offloader(*memory, {}); }),
              ::testing::HasSubstr("activations of cuda:0 are offloaded from a stream of cpu"));
}

}  // namespace
}  // namespace shoal::parallel
