// A planned step of a model computes the same losses, and takes the predicted memory.
#include <cstdint>
#include <vector>

#include "capture_memory.h"
#include <gtest/gtest.h>

#include "shoal/nn/autograd/device_values.h"
#include "shoal/nn/autograd/tape.h"
#include "shoal/nn/capture/batch_size.h"
#include "shoal/nn/capture/step_capture.h"
#include "shoal/nn/models/causal_lm.h"
#include "shoal/nn/optim/master_weights.h"
#include "shoal/runtime/device/device.h"

namespace shoal::nn {
namespace {

using test::CaptureMemory;

struct Trained {
  std::vector<double> losses;
  StepCapture::Statistics statistics;
  MemorySequence sequence;  // if the step was planned
};

Trained train(bool planned, bool checkpointing, int rows = 4) {
  CaptureMemory memory(std::int64_t{1} << 30);
  CountingMemory counted(memory.planned);
  const auto kernels = kernels::make_cpu_kernels({.threads = 2, .memory = &counted});
  DirectDispatcher dispatcher;
  Context context(*kernels, counted, dispatcher);
  StepStateMemory state(*kernels, counted);
  context.random.state = state.pointer();
  DecoderConfig config = DecoderConfig::of("gpt2");
  config.vocab_size = 61;
  config.max_position_embeddings = config.hidden_size = 32;
  config.num_hidden_layers = 3;
  config.num_attention_heads = 4;
  config.bos_token_id = config.eos_token_id = 0;
  CausalLm model(config);
  model.set_gradient_checkpointing(checkpointing);
  model.materialize(context, DType::f32);
  MasterWeights weights(model.parameters(), DType::bf16, *kernels, counted);
  allocate_gradients(context, model.parameters());
  Optimizer optimizer(*kernels, counted, weights.segments(), nn::adamw());
  std::vector<std::int32_t> all;
  for (int i = 0; i < rows * 32; ++i) all.push_back(i * 7 % 61);
  const Tensor ids = context.upload(all.data(), {rows, 32}, DType::i32);
  const Tensor loss = context.empty({1}, DType::f32, MemoryTag::data);
  StepCapture capture(*kernels, memory.planned, {.warmup = 2});
  Trained trained;
  for (int step = 0; step < 6; ++step) {
    const StepOptions options{.learning_rate = 1e-2 / (step + 1), .max_gradient_norm = 1};
    optimizer.set_step(*state, options);
    const auto work = [&] {
      for (Parameter* parameter : model.parameters()) parameter->clear_gradient();
      Tape tape;
      context.tape = &tape;
      const LossOutput out = model.forward(context, ids, ids, {.loss_scale = 1.0f / 128});
      context.tape = nullptr;
      kernels->elementwise().cast(out.loss_sum, loss.view(), context.stream);
      tape.backward(context, out.loss);
      optimizer.queue_step(*state, options);
    };
    if (planned)
      capture.run("step", work);
    else
      work();
    trained.losses.push_back(context.read(loss));
  }
  trained.statistics = capture.statistics();
  if (!capture.planned().empty()) trained.sequence = capture.planned().front();
  return trained;
}

TEST(StepCapture, APlannedStepOfAModelHasTheSameLosses) {
  for (const bool checkpointing : {false, true}) {
    const Trained plain = train(false, checkpointing), planned = train(true, checkpointing);
    EXPECT_EQ(planned.losses, plain.losses);
    EXPECT_LT(plain.losses.back(), plain.losses.front());
    EXPECT_EQ(planned.statistics.served, 4);
    EXPECT_EQ(planned.statistics.deviated, 0);
    // Placing by size needs little more than the live memory. A pool with a list for each
    // size needs much more.
    EXPECT_LE(planned.statistics.arena_bytes, planned.statistics.live_bytes * 11 / 10);
    EXPECT_LT(planned.statistics.arena_bytes, planned.statistics.pool_bytes);
  }
}

// Predicts the memory for another batch size from one recorded step, and compares it with a
// recorded step of that size.
TEST(BatchSize, IsForetoldFromOneStep) {
  for (const bool checkpointing : {false, true}) {
    const MemorySequence four = train(true, checkpointing, 4).sequence;
    const RecordedBatch batch{4, 4 * 32};
    const StepBytes same = bytes_of_step(four, batch, 4, Device::cpu());
    EXPECT_EQ(same.planned, four.arena_bytes);
    EXPECT_GE(same.call_by_call, four.live_bytes);
    for (const int rows : {3, 7, 12}) {
      SCOPED_TRACE(rows);
      const MemorySequence other = train(true, checkpointing, rows).sequence;
      const StepBytes said = bytes_of_step(four, batch, rows, Device::cpu());
      const StepBytes is =
          bytes_of_step(other, {rows, std::int64_t{32} * rows}, rows, Device::cpu());
      EXPECT_EQ(is.planned, other.arena_bytes);
      EXPECT_NEAR(static_cast<double>(said.planned), static_cast<double>(is.planned),
                  0.05 * static_cast<double>(is.planned));
      EXPECT_NEAR(static_cast<double>(said.call_by_call), static_cast<double>(is.call_by_call),
                  0.05 * static_cast<double>(is.call_by_call));
      // The limit has room for exactly these rows.
      const LargestBatch largest = largest_batch({&four, 1}, batch, said.planned, Device::cpu());
      EXPECT_EQ(largest.planned, rows);
      EXPECT_LE(largest.call_by_call, rows);
      // Two memories share a limit of twice the size.
      const std::vector<MemorySequence> both{four, four};
      const LargestBatch of_both = largest_batch(both, batch, 2 * said.planned, Device::cpu());
      EXPECT_EQ(of_both.planned, largest.planned);
      EXPECT_EQ(of_both.call_by_call, largest.call_by_call);
    }
    EXPECT_EQ(largest_batch({&four, 1}, batch, 100, Device::cpu()).planned, 0);
  }
}

TEST(BatchSize, CountsTheMemoryThatAStepCanUse) {
  CaptureMemory memory;
  PoolMemory pool(memory.limited);
  PlannedMemory planned(pool, memory.limited);
  EXPECT_EQ(planned.available_bytes(), 1 << 20);
  {
    const Buffer stays(planned, 1 << 18, MemoryTag::parameters);
    EXPECT_EQ(planned.available_bytes(), 3 << 18);
    Buffer(planned, 1 << 17, MemoryTag::activations).reset();
    EXPECT_EQ(planned.available_bytes(), 3 << 18) << "the pool keeps it";
  }
}

}  // namespace
}  // namespace shoal::nn
