// A data-parallel rank that trains a tiny GPT-2 with sharded state, and the same
// training on one rank.
#pragma once

#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "support/rank_device.h"
#include "support/ranks.h"
#include <gtest/gtest.h>

#include "shoal/collectives/communicator_options.h"
#include "shoal/nn/autograd/dispatcher.h"
#include "shoal/nn/models/causal_lm.h"
#include "shoal/nn/optim/master_weights.h"
#include "shoal/parallel/pipeline/chain_stage.h"
#include "shoal/parallel/shard/sharded_units.h"

namespace shoal::parallel {

// The order in which a rank computes its microbatches.
enum class Order { one_by_one, all_in_flight, weights_later };

struct RunOptions {
  DType compute = DType::f32;
  int microbatches = 1;
  int checkpoint_group = 0;
  Order order = Order::one_by_one;
  int overflow_step = -1;  // at this step rank 0's gradients are infinite
};

constexpr int kSteps = 5, kRows = 3, kLength = 7, kVocabulary = 61;  // rows of a rank in a step

inline nn::DecoderConfig tiny() {
  nn::DecoderConfig config = nn::DecoderConfig::of("gpt2");
  config.vocab_size = kVocabulary;
  config.max_position_embeddings = 8;
  config.hidden_size = 24;
  config.num_hidden_layers = 3;
  config.num_attention_heads = 3;
  return config;
}

// The results of all ranks together.
struct Outcome {
  std::vector<double> losses = std::vector<double>(kSteps);  // per target
  std::vector<double> norms = std::vector<double>(kSteps);
  std::vector<bool> skipped = std::vector<bool>(kSteps);
  std::map<std::string, std::vector<double>> gradients;  // of the first step
  std::map<std::string, std::vector<float>> masters;     // at the end
  double evaluated = 0;                                  // loss at the end, without dropout
};

// Counts a rank's memory, including symmetric memory, so it outlives the Groups. The Groups outlive
// the Rig, because its parameters are in their memory.
struct Books {
  std::unique_ptr<MemoryResource> host = testing::make_test_device_memory();
  CountingMemory memory{*host};
};

struct Rig {
  explicit Rig(const nn::DecoderConfig& config = tiny(),
               std::shared_ptr<Books> counted = std::make_shared<Books>())
      : kernels(testing::make_test_kernels(1)),
        books(std::move(counted)),
        memory(books->memory),
        context(*kernels, memory, dispatcher),
        gpt2(config) {
    context.random.state = &state;
    gpt2.materialize(context, DType::f32);
  }
  // Rows [first, first + rows) of the step's batch, which has `all` rows.
  Microbatch batch(int step, int first, int rows, int all) {
    const auto input = [&] {
      return Tensor::empty({rows, kLength}, DType::i32, *inputs, MemoryTag::data);
    };
    const Tensor ids = input(), targets = input();
    for (int row = 0; row < rows; ++row) {
      auto random = static_cast<std::uint32_t>(step * 1000 + first + row + 1) * 2654435761u;
      for (int t = 0; t < kLength; ++t)
        for (const Tensor* tensor : {&ids, &targets}) {
          random = random * 1664525u + 1013904223u;
          tensor->data<std::int32_t>()[row * kLength + t] =
              static_cast<std::int32_t>(random >> 8) % kVocabulary;
        }
    }
    return {{ids, targets, {}, {.loss_scale = 1.0f / static_cast<float>(all * kLength)}},
            static_cast<std::uint32_t>(first)};
  }
  std::vector<Microbatch> batches(int step, int rank, int ranks, int microbatches) {
    std::vector<Microbatch> all;
    const int rows = kRows / microbatches;
    for (int m = 0; m < microbatches; ++m)
      all.push_back(batch(step, rank * kRows + m * rows, rows, ranks * kRows));
    return all;
  }
  // Runs forward and backward of a step, and calls `arm` before the last forward.
  double compute(ChainStage& stage, const std::vector<Microbatch>& microbatches, Order order,
                 const std::function<void()>& arm) {
    stage.begin(microbatches);
    const auto count = static_cast<int>(microbatches.size());
    const bool at_once = order != Order::one_by_one;
    for (int m = 0; at_once && m < count; ++m) (void)stage.forward(m, {});
    if (at_once) arm();
    for (int m = 0; m < count; ++m) {
      if (!at_once) (void)stage.forward(m, {});
      if (!at_once && m + 1 == count) arm();
      const bool later = order == Order::weights_later;
      (void)stage.backward(m, {}, later);
      if (later && m > 0) stage.weight_backward(m - 1);
    }
    if (order == Order::weights_later) stage.weight_backward(count - 1);
    return stage.loss().sum;
  }
  double evaluate(ChainStage& stage, const std::vector<Microbatch>& microbatches) {
    context.mode = nn::Mode::evaluate;
    stage.begin(microbatches);
    (void)stage.forward(0, {});
    context.mode = nn::Mode::train;
    return stage.loss().sum;
  }
  std::unique_ptr<MemoryResource> inputs = testing::make_test_memory();
  std::unique_ptr<kernels::Kernels> kernels;
  std::shared_ptr<Books> books;
  CountingMemory& memory;
  nn::DirectDispatcher dispatcher;
  nn::Context context;
  const testing::Reachable<kernels::StepState> reachable_state;
  kernels::StepState& state = *reachable_state;
  nn::CausalLm gpt2;
};

inline nn::StepOptions step_options() { return {.learning_rate = 3e-3, .max_gradient_norm = 0.5}; }

// A rank's communicators, shared by all runs with this degree.
struct Groups {
  Groups(const World& world, Store& store, int degree, CountingMemory* counted_by = nullptr)
      : all(testing::make_test_communicator(world, store, counted(counted_by))) {
    const ShardPlace place = shard_place(world.rank, world.size, degree);
    shard = all->split(place.shard_color, place.shard_key);
    replicas = all->split(place.replica_color, place.replica_key);
    groups = {shard.get(), replicas->size() > 1 ? replicas.get() : nullptr};
  }
  static collectives::CommunicatorOptions counted(CountingMemory* by) {
    collectives::CommunicatorOptions options;
    options.counted_by = by;
    return options;
  }
  std::unique_ptr<collectives::Communicator> all, shard, replicas;
  ShardGroups groups;
};

inline std::unique_ptr<nn::UpdateRule> adamw() { return nn::adamw({.weight_decay = 0.1}); }

// Adds up the sums of squares of a shard group's ranks.
class ShardSums final : public nn::UpdateGroup {
 public:
  explicit ShardSums(collectives::Communicator& shard) : shard_(shard) {}
  double sum_squares(double mine, double*) override {
    shard_.host().all_reduce(&mine, &mine, 1, DType::f64, collectives::ReduceOp::sum)->wait();
    return mine;
  }

 private:
  collectives::Communicator& shard_;
};

// A rank's training state. `rig` must outlive it.
struct Sharded {
  Sharded(Rig& rig_in, const ShardGroups& groups, const ShardingOptions& options, DType compute)
      : rig(rig_in),
        layout(make_shard_layout(rig.gpt2.parameters(), groups, options,
                                 parameters_of_units(rig.gpt2))),
        values(layout, compute, *rig.kernels, rig.memory),
        gradients(make_sharded_gradients(layout, *rig.kernels, rig.memory)),
        sums(*groups.shard),
        rule(*rig.kernels, rig.memory, values.segments(gradients.get()), adamw(), nullptr, &sums),
        units(rig.gpt2, values) {}
  // Call it after gradients->finish(). Does what DistributedOptimizer does for a mesh with only
  // rdp.
  nn::StepOutcome step() {
    values.wait();  // the previous step's gathers read what this step updates
    const nn::StepOutcome outcome = rule.step(rig.state, step_options());
    if (!outcome.skipped) values.publish();
    return outcome;
  }
  Rig& rig;
  ShardLayout layout;
  ShardedValues values;
  std::unique_ptr<ShardedGradients> gradients;
  ShardSums sums;
  nn::Optimizer rule;
  ShardedUnits units;
};

// Trains one rank and adds its results to `outcome`.
void train(const World& world, const Groups& groups, const ShardingOptions& sharding,
           const RunOptions& run, Outcome& outcome, std::mutex& mutex);
// The same steps without sharding on one rank, with the batch of all `ranks`.
Outcome train_alone(int ranks, DType compute, int overflow_step = -1);

}  // namespace shoal::parallel
