#include <atomic>
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "shoal/runtime/base/error.h"
#include "shoal/train/data/loader.h"
#include "shoal/train/data/sample_stream.h"
#include "shoal/train/data/stream_order.h"

namespace shoal {
namespace {

using ::testing::HasSubstr;
using Ids = std::vector<std::int32_t>;

// Sample i of shard s is {1000 s + i}.
class Numbers final : public Dataset {
 public:
  Numbers(std::int32_t first, std::int64_t size, std::int32_t bad)
      : first_(first), size_(size), bad_(bad) {}
  std::int64_t size() const override { return size_; }
  Sample get(std::int64_t index) const override {
    const std::int32_t id = first_ + static_cast<std::int32_t>(index);
    if (id == bad_) throw_error(ErrorCode::corrupt_data, "no text");
    if (id % 5 == 0) std::this_thread::sleep_for(std::chrono::microseconds(300));
    return {.input_ids = {id}};
  }

 private:
  std::int32_t first_;
  std::int64_t size_;
  std::int32_t bad_;
};

class NumberShards final : public ShardSet {
 public:
  explicit NumberShards(std::vector<std::int64_t> given) : sizes(std::move(given)) {
    for (std::size_t i = 0; i < sizes.size(); ++i) names_.push_back("part-" + std::to_string(i));
  }
  std::int64_t count() const override { return static_cast<std::int64_t>(names_.size()); }
  const std::string& name(std::int64_t shard) const override {
    return names_[static_cast<std::size_t>(shard)];
  }
  std::shared_ptr<const Dataset> open(std::int64_t shard) const override {
    ++opened;
    if (shard == unreadable) throw Error(ErrorCode::io, "cannot read it", "look at the disk");
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return shard != held_; });
    }
    return std::make_shared<Numbers>(static_cast<std::int32_t>(1000 * shard),
                                     sizes[static_cast<std::size_t>(shard)], bad);
  }
  int worth_opening_ahead() const override { return ahead; }
  void hold(std::int64_t shard) {  // opening this shard waits
    {
      const std::lock_guard lock(mutex_);
      held_ = shard;
    }
    changed_.notify_all();
  }

  std::vector<std::int64_t> sizes;
  int ahead = 1;
  std::atomic<std::int64_t> unreadable{-1};
  std::atomic<std::int32_t> bad{-1};
  mutable std::atomic<int> opened{0};

 private:
  std::vector<std::string> names_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::int64_t held_ = -1;
};

struct Options {
  std::int64_t buffer = 7, batch = 4, ranks = 1, rank = 0;
  int workers = 0;
  std::uint64_t seed = 3;
};

class StreamTest : public ::testing::Test {
 protected:
  std::unique_ptr<Loader> make(const Options& o = {}) {
    return std::make_unique<Loader>(
        std::make_unique<SampleStream>(
            shards_,
            StreamOptions{.ranks = o.ranks, .rank = o.rank, .seed = o.seed, .buffer = o.buffer}),
        std::make_shared<PaddingCollator>(), *memory_,
        LoaderOptions{.batch_size = o.batch, .num_workers = o.workers});
  }
  static Ids take(Loader& loader, int batches) {
    Ids all;
    for (int k = 0; k < batches; ++k) {
      const auto batch = loader.next();
      const auto* ids = batch->input_ids.const_data<std::int32_t>();
      all.insert(all.end(), ids, ids + batch->input_ids.count());
    }
    return all;
  }
  // The samples of all ranks in `batches` batches each, in the stream's order,
  // continued from `from`.
  Ids on_ranks(const Options& o, int batches, const StreamState& from = {}) {
    Ids all(static_cast<std::size_t>(o.ranks * o.batch * batches));
    for (std::int64_t rank = 0; rank < o.ranks; ++rank) {
      Options mine = o;
      mine.rank = rank;
      const auto loader = make(mine);
      if (from.position > 0) loader->seek_stream(from);
      for (int k = 0; k < batches; ++k) {
        const auto batch = loader->next();
        for (std::int64_t row = 0; row < batch->rows; ++row)
          all.at(static_cast<std::size_t>(batch->ordinals.first - from.position +
                                          row * batch->ordinals.stride)) =
              batch->input_ids.const_data<std::int32_t>()[row];
      }
    }
    return all;
  }
  Ids every_id() const {
    Ids all;
    for (std::size_t s = 0; s < shards_->sizes.size(); ++s)
      for (std::int64_t i = 0; i < shards_->sizes[s]; ++i)
        all.push_back(static_cast<std::int32_t>(1000 * static_cast<std::int64_t>(s) + i));
    return all;
  }

  std::unique_ptr<MemoryResource> memory_ = make_host_memory();
  // 24 samples in uneven shards, two of them empty.
  std::shared_ptr<NumberShards> shards_ =
      std::make_shared<NumberShards>(std::vector<std::int64_t>{5, 0, 11, 1, 0, 7});
};

TEST(StreamOrder, AnEpochIsEverySampleOnceForEveryBuffer) {
  const std::vector<std::int64_t> sizes = {3, 0, 9, 1, 20};
  for (const std::int64_t buffer : {0, 1, 2, 5, 33, 1000}) {
    StreamOrder order(5, buffer, 42);
    std::vector<std::vector<std::int64_t>> epochs;
    for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
      order.begin(epoch);
      std::vector<std::int64_t> seen;
      std::map<std::int64_t, int> each;
      for (;;) {
        while (const auto wanted = order.wanted())
          order.give(sizes[static_cast<std::size_t>(*wanted)]);
        if (order.done()) break;
        const StreamPlace place = order.next();
        seen.push_back(100 * place.shard + place.index);
        ++each[seen.back()];
        EXPECT_GE(order.progress(), 0);
        EXPECT_LE(order.progress(), 1);
      }
      EXPECT_EQ(order.progress(), 1) << "buffer " << buffer;
      EXPECT_EQ(seen.size(), 33U);
      EXPECT_EQ(each.size(), 33U);
      epochs.push_back(seen);
    }
    const bool in_order = std::is_sorted(epochs[0].begin(), epochs[0].end());
    EXPECT_EQ(in_order, buffer == 0);
    EXPECT_EQ(epochs[0] == epochs[1], buffer == 0);
  }
}

TEST(StreamOrder, ASampleWaitsInTheBufferAndNoneOvertakesItsPlaces) {
  // With a buffer of b, the k-th sample to enter cannot leave before the (k - b + 1)-th draw.
  StreamOrder order(1, 10, 1);
  order.give(500);
  std::int64_t moved = 0;
  for (std::int64_t draw = 0; draw < 500; ++draw) {
    const std::int64_t index = order.next().index;
    EXPECT_GE(draw, index - 9);
    moved += index != draw;
  }
  EXPECT_GT(moved, 400);
}

TEST_F(StreamTest, WorkersAndRanksChangeNothing) {
  const Ids expected = take(*make({.batch = 6}), 12);  // three epochs of 24
  for (const int workers : {1, 2, 5, 16})
    EXPECT_EQ(take(*make({.batch = 6, .workers = workers}), 12), expected) << workers;
  EXPECT_EQ(on_ranks({.batch = 3, .ranks = 2, .workers = 2}, 12), expected);
  EXPECT_EQ(on_ranks({.batch = 2, .ranks = 3}, 12), expected);
  EXPECT_EQ(on_ranks({.batch = 1, .ranks = 6, .workers = 1}, 12), expected);
  for (std::size_t epoch = 0; epoch < 3; ++epoch) {
    Ids one(expected.begin() + static_cast<std::ptrdiff_t>(24 * epoch),
            expected.begin() + static_cast<std::ptrdiff_t>(24 * epoch + 24));
    std::sort(one.begin(), one.end());
    EXPECT_EQ(one, every_id()) << "epoch " << epoch;
  }
}

TEST_F(StreamTest, BatchesCrossEpochsAndAreAlwaysWhole) {
  const auto loader = make({.batch = 5});
  const Ids ids = take(*loader, 24);  // 120 samples: five epochs
  std::map<std::int32_t, int> each;
  for (const std::int32_t id : ids) ++each[id];
  for (const std::int32_t id : every_id()) EXPECT_EQ(each[id], 5) << id;
  EXPECT_EQ(loader->stream_state().epoch, 5);
  EXPECT_EQ(loader->stream_state().epoch_begin, 120);
  EXPECT_EQ(loader->stream_state().progress, 5);
}

TEST_F(StreamTest, ResumesInTheMiddleOfTheBufferOnAnyRanksAndWorkers) {
  for (const std::int64_t buffer : {0, 1, 7, 100}) {
    const Ids whole = take(*make({.buffer = buffer, .batch = 6}), 16);
    for (const int at : {1, 3, 4, 5, 9}) {
      const auto first = make({.buffer = buffer, .batch = 6, .workers = at % 3});
      take(*first, at);
      // The state goes through JSON, as in a checkpoint.
      const auto state = StreamState::from_json(first->stream_state().to_json());
      EXPECT_EQ(state.position, 6 * at);
      const Ids rest(whole.begin() + 6 * at, whole.begin() + 6 * at + 36);
      EXPECT_EQ(on_ranks({.buffer = buffer, .batch = 6, .workers = 2}, 6, state), rest);
      EXPECT_EQ(on_ranks({.buffer = buffer, .batch = 3, .ranks = 2}, 6, state), rest);
      EXPECT_EQ(on_ranks({.buffer = buffer, .batch = 1, .ranks = 4}, 9, state), rest);
      // Resume also from a run that was itself resumed.
      const auto second = make({.buffer = buffer, .batch = 6});
      second->seek_stream(state);
      take(*second, 2);
      const auto third = make({.buffer = buffer, .batch = 6, .workers = 3});
      third->seek_stream(second->stream_state());
      EXPECT_EQ(take(*third, 4), Ids(rest.begin() + 12, rest.end()));
    }
  }
}

TEST_F(StreamTest, TheStateDoesNotHangOnHowFarWorkersAre) {
  const auto state = [&](int workers) {
    const auto loader = make({.batch = 2, .workers = workers});
    take(*loader, 5);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));  // they run ahead
    return loader->stream_state().to_json();
  };
  const auto alone = state(0);
  EXPECT_EQ(state(1), alone);
  EXPECT_EQ(state(8), alone);
}

TEST_F(StreamTest, ResumingOpensNoShardThatIsThrough) {
  shards_ = std::make_shared<NumberShards>(std::vector<std::int64_t>(40, 10));
  const auto first = make({.buffer = 5, .batch = 10});
  take(*first, 30);
  const StreamState state = first->stream_state();
  shards_->opened = 0;
  const auto second = make({.buffer = 5, .batch = 10});
  second->seek_stream(state);
  take(*second, 1);
  EXPECT_LE(shards_->opened, 7);  // at most 5 had samples in the buffer
}

TEST_F(StreamTest, AnotherStreamsStateIsRefused) {
  const auto loader = make();
  take(*loader, 2);
  const StreamState state = loader->stream_state();
  const auto refused = [&](const Options& options) {
    try {
      make(options)->seek_stream(state);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
      EXPECT_THAT(error.what(), HasSubstr("--ignore_data_skip"));
      return true;
    }
    return false;
  };
  EXPECT_FALSE(refused({}));
  EXPECT_TRUE(refused({.buffer = 8}));
  EXPECT_TRUE(refused({.seed = 4}));
  shards_ = std::make_shared<NumberShards>(std::vector<std::int64_t>{5, 0, 11, 1, 0, 7, 2});
  EXPECT_TRUE(refused({}));
  EXPECT_THROW(StreamState::from_json({{"position", 1}}), Error);
}

TEST_F(StreamTest, AShardThatChangedIsNamed) {
  const auto loader = make({.buffer = 100});
  take(*loader, 3);
  const StreamState state = loader->stream_state();
  for (auto& size : shards_->sizes) ++size;
  const auto resumed = make({.buffer = 100});
  resumed->seek_stream(state);
  try {
    take(*resumed, 9);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("shard part-"));
    EXPECT_THAT(error.what(), HasSubstr("before; a stream's shards must stay as they are"));
  }
}

TEST_F(StreamTest, OnlyEmptyShardsAreAnErrorNotAnEndlessSearch) {
  shards_ = std::make_shared<NumberShards>(std::vector<std::int64_t>{0, 0, 0});
  for (const int workers : {0, 2}) {
    const auto loader = make({.workers = workers});
    try {
      loader->next();
      FAIL();
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("its 3 shards, part-0 and so on, have no sample"));
    }
  }
}

TEST_F(StreamTest, ErrorsNameTheSampleOrShard) {
  shards_->bad = 2003;
  for (const int workers : {0, 1, 4}) {
    const auto loader = make({.buffer = 0, .workers = workers});
    take(*loader, 2);  // 5 samples of part-0, 3 of part-2
    try {
      loader->next();
      FAIL();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::corrupt_data);
      EXPECT_EQ(error.message(), "sample 3 of part-2: no text");
    }
    EXPECT_EQ(take(*loader, 1).front(), 2007);  // the batch behind it
  }
  shards_->bad = -1;
  shards_->unreadable = 3;
  for (const int workers : {0, 1, 4}) {
    const auto loader = make({.buffer = 0, .workers = workers});
    // 12 of the 16 samples before part-3. The batch with the remaining ones fails, because only
    // part-3 can tell whether they end the epoch.
    take(*loader, 3);
    for (int i = 0; i < 2; ++i) try {
        loader->next();
        FAIL();
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::io);
        EXPECT_STREQ(error.what(), "shard part-3: cannot read it; look at the disk");
      }
    EXPECT_EQ(loader->stream_state().position, 12);
    shards_->unreadable = -1;  // once the disk is repaired, the run continues from there
    loader->seek_stream(StreamState(loader->stream_state()));
    EXPECT_EQ(take(*loader, 2), (Ids{2007, 2008, 2009, 2010, 3000, 5000, 5001, 5002}));
    shards_->unreadable = 3;
  }
}

TEST_F(StreamTest, StopsWhileWorkersWaitForAShard) {
  for (const int workers : {1, 4}) {
    shards_->hold(2);
    auto loader = make({.buffer = 0, .workers = workers});
    take(*loader, 1);  // the next batch needs part-2
    std::thread later([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      shards_->hold(-1);  // release the opening thread; no other thread waits for the shard
    });
    loader.reset();
    later.join();
  }
}

TEST_F(StreamTest, OpensOneShardAheadAndNotMore) {
  shards_ = std::make_shared<NumberShards>(std::vector<std::int64_t>(50, 10));
  const auto loader = make({.buffer = 0, .batch = 1, .workers = 2});
  take(*loader, 1);
  while (shards_->opened < 2) std::this_thread::yield();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(shards_->opened, 2);  // four batches are ready, all from the first shard
}

// A remote set opens several shards in parallel while the first is read. The order does not change.
TEST_F(StreamTest, OpensAsManyAheadAsTheSetSays) {
  for (const std::int64_t buffer : {0, 7}) {
    shards_ = std::make_shared<NumberShards>(std::vector<std::int64_t>(6, 10));
    auto plain = make({.buffer = buffer, .batch = 2, .workers = 0});
    const auto expected = take(*plain, 70);  // more than two epochs
    plain.reset();
    shards_->ahead = 4;
    auto loader = make({.buffer = buffer, .batch = 2, .workers = 1});
    EXPECT_EQ(take(*loader, 70), expected);
  }
  shards_ = std::make_shared<NumberShards>(std::vector<std::int64_t>(50, 10));
  shards_->ahead = 4;
  shards_->hold(1);  // opening it is slow; those after it do not wait
  auto loader = make({.buffer = 0, .batch = 1, .workers = 1});
  take(*loader, 1);
  while (shards_->opened < 5) std::this_thread::yield();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(shards_->opened, 5);
  shards_->hold(-1);
}

// Upcoming shards are known beyond the end of the epoch, once or twice.
TEST(StreamOrder, SaysWhichShardsComeNext) {
  StreamOrder order(3, 1, 42);
  const auto next = order.upcoming(8);
  ASSERT_EQ(next.size(), 8U);
  std::vector<std::int64_t> met;
  for (int i = 0; i < 9; ++i) {
    while (!order.wanted()) order.next();
    met.push_back(*order.wanted());
    EXPECT_EQ(order.upcoming(0).size(), 0U);
    order.give(2);
    if (i % 3 == 2) {
      while (!order.done()) order.next();
      order.begin(order.epoch() + 1);
    }
  }
  EXPECT_EQ(met, [&] {
    std::vector<std::int64_t> all{met.front()};
    all.insert(all.end(), next.begin(), next.end());
    return all;
  }());
}

}  // namespace
}  // namespace shoal
