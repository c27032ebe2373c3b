#include "shoal/sagemaker/container/pipes.h"

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "support/pipe_writer.h"
#include "support/temporary_directory.h"
#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/io/byte_source.h"
#include "shoal/runtime/io/named_pipe.h"

namespace shoal::sagemaker {
namespace {

using shoal::testing::PipeWriter;
using shoal::testing::TemporaryDirectory;

const std::atomic<int> kGoesOn{0};

// More text than a pipe holds.
std::string long_text() {
  std::string text;
  for (int i = 0; i < 60000; ++i) text += fmt::format("{} ", i);
  return text;
}

std::string all_of(const std::string& path) {
  const std::atomic<bool> never{false};
  NamedPipe pipe(path, never, 10);
  std::string text;
  std::vector<std::byte> block(10007);
  while (const std::size_t got = pipe.read(block))
    text.append(reinterpret_cast<const char*>(block.data()), got);
  return text;
}

TEST(Pipes, GoToAFile) {
  const TemporaryDirectory root;
  const PipeWriter writer(root / "validation", long_text());
  const std::atomic<int> stop{0};
  copy_to_file(
      {.prefix = root / "validation", .file = root / "there/validation.txt", .fan_out = {}}, stop);
  EXPECT_EQ(read_text_file(root / "there/validation.txt"), long_text());
  std::atomic<int> stopped{0};
  auto waiting = std::async(std::launch::async, [&] {
    copy_to_file({.prefix = root / "absent", .file = root / "absent.txt", .fan_out = {}}, stopped);
  });
  stopped = 15;
  EXPECT_THROW(waiting.get(), Error);
  EXPECT_FALSE(std::filesystem::exists(root / "absent.txt"));
}

TEST(Pipes, GoToEveryRankOfAHost) {
  const TemporaryDirectory root;
  const PipeWriter writer(root / "train", long_text());
  const PipeFanOut fan_out(
      {.prefix = root / "train", .file = {}, .fan_out = root / "ranks", .ranks = 3}, kGoesOn);
  for (int epoch = 0; epoch < 2; ++epoch) {
    std::vector<std::future<std::string>> ranks;
    for (int rank = 0; rank < 3; ++rank)
      ranks.push_back(std::async(std::launch::async, [&root, rank, epoch] {
        if (rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(40));
        return all_of(root / fmt::format("ranks/{}/train_{}", rank, epoch));
      }));
    for (auto& rank : ranks) EXPECT_EQ(rank.get(), long_text());
  }
}

TEST(Pipes, PipesOfAFinishedRankDelayNoOtherRank) {
  const TemporaryDirectory root;
  const PipeWriter writer(root / "train", long_text());
  const PipeFanOut fan_out(
      {.prefix = root / "train", .file = {}, .fan_out = root / "ranks", .ranks = 2}, kGoesOn);
  const std::atomic<bool> never{false};
  auto first = std::make_unique<NamedPipe>(root / "ranks/0/train_0", never, 10);
  auto other = std::async(std::launch::async, [&] { return all_of(root / "ranks/1/train_0"); });
  std::vector<std::byte> block(10);
  EXPECT_GT(first->read(block), 0U);
  first.reset();
  EXPECT_EQ(other.get(), long_text());
}

std::string failure_of(const PipeFanOut& fan_out) {
  for (;;) {
    if (const auto failure = fan_out.failure()) return *failure;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

// The pipes of the second epoch cannot be created. The ranks must not see an end of the first
// epoch.
TEST(Pipes, AFailureDoesNotLookLikeTheEndOfAnEpoch) {
  const TemporaryDirectory root;
  std::filesystem::create_directories(root / "ranks/1/train_1/taken");
  const PipeWriter writer(root / "train", long_text());
  const PipeFanOut fan_out(
      {.prefix = root / "train", .file = {}, .fan_out = root / "ranks", .ranks = 2}, kGoesOn);
  EXPECT_FALSE(fan_out.failure());
  std::vector<std::unique_ptr<NamedPipe>> ranks;
  const std::atomic<bool> never{false};
  for (int rank = 0; rank < 2; ++rank)
    ranks.push_back(
        std::make_unique<NamedPipe>(root / fmt::format("ranks/{}/train_0", rank), never, 10));
  const std::size_t length = long_text().size();
  std::vector<std::future<void>> reading;
  for (const auto& rank : ranks)
    reading.push_back(std::async(std::launch::async, [&rank, length] {
      std::vector<std::byte> block(10007);
      for (std::size_t got = 0; got < length;) {
        const std::size_t more = rank->read(block);
        ASSERT_GT(more, 0U) << "an end after " << got << " bytes";
        got += more;
      }
    }));
  for (auto& one : reading) one.get();
  EXPECT_THAT(failure_of(fan_out), ::testing::AllOf(::testing::HasSubstr("channel train: "),
                                                    ::testing::HasSubstr("ranks/1/train_1")));
  const int second = ::open((root / "ranks/1/train_0").c_str(), O_RDONLY | O_NONBLOCK);
  pollfd watched{second, POLLIN, 0};
  EXPECT_EQ(::poll(&watched, 1, 0), 0);  // neither bytes nor end of file
  ::close(second);
}

TEST(Pipes, FilesThatAreNotPipesAreReported) {
  const TemporaryDirectory root;
  std::ofstream(root / "train_0") << "a file";
  const PipeFanOut fan_out(
      {.prefix = root / "train", .file = {}, .fan_out = root / "ranks", .ranks = 2}, kGoesOn);
  EXPECT_THAT(failure_of(fan_out), ::testing::HasSubstr("train_0 is no named pipe"));
}

// The writer may end before the ranks do.
TEST(Pipes, BreakingAfterTheJobIsStoppedIsNotTheReason) {
  const TemporaryDirectory root;
  std::filesystem::create_directories(root / "ranks/1/train_1/taken");
  const PipeWriter writer(root / "train", "short");
  std::atomic<int> stop{0};
  const PipeFanOut fan_out(
      {.prefix = root / "train", .file = {}, .fan_out = root / "ranks", .ranks = 2}, stop);
  std::vector<std::unique_ptr<NamedPipe>> ranks;
  const std::atomic<bool> never{false};
  ranks.push_back(std::make_unique<NamedPipe>(root / "ranks/0/train_0", never, 10));
  stop = 15;
  ranks.push_back(std::make_unique<NamedPipe>(root / "ranks/1/train_0", never, 10));
  // The first pipe of the next epoch is created, the second one fails.
  while (!std::filesystem::exists(root / "ranks/0/train_1"))
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_FALSE(fan_out.failure());
}

}  // namespace
}  // namespace shoal::sagemaker
