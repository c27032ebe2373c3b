// Trains GPT-2 on a mesh of ranks: data x pipeline x tensor parallelism, training state sharded
// over the replicas, and sharded checkpoints.
#include <algorithm>
#include <charconv>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "shoal/collectives/communicator.h"
#include "shoal/kernels/kernels.h"
#include "shoal/nn/models/gpt2/model.h"
#include "shoal/nn/optim/optimizer.h"
#include "shoal/parallel/apply/distributed_optimizer.h"
#include "shoal/parallel/plan/legality.h"
#include "shoal/runtime/base/deadlines.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/parallel_for.h"
#include "shoal/runtime/rendezvous/threads.h"
#include "shoal/train/checkpoint/checkpoint_directory.h"
#include "shoal/train/checkpoint/sharded_checkpoint.h"

using namespace shoal;

constexpr std::int64_t kGlobalBatch = 16, kLength = 32, kVocabulary = 64;

struct Options {
  int pipeline = 1, tensor = 1, microbatches = 4, steps = 20;
  int sharding = 0, sharded_degree = 0;
  std::string schedule = "1f1b", save, resume;
};

// Samples [first, first + rows) of a step's global batch; each counts up from its own start.
nn::ChainInput samples(std::int64_t step, std::int64_t first, std::int64_t rows,
                       MemoryResource& memory) {
  nn::ChainInput input;
  input.ids = Tensor::empty({rows, kLength}, DType::i32, memory, MemoryTag::data);
  input.targets = Tensor::empty({rows, kLength}, DType::i32, memory, MemoryTag::data);
  for (std::int64_t row = 0; row < rows; ++row)
    for (std::int64_t t = 0; t < kLength; ++t) {
      const std::int64_t number = 7 * step + 13 * (first + row) + t;
      input.ids.data<std::int32_t>()[row * kLength + t] =
          static_cast<std::int32_t>(number % kVocabulary);
      input.targets.data<std::int32_t>()[row * kLength + t] =
          static_cast<std::int32_t>((number + 1) % kVocabulary);
    }
  input.loss.loss_scale = 1.0f / static_cast<float>(kGlobalBatch * kLength);
  return input;
}

nn::Gpt2Config model_config() {
  nn::Gpt2Config config;
  config.vocab_size = kVocabulary;
  config.n_positions = kLength;
  config.n_embd = 64;
  config.n_layer = 6;
  config.n_head = 4;
  config.bos_token_id = config.eos_token_id = std::nullopt;
  return config;
}

parallel::ParallelPlan plan_of(const Options& o) {
  parallel::ParallelPlan plan;
  plan.mesh = {.pipeline = o.pipeline, .tensor = o.tensor};
  plan.pipeline = {.schedule = parallel::parse_schedule_kind(o.schedule),
                   .microbatches = o.microbatches};
  const bool two = plan.pipeline.schedule == parallel::ScheduleKind::virtual_interleaved ||
                   plan.pipeline.schedule == parallel::ScheduleKind::zero_bubble_v;
  plan.pipeline.chunks = two ? 2 : 1;
  plan.sharding = {
      .level = o.sharding, .degree = o.sharded_degree, .persistence_threshold = kLength};
  return plan;
}

parallel::RunShape run_of(const Options& o, int ranks) {
  // The stages of a pipeline read the same samples; all other ranks read their own.
  const int readers = ranks / o.pipeline;
  if (ranks % o.pipeline == 0 && kGlobalBatch % readers != 0)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("a global batch of {} does not divide over {} ranks ({} / {} stages)",
                            kGlobalBatch, readers, ranks, o.pipeline),
                "numbers that do: 1, 2, 4, 8, 16");
  return {.ranks = ranks, .batch = kGlobalBatch / std::max(readers, 1), .length = kLength};
}

// Describes an optimizer tensor as part of the whole model, because a checkpoint is independent of
// meshes.
HeldTensor held_tensor(const parallel::HeldRun& run) {
  return held_of(*run.parameter, run.first, run.first + run.tensor.count(), run.tensor.dtype(),
                 run.state.empty() ? "" : run.state + "/");
}

// Loads the newest complete checkpoint in `directory` and returns its step. Every rank reads what
// it needs.
std::int64_t resume(const std::string& directory, int rank,
                    parallel::DistributedOptimizer& optimizer) {
  const auto newest =
      newest_checkpoint(directory, [&](const std::string& path, const std::string& why) {
        if (rank == 0) std::fprintf(stderr, "%s is passed over: %s\n", path.c_str(), why.c_str());
      });
  if (!newest)
    throw Error(ErrorCode::not_found, fmt::format("{} has no complete checkpoint", directory),
                "give the directory that --save was given");
  const ShardedCheckpoint checkpoint = ShardedCheckpoint::open(newest->path);
  for (const parallel::HeldRun& run : optimizer.held())
    checkpoint.read(held_tensor(run), run.tensor.view());
  optimizer.refresh();
  return newest->step;
}

// All ranks write into one directory, which gets its final name when it is complete. If a rank is
// killed before that, earlier checkpoints stay intact.
void save(const std::string& directory, std::int64_t step,
          const parallel::DistributedOptimizer& optimizer, collectives::Communicator& world) {
  std::unique_ptr<CheckpointTransaction> transaction;
  if (world.rank() == 0) transaction = std::make_unique<CheckpointTransaction>(directory, step, 0);
  world.barrier()->wait();      // the directory exists
  std::vector<HeldData> parts;  // if several ranks hold a part, one writes it
  for (const parallel::HeldRun& run : optimizer.held())
    if (run.writes)
      parts.push_back({held_tensor(run), run.tensor.reshaped({run.tensor.count()}).const_view()});
  const std::string unfinished = unfinished_checkpoint_path(directory, step, 0);
  write_shard(unfinished, world.rank(), world.size(), parts, fmt::format("step {}", step));
  world.barrier()->wait();  // all parts are written
  if (!transaction) return;
  ShardedCheckpoint::open(unfinished);  // checks that each element is there exactly once
  std::printf("saved %s\n", transaction->commit().c_str());
}

// This rank's part of a step's global batch. Dropout depends on a sample's index in that batch.
std::vector<parallel::Microbatch> batches(const parallel::ParallelModel& model, std::int64_t step,
                                          MemoryResource& memory) {
  const int pieces = model.plan().pipeline.microbatches, parts = model.batch_parts();
  const parallel::ProcessMesh& mesh = model.mesh();
  const std::int64_t rows = kGlobalBatch / mesh.shape().rdp / pieces / parts;
  std::vector<parallel::Microbatch> microbatches;
  for (int i = 0; i < pieces; ++i) {
    const std::int64_t first =
        ((mesh.place().rdp * pieces + i) * parts + model.batch_part()) * rows;
    microbatches.push_back({samples(step, first, rows, memory), static_cast<std::uint32_t>(first)});
  }
  return microbatches;
}

void train(const Options& o, const World& world, Store& store) {
  const auto communicator = collectives::make_communicator(world, store);
  const auto host = make_host_memory();
  PoolMemory memory(*host);
  const int threads = threads_of_rank(world, store, deadlines::start());
  const auto kernels = kernels::make_cpu_kernels({.threads = threads, .memory = &memory});
  nn::Gpt2 gpt2(model_config());  // allocates no memory yet: no rank ever holds the whole model
  nn::DirectDispatcher dispatcher;
  nn::Context context(*kernels, memory, dispatcher);
  kernels::StepState state;
  context.random.state = &state;

  // Reject an impossible layout before building anything, with the numbers and a remedy.
  const parallel::ParallelPlan plan = plan_of(o);
  parallel::check_layout(plan, run_of(o, world.size),
                         {gpt2.units(), gpt2.config().n_head, gpt2.config().inner()});
  parallel::ProcessMesh mesh(*communicator, parallel::mesh_shape(world.size, o.pipeline, o.tensor),
                             plan.mesh.placement);
  parallel::ParallelModel model(context, gpt2, mesh, {.plan = plan});
  if (world.rank == 0)
    std::printf("%s%s", parallel::placement_table(mesh.shape(), mesh.placement()).c_str(),
                model.describe().c_str());
  parallel::DistributedOptimizer optimizer(model, [&](std::vector<nn::Segment> segments) {
    return nn::make_adamw(*kernels, memory, std::move(segments), {});
  });

  // If a rank fails, ranks that wait for it receive its error.
  mesh.guarded([&] {
    const std::int64_t first = o.resume.empty() ? 0 : resume(o.resume, world.rank, optimizer);
    const std::int64_t last = first + o.steps;
    state.step = static_cast<std::uint32_t>(first);
    for (std::int64_t step = first; step < last; ++step) {
      const parallel::StageLoss loss = model.train(batches(model, step, memory));  // on every rank
      const nn::StepOutcome outcome =
          optimizer.step(state, {.learning_rate = 3e-3, .max_gradient_norm = 1.0});
      if (world.rank == 0 && (step % 5 == 0 || step + 1 == last))
        std::printf("step %3ld  loss %.5f  gradient norm %.4f\n", static_cast<long>(step),
                    loss.sum / static_cast<double>(loss.targets), outcome.gradient_norm);
    }
    if (!o.save.empty()) save(o.save, last, optimizer, *communicator);
    communicator->barrier()->wait();
  });
}

// Parses a whole number that is at least `least`; the error quotes the text.
int number(const std::string& option, const std::string& text, int least) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < least)
    throw Error(ErrorCode::invalid_argument, fmt::format("{} is {}", option, text),
                fmt::format("give a whole number from {} on", least));
  return value;
}

Options parse(int argc, char** argv) {
  Options o;
  const std::map<std::string, std::pair<int*, int>> numbers{
      // option -> variable and its minimum
      {"--pipeline", {&o.pipeline, 1}},
      {"--tensor", {&o.tensor, 1}},
      {"--microbatches", {&o.microbatches, 1}},
      {"--sharding", {&o.sharding, 0}},
      {"--sharded-degree", {&o.sharded_degree, 0}},
      {"--steps", {&o.steps, 0}}};
  const std::map<std::string, std::string*> words{
      {"--schedule", &o.schedule}, {"--save", &o.save}, {"--resume", &o.resume}};
  for (int i = 1; i < argc; i += 2) {
    const std::string option = argv[i];
    if (i + 1 < argc && numbers.contains(option))
      *numbers.at(option).first = number(option, argv[i + 1], numbers.at(option).second);
    else if (i + 1 < argc && words.contains(option))
      *words.at(option) = argv[i + 1];
    else
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("{} is no option, or has no value", option),
                  "train_parallel [--pipeline N] [--tensor N] [--microbatches N] "
                  "[--schedule NAME] [--sharding LEVEL] [--sharded-degree N] [--steps N] "
                  "[--save DIRECTORY] [--resume DIRECTORY]");
  }
  return o;
}

int main(int argc, char** argv) try {
  restart_with_short_spins(argv);
  const World world = discover_world();
  const auto store = make_store(world, deadlines::start());
  try {
    train(parse(argc, argv), world, *store);
    return 0;
  } catch (const Error& error) {
    // All ranks fail alike or received the error. Rank 0 reports it before the exit of any rank
    // makes mpirun end the others.
    if (world.rank == 0) std::fprintf(stderr, "train_parallel: %s\n", error.what());
    barrier(*store, "failed", world.size, Deadline::in_seconds(deadlines::kTellFailures));
    return 1;
  }
} catch (const Error& error) {
  std::fprintf(stderr, "train_parallel: %s\n", error.what());
  return 1;
}
