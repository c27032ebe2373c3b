// The memory of ranks, counted by tag and compared with the formulas of docs/internals/layouts.md.
#include <numeric>

#include "nn/fixture.h"
#include "support/one_core.h"
#include "support/rank_device.h"
#include "support/ranks.h"
#include <fmt/format.h>
#include <gmock/gmock.h>

#include "shoal/collectives/communicator_options.h"
#include "shoal/nn/autograd/device_values.h"
#include "shoal/nn/layers/lora.h"
#include "shoal/nn/models/causal_lm.h"
#include "shoal/parallel/apply/distributed_optimizer.h"
#include "shoal/parallel/apply/layout_memory.h"
#include "shoal/parallel/pipeline/measure_units.h"
#include "shoal/parallel/pipeline/simulate.h"

namespace shoal::parallel {
namespace {

constexpr int kContiguous = 1 << 20;

// --- the formulas ------------------------------------------------------------------------------

TEST(LayoutMemory, StateIsDividedByTheShardsOfItsLevel) {
  const auto held = [](int level, DType dtype, std::int64_t persistent = 0) {
    const StateMemory memory = state_memory({.elements = 1000,
                                             .persistent = persistent,
                                             .dtype = dtype,
                                             .level = level,
                                             .shards = 4,
                                             .states = 2000});
    return std::vector<double>{memory.parameters, memory.gradients, memory.optimizer};
  };
  using ::testing::ElementsAre;
  EXPECT_THAT(held(0, DType::f32), ElementsAre(4000, 4000, 8000));
  EXPECT_THAT(held(1, DType::f32), ElementsAre(4000, 4000, 2000));
  EXPECT_THAT(held(2, DType::f32), ElementsAre(4000, 1000, 2000));
  EXPECT_THAT(held(3, DType::f32), ElementsAre(1000, 1000, 2000));
  EXPECT_THAT(held(3, DType::f32, 200), ElementsAre(4 * (200 + 200), 1000, 2000));
  EXPECT_THAT(held(3, DType::bf16), ElementsAre(500, 1000, 3000)) << "and f32 masters";
  const StateMemory rounded = state_memory({.elements = 1000,
                                            .dtype = DType::bf16,
                                            .level = 1,
                                            .shards = 4,
                                            .states = 2000,
                                            .masters = false});
  EXPECT_EQ(rounded.optimizer, 2000) << "stochastic rounding needs no masters";
  const StateMemory factored =
      state_memory({.elements = 1000, .level = 1, .shards = 4, .states = 100, .means = 30});
  EXPECT_EQ(factored.optimizer, 4 * (100 / 4 + 30)) << "means of rows and columns are whole";
}

// Embeddings, four blocks and a head. The stream between units has 8 bytes.
std::vector<UnitCost> units() {
  std::vector<UnitCost> all(6);
  for (std::size_t unit = 0; unit < all.size(); ++unit) {
    all[unit].activation_bytes = unit == 0 ? 10 : unit == 5 ? 30 : 100;
    all[unit].weight_bytes = unit == 0 ? 2 : unit == 5 ? 5 : 60;
    all[unit].peak_bytes = unit == 0 ? 20 : unit == 5 ? 70 : 150;
    all[unit].split_peak_bytes = unit == 0 ? 25 : unit == 5 ? 75 : 170;
  }
  return all;
}

double peak_of(const ScheduleOptions& schedule, const std::vector<UnitRange>& stages, int rank,
               int group = 0, bool offloads = false, bool only_inputs = false) {
  return peak_activations(make_schedule(schedule), stages, rank,
                          {.units = units(),
                           .stream_bytes = 8,
                           .checkpoint_group = group,
                           .offloads = offloads,
                           .only_inputs = only_inputs,
                           .offload = {.min_bytes = 1}});
}

TEST(LayoutMemory, CheckpointsKeepInputsAndOneGroup) {
  const auto peak = [](int group, bool offloads = false) {
    return peak_of({}, {{0, 6}}, 0, group, offloads);
  };
  EXPECT_EQ(peak(0), 10 + 4 * 100 + 70) << "the head, with all blocks";
  EXPECT_EQ(peak(1), 10 + 3 * 8 + 150) << "the last block, with the inputs before it";
  EXPECT_EQ(peak(2), 10 + 1 * 8 + 100 + 150) << "the last block, with the other of its group";
  EXPECT_EQ(peak(kContiguous), 10 + 3 * 100 + 150);
  EXPECT_EQ(peak(1, true), 2 * 8 + 150) << "at most two are in flight";
  EXPECT_EQ(peak_of({}, {{0, 6}}, 0, 1, true, true), 10 + 2 * 8 + 150)
      << "the embeddings' activations stay";
}

TEST(LayoutMemory, PipelinesKeepMicrobatchesInFlight) {
  const std::vector<UnitRange> two{{0, 3}, {3, 6}};
  const auto peak = [&](ScheduleKind kind, int microbatches, int rank, int group = 0) {
    return peak_of({.kind = kind, .ranks = 2, .microbatches = microbatches, .receive_ahead = 0},
                   two, rank, group);
  };
  const double first = 10 + 2 * 100, own = 10 + 100 + 150;  // one microbatch: kept, computing
  const double message = 8;
  // Rank 0 computes its second forward while it sends the first one's output.
  EXPECT_EQ(peak(ScheduleKind::one_f_one_b, 1, 0), own);
  EXPECT_EQ(peak(ScheduleKind::one_f_one_b, 8, 0), 1 * first + own + message);
  EXPECT_EQ(peak(ScheduleKind::simple, 8, 0), 7 * first + own + message);
  EXPECT_EQ(peak(ScheduleKind::one_f_one_b, 8, 0, 1), 1 * (10 + 2 * 8) + 10 + 8 + 150 + message);
  // Rank 1 has one microbatch at a time: two blocks and the head.
  EXPECT_EQ(peak(ScheduleKind::one_f_one_b, 1, 1), 2 * 100 + 70);
  // A split backward: first the second block's, while the first is kept; then the first block's,
  // while the second's weight gradient waits.
  EXPECT_EQ(peak(ScheduleKind::zero_bubble, 1, 0), 10 + 100 + 170);
}

// --- counted -----------------------------------------------------------------------------------

nn::DecoderConfig larger() {
  nn::DecoderConfig config = nn::DecoderConfig::of("gpt2");
  config.vocab_size = 96;
  config.max_position_embeddings = 32;
  config.hidden_size = 64;
  config.num_hidden_layers = 6;
  config.num_attention_heads = 4;
  return config;
}

struct Held {
  double elements = 0;  // of this rank's parameters
  StateMemory counted, formula;
  double activations = 0, activations_formula = 0;  // peaks
  double unit_bytes = 0;                            // kept by a block for a microbatch
  double message_bytes = 0;
};

// The memory of the ranks of a mesh after a step with `rows` rows in each microbatch. `lora`: the
// layers that have adapters; empty: the whole model is trained.
std::vector<Held> held(const MeshShape& shape, ParallelOptions options, int rows = 2,
                       const std::vector<std::string>& lora = {}) {
  const test::OneCore one_core;
  std::vector<Held> all(static_cast<std::size_t>(shape.size()));
  options.plan.mesh = {.pipeline = shape.pp, .tensor = shape.tp};
  options.plan.sharding.bucket_elements = 100'000;
  options.plan.sharding.persistence_threshold = 0;
  options.offload.min_bytes = 1;
  test::run_thread_ranks(shape.size(), [&](const World& world, Store& store) {
    nn::Fixture room(false, 1);  // comes first: it counts the groups' shared memory
    collectives::CommunicatorOptions counted;
    counted.counted_by = &room.memory;
    const auto group = collectives::make_communicator(world, store, counted);
    ProcessMesh mesh(*group, shape, Placement("cluster"));
    kernels::StepState state;
    room.context.random.state = &state;
    const int length = static_cast<int>(larger().max_position_embeddings);
    const Tensor ids = Tensor::zeros({rows, length}, DType::i32, room.memory, MemoryTag::data);
    Microbatch batch{.input = {ids, ids, {}, {.loss_scale = 1e-3f}}};
    nn::CausalLm probe(larger()), gpt2(larger());
    for (nn::CausalLm* model : {&probe, &gpt2})
      if (!lora.empty())
        nn::add_lora(*model, {.r = 4, .lora_dropout = 0.1, .target_modules = lora});
    std::vector<UnitCost> units;
    if (shape.tp == 1)
      units = measure_units(room.context, probe, batch, *group,
                            {.repetitions = 1, .split_backward = true});
    ParallelModel model(room.context, gpt2, mesh, options);
    DistributedOptimizer optimizer(model, nn::adamw());
    Held& mine = all[static_cast<std::size_t>(world.rank)];
    for (const nn::Parameter* parameter : model.parameters())
      mine.elements += static_cast<double>(parameter->shape().count());
    room.memory.reset_peaks();
    EXPECT_EQ(room.memory.usage(MemoryTag::activations).current, 0);
    model.train(std::vector<Microbatch>(
        static_cast<std::size_t>(options.plan.pipeline.microbatches), batch));
    optimizer.step(state, {.learning_rate = 1e-3});
    model.wait_for_values();
    group->barrier()->wait();
    const auto bytes = [&](MemoryTag tag) {
      return static_cast<double>(room.memory.usage(tag).current);
    };
    mine.counted = {bytes(MemoryTag::parameters), bytes(MemoryTag::gradients),
                    bytes(MemoryTag::optimizer)};
    mine.formula = state_memory(state_request(model, *nn::adamw()));
    mine.message_bytes = static_cast<double>(rows) * length * 64 * 4;
    mine.activations = static_cast<double>(room.memory.usage(MemoryTag::activations).peak);
    if (shape.tp > 1) return;
    mine.unit_bytes = static_cast<double>(units[1].activation_bytes);
    mine.activations_formula =
        peak_activations(model.schedule(), model.partition().stages, mesh.place().pp,
                         {.units = units,
                          .stream_bytes = mine.message_bytes,
                          .checkpoint_group = options.plan.activations.checkpoint_group,
                          .offloads = options.plan.activations.offload,
                          .offload = options.offload});
    group->barrier()->wait();
  });
  return all;
}

// --- counted, to the byte ----------------------------------------------------------------------

struct ExactCase {
  MeshShape shape;
  int level = 0;
  DType dtype = DType::f32;
  int degree = 0;
  bool rounded = false;
  bool apart = false;     // masters and moments are in host memory
  bool lora = false;      // only adapters learn
  bool factored = false;  // Adafactor
  friend void PrintTo(const ExactCase& c, std::ostream* out) {
    *out << fmt::format("rdp{}_pp{}_tp{}_level{}_{}{}{}{}{}{}", c.shape.rdp, c.shape.pp, c.shape.tp,
                        c.level, to_string(c.dtype), c.degree > 0 ? "_by_two" : "",
                        c.rounded ? "_rounded" : "", c.apart ? "_apart" : "", c.lora ? "_lora" : "",
                        c.factored ? "_adafactor" : "");
  }
};

class Exactly : public ::testing::TestWithParam<ExactCase> {};

// Runs three steps on the tests' device, then compares each tag. A step keeps only its losses.
TEST_P(Exactly, EachTagHoldsWhatThePlanSays) {
  const ExactCase& how = GetParam();
  test::run_thread_ranks(how.shape.size(), [&](const World& world, Store& store) {
    testing::use_device_of(world.rank);
    nn::Fixture room(false, 1, nn::FixtureMemory::job);
    const auto host_source = make_pinned_memory();
    CountingMemory host(*host_source);
    CountingMemory& of_optimizer = how.apart ? host : room.memory;
    collectives::CommunicatorOptions counted;
    counted.counted_by = &room.memory;
    const auto group = testing::make_test_communicator(world, store, counted);
    ProcessMesh mesh(*group, how.shape, Placement("cluster"));
    nn::StepStateMemory state(*room.kernels, room.memory);
    room.context.random.state = state.pointer();
    nn::DecoderConfig config = larger();
    config.vocab_size = 91;  // no power of two
    config.hidden_size = 36;
    config.num_hidden_layers = 2;
    nn::CausalLm gpt2(config);
    if (how.lora) nn::add_lora(gpt2, {.r = 2, .target_modules = {"all-linear"}});
    ParallelOptions options{
        .plan = {.mesh = {.pipeline = how.shape.pp, .tensor = how.shape.tp},
                 .pipeline = {.schedule = ScheduleKind::one_f_one_b, .microbatches = how.shape.pp},
                 .tensor = {.prescaled_batch = true},
                 .sharding = {.level = how.level,
                              .degree = how.degree,
                              .bucket_elements = 20'011,
                              .persistence_threshold = 50},
                 .precision = {.dtype = how.dtype}},
        .rounding_seed = how.rounded ? std::optional<std::uint64_t>(1) : std::nullopt,
        .masters = how.apart ? &host : nullptr};
    {
      ParallelModel model(room.context, gpt2, mesh, options);
      const auto rule = [&] { return how.factored ? nn::adafactor() : nn::adamw(); };
      DistributedOptimizer optimizer(model, rule(), {}, options.masters);
      const std::vector<std::int32_t> values(2 * 8, 3);
      const Tensor ids = room.ids({2, 8}, values);
      const std::vector<Microbatch> batches(static_cast<std::size_t>(how.shape.pp),
                                            {.input = {ids, ids, {}, {.loss_scale = 1e-3f}}});
      for (int step = 0; step < 3; ++step) {
        model.train(batches);
        optimizer.step(*state, {.learning_rate = 1e-3});
      }
      model.wait_for_values();
      group->host().barrier()->wait();
      const StateMemory plan = exact_state_memory(model, *rule());
      const auto bytes = [&](MemoryTag tag) {
        return static_cast<double>(room.memory.usage(tag).current);
      };
      EXPECT_EQ(bytes(MemoryTag::parameters), plan.parameters);
      EXPECT_EQ(bytes(MemoryTag::gradients), plan.gradients);
      EXPECT_EQ(static_cast<double>(of_optimizer.usage(MemoryTag::optimizer).current),
                plan.optimizer);
      EXPECT_EQ(host.total().current, host.usage(MemoryTag::optimizer).current);
      if (how.apart) {
        EXPECT_EQ(bytes(MemoryTag::optimizer), 0);
      }
      EXPECT_LE(bytes(MemoryTag::activations), 4 * how.shape.pp) << "the microbatches' losses";
      if (how.lora) {
        EXPECT_LT(plan.gradients, 0.25 * plan.parameters) << "only adapters have gradients";
      }
      // The exact plan exceeds the formulas by at most a cache line for each tensor, part and
      // bucket.
      const StateRequest request = state_request(model, *rule());
      const StateMemory formula = state_memory(request);
      const auto gaps =
          64.0 * how.shape.rdp * (4.0 * static_cast<double>(model.parameters().size()));
      for (const auto& [exact, about] : {std::pair{plan.parameters, formula.parameters},
                                         std::pair{plan.gradients, formula.gradients},
                                         std::pair{plan.optimizer, formula.optimizer}}) {
        // A shard has the means only of parameters that it has elements of.
        EXPECT_GE(exact, about - (how.level > 0 ? 4.0 * static_cast<double>(request.means) : 0));
        EXPECT_LE(exact, about + gaps);
      }
    }
    group->host().barrier()->wait();
  });
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, Exactly,
    ::testing::Values(
        ExactCase{{1, 1, 1}}, ExactCase{{1, 1, 1}, 0, DType::bf16},
        ExactCase{{2, 1, 1}, 0, DType::bf16}, ExactCase{{2, 1, 1}, 1, DType::bf16},
        ExactCase{{2, 1, 1}, 2, DType::bf16}, ExactCase{{2, 1, 1}, 3, DType::bf16},
        ExactCase{{2, 1, 1}, 1}, ExactCase{{2, 1, 1}, 3}, ExactCase{{4, 1, 1}, 2, DType::bf16, 2},
        ExactCase{{1, 1, 2}}, ExactCase{{1, 1, 2}, 0, DType::bf16}, ExactCase{{1, 2, 1}},
        ExactCase{{1, 2, 1}, 0, DType::bf16}, ExactCase{{2, 2, 1}, 3, DType::bf16},
        ExactCase{{2, 1, 2}, 1, DType::bf16}, ExactCase{{1, 1, 1}, 0, DType::bf16, 0, true},
        ExactCase{{2, 1, 1}, 1, DType::bf16, 0, true},
        ExactCase{{2, 1, 1}, 3, DType::bf16, 0, true},
        ExactCase{{1, 1, 1}, 0, DType::bf16, 0, false, true},
        ExactCase{{2, 1, 1}, 1, DType::bf16, 0, false, true},
        ExactCase{{2, 2, 1}, 3, DType::bf16, 0, false, true},
        ExactCase{{2, 1, 2}, 1, DType::f32, 0, false, true},
        ExactCase{{1, 1, 1}, 0, DType::f32, 0, false, false, true},
        ExactCase{{2, 2, 1}, 0, DType::bf16, 0, false, false, true},
        ExactCase{{1, 1, 2}, 0, DType::bf16, 0, false, false, true},
        ExactCase{{2, 1, 2}, 1, DType::f32, 0, false, false, true},
        ExactCase{{2, 1, 1}, 3, DType::bf16, 0, false, false, true},
        ExactCase{.shape = {1, 1, 1}, .factored = true},
        ExactCase{.shape = {2, 1, 1}, .dtype = DType::bf16, .factored = true},
        ExactCase{.shape = {1, 1, 2}, .apart = true, .factored = true},
        ExactCase{.shape = {1, 2, 1}, .dtype = DType::bf16, .lora = true, .factored = true},
        ExactCase{.shape = {2, 1, 2}, .level = 1, .factored = true},
        ExactCase{.shape = {2, 1, 1},
                  .level = 3,
                  .dtype = DType::bf16,
                  .rounded = true,
                  .factored = true}),
    ::testing::PrintToStringParamName());

double elements_of_model() {
  nn::CausalLm model(larger());
  double all = 0;
  for (const nn::Parameter* parameter : model.parameters())
    all += static_cast<double>(parameter->shape().count());
  return all;
}

void expect_near(double got, double want, double relative, const char* what) {
  EXPECT_NEAR(got, want, relative * want) << what;
}

// Each shard's part of a bucket is rounded up to a cache line: within 2 %.
void expect_state(const Held& rank, const StateMemory& want) {
  expect_near(rank.counted.parameters, want.parameters, 0.02, "parameters");
  expect_near(rank.counted.gradients, want.gradients, 0.02, "gradients");
  expect_near(rank.counted.optimizer, want.optimizer, 0.02, "optimizer");
  expect_near(rank.formula.parameters, want.parameters, 1e-9, "parameters, formula");
  expect_near(rank.formula.gradients, want.gradients, 1e-9, "gradients, formula");
  expect_near(rank.formula.optimizer, want.optimizer, 1e-9, "optimizer, formula");
}

TEST(LayoutMemory, OptimizerStateIsTheTotalOverTheDegree) {
  const double all = elements_of_model();
  for (const Held& rank : held({4, 1, 1}, {.plan = {.sharding = {.level = 1}}}))
    expect_state(rank, {4 * all, 4 * all, 8 * all / 4});
  for (const Held& rank : held({4, 1, 1}, {.plan = {.sharding = {.level = 1, .degree = 2}}}))
    expect_state(rank, {4 * all, 4 * all, 8 * all / 2});
}

TEST(LayoutMemory, StochasticRoundingTakesFourBytesAnElementLess) {
  const double all = elements_of_model();
  expect_state(held({1, 1, 1}, {.plan = {.precision = {.dtype = DType::bf16}}})[0],
               {2 * all, 4 * all, 12 * all});
  expect_state(
      held({1, 1, 1}, {.plan = {.precision = {.dtype = DType::bf16}}, .rounding_seed = 1})[0],
      {2 * all, 4 * all, 8 * all});
  for (const Held& rank :
       held({2, 1, 1}, {.plan = {.sharding = {.level = 3}, .precision = {.dtype = DType::bf16}},
                        .rounding_seed = 1}))
    expect_state(rank, {2 * all / 2, 4 * all / 2, 8 * all / 2});
}

TEST(LayoutMemory, ParametersAndGradientsAreToo) {
  const double all = elements_of_model();
  for (const Held& rank : held({4, 1, 1}, {.plan = {.sharding = {.level = 3}}}))
    expect_state(rank, {4 * all / 4, 4 * all / 4, 8 * all / 4});
  for (const MeshShape& shape : {MeshShape{2, 1, 2}, {2, 2, 1}}) {
    const auto ranks = held(
        shape, {.plan = {.pipeline = {.schedule = ScheduleKind::one_f_one_b, .microbatches = 2},
                         .tensor = {.prescaled_batch = true},
                         .sharding = {.level = 3}}});
    for (const Held& rank : ranks) {
      EXPECT_LT(rank.elements, 0.7 * all) << "its parts, or its stage";
      expect_state(rank, {4 * rank.elements / 2, 4 * rank.elements / 2, 8 * rank.elements / 2});
    }
  }
}

// The formula takes a unit's peak from a unit that runs separately, where no fusion
// between blocks happens.
constexpr double kActivations = 0.05;

TEST(LayoutMemory, CheckpointsAndOffloadingSaveThePredictedMemory) {
  const auto of = [](int group, bool offloads) {
    SCOPED_TRACE(fmt::format("group {}{}", group, offloads ? ", offloaded" : ""));
    const Held rank = held(
        {1, 1, 1}, {.plan = {.activations = {.checkpoint_group = group, .offload = offloads}}})[0];
    expect_near(rank.activations, rank.activations_formula, kActivations, "activations");
    return rank;
  };
  const Held plain = of(0, false), each = of(1, false), pairs = of(2, false),
             whole = of(kContiguous, false);
  EXPECT_LT(each.activations, plain.activations - 4 * plain.unit_bytes) << "of six blocks";
  EXPECT_NEAR(pairs.activations - each.activations, plain.unit_bytes - 3 * plain.message_bytes,
              0.05 * pairs.activations);
  EXPECT_GT(whole.activations, plain.activations - 1 * plain.unit_bytes)
      << "all blocks live again in backward";
  const Held offloaded = of(1, true);
  EXPECT_LT(offloaded.activations, each.activations - 2 * plain.message_bytes);
}

// Frozen parameters have no gradient, and a frozen layer keeps no input; an adapter keeps its own.
TEST(LayoutMemory, AdaptersTakeThePredictedMemory) {
  using Names = std::vector<std::string>;
  for (const Names& targets : {Names{"c_attn"}, Names{"all-linear"}}) {
    const auto of = [&](const MeshShape& shape, ParallelPlan plan) {
      SCOPED_TRACE(fmt::format("{}, pp {}, {}, checkpoints of {}", targets[0], shape.pp,
                               name(plan.pipeline.schedule), plan.activations.checkpoint_group));
      auto ranks = held(shape, {.plan = std::move(plan)}, 2, targets);
      for (const Held& rank : ranks) {
        expect_near(rank.counted.gradients, rank.formula.gradients, 0.02, "gradients");
        EXPECT_NEAR(
            rank.activations, rank.activations_formula,
            kActivations * rank.activations_formula + (shape.pp > 1 ? 2 : 0) * rank.message_bytes);
      }
      return ranks;
    };
    const Held plain = of({1, 1, 1}, {})[0],
               each = of({1, 1, 1}, {.activations = {.checkpoint_group = 1}})[0];
    EXPECT_LT(plain.counted.gradients, 0.1 * plain.counted.parameters);
    EXPECT_LT(each.activations, plain.activations - 3 * plain.unit_bytes);
    of({1, 1, 1}, {.activations = {.checkpoint_group = 2, .offload = true}});
    for (const ScheduleKind kind : {ScheduleKind::one_f_one_b, ScheduleKind::zero_bubble})
      of({1, 2, 1}, {.pipeline = {.schedule = kind, .microbatches = 4}});
    const Held whole = held({1, 1, 1}, {})[0];
    if (targets[0] == "c_attn") {
      EXPECT_LT(plain.unit_bytes, 0.85 * whole.unit_bytes) << "a frozen MLP keeps no input";
    }
  }
}

// A plan counts the memory that stays. Its times do not include waiting for a file.
TEST(LayoutMemory, APlanLeavesOutOffloadedActivations) {
  test::run_thread_ranks(2, [](const World& world, Store& store) {
    nn::Fixture room(false, 1);
    const auto group = collectives::make_communicator(world, store);
    ProcessMesh mesh(*group, {1, 2, 1}, Placement("cluster"));
    kernels::StepState state;
    room.context.random.state = &state;
    const Tensor ids = Tensor::zeros({2, 32}, DType::i32, room.memory, MemoryTag::data);
    const auto block = [&](bool offloads) {
      nn::CausalLm gpt2(larger());
      ParallelOptions options{.plan = {.mesh = {.pipeline = 2},
                                       .activations = {.checkpoint_group = 1, .offload = offloads}},
                              .offload = {.min_bytes = 1},
                              .trace = Microbatch{.input = {ids, ids, {}, {}}}};
      const ParallelModel model(room.context, gpt2, mesh, options);
      return model.units()[1];
    };
    EXPECT_EQ(block(false).activation_bytes, 2 * 32 * 64 * 4);
    EXPECT_EQ(block(true).activation_bytes, 0);
    EXPECT_GT(block(true).seconds, 0);
    group->barrier()->wait();
  });
}

// The memory that a plan predicts for a stage's microbatch equals that of its tape.
TEST(LayoutMemory, APlanCountsWhatGroupsOfCheckpointsKeep) {
  test::run_thread_ranks(1, [](const World& world, Store& store) {
    nn::Fixture room(false, 1);
    const auto group = collectives::make_communicator(world, store);
    kernels::StepState state;
    room.context.random.state = &state;
    nn::CausalLm gpt2(larger());
    const Tensor ids = Tensor::zeros({2, 32}, DType::i32, room.memory, MemoryTag::data);
    const Microbatch batch{.input = {ids, ids, {}, {}}};
    std::vector<std::vector<UnitCost>> units;
    for (const int checkpoints : {1, 2, 4, kContiguous})
      units.push_back(
          measure_units(room.context, gpt2, batch, *group,
                        {.repetitions = 1, .stage = {.checkpoint_group = checkpoints}}));
    gpt2.materialize(room.context, DType::f32);
    nn::allocate_gradients(room.context, gpt2.parameters());
    const auto held = [&] {
      return static_cast<double>(room.memory.usage(MemoryTag::activations).current);
    };
    for (std::size_t i = 0; i < units.size(); ++i) {
      const int checkpoints = std::vector{1, 2, 4, kContiguous}[i];
      const Partition plan = partition_by_counts(
          units[i], "5,3",
          {.stages = 2, .bytes_per_parameter = 0, .checkpoint_group = checkpoints});
      for (std::size_t at = 0; at < 2; ++at) {
        const UnitRange range = plan.stages[at];
        SCOPED_TRACE(
            fmt::format("groups of {}, units {} to {}", checkpoints, range.first, range.last));
        const double before = held();
        ChainStage stage(room.context, gpt2, range, {.checkpoint_group = checkpoints});
        stage.begin({&batch, 1});
        Tensor input;
        if (range.first > 0) input = room.context.empty({2, 32, 64}, DType::f32);
        stage.forward(0, std::move(input));
        EXPECT_EQ(plan.costs[at].memory_bytes, held() - before);
      }
    }
  });
}

TEST(LayoutMemory, PipelinesHoldTheirMicrobatches) {
  const auto run = [](ScheduleKind kind, int microbatches) {
    const auto ranks =
        held({1, 4, 1}, {.plan = {.pipeline = {.schedule = kind, .microbatches = microbatches}}});
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      SCOPED_TRACE(fmt::format("{}, {} microbatches, rank {}", name(kind), microbatches, rank));
      // One message more or less may be in flight.
      EXPECT_NEAR(ranks[rank].activations, ranks[rank].activations_formula,
                  kActivations * ranks[rank].activations_formula + 2 * ranks[rank].message_bytes);
    }
    return ranks;
  };
  const auto one = run(ScheduleKind::one_f_one_b, 1), two = run(ScheduleKind::one_f_one_b, 2),
             eight = run(ScheduleKind::one_f_one_b, 8), simple = run(ScheduleKind::simple, 8);
  run(ScheduleKind::zero_bubble, 8);
  // Rank 1 has two blocks.
  const double kept = 2 * one[1].unit_bytes, message = one[1].message_bytes;
  const auto beyond_one = [&](const std::vector<Held>& ranks) {
    return (ranks[1].activations - one[1].activations) / kept;
  };
  const double slack = 2 * message / kept + 0.1;
  EXPECT_NEAR(beyond_one(two), 1, slack) << "min(3, 2) microbatches";
  EXPECT_NEAR(beyond_one(eight), 2, slack) << "min(3, 8)";
  EXPECT_NEAR(beyond_one(simple), 7, slack) << "all 8";
}

}  // namespace
}  // namespace shoal::parallel
