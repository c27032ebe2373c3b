// Data-parallel training of a tiny GPT-2 by ranks that share one GPU, with gradients in memory that
// all of them read. Losses and parameters must be those of one rank with the whole batch.
#include <cmath>
#include <cstring>
#include <vector>

#include "gpu/on_gpu.h"
#include "support/calls.h"
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "shoal/collectives/communicator.h"
#include "shoal/collectives/communicator_options.h"
#include "shoal/kernels/kernels.h"
#include "shoal/nn/autograd/device_values.h"
#include "shoal/nn/autograd/dispatcher.h"
#include "shoal/nn/autograd/tape.h"
#include "shoal/nn/models/causal_lm.h"
#include "shoal/nn/optim/master_weights.h"
#include "shoal/nn/optim/optimizer.h"
#include "shoal/parallel/data/reducer.h"

namespace shoal {
namespace {

constexpr std::int64_t kBatch = 8, kLength = 24, kVocabulary = 64, kSteps = 6;

struct Run {
  std::vector<double> losses;  // for each token, by step
  std::vector<float> numbers;  // the final parameters
  std::int64_t zero_copy = 0;
};

// Rows world.rank, world.rank + world.size, ... of the batch.
std::vector<std::int32_t> rows(const World& world, std::int64_t step, std::int64_t shift) {
  std::vector<std::int32_t> ids;
  for (std::int64_t row = world.rank; row < kBatch; row += world.size)
    for (std::int64_t t = 0; t < kLength; ++t)
      ids.push_back(static_cast<std::int32_t>((7 * step + 13 * row + t + shift) % kVocabulary));
  return ids;
}

Run train(const World& world, Store& store) {
  const Device device = test::device_of(world);
  const auto upstream = make_device_memory(device);
  PoolMemory memory(*upstream);
  kernels::CudaKernelOptions how;
  how.device = device;
  how.memory = &memory;
  const auto kernels = kernels::make_cuda_kernels(how);
  auto options = test::with_deadline(60);
  options.stream = kernels->stream();
  const auto communicator = collectives::make_communicator(world, store, options);

  nn::DecoderConfig config = nn::DecoderConfig::of("gpt2");
  config.vocab_size = kVocabulary;
  config.max_position_embeddings = kLength;
  config.hidden_size = 64;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 2;
  config.hidden_dropout = config.embedding_dropout = config.attention_dropout = 0;
  config.bos_token_id = config.eos_token_id = std::nullopt;
  nn::CausalLm model(config);
  nn::DirectDispatcher dispatcher;
  nn::Context context(*kernels, memory, dispatcher);
  context.random.seed = 42;
  model.materialize(context, DType::f32);
  const auto parameters = model.parameters();
  const nn::MasterWeights masters(parameters, DType::f32, *kernels, memory);
  parallel::ReducerOptions buckets;
  buckets.bucket_bytes = 100 << 10;
  buckets.first_bucket_bytes = 16 << 10;
  parallel::Reducer reducer(parameters, *communicator, buckets);
  // With a smaller epsilon, rounding errors would become updates where the gradient is zero (key
  // biases).
  nn::Optimizer optimizer(*kernels, memory, masters.segments(), nn::adamw({.epsilon = 1e-4}));
  const nn::StepStateMemory state(*kernels, memory);
  context.random.state = state.pointer();

  Run run;
  const Shape shape{kBatch / world.size, kLength};
  for (std::int64_t step = 0; step < kSteps; ++step) {
    const Tensor ids = context.upload(rows(world, step, 0).data(), shape, DType::i32);
    const Tensor targets = context.upload(rows(world, step, 1).data(), shape, DType::i32);
    nn::Tape tape;
    context.tape = &tape;
    reducer.begin_step();
    const auto scale = 1.0f / static_cast<float>(kBatch * kLength);
    const nn::LossOutput output = model.forward(context, ids, targets, {.loss_scale = scale});
    reducer.arm();
    tape.backward(context, output.loss);
    reducer.finish();
    optimizer.step(*state, {.learning_rate = 3e-3, .max_gradient_norm = 1.0});
    double loss = context.read(output.loss_sum) / (kBatch * kLength);
    communicator->host()
        .all_reduce(&loss, &loss, 1, DType::f64, collectives::ReduceOp::sum)
        ->wait();
    run.losses.push_back(loss);
  }
  for (const nn::NamedTensor& master : masters.masters()) {
    const std::size_t begin = run.numbers.size();
    run.numbers.resize(begin + static_cast<std::size_t>(master.tensor.count()));
    nn::copy_to_host(run.numbers.data() + begin, master.tensor, kernels->stream());
  }
  run.zero_copy = communicator->statistics().zero_copy;
  return run;
}

void train_and_compare(const World& world, Store& store) {
  const Run ours = train(world, store), again = train(world, store);
  EXPECT_GT(ours.zero_copy, kSteps) << "buckets are summed in place";
  EXPECT_EQ(ours.losses, again.losses);
  ASSERT_EQ(ours.numbers.size(), again.numbers.size());
  EXPECT_EQ(std::memcmp(ours.numbers.data(), again.numbers.data(), 4 * ours.numbers.size()), 0)
      << "the same run gives the same bits";
  const auto alone = make_hash_store();
  const Run one = train(test::local_world(0, 1), *alone);
  EXPECT_LT(one.losses.back(), one.losses.front()) << "the loss must fall";
  for (std::size_t step = 0; step < one.losses.size(); ++step)
    EXPECT_NEAR(ours.losses[step], one.losses[step], 2e-3 * one.losses[step]) << "step " << step;
  double difference = 0, size = 0;
  for (std::size_t i = 0; i < one.numbers.size(); ++i) {
    const double a = static_cast<double>(ours.numbers[i]), b = static_cast<double>(one.numbers[i]);
    difference += (a - b) * (a - b);
    size += b * b;
  }
  EXPECT_LT(std::sqrt(difference / size), 1e-2);
}

TEST(GpuTraining, TwoRanksTrainLikeOneOnTheWholeBatch) {
  test::expect_on_gpu(2, 150, train_and_compare);
}

TEST(GpuTraining, FourRanksTrainLikeOneOnTheWholeBatch) {
  test::expect_on_gpu(4, 150, train_and_compare);
}

}  // namespace
}  // namespace shoal
