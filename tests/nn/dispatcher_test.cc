// Dispatchers: every operation passes through them, recorded lifetimes are right, and
// memory plans are sound.
#include <random>

#include "nn/rig.h"
#include <gmock/gmock.h>

#include "shoal/nn/autograd/recording_dispatcher.h"
#include "shoal/nn/autograd/tape.h"
#include "shoal/nn/autograd/timing_dispatcher.h"

namespace shoal::nn {
namespace {

using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;

// A part of GPT-2: embeddings, norm, attention, a fused residual, and a head tied to the table.
struct Model {
  explicit Model(Rig& owner) : rig(owner) {
    std::uint32_t seed = 1;
    for (const auto& parameter : all()) rig.give(*parameter, seed++);
  }
  std::vector<std::shared_ptr<Parameter>> all() const {
    return {table, places, gamma, beta, projection, bias, last_gamma, last_beta};
  }
  Value forward() {
    Context& context = rig.context;
    context.begin_forward();
    const Value x = add_positions(context, embedding(context, ids, *table), *places, 0);
    const Value h = layer_norm(context, x, *gamma, *beta, 1e-5f);
    const Value qkv =
        linear(context, h, *projection, bias.get(), {false, kernels::Activation::gelu_tanh});
    const Value branch = attention(context, qkv, {.heads = 2});
    const ResidualNorm end = residual_layer_norm(
        context, x, branch, {.probability = 0.1f, .path_hash = 4}, *last_gamma, *last_beta, 1e-5f);
    const Value moved =
        add_positions(context, end.sum, *places, 1);  // end.sum is shared: not in place
    return linear_cross_entropy(context, add(context, end.normed, moved), *table, ids, {}).loss;
  }
  void step() {
    Tape tape;
    rig.context.tape = &tape;
    tape.backward(rig.context, forward());
    rig.context.tape = nullptr;
  }
  static std::shared_ptr<Parameter> named(const std::string& name, const Shape& shape) {
    return std::make_shared<Parameter>(name, shape, Initializer{});
  }
  Rig& rig;
  std::shared_ptr<Parameter> table = named("table", {11, 8}), places = named("places", {4, 8}),
                             gamma = named("gamma", {8}), beta = named("beta", {8}),
                             projection = named("projection", {8, 24}), bias = named("bias", {24}),
                             last_gamma = named("last_gamma", {8}),
                             last_beta = named("last_beta", {8});
  Tensor ids = rig.ids({0, 10, 3, 3, 2, 7}, {2, 3});
};

// Runs no operation.
class Refusing final : public Dispatcher {
 public:
  void run(const Operation&, const std::function<void()>&) override {}
};

TEST(Dispatchers, NothingComputesOutsideThem) {
  // The bodies never run, so no gradient may change, whatever its state was.
  Refusing refusing;
  Rig rig(testing::make_test_kernels(0), &refusing);
  Model model(rig);
  // The two parameters of this norm differ: one holds a sum, and the other has to be zeroed.
  model.gamma->accumulate();
  Tape tape;
  rig.context.tape = &tape;
  const Value hidden =
      layer_norm(rig.context, Value{rig.tensor({2, 3, 8}, 1)}, *model.gamma, *model.beta, 1e-5f);
  tape.backward(rig.context, linear(rig.context, hidden, *model.projection, model.bias.get(), {}),
                rig.tensor({2, 3, 24}, 2));
  for (const auto& parameter : model.all())
    EXPECT_THAT(floats(parameter->gradient), Each(77.0f)) << parameter->name();
}

TEST(RecordingDispatcher, KnowsEveryActivation) {
  SHOAL_CPU_ONLY("ids in host memory are copied to the device: one tensor more");
  DirectDispatcher direct;
  RecordingDispatcher recorder(direct);
  Rig rig(testing::make_test_kernels(0), &recorder);
  Model model(rig);
  for (const auto& parameter : model.all()) recorder.keep_outside(parameter->gradient);
  const std::int64_t empty = rig.activations();
  model.step();
  EXPECT_EQ(rig.activations(), empty) << "the record must hold no memory";
  std::vector<std::string> names;
  for (const RecordedOperation& operation : recorder.operations()) names.push_back(operation.name);
  for (const char* name :
       {"embedding", "add_positions", "layer_norm", "linear", "attention", "residual_layer_norm",
        "linear_cross_entropy", "attention.backward", "linear.backward_weight",
        "linear.backward_input", "activation.backward", "layer_norm.backward", "gradient_sum",
        "embedding.backward", "positions.backward"})
    EXPECT_THAT(names, Contains(name));
  // The values and gradients of eight parameters and the ids came from outside. The recorder saw
  // the operations that produced all else.
  std::int64_t outside = 0, produced = 0;
  for (const StorageLifetime& lifetime : recorder.lifetimes()) {
    EXPECT_LE(lifetime.first, lifetime.last);
    ++(lifetime.produced ? produced : outside);
  }
  EXPECT_EQ(outside, 8 + 8 + 1);
  EXPECT_GT(produced, 20);
}

// Attention keeps its dropout mask from forward to backward if the kernels can store it.
TEST(RecordingDispatcher, AttentionSavesWhatItDropped) {
  DirectDispatcher direct;
  RecordingDispatcher recorder(direct);
  Rig rig(testing::make_test_kernels(0), &recorder);
  const auto tensors = [&](float dropout) {
    recorder.clear();
    rig.context.begin_forward();
    Tape tape;
    rig.context.tape = &tape;
    const Value out = attention(
        rig.context, tape.leaf(rig.tensor({2, 3, 24}, 1)),
        {.heads = 2, .dropout = {.probability = dropout, .path_hash = 4}, .max_positions = 3});
    rig.context.tape = nullptr;
    tape.backward(rig.context, out, rig.tensor({2, 3, 8}, 2));
    const auto& operations = recorder.operations();
    return std::pair(operations.front().outputs.size(), operations.back().inputs.size());
  };
  kernels::AttentionShape shape;
  shape.batch = shape.heads = 2;
  shape.query_length = shape.key_length = 3;
  shape.dropout = 0.5f;
  const std::size_t kept = rig.table->attention().kept_bytes(shape) > 0 ? 1 : 0;
  const auto without = tensors(0), with = tensors(0.5f);
  EXPECT_EQ(with.first, without.first + kept);
  EXPECT_EQ(with.second, without.second + kept);
}

TEST(RecordingDispatcher, LifetimesAreFirstAndLastUses) {
  DirectDispatcher direct;
  RecordingDispatcher recorder(direct);
  const auto memory = make_host_memory();
  const auto make = [&](std::int64_t count) {
    return Tensor::empty({count}, DType::f32, *memory, MemoryTag::activations);
  };
  const Tensor in = make(4), a = make(8), whole = make(16);
  int ran = 0;
  const auto run = [&](std::string_view name, std::vector<Tensor> inputs,
                       std::vector<Tensor> outputs) {
    recorder.run({name, inputs, outputs}, [&] { ++ran; });
  };
  run("one", {in, Tensor()}, {a});
  run("two", {a, a}, {whole.narrowed(0, 0, 8), Tensor()});  // a view counts as a use of its storage
  run("three", {whole.narrowed(0, 8, 8), in}, {whole});
  {
    const Tensor brief = make(2);
    run("four", {}, {brief});
  }
  const Tensor next = make(2);  // may reuse the address of `brief`: a new lifetime
  run("five", {next}, {});
  EXPECT_EQ(ran, 5);
  const auto& lifetimes = recorder.lifetimes();
  ASSERT_EQ(lifetimes.size(), 5u);
  const auto expect = [&](std::size_t i, std::int64_t bytes, int first, int last, bool produced) {
    EXPECT_EQ(lifetimes[i].bytes, bytes) << i;
    EXPECT_EQ(lifetimes[i].first, first) << i;
    EXPECT_EQ(lifetimes[i].last, last) << i;
    EXPECT_EQ(lifetimes[i].produced, produced) << i;
  };
  expect(0, 16, 0, 2, false);
  expect(1, 32, 0, 1, true);
  expect(2, 64, 1, 2, true);
  expect(3, 8, 3, 3, true);
  expect(4, 8, 4, 4, false);
  EXPECT_THAT(recorder.operations()[1].inputs, ElementsAre(1));
  EXPECT_THAT(recorder.operations()[2].inputs, ElementsAre(2, 0));
  EXPECT_THAT(recorder.operations()[2].outputs, ElementsAre(2));
  recorder.clear();
  EXPECT_TRUE(recorder.operations().empty());
  recorder.keep_outside(a);
  run("one", {in}, {a});
  ASSERT_EQ(lifetimes.size(), 2u);
  expect(1, 32, 0, 0, false);
}

void expect_sound(const std::vector<StorageLifetime>& lifetimes, const MemoryPlan& plan,
                  std::int64_t alignment) {
  ASSERT_EQ(plan.offsets.size(), lifetimes.size());
  std::int64_t live_peak = 0;
  for (std::size_t i = 0; i < lifetimes.size(); ++i) {
    if (!lifetimes[i].produced) {
      EXPECT_EQ(plan.offsets[i], -1);
      continue;
    }
    EXPECT_GE(plan.offsets[i], 0);
    EXPECT_EQ(plan.offsets[i] % alignment, 0);
    EXPECT_LE(plan.offsets[i] + lifetimes[i].bytes, plan.arena_bytes);
    std::int64_t live = 0;
    for (std::size_t j = 0; j < lifetimes.size(); ++j) {
      const bool apart =
          lifetimes[j].first > lifetimes[i].last || lifetimes[i].first > lifetimes[j].last;
      if (!lifetimes[j].produced || (apart && lifetimes[j].lane == lifetimes[i].lane)) continue;
      if (lifetimes[j].first <= lifetimes[i].first && lifetimes[i].first <= lifetimes[j].last)
        live += (lifetimes[j].bytes + alignment - 1) / alignment * alignment;
      if (j <= i || lifetimes[i].bytes == 0 || lifetimes[j].bytes == 0) continue;
      EXPECT_TRUE(plan.offsets[i] + lifetimes[i].bytes <= plan.offsets[j] ||
                  plan.offsets[j] + lifetimes[j].bytes <= plan.offsets[i])
          << i << " and " << j << " may be used at once and overlap";
    }
    live_peak = std::max(live_peak, live);
  }
  EXPECT_EQ(plan.live_bytes, live_peak);
  EXPECT_GE(plan.arena_bytes, plan.live_bytes);
}

// Two storages have the same address one after the other. The records of the first must not
// apply to the second.
TEST(RecordingDispatcher, DistinguishesStoragesAtOneAddress) {
  DirectDispatcher direct;
  RecordingDispatcher recorder(direct);
  alignas(Storage) std::byte place[sizeof(Storage)];
  float data[4] = {};
  const auto tensor = [&] {
    return Tensor::over(
        std::shared_ptr<Storage>(new (place) Storage(data, 16, Device::cpu(), nullptr),
                                 [](Storage* gone) { gone->~Storage(); }),
        0, {4}, DType::f32);
  };
  const auto produce = [&](const Tensor& made) {
    recorder.run({"produce", {}, {&made, 1}}, [] {});
  };
  recorder.keep_outside(tensor());
  produce(tensor());
  produce(tensor());
  ASSERT_EQ(recorder.lifetimes().size(), 2u);
  EXPECT_TRUE(recorder.lifetimes()[0].produced) << "taken for the storage kept outside";
  EXPECT_EQ(recorder.operations()[1].outputs, std::vector<int>{1}) << "taken for the first";
}

TEST(MemoryPlan, NeverOverlapsLiveStorages) {
  std::mt19937 random(7);
  for (int trial = 0; trial < 200; ++trial) {
    std::vector<StorageLifetime> lifetimes(random() % 40);
    for (StorageLifetime& lifetime : lifetimes) {
      lifetime.bytes = static_cast<std::int64_t>(random() % 1000);
      lifetime.first = static_cast<int>(random() % 30);
      lifetime.last = lifetime.first + static_cast<int>(random() % 6);
      lifetime.produced = random() % 5 != 0;
      lifetime.lane = trial % 3 == 2 ? static_cast<int>(random() % 3) : 0;
    }
    const std::int64_t alignment = trial % 2 ? 64 : 1;
    expect_sound(lifetimes, plan_memory(lifetimes, alignment), alignment);
    if (HasFailure()) return;
  }
}

TEST(MemoryPlan, ReusesMemory) {
  // In this chain each storage lives until the next is made, so two slots suffice.
  std::vector<StorageLifetime> chain;
  for (int i = 0; i < 10; ++i) chain.push_back({1024, i, i + 1, true});
  EXPECT_EQ(plan_memory(chain).arena_bytes, 2048);
  EXPECT_EQ(plan_memory(chain).live_bytes, 2048);
  // A gap between two long-lived storages is used if a storage fits.
  EXPECT_EQ(plan_memory({{512, 0, 9, true}, {256, 0, 3, true}, {256, 5, 9, true}}).arena_bytes,
            768);
  // The chain's second half runs in another lane, so the order between the halves is unknown.
  for (std::size_t i = 5; i < chain.size(); ++i) chain[i].lane = 1;
  EXPECT_EQ(plan_memory(chain).arena_bytes, 4096);
  EXPECT_EQ(plan_memory({}).arena_bytes, 0);
  EXPECT_THROW(plan_memory({}, 0), Error);
}

TEST(MemoryPlan, PacksATrainingStep) {
  DirectDispatcher direct;
  RecordingDispatcher recorder(direct);
  Rig rig(testing::make_test_kernels(0), &recorder);
  Model model(rig);
  for (const auto& parameter : model.all()) recorder.keep_outside(parameter->gradient);
  model.step();
  const MemoryPlan plan = plan_memory(recorder.lifetimes());
  expect_sound(recorder.lifetimes(), plan, 64);
  std::int64_t sum = 0;
  for (const StorageLifetime& lifetime : recorder.lifetimes())
    if (lifetime.produced) sum += (lifetime.bytes + 63) / 64 * 64;
  EXPECT_LT(plan.arena_bytes, sum * 3 / 4);
  EXPECT_LE(plan.arena_bytes, plan.live_bytes * 5 / 4);
}

TEST(TimingDispatcher, CountsCallsByName) {
  DirectDispatcher direct;
  TimingDispatcher timer(direct);
  Rig rig(testing::make_test_kernels(0), &timer);
  Model model(rig);
  model.step();
  model.step();
  EXPECT_EQ(timer.totals().at("linear").calls, 2);
  EXPECT_EQ(timer.totals().at("add_positions").calls, 4);
  EXPECT_GT(timer.totals().at("attention").seconds, 0);
  timer.clear();
  EXPECT_TRUE(timer.totals().empty());
}

}  // namespace
}  // namespace shoal::nn
