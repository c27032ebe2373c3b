#include "shoal/train/data/loader.h"

#include <atomic>
#include <chrono>
#include <thread>

#include <gtest/gtest.h>

#include "shoal/runtime/base/error.h"

namespace shoal {
namespace {

// Sample i is {i, i + 1}. Some take long, so that batches finish out of order; one may throw.
class Counting final : public Dataset {
 public:
  explicit Counting(std::int64_t size, std::int64_t bad = -1) : size_(size), bad_(bad) {}
  std::int64_t size() const override { return size_; }
  Sample get(std::int64_t index) const override {
    ++calls;
    if (index == bad_) throw_error(ErrorCode::corrupt_data, "sample {} is bad", index);
    if (index % 7 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const auto id = static_cast<std::int32_t>(index);
    return {.input_ids = {id, id + 1}};
  }
  mutable std::atomic<std::int64_t> calls{0};

 private:
  std::int64_t size_, bad_;
};

struct Options {
  std::int64_t size = 50, batch = 4, ranks = 1, rank = 0;
  int workers = 0;
  bool drop_last_batch = false, shuffle = true;
  std::int64_t bad = -1;
};

class LoaderTest : public ::testing::Test {
 protected:
  std::unique_ptr<Loader> make(const Options& options) {
    dataset_ = std::make_shared<Counting>(options.size, options.bad);
    auto sampler = std::make_unique<DistributedSampler>(
        options.size,
        DistributedSamplerOptions{
            .ranks = options.ranks, .rank = options.rank, .shuffle = options.shuffle});
    return std::make_unique<Loader>(dataset_, std::make_shared<PaddingCollator>(),
                                    std::move(sampler), *memory_,
                                    LoaderOptions{.batch_size = options.batch,
                                                  .num_workers = options.workers,
                                                  .drop_last_batch = options.drop_last_batch});
  }
  struct Seen {
    std::vector<std::int32_t> ids;
    SampleOrdinals ordinals;
    bool operator==(const Seen&) const = default;
  };
  static std::vector<Seen> rest(Loader& loader) {
    std::vector<Seen> all;
    while (const auto batch = loader.next()) {
      const auto* ids = batch->input_ids.const_data<std::int32_t>();
      all.push_back({{ids, ids + batch->input_ids.count()}, batch->ordinals});
    }
    return all;
  }
  std::unique_ptr<MemoryResource> memory_ = make_host_memory();
  std::shared_ptr<Counting> dataset_;
};

TEST_F(LoaderTest, WorkersChangeNothing) {
  for (const bool drop : {false, true}) {
    const auto alone = make({.ranks = 3, .rank = 1, .drop_last_batch = drop});
    const auto expected = rest(*alone);
    EXPECT_EQ(static_cast<std::int64_t>(expected.size()), alone->batches());
    EXPECT_EQ(alone->batches(), drop ? 4 : 5);  // 17 samples of this rank
    EXPECT_EQ(expected[2].ordinals, (SampleOrdinals{25, 3}));
    for (const int workers : {1, 2, 5, 16}) {
      const auto loader =
          make({.ranks = 3, .rank = 1, .workers = workers, .drop_last_batch = drop});
      EXPECT_EQ(rest(*loader), expected) << workers << " workers";
      EXPECT_FALSE(loader->next().has_value());
    }
  }
}

TEST_F(LoaderTest, ResumesAtTheExactSample) {
  for (const int workers : {0, 3}) {
    const auto whole = make({.workers = workers});
    whole->seek({2, 0});
    const auto expected = rest(*whole);
    const auto first = make({.workers = workers});
    first->seek({2, 0});
    for (int i = 0; i < 5; ++i) first->next();
    const SamplerState state = first->state();
    EXPECT_EQ(state, (SamplerState{2, 20}));
    const auto second = make({.workers = workers});
    second->seek(state);
    EXPECT_EQ(rest(*second), std::vector<Seen>(expected.begin() + 5, expected.end()));
    EXPECT_EQ(second->state(), (SamplerState{2, 50}));
    second->seek(second->state());
    EXPECT_FALSE(second->next().has_value());
    second->seek({3, 0});
    EXPECT_NE(rest(*second), expected);  // another epoch, another permutation
  }
}

TEST_F(LoaderTest, ResumesOnAnotherNumberOfRanks) {
  const auto one = make({.size = 64, .batch = 8, .shuffle = true});
  for (int i = 0; i < 3; ++i) one->next();
  const SamplerState state = one->state();
  std::vector<std::int32_t> expected;
  for (const Seen& seen : rest(*one))
    expected.insert(expected.end(), seen.ids.begin(), seen.ids.end());
  std::vector<std::int32_t> both(expected.size());
  for (std::int64_t rank = 0; rank < 2; ++rank) {
    const auto loader = make({.size = 64, .batch = 4, .ranks = 2, .rank = rank, .workers = 2});
    loader->seek(state);
    for (const Seen& seen : rest(*loader))
      for (std::size_t row = 0; row < seen.ids.size() / 2; ++row)
        for (std::size_t column = 0; column < 2; ++column)
          both[2 * (static_cast<std::size_t>(seen.ordinals.first - state.position) + 2 * row) +
               column] = seen.ids[2 * row + column];
  }
  EXPECT_EQ(both, expected);
  const auto three = make({.size = 64, .ranks = 3});
  try {
    three->seek(state);  // 24 divides; 25 does not
    three->seek({0, 25});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.message(), "loader: position 25 does not divide by 3 data-parallel ranks");
  }
}

TEST_F(LoaderTest, ErrorsComeInOrderAndTheLoaderGoesOn) {
  for (const int workers : {0, 1, 4}) {
    const auto loader = make({.size = 40, .workers = workers, .shuffle = false, .bad = 13});
    for (int k = 0; k < 10; ++k) {
      if (k == 3) {
        EXPECT_THROW(loader->next(), Error);
      } else {
        const auto batch = loader->next();
        ASSERT_TRUE(batch.has_value());
        EXPECT_EQ(batch->input_ids.const_data<std::int32_t>()[0], 4 * k);
      }
    }
    EXPECT_FALSE(loader->next().has_value());
  }
}

TEST_F(LoaderTest, TheQueueIsBoundedAndStopsCleanly) {
  {
    const auto loader = make({.size = 100000, .batch = 1, .workers = 2, .shuffle = false});
    loader->next();
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    EXPECT_LE(dataset_->calls, 1 + 4 + 2);  // 2 workers * prefetch_factor 2, and those in flight
  }  // destroyed with workers waiting
  const auto loader = make({.size = 1000, .batch = 3, .workers = 4});
  for (int i = 0; i < 20; ++i) {  // seeks while workers are busy
    loader->seek({i, 0});
    loader->next();
  }
}

TEST_F(LoaderTest, MeasuresStalls) {
  const auto loader = make({.size = 30, .batch = 10, .shuffle = false});
  rest(*loader);
  EXPECT_EQ(loader->stalls(), 3);
  EXPECT_GT(loader->stall_seconds(), 0.004);  // five samples sleep 1 ms each
  EXPECT_LT(loader->stall_seconds(), 10);
}

TEST_F(LoaderTest, RefusesWhatCannotBe) {
  EXPECT_THROW(make({.batch = 0}), Error);
  EXPECT_THROW(make({.workers = -1}), Error);
  const auto loader = make({});
  EXPECT_THROW(loader->seek({-1, 0}), Error);
  EXPECT_THROW(loader->seek({0, -1}), Error);
}

TEST_F(LoaderTest, EvaluationSeesEverySampleOnce) {
  std::vector<int> seen(11);
  for (std::int64_t rank = 0; rank < 3; ++rank) {
    Loader loader(std::make_shared<Counting>(11), std::make_shared<PaddingCollator>(),
                  std::make_unique<EvaluationSampler>(11, 3, rank), *memory_,
                  {.batch_size = 2, .num_workers = 2});
    while (const auto batch = loader.next())
      for (std::int64_t row = 0; row < batch->rows; ++row) {
        const auto ordinal = batch->ordinals.first + row * batch->ordinals.stride;
        EXPECT_EQ(batch->input_ids.const_data<std::int32_t>()[2 * row], ordinal);
        ++seen[static_cast<std::size_t>(ordinal)];
      }
  }
  EXPECT_EQ(seen, std::vector<int>(11, 1));
}

}  // namespace
}  // namespace shoal
