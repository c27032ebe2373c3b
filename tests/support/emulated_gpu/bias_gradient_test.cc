// Checks which kernel sums the gradient of a bias: cuBLASLt as part of the weight's product, or a
// separate kernel of Shoal's. The tests count launched kernels.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "support/emulated_gpu/block.h"
#include "support/little_time.h"
#include "support/temporary_directory.h"
#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "shoal/kernels/kernels.h"
#include "shoal/nn/autograd/device_values.h"
#include "shoal/nn/autograd/tape.h"
#include "shoal/nn/capture/step_capture.h"
#include "shoal/nn/models/causal_lm.h"
#include "shoal/nn/optim/master_weights.h"
#include "shoal/runtime/base/log.h"
#include "shoal/runtime/io/json.h"
#include "shoal/runtime/memory/memory_resource.h"

namespace shoal::emulated_gpu {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

class Variable {
 public:
  Variable(const char* name, const std::string& value) : name_(name) {
    ::setenv(name, value.c_str(), 1);
  }
  ~Variable() { ::unsetenv(name_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
};

// The notices that once() has logged since.
std::string said_since(std::size_t before) {
  const auto notices = log::notices();
  std::string all;
  for (std::size_t i = before; i < notices.size(); ++i) all += notices[i].text + "\n";
  return all;
}

// dW [m, n] and db [n] of x [k, m] and dy [k, n], in bf16. Each test has its own n, because a
// notice is logged only once a process.
class BiasGradient : public ::testing::Test {
 protected:
  void start(const std::string& cache = {}) {
    kernels_ = kernels::make_cuda_kernels(
        {.device = Device::cuda(0), .memory = memory_.get(), .cache_directory = cache});
  }
  void sizes(std::int64_t m, std::int64_t n, std::int64_t k, float scale = 1) {
    m_ = m;
    n_ = n;
    k_ = k;
    x_ = tensor({k, m}, [](std::int64_t i) { return 0.5f - static_cast<float>(i % 7) / 8; });
    dy_ = tensor({k, n}, [&](std::int64_t i) {
      return scale * (static_cast<float>(i * 31 % 23) / 16 - static_cast<float>(i % n % 5) / 8);
    });
    expected_.assign(static_cast<std::size_t>(n), 0);
    std::vector<bfloat16> values(static_cast<std::size_t>(k * n));
    read(values.data(), dy_);
    for (std::size_t i = 0; i < values.size(); ++i)
      expected_[i % static_cast<std::size_t>(n)] +=
          static_cast<double>(static_cast<float>(values[i]));
  }
  // Runs once and checks both results. Returns the number of launched kernels.
  std::uint64_t run(bool adds = false) {
    const Tensor dw = filled({m_, n_}, adds ? 2.0f : NAN), db = filled({n_}, adds ? 3.0f : NAN);
    kernels::MatmulArgs args;
    args.a = x_.const_view();
    args.b = dy_.const_view();
    args.c = dw.view();
    args.transpose_a = true;
    args.accumulate = args.accumulate_bias_gradient = adds;
    args.bias_gradient = db.view();
    const std::uint64_t before = launches();
    kernels_->matmul().matmul(args, kernels_->stream());
    device_backend(DeviceType::cuda).synchronize(kernels_->stream());
    const std::uint64_t took = launches() - before;
    std::vector<float> sums(static_cast<std::size_t>(n_)),
        product(static_cast<std::size_t>(m_ * n_));
    read(sums.data(), db);
    read(product.data(), dw);
    for (std::size_t j = 0; j < sums.size(); ++j)
      EXPECT_NEAR(sums[j], expected_[j] + (adds ? 3 : 0), 1e-4 * (std::abs(expected_[j]) + 1)) << j;
    const Tensor alone = filled({m_, n_}, 2.0f);
    args.c = alone.view();
    args.bias_gradient = {};
    kernels_->matmul().matmul(args, kernels_->stream());
    device_backend(DeviceType::cuda).synchronize(kernels_->stream());
    std::vector<float> right(product.size());
    read(right.data(), alone);
    for (std::size_t i = 0; i < right.size(); ++i)
      EXPECT_NEAR(product[i], right[i], 1e-4f * (std::abs(right[i]) + 10)) << i;
    return took;
  }
  template <class T>
  void read(T* values, const Tensor& tensor) {
    device_backend(DeviceType::cuda)
        .copy(values, tensor.const_view().data, tensor.bytes(), kernels_->stream());
    device_backend(DeviceType::cuda).synchronize(kernels_->stream());
  }
  Tensor filled(const Shape& shape, float value) {
    const Tensor made = Tensor::empty(shape, DType::f32, *memory_, MemoryTag::workspace);
    kernels_->elementwise().fill(made.view(), value, kernels_->stream());
    return made;
  }
  template <class F>
  Tensor tensor(const Shape& shape, const F& value) {
    std::vector<bfloat16> values;
    for (std::int64_t i = 0; i < shape.count(); ++i) values.emplace_back(value(i));
    const Tensor made = Tensor::empty(shape, DType::bf16, *memory_, MemoryTag::workspace);
    device_backend(DeviceType::cuda)
        .copy(made.view().data, values.data(), made.bytes(), kernels_->stream());
    device_backend(DeviceType::cuda).synchronize(kernels_->stream());
    return made;
  }

  std::unique_ptr<MemoryResource> memory_ = make_device_memory(Device::cuda(0));
  std::unique_ptr<kernels::Kernels> kernels_;
  std::int64_t m_ = 0, n_ = 0, k_ = 0;
  Tensor x_, dy_;
  std::vector<double> expected_;
};

constexpr const char *kWho = "SHOAL_CUDA_BIAS_GRADIENT",
                     *kLibrary = "SHOAL_EMULATED_GPU_BIAS_GRADIENT";

TEST_F(BiasGradient, IsASeparatePassWhereNothingIsTimed) {
  start();
  sizes(16, 24, 200);
  EXPECT_GE(run(), 1u);
  EXPECT_GE(run(true), 1u);
}

// It takes cuBLASLt's kernel only, plus one that adds the sums to those of earlier microbatches.
TEST_F(BiasGradient, WithinTheProductTakesNoSeparateKernel) {
  const Variable who(kWho, "product");
  start();
  sizes(16, 32, 100);
  const std::size_t before = log::notices().size();
  EXPECT_EQ(run(), 1u) << "the first result is compared with a separate pass";
  EXPECT_EQ(run(), 0u);
  EXPECT_EQ(run(), 0u);
  EXPECT_EQ(run(true), 2u) << "a product that adds has its own key";
  EXPECT_EQ(run(true), 1u);
  EXPECT_THAT(said_since(before), IsEmpty());
}

TEST_F(BiasGradient, IsASeparatePassAndLoggedOnceIfCublasLtLacksIt) {
  const Variable who(kWho, "product"), library(kLibrary, "none");
  start();
  sizes(16, 40, 100);
  const std::size_t before = log::notices().size();
  EXPECT_EQ(run(), 1u);
  EXPECT_EQ(run(), 1u);
  EXPECT_THAT(said_since(before), HasSubstr("cuBLASLt has no kernel for bf16>f32 1x16x40x100 tn "
                                            "sums_b"));
}

TEST_F(BiasGradient, IsASeparatePassIfCublasLtRefusesIt) {
  const Variable who(kWho, "product");
  start();
  sizes(16, 48, 100);
  EXPECT_EQ(run(), 1u);
  EXPECT_EQ(run(), 0u);
  const std::size_t before = log::notices().size();
  const Variable library(kLibrary, "refused");
  EXPECT_EQ(run(), 1u) << "cuBLASLt refuses at execution";
  EXPECT_THAT(said_since(before), HasSubstr("cuBLASLt refuses its own proposal for"));
  start();
  EXPECT_EQ(run(), 2u) << "the comparison takes a pass, and the refused product another";
  EXPECT_EQ(run(), 1u);
}

TEST_F(BiasGradient, InaccurateSumsAreLoggedAndNotUsed) {
  const Variable who(kWho, "product"), library(kLibrary, "rough");
  start();
  sizes(16, 56, 900);
  const std::size_t before = log::notices().size();
  EXPECT_EQ(run(), 4u) << "a pass of 900 rows is two kernels";
  EXPECT_EQ(run(), 2u);
  EXPECT_THAT(said_since(before), HasSubstr("off where the largest is"));
}

// Sums that are zero or not finite prove nothing, so the library is tried again with the next ones.
TEST_F(BiasGradient, IsTriedOnlyWithFiniteNonzeroSums) {
  const Variable who(kWho, "product");
  start();
  sizes(16, 64, 100, 0);
  EXPECT_EQ(run(), 2u);
  sizes(16, 64, 100);
  EXPECT_EQ(run(), 1u);
  EXPECT_EQ(run(), 0u);
}

TEST_F(BiasGradient, IsTriedALimitedNumberOfTimes) {
  const Variable who(kWho, "product");
  start();
  sizes(16, 72, 100, 0);
  const std::size_t before = log::notices().size();
  for (int i = 0; i < 8; ++i) EXPECT_EQ(run(), 2u) << i;
  EXPECT_EQ(run(), 1u);
  sizes(16, 72, 100);
  EXPECT_EQ(run(), 1u);
  EXPECT_THAT(said_since(before), HasSubstr("could not be tried"));
}

// A captured step cannot wait for the comparison, so it always uses a separate pass.
TEST_F(BiasGradient, CapturedStepUsesASeparatePassUnlessTriedBefore) {
  const Variable who(kWho, "product");
  start();
  sizes(16, 80, 100);
  const Tensor dw = filled({m_, n_}, 0), db = filled({n_}, 0);
  device_backend(DeviceType::cuda).synchronize(kernels_->stream());
  kernels::MatmulArgs args;
  args.a = x_.const_view();
  args.b = dy_.const_view();
  args.c = dw.view();
  args.transpose_a = true;
  args.bias_gradient = db.view();
  const auto kernels_captured = [&] {
    auto* const stream = static_cast<cudaStream_t>(kernels_->stream().handle);
    EXPECT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    const std::uint64_t before = launches();
    kernels_->matmul().matmul(args, kernels_->stream());
    const std::uint64_t took = launches() - before;
    cudaGraph_t graph = nullptr;
    EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
    return took;
  };
  EXPECT_EQ(kernels_captured(), 1u);
  (void)run();
  EXPECT_EQ(kernels_captured(), 0u);
}

// A product that is large enough to be timed. Processes that have not timed it follow the file.
TEST_F(BiasGradient, ChoiceIsTimedAgreedUponAndSaved) {
  const shoal::testing::TemporaryDirectory directory;
  start(directory.path());
  sizes(256, 512, 4096);
  EXPECT_GE(run(), 2u);
  std::string path;
  for (const auto& entry : std::filesystem::directory_iterator(directory.path()))
    if (entry.path().extension() == ".json") path = entry.path();
  nlohmann::json file = read_json_file(path);
  std::string key;
  for (const auto& [each, its] : file.at("choices").items())
    if (each.find("sums_b") != std::string::npos) key = each;
  ASSERT_THAT(key, HasSubstr("bf16>f32 1x256x512x4096 tn sums_b"));
  const auto rewrite = [&] { std::ofstream(path) << file.dump(); };
  const bool fused = file["choices"][key]["fused"].get<bool>();
  const std::uint64_t again = run();
  EXPECT_EQ(again == 0, fused);
  // Another process reads the opposite choice.
  file["choices"][key] = {{"fused", false}, {"microseconds", 1}};
  rewrite();
  start(directory.path());
  EXPECT_GE(run(), 1u);
  file["choices"].erase(key);
  nlohmann::json taken;  // an algorithm that the library accepts: the plain product's
  for (const auto& [each, its] : file.at("choices").items())
    if (each.find(" plain ") != std::string::npos) taken = its;
  ASSERT_TRUE(taken.at("fused").get<bool>());
  file["choices"][key] = taken;
  rewrite();
  start(directory.path());
  EXPECT_EQ(run(), 0u);
  EXPECT_EQ(run(), 0u);
  // An algorithm that the library refuses.
  file["choices"][key]["algorithm"] = {1, 2, 3, 4, 5, 6, 7, 8};
  rewrite();
  const std::size_t before = log::notices().size();
  start(directory.path());
  EXPECT_GE(run(), 1u);
  EXPECT_THAT(said_since(before), HasSubstr("cuBLASLt does not take the algorithm of"));
}

TEST_F(BiasGradient, IsASeparatePassIfTimedSumsAreInaccurate) {
  if (shoal::testing::has_little_time())
    GTEST_SKIP() << "timing the algorithms again takes too long on the emulated GPU";
  const Variable library(kLibrary, "rough");
  const shoal::testing::TemporaryDirectory directory;
  start(directory.path());
  sizes(256, 520, 4096);
  EXPECT_GE(run(), 2u);
  EXPECT_GE(run(), 1u);
}

// Returns the kernel count of a captured step and the last loss. The model is a GPT-2 with 8 biases
// of products and 132 rows, which a separate pass sums in two chunks and then adds.
std::pair<std::uint64_t, double> captured_step() {
  nn::DecoderConfig config = nn::DecoderConfig::of("gpt2");
  config.vocab_size = 61;
  config.max_position_embeddings = 66;
  config.hidden_size = 32;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 2;
  config.hidden_dropout = config.embedding_dropout = config.attention_dropout = 0;
  const auto upstream = make_device_memory(Device::cuda(0));
  PoolMemory pool(*upstream);
  nn::PlannedMemory memory(pool, *upstream);
  const auto kernels = kernels::make_cuda_kernels(
      {.device = Device::cuda(0), .memory = &memory, .cache_directory = {}});
  nn::DirectDispatcher dispatcher;
  nn::Context context(*kernels, memory, dispatcher);
  nn::StepStateMemory state(*kernels, memory);
  context.random.state = state.pointer();
  nn::CausalLm model(config);
  model.materialize(context, DType::f32);
  const auto parameters = model.parameters();
  nn::MasterWeights masters(parameters, DType::bf16, *kernels, memory);
  nn::allocate_gradients(context, parameters);
  nn::Optimizer optimizer(*kernels, memory, masters.segments(), nn::adamw());
  std::vector<std::int32_t> ids(132);
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int32_t>(i * 17 % 61);
  const Tensor batch = context.upload(ids.data(), {2, 66}, DType::i32),
               loss = context.empty({1}, DType::f32, MemoryTag::data);
  const nn::StepOptions options{.learning_rate = 1e-2, .max_gradient_norm = 1};
  nn::StepCapture capture(*kernels, memory, {.warmup = 3, .say = {}});
  std::uint64_t took = 0;
  for (int step = 0; step < 8; ++step) {
    optimizer.set_step(*state, options);
    device_backend(DeviceType::cuda).synchronize(context.stream);
    const std::uint64_t before = launches();
    capture.run("step", [&] {
      for (nn::Parameter* parameter : parameters) parameter->clear_gradient();
      nn::Tape tape;
      context.tape = &tape;
      const nn::LossOutput made = model.forward(context, batch, batch, {.loss_scale = 1.0f / 132});
      context.tape = nullptr;
      context.kernels().elementwise().cast(made.loss_sum, loss.view(), context.stream);
      tape.backward(context, made.loss);
      optimizer.queue_step(*state, options);
    });
    device_backend(DeviceType::cuda).synchronize(context.stream);
    if (took == 0 && capture.statistics().captured > 0) took = launches() - before;
  }
  EXPECT_GT(capture.statistics().replayed, 0);
  return {took, context.read(loss)};
}

TEST(BiasGradientOfAStep, TakesNoExtraKernels) {
  std::pair<std::uint64_t, double> pass, product;
  {
    const Variable who(kWho, "pass");
    pass = captured_step();
  }
  {
    const Variable who(kWho, "product");
    product = captured_step();
  }
  EXPECT_EQ(pass.first - product.first, 2 * 8u) << pass.first << " and " << product.first;
  EXPECT_NEAR(product.second, pass.second, 2e-3 * pass.second);
}

TEST_F(BiasGradient, UnknownSettingIsAnError) {
  const Variable who(kWho, "cublas");
  start();
  try {
    (void)kernels_->matmul();
    FAIL() << "nothing was thrown";
  } catch (const std::exception& problem) {
    EXPECT_THAT(problem.what(), HasSubstr("SHOAL_CUDA_BIAS_GRADIENT='cublas' is not auto, pass or "
                                          "product"));
  }
}

}  // namespace
}  // namespace shoal::emulated_gpu
