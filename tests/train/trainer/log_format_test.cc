#include "shoal/train/trainer/log_format.h"

#include <cmath>

#include <gmock/gmock.h>

namespace shoal {
namespace {

TEST(LogFormat, FloatsAreWrittenAsPythonWritesThem) {
  EXPECT_EQ(python_repr(1.0), "1.0");
  EXPECT_EQ(python_repr(0.1), "0.1");
  EXPECT_EQ(python_repr(-0.0), "-0.0");
  EXPECT_EQ(python_repr(4.44e-05), "4.44e-05");
  EXPECT_EQ(python_repr(0.0001), "0.0001");
  EXPECT_EQ(python_repr(1e16), "1e+16");
  EXPECT_EQ(python_repr(123456789012345.0), "123456789012345.0");
  EXPECT_EQ(python_repr(4.4444444444444447e-05), "4.4444444444444447e-05");
  EXPECT_EQ(python_repr(NAN), "nan");
  EXPECT_EQ(python_repr(-INFINITY), "-inf");
}

TEST(LogFormat, RecordsAreDicts) {
  EXPECT_EQ(python_dict({{"loss", 1.1406}, {"learning_rate", 4.44e-05}, {"epoch", 0.26}}),
            "{'loss': 1.1406, 'learning_rate': 4.44e-05, 'epoch': 0.26}");
  EXPECT_EQ(python_dict({{"n", 3}, {"s", "x"}, {"b", true}, {"none", nullptr}}),
            "{'n': 3, 's': 'x', 'b': True, 'none': None}");
  EXPECT_EQ(python_dict(nlohmann::ordered_json::object()), "{}");
}

TEST(LogFormat, RoundsAsPythonDoes) {
  EXPECT_EQ(round_to(2.675, 2), 2.67);  // 2.675 is a little less in binary
  EXPECT_EQ(round_to(0.5, 0), 0.0);
  EXPECT_EQ(round_to(1.14061, 4), 1.1406);
  EXPECT_TRUE(std::isnan(round_to(NAN, 2)));
}

TEST(LogFormat, CountsBytesAndTimes) {
  EXPECT_EQ(format_count(0), "0");
  EXPECT_EQ(format_count(999), "999");
  EXPECT_EQ(format_count(1000), "1,000");
  EXPECT_EQ(format_count(124439808), "124,439,808");
  EXPECT_EQ(format_count(-1234567), "-1,234,567");
  EXPECT_EQ(format_bytes(512), "512 B");
  EXPECT_EQ(format_bytes(std::int64_t{3} << 29), "1.50 GiB");
  EXPECT_EQ(format_seconds(0), "00:00");
  EXPECT_EQ(format_seconds(3723.9), "1:02:03");
  EXPECT_EQ(format_seconds(INFINITY), "?");
}

std::size_t columns(const std::string& text) {
  std::size_t count = 0;
  for (const char c : text) count += (static_cast<unsigned char>(c) & 0xC0U) != 0x80U ? 1 : 0;
  return count;
}

TEST(ProgressLine, FitsEveryWidth) {
  EXPECT_EQ(progress_line(25, 100, 10, "step", "", 80),
            " 25%|██████                  | 25/100 [00:10<00:30, 2.5 step/s]");
  for (int width = 20; width < 200; ++width) {
    const std::string line = progress_line(33, 100, 7, "step", "loss 1.234, lr 5e-05", width);
    if (width >= 50) {
      EXPECT_LE(columns(line), static_cast<std::size_t>(width)) << line;
    }
    EXPECT_EQ(line.find("loss") != std::string::npos, width >= 66) << width << line;
  }
}

TEST(ProgressLine, LargeAmountsAreReadable) {
  EXPECT_THAT(progress_line(std::int64_t{3} << 19, std::int64_t{3} << 20, 1, "B", "", 80),
              ::testing::HasSubstr("| 1.50 MiB/3.00 MiB [00:01<00:01, 1.50 MiB/s]"));
  EXPECT_THAT(progress_line(5000, 8192, 0.002, "merge", "", 80),
              ::testing::HasSubstr(", 2,500,000 merge/s]"));
}

TEST(ProgressLine, HasNoTrouble) {
  EXPECT_THAT(progress_line(0, 100, 0, "step", "", 80), ::testing::HasSubstr("00:00<?"));
  EXPECT_THAT(progress_line(0, 0, 0, "step", "", 80), ::testing::HasSubstr("0/0"));
  EXPECT_THAT(progress_line(150, 100, 1, "step", "", 80), ::testing::HasSubstr("100%"));
}

}  // namespace
}  // namespace shoal
