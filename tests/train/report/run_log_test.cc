// Files of runs, intact and damaged.
#include "shoal/train/report/run_log.h"

#include <cmath>
#include <filesystem>
#include <fstream>

#define SHOAL_TEST_COUNTS_MEMORY
#include "support/budget.h"
#include "support/temporary_directory.h"
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shoal/runtime/base/error.h"

namespace shoal::report {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using testing::TemporaryDirectory;
namespace fs = std::filesystem;

std::string error_of(const std::vector<std::string>& directories) {
  try {
    read_runs(directories);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(ParseRun, SortsRecordsByKind) {
  const RunLog run = parse_run(
      R"({"eval_loss": 8.0, "epoch": 0, "step": 0}
{"loss": 3.5, "learning_rate": 1e-3, "step": 10, "memory_peak_by_tag": {"parameters": 64, "data": 3}}
{"loss": 2.5, "learning_rate": 5e-4, "step": 20, "memory_peak_by_tag": {"parameters": 64, "data": 9}, "pinned_memory_peak_by_tag": {"activations": 5}}
{"eval_loss": 2.75, "eval_accuracy": 0.5, "step": 20}
{"train_runtime": 1.5, "train_loss": 3.0, "step": 20}
{"eval_loss": 2.75, "eval_accuracy": 0.5, "step": 20}
)");
  EXPECT_THAT(run.training.steps(), ElementsAre(10, 20));
  EXPECT_THAT(run.training.column("loss"), ElementsAre(3.5, 2.5));
  EXPECT_THAT(run.evaluations.column("eval_loss"), ElementsAre(8.0, 2.75));  // the last one once
  EXPECT_TRUE(std::isnan(run.evaluations.column("eval_accuracy")[0]));
  EXPECT_TRUE(run.evaluations.not_finite("eval_accuracy").empty());  // absent is not infinite
  EXPECT_EQ(run.memory_peak_by_tag.at("data"), 9);
  EXPECT_THAT(run.pinned_memory_peak_by_tag, ElementsAre(std::pair("activations", 5)));
  EXPECT_TRUE(run.finished);
  EXPECT_EQ(run.records, 6);
  EXPECT_EQ(run.training.first("loss"), 3.5);
  EXPECT_EQ(run.training.last("loss"), 2.5);
  EXPECT_EQ(run.training.median("loss"), 3.0);
  EXPECT_EQ(run.training.row_of_least("loss"), 1U);
  EXPECT_EQ(run.training.row_of_most("loss"), 0U);
  EXPECT_TRUE(run.training.column("nothing").empty());
  EXPECT_FALSE(run.training.median("nothing"));
}

// MNLI has two evaluation sets, evaluated one after the other. Training ended during the first.
TEST(ParseRun, EvaluationsOfTwoSetsAreOneRow) {
  const RunLog run =
      parse_run(R"({"eval_loss": 3, "eval_accuracy": 0.5, "epoch": 1, "step": 10})"
                "\n"
                R"({"eval_loss": 2, "eval_accuracy": null, "epoch": 2, "step": 20})"
                "\n"
                R"({"eval_loss": 1, "eval_accuracy": 0.75, "epoch": 2, "step": 20})"
                "\n"
                R"({"train_runtime": 1.5, "step": 20})"
                "\n"
                R"({"eval_loss": 0.5, "eval_accuracy": 1, "step": 20})"  // of the best model
                "\n"
                R"({"eval_loss_mm": 1.5, "eval_accuracy_mm": null, "epoch": 2, "step": 20})"
                "\n");
  ASSERT_EQ(run.evaluations.rows(), 2U);
  EXPECT_EQ(run.evaluations.last("eval_loss"), 1);
  EXPECT_EQ(run.evaluations.last("eval_accuracy"), 0.75);
  EXPECT_TRUE(run.evaluations.not_finite("eval_accuracy").empty());
  EXPECT_EQ(run.evaluations.last("eval_loss_mm"), 1.5);
  EXPECT_TRUE(std::isnan(run.evaluations.column("eval_loss_mm")[0]));
  EXPECT_THAT(run.evaluations.not_finite("eval_accuracy_mm"), ::testing::ElementsAre(1U));
  EXPECT_THAT(run.evaluations.steps(), ::testing::ElementsAre(10, 20));
}

// A run of 8 steps that logs every 5 ends at step 8.
TEST(ParseRun, ARunEndsWhereTrainingDid) {
  const std::string logged = R"({"loss": 3, "step": 5})",
                    end = R"({"train_runtime": 1, "step": 8})";
  EXPECT_EQ(parse_run(logged + "\n").last_step(), 5);
  EXPECT_EQ(parse_run(logged + "\n" + end + "\n").last_step(), 8);
  EXPECT_EQ(parse_run(end + "\n").last_step(), 8);  // nothing was logged before the end
  // The run continued from a checkpoint before its end.
  const RunLog again = parse_run(logged + "\n" + end + "\n" + logged + "\n");
  EXPECT_EQ(again.last_step(), 5);
  EXPECT_FALSE(again.finished);
}

TEST(ParseRun, AKilledRunsLastHalfLineIsLeftOut) {
  const std::string whole = "{\"loss\": 2, \"step\": 1}\n{\"loss\": 1, \"step\": 2}\n";
  for (std::size_t bytes = 23; bytes < whole.size() - 1; ++bytes) {
    const RunLog run = parse_run(std::string_view(whole).substr(0, bytes));
    EXPECT_EQ(run.training.rows(), 1U) << bytes;
    EXPECT_EQ(run.cut_off, bytes > 23) << bytes;
    EXPECT_TRUE(run.unreadable.empty());
    EXPECT_FALSE(run.finished);
  }
  // Only the newline is missing.
  const RunLog run = parse_run(std::string_view(whole).substr(0, whole.size() - 1));
  EXPECT_EQ(run.training.rows(), 2U);
  EXPECT_FALSE(run.cut_off);
}

TEST(ParseRun, InvalidLinesAreCountedAndSkipped) {
  const RunLog run = parse_run(
      "{\"loss\": 1, \"step\": 1}\r\n\nnonsense\n[1, 2]\n{\"loss\": NaN, \"step\": 2}\n"
      "{\"loss\": \"text\", \"step\": 3}\n{\"loss\": 1, \"step\": \"four\"}\n{}\n\"\xff\"\n");
  EXPECT_THAT(run.unreadable, ElementsAre(3, 4, 5, 9));
  EXPECT_EQ(run.records, 4);
  EXPECT_THAT(run.training.steps(),
              ElementsAre(1, 3, 3));  // a record without a step has that of the one before
}

TEST(ParseRun, NothingIsARunToo) {
  for (const char* text : {"", "\n", "\n\n"}) {
    const RunLog run = parse_run(text);
    EXPECT_EQ(run.records, 0);
    EXPECT_FALSE(run.cut_off);
    EXPECT_EQ(run.training.rows(), 0U);
    EXPECT_TRUE(run.training.steps().empty());
  }
}

TEST(ParseRun, LossesThatAreNotFinite) {
  const RunLog run = parse_run(
      "{\"loss\": 1, \"step\": 1}\n{\"loss\": null, \"step\": 2}\n{\"loss\": null, \"step\": 3}\n"
      "{\"loss\": 4, \"step\": 4}\n");
  EXPECT_EQ(run.training.rows(), 4U);
  EXPECT_THAT(run.training.not_finite("loss"), ElementsAre(1, 2));
  EXPECT_EQ(run.training.last("loss"), 4);
  EXPECT_TRUE(run.unreadable.empty());
}

TEST(ParseRun, AContinuedRunIsShownOnce) {
  const auto line = [](int step, double loss) {
    return fmt::format("{{\"loss\": {}, \"step\": {}}}\n", loss, step);
  };
  // The run was killed at step 40 and continued from checkpoint-20.
  const RunLog run = parse_run(line(10, 4) + line(20, 3) + "{\"eval_loss\": 5, \"step\": 20}\n" +
                               line(30, 2.5) + "{\"eval_loss\": 4, \"step\": 30}\n" +
                               line(40, 2.4) + line(30, 2.25) + line(40, 2));
  EXPECT_THAT(run.training.steps(), ElementsAre(10, 20, 30, 40));
  EXPECT_THAT(run.training.column("loss"), ElementsAre(4, 3, 2.25, 2));
  EXPECT_THAT(run.evaluations.steps(), ElementsAre(20));
  EXPECT_EQ(run.continued, 1);
  EXPECT_EQ(run.replaced, 3);
}

TEST(ReadRun, RefusesOtherDirectoriesInOneLine) {
  const TemporaryDirectory place;
  const std::string none = place / "none";
  EXPECT_THAT(error_of({none}), AllOf(StartsWith(none + " is not there"), HasSubstr("output_dir")));
  std::ofstream(place / "file") << "text";
  EXPECT_THAT(error_of({place / "file"}), HasSubstr("is no directory"));
  fs::create_directories(place / "runs/a");
  EXPECT_THAT(error_of({place / "runs"}),
              AllOf(HasSubstr("holds no metrics.jsonl"), HasSubstr("output_dir")));
  std::ofstream(place / "runs/a/metrics.jsonl") << "{\"loss\": 1, \"step\": 1}\n";
  EXPECT_THAT(error_of({place / "runs"}), HasSubstr("runs/a is one"));
  EXPECT_THAT(error_of({place / "runs/a", place / "runs/a/"}), HasSubstr("given twice"));
  EXPECT_EQ(error_of({place / "runs/a"}), "no error");
}

TEST(ReadRun, ReadsTheTrainersRecords) {
  const TemporaryDirectory directory;
  std::ofstream(directory / "trainer_state.json") << R"({"epoch": 1.0, "log_history": [
    {"epoch": 0.5, "grad_norm": 2.5, "loss": 3.5, "step": 1}, {"epoch": 1.0, "loss": 2.5, "step": 2},
    {"eval_loss": 2.25, "step": 2}, {"train_loss": 3.0, "train_runtime": 1.5, "step": 2}]})";
  std::ofstream(directory / "all_results.json") << R"({"train_samples_per_second": 8.5})";
  const RunLog run = read_run(directory.path());
  EXPECT_THAT(run.training.column("loss"), ElementsAre(3.5, 2.5));
  EXPECT_THAT(run.evaluations.column("eval_loss"), ElementsAre(2.25));
  EXPECT_TRUE(run.finished);
  EXPECT_EQ(run.results["train_samples_per_second"], 8.5);
  std::ofstream(directory / "trainer_state.json") << R"({"log_history": 5})";
  EXPECT_THAT(error_of({directory.path()}), HasSubstr("log_history"));
}

TEST(ReadRun, NamesDistinguishRuns) {
  const TemporaryDirectory place;
  for (const char* name : {"x/run", "y/run", "other"}) {
    fs::create_directories(place / name);
    std::ofstream(place / name + "/metrics.jsonl") << "{\"loss\": 1, \"step\": 1}\n";
  }
  EXPECT_EQ(read_run(place / "x/run/").name, "run");
  const auto runs = read_runs({place / "x/run", place / "y/run/"});
  EXPECT_EQ(runs[0].name, place / "x/run");
  EXPECT_EQ(runs[1].name, place / "y/run");
  EXPECT_EQ(read_runs({place / "x/run", place / "other"})[1].name, "other");
}

TEST(ReadRun, SettingsMayBeThereOrDamaged) {
  const TemporaryDirectory place;
  std::ofstream(place / "metrics.jsonl") << "";
  EXPECT_EQ(read_run(place.path()).setting("ranks"), 0);
  std::ofstream(place / std::string(kSettingsFile)) << R"({"ranks": 2, "host": "h", "options":
    {"training": {"learning_rate": 0.1, "optim": "lamb"}, "data": {"train_file": "a.txt"}}})";
  const RunLog run = read_run(place.path());
  EXPECT_EQ(run.setting("ranks"), 2);
  EXPECT_EQ(run.setting("host"), 0);  // not a number
  EXPECT_EQ(run.text_setting("host"), "h");
  EXPECT_EQ(run.option("learning_rate"), "0.1");
  EXPECT_EQ(run.option("train_file"), "a.txt");
  EXPECT_EQ(run.option("nothing"), "");
  std::ofstream(place / std::string(kSettingsFile)) << "{\"ranks\": 2";
  EXPECT_EQ(read_run(place.path()).setting("ranks"), 0);
  std::ofstream(place / std::string(kSettingsFile)) << "[1]";
  EXPECT_EQ(read_run(place.path()).setting("ranks"), 0);
}

// If every record had its own column name, a dense table would be quadratic in the log's size.
TEST(RunLog, AHostileLogIsReadInLinearTime) {
  std::string names, nulls, deep;
  for (int i = 0; i < 20'000; ++i) {
    names += fmt::format("{{\"step\":{},\"loss\":1,\"k{}\":1}}\n", i, i);
    nulls += fmt::format("{{\"step\":{},\"loss\":null}}\n", std::min(i, 10'000));
    deep += "[{\"a\":\n";
  }
  EXPECT_THAT(testing::within_budget(names.size(), "names", [&] { (void)parse_run(names); }),
              HasSubstr("names of numbers, of which most stand in few"));
  EXPECT_EQ(testing::within_budget(nulls.size(), "nulls", [&] { (void)parse_run(nulls); }), "");
  EXPECT_EQ(testing::within_budget(deep.size(), "deep", [&] { (void)parse_run(deep); }), "");
  // All records of one step form one row.
  std::string one_row, again;
  for (int i = 0; i < 20'000; ++i) {
    one_row += fmt::format("{{\"eval_a{}\":1,\"step\":5}}\n", i);
    again += fmt::format("{{\"eval_a{}\":null,\"step\":5}}\n", i % 1000);
  }
  EXPECT_THAT(testing::within_budget(one_row.size(), "one row", [&] { (void)parse_run(one_row); }),
              HasSubstr("more than 2000 names of numbers"));
  EXPECT_EQ(testing::within_budget(again.size(), "again", [&] { (void)parse_run(again); }), "");
}

TEST(RunLog, ReportsOmissions) {
  EXPECT_THAT(remarks_of(parse_run("{\"loss\": 3, \"step\": 1}\nxyz\n{\"loss\": 2, \"st")),
              ElementsAre(StartsWith("The last line of metrics.jsonl is cut off"),
                          StartsWith("1 line of metrics.jsonl is no JSON object"),
                          StartsWith("There is no run_settings.json")));
  EXPECT_THAT(remarks_of(parse_run("")).front(), StartsWith("metrics.jsonl has no record"));
}

}  // namespace
}  // namespace shoal::report
