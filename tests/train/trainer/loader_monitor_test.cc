#include "shoal/train/trainer/loader_monitor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace shoal {
namespace {

using ::testing::HasSubstr;

LoaderStatistics after(std::int64_t samples, double work, double stalled) {
  return {.batches = samples / 8,
          .samples = samples,
          .work_seconds = work,
          .stalls = samples / 8,
          .stall_seconds = stalled};
}

TEST(LoaderMonitor, CountsWindowsAndHintsOnce) {
  LoaderMonitor watch;
  // In the first window every loader is waited for: it has to load the first batches.
  EXPECT_EQ(watch.look(after(80, 4, 4), 2, 8, 5, 10), "");
  nlohmann::ordered_json record;
  watch.add_to(record);
  EXPECT_EQ(record["loader_stall_share"], 0.8);
  EXPECT_EQ(record["loader_samples_per_second"], 40.0);         // 80 in 4 s of 2 workers
  EXPECT_EQ(watch.look(after(160, 8, 5.9), 2, 8, 15, 20), "");  // 19 % of 10 s
  watch.add_to(record);
  EXPECT_NEAR(record["loader_stall_share"].get<double>(), 0.19, 1e-12);
  const std::string hint = watch.look(after(240, 12, 8.4), 2, 8, 25, 30);
  EXPECT_THAT(hint, HasSubstr("up to step 30 steps waited 25 % of the time for data (2.50 of "
                              "10.00 s); raise dataloader_num_workers, which is 2 (8 cores"));
  EXPECT_EQ(watch.look(after(320, 16, 16), 2, 8, 35, 40), "");  // already reported
}

TEST(LoaderMonitor, WithAWorkerACoreItNamesOtherRemedies) {
  LoaderMonitor watch;
  watch.look(after(8, 1, 0), 8, 8, 1, 1);
  EXPECT_THAT(watch.look(after(16, 2, 1), 8, 8, 2, 2),
              HasSubstr("dataloader_num_workers is 8 on 8 cores: more help where"));
}

TEST(LoaderMonitor, ALineShowsOnlyWhatIsWorthALook) {
  LoaderMonitor watch;
  nlohmann::ordered_json line;
  watch.look(after(8, 1, 0.005), 1, 2, 1, 1);
  watch.add_to_line(line);
  EXPECT_TRUE(line.is_null());
  watch.look(after(16, 2, 0.055), 1, 2, 2, 2);
  watch.add_to_line(line);
  EXPECT_NEAR(line["loader_stall_share"].get<double>(), 0.05, 1e-12);
  LoaderMonitor nothing;
  nlohmann::ordered_json record;
  EXPECT_EQ(nothing.look({}, 0, 1, 0, 0), "");
  nothing.add_to(record);
  EXPECT_EQ(record["loader_samples_per_second"], 0.0);
}

}  // namespace
}  // namespace shoal
