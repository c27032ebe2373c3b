#include "shoal/train/tasks/question_answering/squad_file.h"

#define SHOAL_TEST_COUNTS_MEMORY
#include "support/budget.h"
#include "support/temporary_directory.h"
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/io/files.h"

namespace shoal {
namespace {

using ::testing::HasSubstr;

class SquadFileTest : public ::testing::Test {
 protected:
  // A file of one paragraph, "Élan vital", with these questions.
  std::string file(const std::string& questions) {
    return raw(R"({"data": [{"title": "t", "paragraphs": [{"context": "Élan vital", "qas": [)" +
               questions + "]}]}]}");
  }
  std::string raw(const std::string& text) {
    write_file_atomically(folder_ / "squad.json", text);
    return folder_ / "squad.json";
  }
  static std::string error_of(const std::string& path, const SquadFileOptions& options = {}) {
    try {
      read_squad(path, options);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::corrupt_data);
      return error.what();
    }
    return "no error";
  }
  testing::TemporaryDirectory folder_;
};

constexpr const char* kGood =
    R"({"id": "a", "question": " \u00a0\u001c\u0085\u2003\u202fWhat?", "answers": [{"text": "vital", "answer_start": 5}]})";

TEST_F(SquadFileTest, CountsCharactersAndKeepsBytes) {
  const SquadFile squad = read_squad(file(kGood));
  ASSERT_EQ(squad.questions.size(), 1u);
  EXPECT_EQ(squad.questions[0].text, "What?");
  ASSERT_EQ(squad.questions[0].answers.size(), 1u);
  EXPECT_EQ(squad.questions[0].answers[0].bytes, (TextSpan{6, 11}));
}

TEST_F(SquadFileTest, ReadsFlatRows) {
  const SquadFile squad = read_squad(raw(
      R"({"data": [{"id": "a", "context": "x y", "question": "q", "answers": {"text": ["y"], "answer_start": [2]}},
                   {"id": "b", "context": "x y", "question": "r", "answers": {"text": ["x"], "answer_start": [0]}},
                   {"id": "c", "context": "z", "question": "s", "answers": {"text": ["z"], "answer_start": [0]}}]})"));
  EXPECT_EQ(squad.contexts, std::vector<std::string>({"x y", "z"}));
  ASSERT_EQ(squad.questions.size(), 3u);
  EXPECT_EQ(squad.questions[2].context, 1);
  EXPECT_EQ(squad.questions[0].answers[0].bytes, (TextSpan{2, 3}));
}

TEST_F(SquadFileTest, NamesTheBadQuestion) {
  const auto wrong = [&](const std::string& question) {
    return error_of(file(fmt::format("{}, {}", kGood, question)));
  };
  EXPECT_THAT(
      wrong(R"({"id": "b", "question": "q", "answers": [{"text": "vital", "answer_start": 6}]})"),
      HasSubstr("squad.json, entry 0, paragraph 0, question 1 (b): the answer 'vital' is not at "
                "character 6 of its context"));
  EXPECT_THAT(
      wrong(R"({"id": "b", "question": "q", "answers": [{"text": "vital", "answer_start": 99}]})"),
      HasSubstr("not at character 99"));
  EXPECT_THAT(
      wrong(R"({"id": "b", "question": "q", "answers": [{"text": "vital", "answer_start": -1}]})"),
      HasSubstr("not at character -1"));
  EXPECT_THAT(
      wrong(R"({"id": "b", "question": "q", "answers": [{"text": "", "answer_start": 0}]})"),
      HasSubstr("an empty answer"));
  EXPECT_THAT(wrong(R"({"id": "b", "question": "q", "answers": [{"text": "vital"}]})"),
              HasSubstr("(b): there is no 'answer_start'"));
  EXPECT_THAT(wrong(R"({"id": "b", "question": "q", "answers": "vital"})"),
              HasSubstr("'answers' is a string, not a list"));
  EXPECT_THAT(wrong(R"({"id": 7, "question": "q", "answers": []})"),
              HasSubstr("question 1: 'id' is a number, not a text"));
  EXPECT_THAT(wrong(kGood), HasSubstr("(a): this id was met before"));
  EXPECT_THAT(wrong(R"({"id": "b", "question": "q", "answers": []})"),
              HasSubstr("there is no answer; set version_2_with_negative"));
  EXPECT_THAT(error_of(raw(R"({"data": [{"title": "t"}]})")),
              HasSubstr("entry 0: there is no 'paragraphs'"));
  EXPECT_THAT(error_of(raw(R"([1])")), HasSubstr("array where an object is wanted"));
  EXPECT_THAT(error_of(raw(R"({"data": []})")), HasSubstr("no question of 0 entries"));
  EXPECT_THAT(error_of(raw(R"({"data": [)")), HasSubstr("squad.json"));
}

TEST_F(SquadFileTest, QuotesLongAnswersInPartAndInOneLine) {
  const std::string text = "x\\ny" + std::string(1'000'000, 'z');
  const std::string why = error_of(file(fmt::format(
      R"({{"id": "{}", "question": "q", "answers": [{{"text": "{}", "answer_start": 0}}]}})", text,
      text)));
  EXPECT_NE(why.find("is not at character 0"), why.npos) << why.substr(0, 500);
  EXPECT_EQ(why.find('\n'), why.npos);
  EXPECT_LT(why.size(), 1000U);
}

TEST_F(SquadFileTest, LeavesBadQuestionsOut) {
  const std::string questions =
      R"({"id": "b", "question": "q", "answers": [{"text": "x", "answer_start": 0}]}, )" +
      std::string(kGood) + R"(, {"question": "no id"})";
  const SquadFile squad = read_squad(file(questions), {.bad = BadRecords::skip});
  ASSERT_EQ(squad.questions.size(), 1u);
  EXPECT_EQ(squad.questions[0].id, "a");
  EXPECT_EQ(squad.skipped, 2);
  EXPECT_THAT(squad.first_skipped, HasSubstr("question 0 (b)"));
}

TEST_F(SquadFileTest, HasQuestionsWithoutAnswers) {
  const std::string path = file(
      R"({"id": "b", "question": "q", "is_impossible": true, "answers": [{"text": "no", "answer_start": 99}]}, {"id": "c", "question": "q"})");
  EXPECT_EQ(read_squad(path, {.version_2_with_negative = true}).questions.size(), 2u);
  EXPECT_EQ(read_squad(path, {.needs_answers = false}).questions.size(), 2u);
  // Neither 1 nor "true" is read as false.
  for (const char* other : {"1", "\"true\""})
    EXPECT_THAT(
        error_of(
            file(fmt::format(R"({{"id": "b", "question": "q", "is_impossible": {}}})", other))),
        HasSubstr(fmt::format("question 0 (b): is_impossible is {}, not true or false", other)));
}

// Commit f990d27 counted the characters before each answer anew.
TEST_F(SquadFileTest, ManyAnswersInOneLongTextAreFoundInLinearTime) {
  std::string context, answers;
  for (int i = 0; i < 100'000; ++i) context += "\u00e9\u00e9b";
  for (int i = 0; i < 10'000; ++i)
    answers += fmt::format(R"({{"text": "b", "answer_start": {}}},)", 3 * (99'999 - i) + 2);
  answers.pop_back();
  const std::string text = R"({"data": [{"paragraphs": [{"context": ")" + context +
                           R"(", "qas": [{"id": "1", "question": "q", "answers": [)" + answers +
                           "]}]}]}]}";
  const std::string path = raw(text);
  EXPECT_EQ(testing::within_budget(text.size(), "answers",
                                   [&] {
                                     const SquadFile read = read_squad(path);
                                     EXPECT_EQ(read.questions.at(0).answers.size(), 10'000U);
                                     EXPECT_EQ(read.questions.at(0).answers.at(1).bytes.begin,
                                               5 * 99'998 + 4);
                                   }),
            "");
  EXPECT_NE(
      error_of(raw(
          R"({"data": [{"paragraphs": [{"context": "\u00e9b", "qas": [{"id": "1", "question": "q", "answers": [{"text": "b", "answer_start": 3}]}]}]}]})")),
      "");
}

}  // namespace
}  // namespace shoal
