// A stream that is read from named pipes.
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "support/error_text.h"
#include "support/pipe_writer.h"
#include "support/temporary_directory.h"
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "shoal/runtime/base/error.h"
#include "shoal/train/data/loader.h"
#include "shoal/train/data/pipe_shards.h"

namespace shoal {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::PipeWriter;
using testing::TemporaryDirectory;
using Ids = std::vector<std::int32_t>;

// Each line is a number.
class NumberLines final : public Dataset {
 public:
  explicit NumberLines(const std::string& text) {
    std::istringstream lines(text);
    for (std::int32_t number = 0; lines >> number;) numbers_.push_back(number);
  }
  std::int64_t size() const override { return std::ssize(numbers_); }
  Sample get(std::int64_t index) const override {
    return {.input_ids = {numbers_.at(static_cast<std::size_t>(index))}};
  }

 private:
  Ids numbers_;
};

class PipeTest : public ::testing::Test {
 protected:
  static std::string numbers(int count) {
    std::string text;
    for (int i = 0; i < count; ++i) text += std::to_string(i) + "\n";
    return text;
  }
  std::shared_ptr<PipeShards> shards(PipeOptions options = {}) {
    options.prefix = directory_ / "train";
    options.ending = ".txt";
    if (options.piece_bytes > 1000) options.piece_bytes = 100;
    return std::make_shared<PipeShards>(options,
                                        [this](const std::string& text, const std::string& name) {
                                          ++opened_;
                                          last_name_ = name;
                                          return std::make_shared<NumberLines>(text);
                                        });
  }
  std::unique_ptr<Loader> loader(std::int64_t buffer, int workers, std::int64_t ranks = 1,
                                 std::int64_t rank = 0) {
    return std::make_unique<Loader>(
        std::make_unique<SampleStream>(
            shards(), StreamOptions{.ranks = ranks, .rank = rank, .buffer = buffer}),
        std::make_shared<PaddingCollator>(), *memory_,
        LoaderOptions{.batch_size = 7, .num_workers = workers});
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

  TemporaryDirectory directory_;
  std::unique_ptr<MemoryResource> memory_ = make_host_memory();
  std::atomic<int> opened_{0};
  std::string last_name_;
};

constexpr int kLines = 300;  // in 11 pieces

TEST_F(PipeTest, EachEpochIsAPipeReadInItsOrder) {
  for (const int workers : {0, 2}) {
    const PipeWriter writer(directory_ / "train", numbers(kLines));
    const auto from = loader(0, workers);
    const Ids ids = take(*from, 100);  // 700 samples: two epochs and a part
    for (std::size_t i = 0; i < ids.size(); ++i)
      ASSERT_EQ(ids[i], static_cast<std::int32_t>(i % kLines)) << workers;
    EXPECT_GE(writer.epochs_begun(), 3);
    EXPECT_EQ(from->stream_state().epoch, 2);
  }
}

TEST_F(PipeTest, RanksShareTheOrder) {
  Ids whole;
  {
    const PipeWriter writer(directory_ / "train", numbers(kLines));
    whole = take(*loader(40, 1), 20);
  }
  for (std::int64_t rank = 0; rank < 2; ++rank) {
    const PipeWriter writer(directory_ / "train", numbers(kLines));
    const Ids mine = take(*loader(40, 1, 2, rank), 10);
    for (std::size_t i = 0; i < mine.size(); ++i)
      EXPECT_EQ(mine[i], whole[2 * i + static_cast<std::size_t>(rank)]);
  }
}

// A new process starts at PREFIX_0, wherever the run continues.
TEST_F(PipeTest, AResumedRunReadsUpToItsPosition) {
  constexpr int kBatches = 110;
  for (const std::int64_t buffer : {0, 1, 40, 10000}) {
    std::vector<StreamState> states;
    Ids whole;
    {
      const PipeWriter writer(directory_ / "train", numbers(kLines));
      const auto from = loader(buffer, 1);
      for (int k = 0; k < kBatches; ++k) {
        states.push_back(from->stream_state());
        const Ids more = take(*from, 1);
        whole.insert(whole.end(), more.begin(), more.end());
      }
    }
    for (const std::size_t k : {1U, 14U, 30U, 41U, 42U, 43U, 60U, 85U, 86U, 100U}) {
      const PipeWriter writer(directory_ / "train", numbers(kLines));
      const auto from = loader(buffer, k % 2 == 0 ? 1 : 0);
      from->seek_stream(StreamState::from_json(states[k].to_json()));
      const Ids rest = take(*from, kBatches - static_cast<int>(k));
      ASSERT_EQ(rest, Ids(whole.begin() + 7 * static_cast<std::ptrdiff_t>(k), whole.end()))
          << "buffer " << buffer << ", batch " << k;
    }
  }
}

TEST_F(PipeTest, FinishedPipesAreNotOpenedAgain) {
  StreamState state;
  {
    const PipeWriter writer(directory_ / "train", numbers(kLines));
    const auto from = loader(0, 0);
    take(*from, 30);  // 210 of 300 lines: 8 of 11 pieces
    state = from->stream_state();
  }
  opened_ = 0;
  const PipeWriter writer(directory_ / "train", numbers(kLines));
  const auto from = loader(0, 0);
  from->seek_stream(state);
  take(*from, 1);
  EXPECT_LE(opened_, 2);
  EXPECT_GE(opened_, 1);
}

TEST_F(PipeTest, AnotherPipeThanBeforeIsNoticed) {
  StreamState state;
  {
    const PipeWriter writer(directory_ / "train", numbers(kLines));
    const auto from = loader(40, 0);
    take(*from, 20);
    state = from->stream_state();
  }
  {
    const PipeWriter writer(directory_ / "train", numbers(50));
    const auto from = loader(40, 0);
    from->seek_stream(state);
    EXPECT_THAT(test::error_text([&] { take(*from, 1); }), HasSubstr("ended before piece"));
  }
  const PipeWriter writer(directory_ / "train", "1000000000\n" + numbers(kLines));
  const auto from = loader(40, 0);
  from->seek_stream(state);
  EXPECT_THAT(test::error_text([&] { take(*from, 1); }), HasSubstr("samples, but had"));
}

TEST_F(PipeTest, PiecesEndWithARecordAndBeginWithTheHeader) {
  std::vector<std::string> pieces;
  PipeOptions options{
      .prefix = directory_ / "rows", .ending = ".csv", .has_rows = true, .piece_bytes = 20};
  const PipeShards rows(options, [&](const std::string& text, const std::string& name) {
    pieces.push_back(text);
    last_name_ = name;
    return std::make_shared<NumberLines>("");
  });
  // Two objects are written one after the other, so a second header arrives in the middle.
  const PipeWriter writer(
      directory_ / "rows",
      "text,label\n\"one\ntwo\nthree\nfour\",1\nfive,0\ntext,label\nsix,1\nseven,0");
  std::int64_t serial = 0;
  while (rows.open(serial)) ++serial;
  EXPECT_THAT(pieces, ElementsAre("text,label\n\"one\ntwo\nthree\nfour\",1\n",
                                  "text,label\nfive,0\nsix,1\n", "text,label\nseven,0"));
  EXPECT_THAT(last_name_, ::testing::EndsWith("/rows-piece-2.csv"));
  EXPECT_THAT(test::error_text([&] { rows.open(7); }), HasSubstr("is read once, in its order"));
}

TEST_F(PipeTest, EndsWhileItWaits) {
  for (const bool there : {false, true}) {
    if (there) ::mkfifo((directory_ / "train_0").c_str(), 0600);  // a pipe without a writer
    SampleStream stream(shards(), {.buffer = 0});
    stream.read_ahead();
    std::thread reader([&] { EXPECT_FALSE(stream.claim(1)); });
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    stream.stop();
    reader.join();
  }
}

TEST_F(PipeTest, RefusesOtherFiles) {
  std::ofstream(directory_ / "train_0") << "1\n";
  EXPECT_THAT(test::error_text([&] { loader(0, 0)->next(); }), HasSubstr("is no named pipe"));
  PipeOptions options;
  options.wait_seconds = 0.1;
  std::filesystem::remove(directory_ / "train_0");
  EXPECT_THAT(test::error_text([&] { shards(options)->open(0); }),
              HasSubstr("train_0 is not there after 0 s"));
}

}  // namespace
}  // namespace shoal
