#include "shoal/train/data/loader.h"

#include <atomic>
#include <chrono>
#include <thread>

#include <gtest/gtest.h>

#include "shoal/runtime/base/error.h"

namespace shoal {
namespace {

// Sample i is {i, i + 1}. Some samples are slow, so that batches finish out of order; one may
// throw.
class Counting final : public Dataset {
 public:
  explicit Counting(std::int64_t size, std::int64_t bad = -1) : size_(size), bad_(bad) {}
  std::int64_t size() const override { return size_; }
  Sample get(std::int64_t index) const override {
    ++calls;
    if (index == bad_) throw_error(ErrorCode::corrupt_data, "it is bad");
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
    EXPECT_EQ(alone->batches(), drop ? 4 : 5);  // this rank has 17 samples
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

TEST_F(LoaderTest, ErrorsComeInOrderAndTheLoaderContinues) {
  for (const int workers : {0, 1, 4}) {
    const auto loader = make({.size = 40, .workers = workers, .shuffle = false, .bad = 13});
    for (int k = 0; k < 10; ++k) {
      if (k == 3) {
        try {
          loader->next();
          FAIL();
        } catch (const Error& error) {
          EXPECT_EQ(error.code(), ErrorCode::corrupt_data);
          EXPECT_EQ(error.message(), "sample 13 of the set: it is bad");
        }
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
    EXPECT_LE(dataset_->calls, 1 + 4 + 2);  // 2 workers * prefetch_factor 2, and those in progress
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
  const LoaderStatistics alone = loader->statistics();
  EXPECT_EQ(alone.stalls, 3);
  EXPECT_EQ(alone.batches, 3);
  EXPECT_EQ(alone.samples, 30);
  EXPECT_GT(alone.stall_seconds, 0.004);  // five samples sleep 1 ms each
  EXPECT_EQ(alone.work_seconds, alone.stall_seconds);
  EXPECT_LT(alone.samples_per_second(0), 30 / 0.004);
  const LoaderStatistics four{.samples = 100, .work_seconds = 20};  // four workers work at a time
  EXPECT_EQ(four.samples_per_second(4), 20);
  EXPECT_EQ(four.samples_per_second(0), 5);
  const auto ahead = make({.size = 30, .batch = 10, .workers = 3, .shuffle = false});
  while (ahead->statistics().batches < 3) std::this_thread::yield();
  rest(*ahead);
  EXPECT_EQ(ahead->statistics().stalls, 0);  // every batch was ready before it was requested
  EXPECT_EQ(ahead->statistics().stall_seconds, 0);
  EXPECT_GT(ahead->statistics().work_seconds, 0.004);
}

TEST_F(LoaderTest, NamesTheBatchThatCannotBePutTogether) {
  class Uneven final : public Dataset {
   public:
    std::int64_t size() const override { return 6; }
    Sample get(std::int64_t index) const override {
      if (index == 4) throw std::runtime_error("not of ours");
      return {.input_ids = {1, 2}, .labels = {1}};
    }
  };
  const auto message = [&](std::int64_t batch) {
    Loader loader(std::make_shared<Uneven>(), std::make_shared<PaddingCollator>(),
                  std::make_unique<EvaluationSampler>(6, 1, 0), *memory_,
                  {.batch_size = 2, .num_workers = 2});
    for (std::int64_t k = 0;; ++k) try {
        loader.next();
      } catch (const Error& error) {
        if (k == batch) return error.message();
      }
  };
  EXPECT_EQ(message(1),
            "a batch of 2 samples from sample 2 of the set on: collate: sample 0 has 2 input_ids "
            "but 1 labels");
  EXPECT_EQ(message(2), "sample 4 of the set: not of ours");
}

TEST_F(LoaderTest, StopsWhileEveryWorkerBlocks) {
  class Slow final : public Dataset {
   public:
    std::int64_t size() const override { return 1000; }
    Sample get(std::int64_t) const override {
      ++inside;
      std::this_thread::sleep_for(std::chrono::milliseconds(30));
      return {.input_ids = {1}};
    }
    mutable std::atomic<int> inside{0};
  };
  const auto slow = std::make_shared<Slow>();
  {
    const Loader loader(slow, std::make_shared<PaddingCollator>(),
                        std::make_unique<EvaluationSampler>(1000, 1, 0), *memory_,
                        {.batch_size = 1, .num_workers = 8});
    while (slow->inside < 8) std::this_thread::yield();
  }
  EXPECT_LE(slow->inside, 16);  // each worker finishes its sample and may have begun one more
}

TEST_F(LoaderTest, RefusesInvalidOptions) {
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
