// `shoal study` with the real program: studies of this host, their interruption, their errors.
#include <filesystem>
#include <fstream>
#include <iterator>

#include "apps/shoal_fixture.h"
#include <nlohmann/json.hpp>

namespace shoal {
namespace {

using nlohmann::json;

class ShoalStudy : public Shoal {
 protected:
  static std::string text_in(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  static json options() {
    return {{"model_type", "gpt2"},
            {"config_overrides", "n_layer=1,n_head=2,n_embd=32,n_positions=64"},
            {"tokenizer_name", *data_ / "tok"},
            {"train_file", *data_ / "train.txt"},
            {"block_size", 32}};
  }
  // A study of two runs on one rank, with changes.
  ProgramResult study(const json& changes, const std::vector<std::string>& more = {},
                      ProgramOptions with = {}) {
    json file = {{"options", options()},
                 {"ranks", {1}},
                 {"workers", {0, 1}},
                 {"batches", {4}},
                 {"examples", 32}};
    file.update(changes);
    std::ofstream(mine_ / "tiny.json") << file;
    std::vector<std::string> words = {"study", "tiny.json"};
    words.insert(words.end(), more.begin(), more.end());
    with.directory = mine_.path();
    with.environment = {"OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"};
    return shoal(words, with);
  }
  // Expects the error of a run that has begun.
  static void expect_failed(const ProgramResult& result, const std::string& why) {
    EXPECT_EQ(result.status, 1) << result.out;
    const std::size_t last = result.err.rfind("shoal study:");
    ASSERT_NE(last, std::string::npos) << result.err;
    EXPECT_THAT(result.err.substr(last), HasSubstr(why));
    EXPECT_TRUE(is_one_line(result.err.substr(last))) << result.err;
  }
  json results() const { return json::parse(text_in(mine_ / "tiny/study.json")); }
};

TEST_F(ShoalStudy, OneAndTwoRanks) {
  if (test::run_program({"sh", "-c", "command -v mpirun"}).status != 0)
    GTEST_SKIP() << "mpirun is not installed";
  const json changes = {
      {"ranks", {1, 2}}, {"workers", {0}}, {"name", "<tiny>"}, {"price_per_hour", 3600}};
  const auto plan = study(changes, {"--dry-run"});
  ASSERT_EQ(plan.status, 0) << plan.err;
  EXPECT_EQ(std::count(plan.out.begin(), plan.out.end(), '\n'), 2);
  EXPECT_THAT(plan.out, HasSubstr("SHOAL_THREADS=1 mpirun -n 2 "));
  EXPECT_THAT(plan.out, HasSubstr("--per_device_train_batch_size 4 --dataloader_num_workers 0 "
                                  "--gradient_accumulation_steps 1 --max_steps 4 "));
  EXPECT_FALSE(std::filesystem::exists(mine_ / "tiny"));
  const auto done = study(changes);
  ASSERT_EQ(done.status, 0) << done.err;
  EXPECT_THAT(done.out, HasSubstr("32 examples in every run"));
  EXPECT_THAT(done.err, HasSubstr("2 of 2: ranks2-workers0-batch4-native: "));
  const json all = results();
  ASSERT_EQ(all["runs"].size(), 2U);
  EXPECT_EQ(all["runs"][0]["steps"], 8);
  EXPECT_EQ(all["runs"][1]["steps"], 4);
  EXPECT_EQ(all["runs"][0]["efficiency"], 1.0);
  for (const json& run : all["runs"]) {
    EXPECT_GT(run["samples_per_second"], 0);
    EXPECT_GT(run["loader_stall_share"], 0) << "it has no workers";
    EXPECT_DOUBLE_EQ(run["cost"].get<double>(), run["node_seconds"].get<double>());
    EXPECT_EQ(run["losses"].back()[0], 32);
    EXPECT_NEAR(run["losses"].back()[1].get<double>(), 5.5, 0.5);
  }
  const std::string page = text_in(mine_ / "tiny/study.html");
  EXPECT_THAT(page, HasSubstr("<h1>&lt;tiny&gt;</h1>"));
  EXPECT_THAT(page, HasSubstr("</svg>"));
  EXPECT_FALSE(std::filesystem::exists(mine_ / "tiny/run.lock"));
}

TEST_F(ShoalStudy, AnInterruptedStudyContinues) {
  const std::string first = mine_ / "tiny/runs/ranks1-workers0-batch4-native/result.json";
  const std::string second = mine_ / "tiny/runs/ranks1-workers1-batch4-native";
  ProgramOptions stop;
  stop.signal_when = [&] { return std::filesystem::exists(second + "/metrics.jsonl"); };
  // So many steps that the second run is not over before the signal.
  const json changes = {{"examples", 8000}};
  const auto stopped = study(changes, {}, stop);
  EXPECT_EQ(stopped.status, 143) << stopped.err;
  EXPECT_THAT(stopped.err, HasSubstr("shoal study: stopped in ranks1-workers1-batch4-native; the "
                                     "same command continues with it"));
  EXPECT_EQ(results()["missing_runs"], 1);
  EXPECT_THAT(text_in(mine_ / "tiny/study.html"), HasSubstr("1 of 2 runs are still missing"));
  EXPECT_FALSE(std::filesystem::exists(second + "/run.lock")) << "its run has ended, too";
  const std::string kept = text_in(first);
  const auto written = std::filesystem::last_write_time(first);
  const auto done = study(changes);
  ASSERT_EQ(done.status, 0) << done.err;
  EXPECT_THAT(done.err, HasSubstr("1 of 2: ranks1-workers0-batch4-native: "));
  EXPECT_THAT(done.err, HasSubstr("samples/s, measured before\n2 of 2: ranks1-workers1-batch4-"
                                  "native begins\n"));
  EXPECT_EQ(text_in(first), kept);
  EXPECT_EQ(std::filesystem::last_write_time(first), written);
  EXPECT_EQ(results()["missing_runs"], 0);
  // Nothing is left to run; other options are another study.
  const auto again = study(changes, {"--json"});
  ASSERT_EQ(again.status, 0) << again.err;
  EXPECT_THAT(again.err, ::testing::Not(HasSubstr("begins")));
  EXPECT_EQ(json::parse(again.out), results());
  json other = options();
  other["seed"] = 7;
  const auto anew = study({{"options", other}});
  ASSERT_EQ(anew.status, 0) << anew.err;
  EXPECT_THAT(anew.err, HasSubstr("1 of 2: ranks1-workers0-batch4-native begins"));
}

TEST_F(ShoalStudy, RefusesInOneLine) {
  expect_refused(study({{"rnaks", {1}}}), "/rnaks: there is no such key; did you mean ranks?");
  expect_refused(study({{"examples", 33}}), "33 are not a whole number of steps");
  expect_refused(study({{"options", {{"learning_rat", 1}}}}), "did you mean learning_rate?");
  json gone = options();
  gone["train_file"] = mine_ / "gone.txt";
  expect_refused(study({{"options", gone}}, {"--dry-run"}), "there is no " + (mine_ / "gone.txt"));
  expect_refused(study({{"config", "none.json"}}), "none.json");
  expect_refused(study({{"backends", {"ddp"}}, {"script", "gone.py"}}),
                 "/script: there is no file gone.py");
  expect_failed(study({{"launch", "no-such-launcher {ranks}"}}), "cannot start no-such-launcher");
  expect_failed(study({{"launch", "true {ranks}"}}), "holds no metrics.jsonl");
  expect_refused(shoal({"study", mine_ / "none.json"}), "none.json");
  std::ofstream(mine_ / "bad.json") << "{\"ranks\": [1,";
  expect_refused(shoal({"study", mine_ / "bad.json"}), "bad.json");
  const auto old = shoal({"scale", "run.json"});
  expect_refused(old, "there is no command 'scale'; did you mean study?");
}

// A run's own reason ends the study; what it wrote stays.
TEST_F(ShoalStudy, AFailedRunIsNamed) {
  json traced = options();
  traced["trace"] = mine_ / "none/trace.json";
  expect_failed(study({{"options", traced}}), "the run ranks1-workers0-batch4-native failed: ");
  EXPECT_THAT(text_in(mine_ / "tiny/runs/ranks1-workers0-batch4-native.stderr.txt"),
              HasSubstr("none/trace.json"));
}

}  // namespace
}  // namespace shoal
