// The memory of each sharding level, counted by tag.
#include "rig.h"
#include "support/error_text.h"
#include <gmock/gmock.h>

#include "shoal/runtime/base/error.h"

namespace shoal::parallel {
namespace {

struct Counted {
  std::int64_t optimizer = 0, gradients = 0, parameters = 0;  // between steps
  std::int64_t peak_gradients = 0, peak_parameters = 0;       // within a step
  std::int64_t most_full = 0, most_live = 0;
};

nn::DecoderConfig larger() {
  nn::DecoderConfig config = tiny();
  config.hidden_size = 48;
  config.num_hidden_layers = 6;
  return config;
}

std::int64_t elements(const nn::Module& module) {
  std::int64_t all = 0;
  for (const nn::Parameter* parameter : module.parameters()) all += parameter->shape().count();
  return all;
}

// The counts of each rank.
std::vector<Counted> count(int degree, int copies, ShardingOptions options, DType compute) {
  options.persistence_threshold = 0;
  std::vector<Counted> all(static_cast<std::size_t>(degree * copies));
  test::run_thread_ranks(degree * copies, [&](const World& world, Store& store) {
    const auto books = std::make_shared<Books>();
    const Groups groups(world, store, degree, &books->memory);
    Rig rig(larger(), books);
    Sharded sharded(rig, groups.groups, options, compute);
    ChainStage stage(rig.context, rig.gpt2, {0, rig.gpt2.units()}, {.observer = &sharded.units});
    rig.memory.reset_peaks();
    for (int step = 0; step < 2; ++step) {
      sharded.gradients->begin_step();
      rig.compute(stage, rig.batches(step, world.rank, world.size, 3), Order::one_by_one,
                  [&] { sharded.gradients->arm(); });
      sharded.gradients->finish();
      sharded.step();
      sharded.values.wait();
    }
    const auto usage = [&](MemoryTag tag) { return rig.memory.usage(tag); };
    all[static_cast<std::size_t>(world.rank)] = {
        .optimizer = usage(MemoryTag::optimizer).current,
        .gradients = usage(MemoryTag::gradients).current,
        .parameters = usage(MemoryTag::parameters).current,
        .peak_gradients = usage(MemoryTag::gradients).peak,
        .peak_parameters = usage(MemoryTag::parameters).peak,
        .most_full = sharded.gradients->statistics().most_full_bytes,
        .most_live = sharded.units.statistics().most_live_elements};
    groups.all->barrier()->wait();
  });
  return all;
}

void expect_near(std::int64_t got, double want, const char* what) {
  EXPECT_NEAR(static_cast<double>(got), want, 0.02 * want) << what;
}

class ShardedMemory : public ::testing::TestWithParam<int> {};

TEST_P(ShardedMemory, IsTheTotalDividedByTheDegree) {
  const int degree = GetParam();
  Rig rig(larger());
  const auto total = static_cast<double>(elements(rig.gpt2));
  const double shard = total / degree;
  // A block's elements, and the tied table's. Its gradient is open from the head's backward
  // to the embeddings'.
  const std::int64_t block = elements(rig.gpt2.trunk().block(0)), table = 61 * 48;
  const std::int64_t slack = 64 * degree * 4;  // padding
  for (const int copies : {1, 2}) {
    SCOPED_TRACE(fmt::format("{} shards, {} copies", degree, copies));
    for (const Counted& c : count(degree, copies, {.level = 1}, DType::f32)) {
      expect_near(c.optimizer, 8 * shard, "moments");
      expect_near(c.gradients, 4 * total, "gradients");
      expect_near(c.parameters, 4 * total, "parameters");
    }
    for (const Counted& c :
         count(degree, copies, {.level = 2, .bucket_elements = block / 2, .buckets_in_flight = 1},
               DType::f32)) {
      expect_near(c.optimizer, 8 * shard, "moments");
      expect_near(c.gradients, 4 * shard, "gradients");
      expect_near(c.parameters, 4 * total, "parameters");
      // The written buckets are the table's and two where a layer's weight and bias are in
      // different ones. One bucket is in flight.
      EXPECT_EQ(c.peak_gradients, c.gradients + c.most_full);
      EXPECT_LE(c.most_full, 4 * 4 * (block / 2) + slack);
    }
    for (const Counted& c :
         count(degree, copies, {.level = 3, .buckets_in_flight = 1}, DType::bf16)) {
      expect_near(c.optimizer, 12 * shard, "moments and masters");
      expect_near(c.gradients, 4 * shard, "gradients");
      expect_near(c.parameters, 2 * shard, "parameters");
      EXPECT_LE(c.most_full, 4 * (2 * block + table) + slack);
      // The live parameters are the computing unit's, the next one's, and the table.
      EXPECT_EQ(c.peak_parameters, c.parameters + 2 * c.most_live);
      EXPECT_LE(c.most_live, 2 * block + table + slack);
    }
  }
}

// A model that no rank ever holds whole gives the same results.
TEST(ShardedInitialisation, NeverHoldsMoreThanAShardAndAParameter) {
  test::run_thread_ranks(4, [](const World& world, Store& store) {
    const auto books = std::make_shared<Books>();
    const Groups groups(world, store, 4, &books->memory);
    const ShardingOptions options{.level = 3, .persistence_threshold = 0};
    Rig rig(larger(), books), later(larger(), books);
    const auto total = elements(rig.gpt2);
    Sharded whole(rig, groups.groups, options, DType::bf16);
    const auto parameters = later.gpt2.parameters();
    std::int64_t largest = 0;
    for (nn::Parameter* parameter : parameters) {
      parameter->value = {};
      largest = std::max(largest, parameter->shape().count());
    }
    const ShardLayout layout =
        make_shard_layout(parameters, groups.groups, options, parameters_of_units(later.gpt2));
    const std::int64_t before = books->memory.usage(MemoryTag::parameters).current;
    books->memory.reset_peaks();
    const ShardedValues values(layout, DType::bf16, *later.kernels, later.memory,
                               [&](nn::Parameter& parameter) {
                                 nn::materialize(later.context, {&parameter}, DType::f32);
                               });
    EXPECT_LE(books->memory.usage(MemoryTag::parameters).peak - before,
              total * 2 / 4 + largest * 4 + 20'000);
    const auto got = values.masters(), want = whole.values.masters();
    ASSERT_EQ(got.size(), want.size());
    for (std::size_t i = 0; i < got.size(); ++i)
      ASSERT_EQ(testing::values_of<float>(got[i].tensor), testing::values_of<float>(want[i].tensor))
          << got[i].name;
    EXPECT_THAT(test::error_text([&] {
                  parameters.front()->value = {};
                  ShardedValues(layout, DType::bf16, *later.kernels, later.memory);
                }),
                ::testing::HasSubstr("must hold f32 numbers before it is sharded"));
    groups.all->barrier()->wait();
  });
}

INSTANTIATE_TEST_SUITE_P(Degrees, ShardedMemory, ::testing::Values(2, 3, 4));

}  // namespace
}  // namespace shoal::parallel
