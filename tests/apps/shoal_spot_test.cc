// shoal plan spot: its table, its JSON, and its errors.
#include <fstream>

#include "apps/shoal_fixture.h"
#include <nlohmann/json.hpp>

namespace shoal {
namespace {

class ShoalSpot : public Shoal {
 protected:
  // One sample in ten minutes: six hours with an instance, two without.
  static std::string trace(const std::string& more = "") {
    std::string samples;
    for (int sample = 0; sample < 96; ++sample) samples += sample % 48 < 36 ? ",1" : ",0";
    const std::string file = *data_ / "trace.json";
    std::ofstream(file) << R"({"metadata": {"gap_seconds": 600}, "data": [)" << samples.substr(1)
                        << "]" << more << "}";
    return file;
  }
  static ProgramResult spot(std::vector<std::string> words, const std::string& file = trace()) {
    words.insert(words.begin(), {"plan", "spot", file});
    return shoal(words);
  }
  static std::string error_of(const std::vector<std::string>& words,
                              const std::string& file = trace()) {
    const auto result = spot(words, file);
    EXPECT_NE(result.status, 0);
    EXPECT_EQ(result.out, "");
    EXPECT_TRUE(is_one_line(result.err)) << result.err;
    return result.err;
  }
};

TEST_F(ShoalSpot, PrintsCostAndFinishOfEachPolicy) {
  const auto result =
      spot({"--hours", "12", "--deadline", "16", "--price", "3", "--spot-price", "1", "--nodes",
            "1", "--checkpoint-seconds", "60", "--restart-seconds", "540", "--json"});
  ASSERT_EQ(result.status, 0) << result.err;
  const auto answer = nlohmann::json::parse(result.out)["traces"][0];
  EXPECT_EQ(answer["samples"], 96);
  EXPECT_EQ(answer["available"], 0.75);
  EXPECT_EQ(answer["interruptions"], 2);
  EXPECT_EQ(answer["hours_between_interruptions"], 6);
  EXPECT_EQ(answer["checkpoint_interval_seconds"], 1570);  // Young: 1610
  const auto& policies = answer["policies"];
  ASSERT_EQ(policies.size(), 5U);
  // Twelve hours, 28 checkpoints of a minute, one start of nine minutes.
  EXPECT_NEAR(policies[0]["dollars"].get<double>(), 3 * (12 + 28 / 60. + 0.15), 1e-9);
  EXPECT_EQ(policies[0]["saving"], 0);
  for (const auto& policy : policies) {
    EXPECT_EQ(policy["starts"], 96);
    EXPECT_NEAR(policy["finish_hours"].get<double>(),
                12 + policy["lost_hours"].get<double>() + policy["starting_hours"].get<double>() +
                    policy["checkpoint_hours"].get<double>() +
                    policy["waiting_hours"].get<double>(),
                1e-9);
    EXPECT_LE(policy["finish_hours"], policy["last_finish_hours"]);
    if (policy["policy"] != "spot only") {
      EXPECT_EQ(policy["late"], 0) << policy;
    }
  }
  EXPECT_EQ(policies[3]["policy"], "uniform progress");
  EXPECT_GT(policies[3]["saving"], 0.25);
  EXPECT_LE(policies[3]["last_finish_hours"], 16);
  EXPECT_EQ(policies[1]["on_demand_hours"], 0);
}

TEST_F(ShoalSpot, ChoosesTheCheapestWithinDeadlineAndBudget) {
  const std::vector<std::string> words = {"--hours",      "12", "--deadline", "16", "--price", "3",
                                          "--spot-price", "1",  "--budget"};
  const auto with_budget = [&words](const char* budget) {
    auto all = words;
    all.emplace_back(budget);
    return spot(all);
  };
  const auto enough = with_budget("30");
  ASSERT_EQ(enough.status, 0) << enough.err;
  EXPECT_THAT(enough.out, HasSubstr("cheapest that never misses the deadline within the budget"));
  const auto tight = with_budget("5");
  ASSERT_EQ(tight.status, 0) << tight.err;
  EXPECT_THAT(tight.out, HasSubstr("nothing keeps the budget of 5.00 dollars"));
}

TEST_F(ShoalSpot, TakesPricesFromTheTraceAndTheMachine) {
  std::string prices = ", \"prices\": [2";
  for (int sample = 1; sample < 96; ++sample) prices += ",2";
  const std::string file = trace(prices + "]");
  const auto result = spot({"--hours", "3", "--machine", "p3.16xlarge", "--checkpoint-seconds", "0",
                            "--restart-seconds", "0", "--json"},
                           file);
  ASSERT_EQ(result.status, 0) << result.err;
  const auto policies = nlohmann::json::parse(result.out)["traces"][0]["policies"];
  ASSERT_EQ(policies.size(), 2U);  // only those that need no deadline
  EXPECT_NEAR(policies[0]["dollars"].get<double>(), 3 * 24.48, 1e-9);
  EXPECT_NEAR(policies[1]["dollars"].get<double>(), 3 * 2, 1e-9);
}

TEST_F(ShoalSpot, RefusesWhatItCannotReplay) {
  const std::vector<std::string> good = {"--hours", "2", "--price", "3", "--spot-price", "1"};
  const auto with = [&good](std::vector<std::string> more) {
    more.insert(more.begin(), good.begin(), good.end());
    return more;
  };
  EXPECT_THAT(error_of(with({"--deadline", "2"})),
              HasSubstr("a deadline of 2.00 h is shorter than the run, which takes 2.2"));
  EXPECT_THAT(error_of(with({"--deadline", "-1"})), HasSubstr("--deadline"));
  EXPECT_THAT(error_of({"--price", "3"}), HasSubstr("--hours"));
  EXPECT_THAT(error_of({"--hours", "2"}), HasSubstr("--price, or a --machine"));
  EXPECT_THAT(error_of({"--hours", "2", "--price", "3"}), HasSubstr("has no prices"));
  EXPECT_THAT(error_of({"--hours", "2", "--machine", "p3.16xlrge"}), HasSubstr("p3.16xlarge"));
  EXPECT_THAT(error_of(with({"--interval-seconds", "0"})), HasSubstr("interval above 0"));
  EXPECT_THAT(error_of(good, trace(", \"prices\": [1]")), HasSubstr("1 prices for 96 samples"));
  const std::string empty = *data_ / "empty.json";
  std::ofstream(empty) << R"({"metadata": {"gap_seconds": 60}, "data": []})";
  EXPECT_THAT(error_of(good, empty), HasSubstr("0 samples"));
  EXPECT_THAT(error_of(good, *data_ / "missing.json"), HasSubstr("missing.json"));
}

}  // namespace
}  // namespace shoal
