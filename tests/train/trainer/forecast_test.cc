// Predictions beside measurements: which parts are compared, and which miss is reported.
#include "shoal/train/trainer/forecast.h"

#include <gmock/gmock.h>

namespace shoal {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

const nlohmann::json kPredicted = {
    {"step_seconds", 0.2},
    {"forward_seconds", 0.06},
    {"backward_seconds", 0.12},
    {"pipeline_wait_seconds", 0.0},
    {"memory_peak_by_tag", {{"parameters", 1000}, {"activations", 3000}}}};

nlohmann::ordered_json measured(double forward, double backward, int activations) {
  return {{"step_seconds", forward + backward + 0.02},
          {"forward_seconds", forward},
          {"backward_seconds", backward},
          {"optimizer_seconds", 0.02},
          {"memory_peak_by_tag",
           {{"parameters", 1000}, {"activations", activations}, {"workspace", 70000}}}};
}

TEST(Forecast, ComparesWhatBothHave) {
  const auto parts = forecast_parts(kPredicted, measured(0.06, 0.12, 3000));
  std::vector<std::string> names;
  for (const ForecastPart& part : parts) names.push_back(part.name);
  EXPECT_THAT(names, ElementsAre("step", "forward", "backward", "other", "memory", "activations",
                                 "parameters"));
  EXPECT_DOUBLE_EQ(parts[4].predicted, 4000);
  EXPECT_DOUBLE_EQ(parts[4].measured, 4000);  // without the workspace
  EXPECT_NEAR(parts[3].predicted, 0.02, 1e-12);
  EXPECT_NEAR(parts[3].measured, 0.02, 1e-12);  // the optimizer, which has no prediction
  EXPECT_THAT(forecast_misses(parts), IsEmpty());
}

TEST(Forecast, NamesThePartThatDiffersMost) {
  // A step that is 9 % longer than predicted is no miss; one that is 12 % longer is.
  EXPECT_THAT(forecast_misses(forecast_parts(kPredicted, measured(0.06, 0.14, 3000))), IsEmpty());
  EXPECT_THAT(forecast_misses(forecast_parts(kPredicted, measured(0.063, 0.145, 3000))),
              ElementsAre("step: 200.0 ms predicted, 228.0 ms measured (-12 %); most of it is "
                          "backward: 120.0 ms predicted, 145.0 ms measured"));
  EXPECT_THAT(forecast_misses(forecast_parts(kPredicted, measured(0.06, 0.12, 2000))),
              ElementsAre("memory: 3.91 KiB predicted, 2.93 KiB measured (+33 %); most of it is "
                          "activations: 2.93 KiB predicted, 1.95 KiB measured"));
}

TEST(Forecast, IsPutIntoARecord) {
  nlohmann::ordered_json record = measured(0.06, 0.12, 3000);
  EXPECT_THAT(add_forecast(kPredicted, record), IsEmpty());
  EXPECT_EQ(record["predicted_step_seconds"], 0.2);
  EXPECT_EQ(record["predicted_memory_bytes"], 4000);
  EXPECT_FALSE(record.contains("predictions_missed"));
  record = measured(0.12, 0.12, 3000);
  EXPECT_EQ(add_forecast(kPredicted, record).size(), 1U);
  EXPECT_EQ(record["predictions_missed"].size(), 1U);
  record = {{"loss", 1.0}};  // the first record of a run may have no times
  EXPECT_THAT(add_forecast(kPredicted, record), IsEmpty());
  EXPECT_EQ(record.size(), 1U);
}

}  // namespace
}  // namespace shoal
