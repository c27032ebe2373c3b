// Rows, questions and tagged words in S3, streamed by the real program.
#include <filesystem>
#include <fstream>

#include "apps/shoal_task_fixture.h"
#include "sagemaker/rest/fake_aws.h"
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

namespace shoal {
namespace {

using nlohmann::json;
using test::FakeAws;

class ShoalS3Rows : public ShoalOnTasks {
 protected:
  // Writes the shard to a local folder and to S3.
  void put_shard(const std::string& name, const std::string& text) {
    std::filesystem::create_directories(mine_ / "here");
    std::ofstream(mine_ / "here/" + name) << text;
    aws_.put_object("bucket/there/" + name, text);
  }
  std::vector<std::string> stream(const std::string& task, const std::string& from,
                                  const std::string& to,
                                  const std::vector<std::string>& more = {}) const {
    return overlaid(words_of(tiny_bert(), {"--task", task, "--tokenizer_name", vocabulary(),
                                           "--streaming", "true", "--max_steps", "6",
                                           "--shuffle_buffer_size", "5", "--max_seq_length", "24",
                                           "--train_file", from, "--output_dir", mine_ / to}),
                    more);
  }
  // Expects the same training from S3 as from local files, even if a connection is cut.
  void expect_same(const std::string& task, const std::vector<std::string>& more) {
    const auto here = shoal(stream(task, mine_ / "here", "near", more));
    ASSERT_EQ(here.status, 0) << here.err;
    aws_.fail_next({.operation = "S3 GetObject", .done = true, .cut_after = 200});
    const auto there =
        shoal(stream(task, "s3://bucket/there/", "far", more), {.environment = aws_.environment()});
    ASSERT_EQ(there.status, 0) << there.err;
    EXPECT_EQ(losses(mine_ / "near").size(), 6U);
    EXPECT_EQ(losses(mine_ / "far"), losses(mine_ / "near"));
    EXPECT_TRUE(text_of(mine_ / "far/model.safetensors") ==
                text_of(mine_ / "near/model.safetensors"));
    // The fetched files have been removed.
    for (const auto& entry : std::filesystem::recursive_directory_iterator(mine_ / "far/tokens"))
      EXPECT_TRUE(entry.is_directory()) << entry.path();
  }
  FakeAws aws_;
};

TEST_F(ShoalS3Rows, TextsWithAClassTrainLikeLocalFiles) {
  const auto all = lines(36);
  for (int shard = 0; shard < 3; ++shard) {
    std::string text = "sentence\tlabel\n";
    for (int i = 0; i < 12; ++i) {
      const int row = 12 * shard + i;
      text += all[static_cast<std::size_t>(row)] + (i % 3 == 0 ? "\tawful\n" : "\tfine\n");
    }
    put_shard(fmt::format("part-{}.tsv", shard), text);
  }
  const std::vector<std::string> labels = {"--label_list", "awful,fine"};
  expect_same("text-classification", labels);
  // The error names the shard by its name in S3.
  const ProgramOptions at_aws{.environment = aws_.environment()};
  const auto refused = [&](const std::vector<std::string>& more, const std::string& why) {
    expect_refused(shoal(stream("text-classification", "s3://bucket/there/", "x", more), at_aws),
                   why);
  };
  refused({"--label_list", "awful,great"}, "s3://bucket/there/part-");
  refused({}, "the model names none; give label_list");
  aws_.fail_next(
      {.operation = "S3 GetObject", .reply = test::xml_error(403, "AccessDenied", "Access Denied")},
      8);
  refused(labels, "AccessDenied");
}

// Two jobs may share a data_cache_dir, but must not use each other's files.
TEST_F(ShoalS3Rows, JobsDoNotShareFetchedFiles) {
  put_shard("part.tsv", "sentence\tlabel\na good one\tfine\na bad one\tawful\n");
  const std::string others = mine_ / "cache/rows-0-0/0/part.tsv";
  std::filesystem::create_directories(std::filesystem::path(others).parent_path());
  std::ofstream(others) << "of another job";
  const auto ran =
      shoal(stream("text-classification", "s3://bucket/there/", "far",
                   {"--label_list", "awful,fine", "--data_cache_dir", mine_ / "cache"}),
            {.environment = aws_.environment()});
  ASSERT_EQ(ran.status, 0) << ran.err;
  EXPECT_EQ(text_of(others), "of another job");
  for (const auto& entry : std::filesystem::directory_iterator(mine_ / "cache"))
    EXPECT_EQ(entry.path().filename().string(), "rows-0-0") << "left behind";
}

TEST_F(ShoalS3Rows, QuestionsTrainLikeLocalFiles) {
  int id = 0;
  for (int shard = 0; shard < 2; ++shard) {
    json paragraphs = json::array();
    for (const std::string& line : lines(8)) {
      const std::string context = line + (id % 3 == 0 ? " bad water" : " good water");
      json question = {{"id", fmt::format("q{}", id)}, {"question", "where it goes"}};
      question["answers"] = {{{"text", "water"}, {"answer_start", context.size() - 5}}};
      paragraphs.push_back({{"context", context}, {"qas", json::array({question})}});
      ++id;
    }
    put_shard(
        fmt::format("part-{}.json", shard),
        json{{"version", "1.1"}, {"data", {{{"title", "t"}, {"paragraphs", paragraphs}}}}}.dump());
  }
  expect_same("question-answering", {"--doc_stride", "6"});
}

TEST_F(ShoalS3Rows, TaggedWordsTrainLikeLocalFiles) {
  for (int shard = 0; shard < 2; ++shard) {
    std::string text;
    for (std::string line : lines(10)) {
      line += " ";
      for (auto at = line.find(' '); at != std::string::npos; at = line.find(' ')) {
        const std::string word = line.substr(0, at);
        text += word + (word == "shoal" ? " B-FISH\n" : " O\n");
        line.erase(0, at + 1);
      }
      text += "\n";
    }
    put_shard(fmt::format("part-{}.conll", shard), text);
  }
  expect_same("token-classification", {"--label_list", "O,B-FISH"});
}

// A folder and a pattern in S3 stand for the files in them.
TEST_F(ShoalS3Rows, TextIsPreparedLikeLocalFiles) {
  put_shard("a.txt", sentences(20));
  put_shard("b.json", R"([{"text": "the fish"}, {"text": "asks"}])");
  aws_.put_object("bucket/there/c.md", "no text");
  std::vector<std::vector<std::string>> found;
  for (const std::string& from : {mine_ / "here", std::string("s3://bucket/there/"),
                                  std::string("s3://bucket/the*/*.[tj]*")}) {
    const std::string out = mine_ / fmt::format("tokens-{}", found.size());
    const auto made = shoal({"data", "prepare", from, "-t", *data_ / "tok", "-o", out},
                            {.environment = aws_.environment()});
    ASSERT_EQ(made.status, 0) << made.err;
    found.emplace_back();
    for (const auto& entry : std::filesystem::directory_iterator(out))
      found.back().push_back(entry.path().filename().string());
    EXPECT_EQ(found.back().size(), 1U);
    EXPECT_EQ(found.back(), found.front()) << from;
  }
}

}  // namespace
}  // namespace shoal
