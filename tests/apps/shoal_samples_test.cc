// The real program generates texts while it trains; its report shows them.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "apps/shoal_task_fixture.h"
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

namespace shoal {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::StartsWith;

TEST_F(Shoal, ContinuesPromptsAtEachEvaluationAlsoWhenItResumes) {
  const std::vector<std::string> words = train_words(
      {"--eval_strategy", "steps", "--eval_steps", "2", "--sample_texts", "2",
       "--sample_max_new_tokens", "8", "--sample_prompts", "the shoal, swims", "no fish"});
  const auto trained = on_ranks(2, words);
  ASSERT_EQ(trained[0].status, 0) << trained[0].err;
  EXPECT_THAT(trained[0].out, HasSubstr("text of step 2: the shoal, swims"));
  const std::string samples = text_of(out() + "/samples.jsonl");
  std::vector<std::string> prompts;
  std::vector<int> steps;
  std::istringstream lines(samples);
  for (std::string line; std::getline(lines, line);) {
    const auto record = nlohmann::json::parse(line);
    EXPECT_EQ(record.at("index"), prompts.size() % 4);
    EXPECT_FALSE(record.at("text").get<std::string>().empty());
    EXPECT_EQ(record.contains("reference"), prompts.size() % 4 >= 2);
    steps.push_back(record.at("step"));
    prompts.push_back(record.at("prompt"));
  }
  EXPECT_THAT(steps, ElementsAre(2, 2, 2, 2, 4, 4, 4, 4, 6, 6, 6, 6));
  ASSERT_EQ(prompts.size(), 12U);
  EXPECT_EQ(prompts[4], "the shoal, swims");
  EXPECT_EQ(prompts[5], "no fish");
  EXPECT_THAT(text_of(*data_ / "validation.txt"), StartsWith(prompts[6]));

  // The report shows them.
  ASSERT_EQ(shoal({"report", out()}).status, 0);
  EXPECT_THAT(text_of(out() + "/report.html"),
              AllOf(HasSubstr("<h2>Generated texts</h2>"), HasSubstr("<h3>the shoal, swims</h3>"),
                    HasSubstr("<td>reference</td>")));

  // A run that is resumed from step 3 writes the lines of steps 4 and 6 again, once.
  std::filesystem::remove_all(out() + "/checkpoint-6");
  const auto resumed = on_ranks(2, overlaid(words, {"--resume_from_checkpoint", "true"}));
  ASSERT_EQ(resumed[0].status, 0) << resumed[0].err;
  EXPECT_THAT(resumed[0].out, HasSubstr("resuming from"));
  EXPECT_EQ(text_of(out() + "/samples.jsonl"), samples);
}

TEST_F(Shoal, RefusesSamplesThatTheRunCannotGenerate) {
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), {"--sample_prompts", "the shoal"});
    return train(more);
  };
  expect_refused(with({"--save_strategy", "no", "--do_eval", "false"}), "the run has neither");
  expect_refused(train({"--sample_max_new_tokens", "4"}),
                 "neither sample_prompts nor sample_texts");
  expect_refused(with({"--model_type", "bert", "--config_overrides", "", "--task", "masked-lm"}),
                 "give --task causal-lm");
}

}  // namespace
}  // namespace shoal
