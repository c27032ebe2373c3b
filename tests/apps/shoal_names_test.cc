// Data names that the real program accepts: one file or several, local or remote. Also rows whose
// quotation marks and line ends differ from the usual ones.
#include <filesystem>

#include "apps/shoal_task_fixture.h"

namespace shoal {
namespace {

class ShoalNames : public ShoalOnTasks {
 protected:
  std::string file(const std::string& name, const std::string& text) const {
    std::filesystem::create_directories(std::filesystem::path(mine_ / name).parent_path());
    std::ofstream(mine_ / name, std::ios::binary) << text;
    return mine_ / name;
  }
  std::vector<std::string> classify(const std::vector<std::string>& more) const {
    return overlaid(words_of(tiny_bert(), {"--task", "text-classification", "--tokenizer_name",
                                           vocabulary(), "--max_steps", "1", "--max_seq_length",
                                           "16", "--output_dir", mine_ / "out"}),
                    more);
  }
  std::vector<std::string> learn(const std::vector<std::string>& more) const {
    return overlaid(words_of(tiny_gpt2(), {"--max_steps", "1", "--block_size", "8", "--output_dir",
                                           mine_ / "out"}),
                    more);
  }
  std::vector<std::string> prepare(const std::vector<std::string>& inputs,
                                   const std::string& out) const {
    std::vector<std::string> words = {"data", "prepare", "-t", *data_ / "tok", "-o", mine_ / out};
    words.insert(words.end(), inputs.begin(), inputs.end());
    return words;
  }
  std::vector<std::string> prepared(const std::vector<std::string>& inputs,
                                    const std::string& out) const {
    const auto result = shoal(prepare(inputs, out));
    EXPECT_EQ(result.status, 0) << result.err;
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(mine_ / out))
      names.push_back(entry.path().filename().string());
    return names;
  }
};

TEST_F(ShoalNames, SeveralFilesAreRefusedIfOneIsExpected) {
  const std::string one = file("rows/a.csv", "text,label\nfish,1\n");
  const std::string folder = mine_ / "rows";
  const auto wrong = [](const std::string& option, const std::string& name) {
    return option + " is " + name + ", which names several files, and takes one; ";
  };
  for (const std::string& name : {folder, folder + "/*.csv", "@" + one, one + "," + one,
                                  std::string("s3://bucket/rows/"), std::string("s3://bucket/*")})
    expect_refused(shoal(classify({"--train_file", name})),
                   wrong("train_file", name) + "give --streaming true and max_steps");
  expect_refused(shoal(classify({"--train_file", one, "--validation_file", folder})),
                 wrong("validation_file", folder) + "join them into one");
  expect_refused(
      shoal(classify({"--train_file", one, "--do_predict", "true", "--test_file", folder})),
      wrong("test_file", folder) + "join them into one");
  expect_refused(shoal(learn({"--train_file", folder})), "or make one of them: shoal data prepare");
  expect_refused(shoal(learn({"--train_file", one, "--validation_file", folder})),
                 wrong("validation_file", folder) + "make one of them: shoal data prepare");
}

TEST_F(ShoalNames, S3ObjectsAreRefusedIfLocalFilesAreExpected) {
  const std::string one = file("rows/a.csv", "text,label\nfish,1\nbad,0\n");
  const std::string there = "s3://bucket/a.csv";
  expect_refused(shoal(classify({"--train_file", there})),
                 "train_file is s3://bucket/a.csv, but text-classification reads files of this "
                 "machine; give --streaming true and max_steps");
  expect_refused(shoal(classify({"--train_file", one, "--validation_file", there})),
                 "validation_file is s3://bucket/a.csv, but text-classification reads files of "
                 "this machine; copy it");
  for (const char* option : {"--data", "--dataset_name", "--model_name_or_path"})
    expect_refused(shoal(classify({option, "gs://bucket/a/"})), "gs://bucket/a/, and objects");
  const std::string text = file("a.txt", sentences(20));
  const ProgramOptions in_mine{.directory = mine_.path()};
  const std::string elsewhere = "cannot make the directory s3://bucket/run";
  expect_refused(shoal(learn({"--train_file", text, "--output_dir", "s3://bucket/run"}), in_mine),
                 elsewhere);
  expect_refused(shoal(classify({"--train_file", one, "--output_dir", "s3://bucket/run"}), in_mine),
                 elsewhere);
  expect_refused(
      shoal({"data", "prepare", "-t", *data_ / "tok", "-o", "s3://bucket/run", text}, in_mine),
      elsewhere);
  expect_refused(shoal({"tokenizer", "train", "-o", "s3://bucket/run", text}, in_mine), elsewhere);
  expect_refused(shoal({"tokenizer", "train", "-o", mine_ / "t", "s3://bucket/a.txt"}),
                 "copy it to one first");
  expect_refused(shoal({"tokenizer", "train", "-o", mine_ / "t", mine_ / "*.none"}),
                 "no pattern is expanded here");
  // A path given as a URI is the same path.
  EXPECT_EQ(shoal(classify({"--train_file", "file://" + one})).status, 0);
}

TEST_F(ShoalNames, SeveralFilesArePreparedTogether) {
  const std::string a = file("text/a.txt", sentences(20)),
                    b = file("text/b.jsonl", "{\"text\": \"x\"}\n");
  file("text/c.md", "no text of these");
  const auto tokens = prepared({a, b}, "one");
  EXPECT_EQ(tokens.size(), 1U);
  EXPECT_EQ(prepared({mine_ / "text"}, "two"), tokens);
  EXPECT_EQ(prepared({mine_ / "text/*.[tj]*"}, "three"), tokens);
  EXPECT_EQ(prepared({"@" + file("list", a + "\r" + b)}, "four"), tokens);
  expect_refused(shoal(prepare({mine_ / "text/*.pdf"}, "five")), "nothing matches");
}

// Every second row contains an additional quotation mark, as in a size in inches.
TEST_F(ShoalNames, RowsWithQuotationMarksMatchTheirPredictions) {
  for (const std::string end : {"\n", "\r", "\r\n"}) {
    std::string rows = "sentence,label" + end;
    for (int i = 0; i < 10; ++i)
      rows += fmt::format("the fish {}{} cold,{}{}", i, i % 2 == 0 ? "\"" : "",
                          i % 2 ? "good" : "bad", end);
    const std::string path = file("rows.csv", rows);
    const auto result = shoal(classify({"--train_file", path, "--do_predict", "true", "--test_file",
                                        path, "--overwrite_output_dir", "true"}));
    ASSERT_EQ(result.status, 0) << result.err;
    const std::string predicted = text_of(mine_ / "out/predict_results.txt");
    EXPECT_EQ(std::ranges::count(predicted, '\n'), 11) << predicted;
  }
}

// One array, one record a line, and the same data as CSV give the same training.
TEST_F(ShoalNames, JsonArraysTrainLikeTheirRecords) {
  std::string lines, array = "[", csv = "sentence,label\n";
  for (int i = 0; i < 16; ++i) {
    const std::string record = fmt::format(R"({{"sentence": "the fish {}", "label": "{}"}})",
                                           i % 3 ? "swims" : "asks", i % 3 ? "good" : "bad");
    lines += record + "\n";
    array += (i ? ",\n" : "\n") + record;
    csv += fmt::format("the fish {},{}\n", i % 3 ? "swims" : "asks", i % 3 ? "good" : "bad");
  }
  std::vector<std::vector<double>> all;
  for (const auto& [name, text] : {std::pair{"a.jsonl", lines},
                                   {"b.json", lines},
                                   {"c.json", array + "\n]\n"},
                                   {"d.csv", csv}}) {
    const auto result = shoal(classify(
        {"--train_file", file(name, text), "--max_steps", "2", "--overwrite_output_dir", "true"}));
    ASSERT_EQ(result.status, 0) << result.err;
    all.push_back(losses(mine_ / "out"));
    EXPECT_EQ(all.back(), all.front()) << name;
  }
}

}  // namespace
}  // namespace shoal
