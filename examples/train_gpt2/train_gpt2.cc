// A data-parallel GPT-2 training loop built from Shoal's parts.
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>

#include <nlohmann/json.hpp>

#include "shoal/collectives/communicator.h"
#include "shoal/kernels/kernels.h"
#include "shoal/nn/models/gpt2/huggingface.h"
#include "shoal/nn/models/gpt2/model.h"
#include "shoal/nn/optim/master_weights.h"
#include "shoal/nn/optim/optimizer.h"
#include "shoal/nn/optim/schedule.h"
#include "shoal/parallel/data/reducer.h"
#include "shoal/runtime/base/deadlines.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/numbers.h"
#include "shoal/runtime/base/parallel_for.h"
#include "shoal/runtime/io/file_system.h"
#include "shoal/runtime/rendezvous/threads.h"

using namespace shoal;

constexpr std::int64_t kGlobalBatch = 8, kLength = 32, kVocabulary = 64;

struct Batch {
  Tensor ids, targets;  // i32 [B, T]
};

// Each sample of each step counts up from its own start; the targets are the next numbers.
Batch next_batch(std::int64_t step, const World& world, MemoryResource& memory) {
  const std::int64_t rows = kGlobalBatch / world.size;
  Batch batch{Tensor::empty({rows, kLength}, DType::i32, memory, MemoryTag::data),
              Tensor::empty({rows, kLength}, DType::i32, memory, MemoryTag::data)};
  auto* ids = batch.ids.data<std::int32_t>();
  auto* targets = batch.targets.data<std::int32_t>();
  for (std::int64_t row = 0; row < rows; ++row)
    for (std::int64_t t = 0; t < kLength; ++t) {
      const std::int64_t sample = world.rank + row * world.size;  // index in the global batch
      const std::int64_t number = 7 * step + 13 * sample + t;
      ids[row * kLength + t] = static_cast<std::int32_t>(number % kVocabulary);
      targets[row * kLength + t] = static_cast<std::int32_t>((number + 1) % kVocabulary);
    }
  return batch;
}

int train(std::int64_t steps, const std::string& out) {
  // Find this rank and the others: started by mpirun, torchrun, SLURM, or alone.
  const World world = discover_world();
  const auto store = make_store(world, deadlines::start());
  const auto communicator = collectives::make_communicator(world, *store);
  if (kGlobalBatch % world.size != 0)
    throw Error(ErrorCode::invalid_argument, "the number of ranks must divide 8");

  const auto host = make_host_memory();
  PoolMemory memory(*host);
  const int threads = threads_of_rank(world, *store, deadlines::start());
  const auto kernels = kernels::make_cpu_kernels({.threads = threads, .memory = &memory});

  // Weights are drawn from the seed and each parameter's name, so every rank has the same.
  nn::Gpt2Config config;
  config.vocab_size = kVocabulary;
  config.n_positions = kLength;
  config.n_embd = 64;
  config.n_layer = 2;
  config.n_head = 4;
  config.bos_token_id = config.eos_token_id = std::nullopt;
  nn::Gpt2 model(config);
  nn::DirectDispatcher dispatcher;
  nn::Context context(*kernels, memory, dispatcher);
  context.random.seed = 42;
  model.materialize(context, DType::f32);

  // Gradients live in buckets that are summed over ranks while backward runs. The optimizer updates
  // f32 masters and refreshes the bf16 values that the forward reads.
  const auto parameters = model.parameters();
  nn::MasterWeights masters(parameters, DType::bf16, *kernels, memory);
  parallel::Reducer reducer(parameters, *communicator);
  const auto optimizer = nn::make_adamw(*kernels, memory, masters.segments(), {});
  const nn::Schedule schedule("cosine", 3e-3, steps / 10, steps, nlohmann::json::object());

  kernels::StepState state;
  context.random.state = &state;
  for (std::int64_t step = 0; step < steps; ++step) {
    const Batch batch = next_batch(step, world, memory);
    nn::Tape tape;
    context.tape = &tape;
    // Dropout depends on the sample's index in the global batch, not on the rank.
    context.random.sample_first = static_cast<std::uint32_t>(world.rank);
    context.random.sample_stride = static_cast<std::uint32_t>(world.size);

    reducer.begin_step();
    // Gradients are sums, so divide the loss by the global number of targets.
    const auto scale = 1.0f / static_cast<float>(kGlobalBatch * kLength);
    const nn::LossOutput output =
        model.forward(context, batch.ids, batch.targets, {.loss_scale = scale});
    reducer.arm();
    tape.backward(context, output.loss);
    reducer.finish();

    const nn::StepOutcome outcome = optimizer->step(
        state, {.learning_rate = schedule.learning_rate(step), .max_gradient_norm = 1.0});
    double loss = context.read(output.loss_sum) / (kGlobalBatch * kLength);
    communicator->all_reduce(&loss, &loss, 1, DType::f64, collectives::ReduceOp::sum)->wait();
    if (world.rank == 0 && (step % 10 == 0 || step + 1 == steps))
      std::printf("step %3ld  loss %.4f  gradient norm %.3f\n", static_cast<long>(step), loss,
                  outcome.gradient_norm);
  }

  if (!out.empty() && world.rank == 0) {  // transformers' GPT2LMHeadModel opens it
    make_directories(out);
    std::map<std::string, Tensor> numbers;
    for (const nn::NamedTensor& master : masters.masters()) numbers[master.name] = master.tensor;
    nn::save_gpt2(out, model,
                  [&](const nn::Parameter& p) { return numbers.at(p.name()).const_view(); });
    std::printf("saved in %s\n", out.c_str());
  }
  communicator->barrier()->wait();
  return 0;
}

int main(int argc, char** argv) try {
  restart_with_short_spins(argv);  // sets how OpenMP's threads wait, before they exist
  std::int64_t steps = 100;
  std::string out;
  for (int i = 1; i < argc; i += 2) {
    const std::string option = argv[i];
    const bool has_value = i + 1 < argc;
    if (option == "--steps" && has_value)
      steps = shoal::parse_number<std::int64_t>(argv[i + 1]).value_or(0);
    if (option == "--out" && has_value) out = argv[i + 1];
    if ((option != "--out" && option != "--steps") || steps < 1 || !has_value) {
      std::fprintf(stderr, "usage: train_gpt2 [--steps N] [--out DIRECTORY]\n");
      return 2;
    }
  }
  return train(steps, out);
} catch (const Error& error) {
  std::fprintf(stderr, "train_gpt2: %s\n", error.what());
  return 1;
}
