// Event files against the bytes that the tensorboard package writes
// (tools/golden/make_tensorboard_events.py, which also reads ours back: its `check`).
#include <cstring>
#include <filesystem>

#include "support/golden.h"
#include "support/temporary_directory.h"
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/io/byte_source.h"
#include "shoal/runtime/io/json.h"
#include "shoal/runtime/io/protobuf.h"
#include "shoal/train/tensorboard/event_file.h"
#include "shoal/train/tensorboard/tensorboard_callback.h"

namespace shoal {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

std::string hex(std::string_view bytes) {
  std::string text;
  for (const char c : bytes) text += fmt::format("{:02x}", static_cast<std::uint8_t>(c));
  return text;
}

TEST(Crc32c, IsCastagnolis) {  // RFC 3720, B.4
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8A9136AAu);
  EXPECT_EQ(crc32c(std::string(32, '\xFF')), 0x62A8AB43u);
  EXPECT_EQ(crc32c("123456789"), 0xE3069283u);
  EXPECT_EQ(crc32c(""), 0u);
}

TEST(EventFile, HasTheBytesOfTheTensorboardPackage) {
  const json golden = read_json_file(testing::golden_path("tensorboard.json"));
  const testing::TemporaryDirectory folder;
  EventFile file(folder / "events", golden["wall_time"]);
  for (const json& event : golden["events"])
    file.add_scalar(event["tag"].get<std::string>(), event["value"].get<float>(), event["step"],
                    event["wall_time"]);
  file.flush();
  EXPECT_EQ(hex(read_text_file(file.path())), golden["file"].get<std::string>());
}

TEST(EventFile, NamesThePathThatItCannotWrite) {
  const testing::TemporaryDirectory folder;
  const EventFile first(folder / "events", 1);
  for (const std::string& path : {folder / "events", folder / "missing/events"}) {
    try {
      const EventFile second(path, 1);
      ADD_FAILURE() << path;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::io);
      EXPECT_THAT(error.what(), ::testing::HasSubstr(path));
    }
  }
}

TEST(TensorBoardCallback, WritesWhatIsLoggedUnderHuggingFacesNames) {
  const testing::TemporaryDirectory folder;
  TensorBoardCallback callback(folder / "runs/a");
  EXPECT_FALSE(fs::exists(folder / "runs"));  // nothing has been written yet
  callback.on_log({{"loss", 2.5}, {"learning_rate", 5e-5}, {"epoch", 1}, {"step", 10}});
  callback.on_log({{"eval_loss", 2.25}, {"note", "text"}, {"step", 300}});
  std::vector<std::string> seen;
  for (const auto& entry : fs::directory_iterator(folder / "runs/a")) {
    EXPECT_THAT(entry.path().filename().string(), ::testing::StartsWith("events.out.tfevents."));
    const std::string bytes = read_text_file(entry.path().string());
    for (std::size_t at = 0; at < bytes.size();) {
      std::uint64_t size = 0;
      std::memcpy(&size, bytes.data() + at, sizeof size);
      ProtobufReader event(std::string_view(bytes).substr(at + 12, size), "event");
      at += 12 + size + 4;
      std::uint64_t step = 0;
      while (event.next()) {
        if (event.field() == 2) step = event.integer();
        if (event.field() != 5) continue;
        ProtobufReader summary(event.bytes(), "summary");
        ASSERT_TRUE(summary.next());
        ProtobufReader value(summary.bytes(), "value");
        ASSERT_TRUE(value.next());
        const std::string tag(value.bytes());
        ASSERT_TRUE(value.next());
        seen.push_back(fmt::format("{} {} {}", step, tag, value.real()));
      }
    }
  }
  EXPECT_THAT(seen, ::testing::ElementsAre("10 train/loss 2.5", "10 train/learning_rate 5e-05",
                                           "10 train/epoch 1", "300 eval/loss 2.25"));
}

TEST(TensorBoardCallback, GoesWhereTheArgumentsSay) {
  TrainingArguments arguments;
  arguments.output_dir = "out";
  EXPECT_FALSE(reports_to_tensorboard(arguments));
  arguments.report_to = {"none", "tensorboard"};
  EXPECT_TRUE(reports_to_tensorboard(arguments));
  EXPECT_THAT(tensorboard_directory(arguments),
              ::testing::MatchesRegex("out/runs/[A-Z][a-z][a-z][0-9]+_[0-9]+-[0-9]+-[0-9]+_.+"));
  arguments.logging_dir = "elsewhere";
  EXPECT_EQ(tensorboard_directory(arguments), "elsewhere");
  EXPECT_EQ(tensorboard_tag("test_f1"), "test/f1");
  EXPECT_EQ(tensorboard_tag("train_runtime"), "train/train_runtime");
  EXPECT_EQ(tensorboard_tag("evaluate"), "train/evaluate");
}

}  // namespace
}  // namespace shoal
