#include "shoal/sagemaker/container/pipes.h"

#include <atomic>
#include <chrono>
#include <filesystem>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "support/pipe_writer.h"
#include "support/temporary_directory.h"
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/io/byte_source.h"
#include "shoal/runtime/io/named_pipe.h"

namespace shoal::sagemaker {
namespace {

using shoal::testing::PipeWriter;
using shoal::testing::TemporaryDirectory;

// More than pipes hold.
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
      {.prefix = root / "train", .file = {}, .fan_out = root / "ranks", .ranks = 3});
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

TEST(Pipes, OfARankThatIsThroughHoldNobodyUp) {
  const TemporaryDirectory root;
  const PipeWriter writer(root / "train", long_text());
  const PipeFanOut fan_out(
      {.prefix = root / "train", .file = {}, .fan_out = root / "ranks", .ranks = 2});
  const std::atomic<bool> never{false};
  auto first = std::make_unique<NamedPipe>(root / "ranks/0/train_0", never, 10);
  auto other = std::async(std::launch::async, [&] { return all_of(root / "ranks/1/train_0"); });
  std::vector<std::byte> block(10);
  EXPECT_GT(first->read(block), 0U);
  first.reset();
  EXPECT_EQ(other.get(), long_text());
}

}  // namespace
}  // namespace shoal::sagemaker
