#include <cmath>
#include <functional>

#define SHOAL_TEST_COUNTS_MEMORY
#include "support/budget.h"
#include "support/golden.h"
#include "support/temporary_directory.h"
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/io/files.h"
#include "shoal/runtime/io/json.h"
#include "shoal/train/data/model_input.h"
#include "shoal/train/data/tokenizer/load.h"
#include "shoal/train/tasks/classification/glue.h"

namespace shoal {
namespace {

using ::testing::HasSubstr;
using Ids = std::vector<std::int32_t>;
using Names = std::vector<std::string>;

class Classification : public ::testing::Test {
 protected:
  std::string file(const std::string& name, const std::string& text) {
    const std::filesystem::path path = folder_ / name;
    std::filesystem::create_directories(path.parent_path());
    write_file_atomically(path.string(), text);
    return path.string();
  }
  std::shared_ptr<const TextClassificationDataset> open(const char* task, const std::string& path,
                                                        const GlueOptions& options = {}) {
    return open_glue(path, glue_task(task), tokenizer_, options);
  }
  static std::string error_of(const std::function<void()>& action) {
    try {
      action();
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  }
  Ids ids(std::string_view first) {
    return model_input(*tokenizer_, first, nullptr, 128).input_ids;
  }
  Ids ids(std::string_view first, std::string_view second) {
    return model_input(*tokenizer_, first, &second, 128).input_ids;
  }

  testing::TemporaryDirectory folder_;
  std::shared_ptr<const Tokenizer> tokenizer_ =
      load_tokenizer(testing::golden_path("tokenizer/word_piece.json"));
};

TEST_F(Classification, BadRowsStayWithinTheBudget) {
  for (const char* row : {"a\t7\n", "\t\n", "a\tx\n", "a\n", "a\t0\n"}) {
    std::string text = "sentence\tlabel\n";
    for (int i = 0; i < 100'000; ++i) text += row;
    const std::string path = file("train.tsv", text);
    testing::within_budget(text.size(), row,
                           [&] { open("sst2", path, {.bad = BadRecords::skip}); });
  }
}

// The first lines have the form of GLUE's own files, so they test the columns of each task.
TEST_F(Classification, ReadsEveryTaskOfGlue) {
  struct Case {
    const char *task, *header, *row;
    Ids ids;
    float label;
  };
  const Case cases[] = {
      {"cola", nullptr, "gj04\t1\t*\tGod \"said.\n", ids("God \"said."), 1},
      {"mnli",
       "index\tpromptID\tpairID\tgenre\tsentence1_binary_parse\tsentence2_binary_parse\t"
       "sentence1_parse\tsentence2_parse\tsentence1\tsentence2\tlabel1\tgold_label\n",
       "0\t1\t1n\tfiction\t( a )\t( b )\tROOT\tROOT\tthe earth\tthe "
       "heaven\tneutral\tcontradiction\n",
       ids("the earth", "the heaven"), 2},
      {"mrpc", "\xEF\xBB\xBFQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n",
       "1\t702876\t702977\tGod said\tGod \"created\" it\n", ids("God said", "God \"created\" it"),
       1},
      {"qnli", "index\tquestion\tsentence\tlabel\n", "0\tWho?\tGod.\tnot_entailment\n",
       ids("Who?", "God."), 1},
      {"qqp", "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n", "133\t2\t3\tWho?\tWhat?\t0\n",
       ids("Who?", "What?"), 0},
      {"rte", "index\tsentence1\tsentence2\tlabel\n", "0\tthe earth\tthe deep\tentailment\n",
       ids("the earth", "the deep"), 0},
      {"sst2", "sentence\tlabel\n", "without form , and void \t0\n", ids("without form , and void"),
       0},
      {"stsb",
       "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore\n",
       "0\tmain\tMSRvid\t2012\t1\tnone\tnone\tthe earth\tthe deep\t3.80\n",
       ids("the earth", "the deep"), 3.8F},
      {"wnli", "index\tsentence1\tsentence2\tlabel\n", "0\tthe earth\tthe deep\t1\n",
       ids("the earth", "the deep"), 1}};
  for (const Case& row : cases) {
    const std::string text = std::string(row.header != nullptr ? row.header : "") + row.row;
    const auto data = open(row.task, file(std::string(row.task) + ".tsv", text));
    ASSERT_EQ(data->size(), 1) << row.task;
    const Sample sample = data->get(0);
    EXPECT_EQ(sample.input_ids, row.ids) << row.task;
    EXPECT_EQ(data->is_regression(), std::string(row.task) == "stsb");
    if (data->is_regression())
      EXPECT_EQ(sample.values, std::vector<float>({row.label})) << row.task;
    else
      EXPECT_EQ(sample.labels, Ids({static_cast<std::int32_t>(row.label)})) << row.task;
    const auto& names = glue_task(row.task).labels;
    EXPECT_EQ(data->labels().names(), Names(names.begin(), names.end()));
    EXPECT_TRUE(data->has_labels());
  }
}

TEST_F(Classification, FindsTheFilesOfATask) {
  for (const char* name : {"MNLI/train.tsv", "MNLI/dev_matched.tsv", "MNLI/dev_mismatched.tsv",
                           "MNLI/test_matched.tsv", "validation.jsonl", "msr_paraphrase_train.txt"})
    file(name, "x");
  const std::string folder = folder_.path();
  const GlueTask &mnli = glue_task("mnli"), &sst2 = glue_task("sst2");
  const auto validation = glue_files(folder, mnli, GlueSplit::validation);
  ASSERT_EQ(validation.size(), 2u);
  EXPECT_EQ(validation[0].part, "validation_matched");
  EXPECT_EQ(validation[1].part, "validation_mismatched");
  EXPECT_EQ(validation[1].path, folder + "/MNLI/dev_mismatched.tsv");
  EXPECT_EQ(glue_files(folder + "/MNLI", mnli, GlueSplit::train)[0].path,
            folder + "/MNLI/train.tsv");
  EXPECT_EQ(glue_files(folder, sst2, GlueSplit::validation)[0].path, folder + "/validation.jsonl");
  EXPECT_EQ(glue_files(folder, glue_task("mrpc"), GlueSplit::train)[0].path,
            folder + "/msr_paraphrase_train.txt");
  EXPECT_THAT(error_of([&] { glue_files(folder, mnli, GlueSplit::test); }),
              HasSubstr("no test_mismatched of GLUE's mnli; looked for test_mismatched.tsv"));
}

TEST_F(Classification, ReadsTestSetsWithoutLabels) {
  const GlueOptions test{.needs_labels = false};
  const std::string cola = file("cola.tsv", "index\tsentence\n0\tGod said\n1\tthe earth\n");
  const auto data = open("cola", cola, test);
  EXPECT_EQ(data->size(), 2);
  EXPECT_FALSE(data->has_labels());
  EXPECT_EQ(data->get(1).labels, Ids({kIgnoreLabel}));
  EXPECT_THAT(error_of([&] { open("cola", cola); }), HasSubstr("no column has the labels"));
  // Hugging Face's data sets mark a missing label with -1.
  const std::string json = file("a.jsonl", R"({"sentence": "God", "label": -1, "idx": 0})"
                                           "\n"
                                           R"({"sentence": "x", "label": 1})");
  EXPECT_EQ(open("sst2", json, test)->get(0).labels, Ids({kIgnoreLabel}));
  EXPECT_EQ(open("sst2", json, test)->get(1).labels, Ids({1}));
  EXPECT_THAT(error_of([&] { open("sst2", json); }),
              HasSubstr("a.jsonl, line 1: the label is '-1'"));
  const auto scores = open("stsb", file("s.tsv", "sentence1\tsentence2\na\tb\n"), test);
  EXPECT_TRUE(std::isnan(scores->get(0).values.at(0)));
  EXPECT_FALSE(scores->has_labels());
}

TEST_F(Classification, RefusesBadRowsOrLeavesThemOut) {
  const std::string rows =
      "index\tsentence1\tsentence2\tlabel\n0\ta\tb\tentailment\n1\ta\tb\n"
      "2\ta\tb\tneutral\n3\ta\tb\t1\n4\ta\tb\t2\n";
  const std::string path = file("rte.tsv", rows);
  EXPECT_THAT(error_of([&] { open("rte", path); }), HasSubstr("rte.tsv, line 3: 3 fields where"));
  const auto data = open("rte", path, {.bad = BadRecords::skip});
  EXPECT_EQ(data->size(), 2);
  EXPECT_EQ(data->get(1).labels, Ids({1}));
  EXPECT_EQ(data->skipped(), 3);
  EXPECT_THAT(data->first_skipped(), HasSubstr("line 3"));
  EXPECT_THAT(
      error_of([&] { open("stsb", file("s.tsv", "sentence1\tsentence2\tscore\na\tb\t5.1\n")); }),
      HasSubstr("s.tsv, line 2: the score is 5.1, not between 0 and 5"));
  EXPECT_THAT(
      error_of([&] { open("stsb", file("t.tsv", "sentence1\tsentence2\tscore\na\tb\tnan\n")); }),
      HasSubstr("the score is nan"));
  EXPECT_THAT(
      error_of([&] { open("qnli", path); }),
      HasSubstr("GLUE's qnli has the columns question, sentence, label; the first line has 4"));
  EXPECT_THAT(error_of([&] { open("rte", path, {.max_seq_length = 3, .bad = BadRecords::skip}); }),
              HasSubstr("max_seq_length 3 leaves no room"));
  EXPECT_THROW(data->get(2), Error);
}

// GPT-2's tokenizer turns an empty text into no tokens, and no model accepts an empty input.
TEST_F(Classification, EmptyTextsNeedATokenAround) {
  const std::string one = file("one.tsv", "sentence\tlabel\n\t1\nGod\t0\n"),
                    two = file("two.tsv",
                               "index\tsentence1\tsentence2\tlabel\n"
                               "0\t\tGod\tentailment\n1\t\t\tentailment\n");
  EXPECT_EQ(open("sst2", one)->get(0).input_ids.size(), 2U);
  tokenizer_ = load_tokenizer(testing::golden_path("tokenizer/plain.json"));
  EXPECT_THAT(error_of([&] { open("sst2", one); }),
              HasSubstr("one.tsv, line 2: the text is empty, and this tokenizer puts no token"));
  EXPECT_THAT(error_of([&] { open("rte", two); }), HasSubstr("two.tsv, line 3"));
  EXPECT_EQ(open("rte", two, {.bad = BadRecords::skip})->size(), 1);
}

TEST_F(Classification, CutsPairsToMaxSeqLength) {
  const auto data = open("rte",
                         file("rte.tsv",
                              "sentence1\tsentence2\tlabel\n"
                              "the the the the the the\tthe the the\t0\n"),
                         {.max_seq_length = 10});
  const Sample sample = data->get(0);
  EXPECT_EQ(sample.input_ids.size(), 10u);
  EXPECT_EQ(std::count(sample.token_type_ids.begin(), sample.token_type_ids.end(), 1), 4);
}

TEST_F(Classification, FollowsTheModelsOrderOfClasses) {
  const std::string path = file("m.jsonl", R"({"premise": "a", "hypothesis": "b", "label": 2})");
  EXPECT_EQ(open("mnli", path)->get(0).labels, Ids({2}));
  const LabelSet model({"CONTRADICTION", "NEUTRAL", "ENTAILMENT"});
  EXPECT_EQ(open("mnli", path, {.model_labels = model})->get(0).labels, Ids({0}));
  const LabelSet other({"LABEL_0", "LABEL_1", "LABEL_2"});
  EXPECT_EQ(open("mnli", path, {.model_labels = other})->get(0).labels, Ids({2}));
}

TEST_F(Classification, TakesTheUsersOwnColumns) {
  const auto rows = std::make_shared<RecordFile>(
      file("own.csv", "id,label,review\n7,good,\"God, said\"\n8,bad,the earth\n9,good,the deep\n"));
  EXPECT_EQ(default_columns(*rows).first, "id");  // as run_glue: the first other column
  const LabelSet labels = discover_labels(*rows, "label");
  EXPECT_EQ(labels.names(), Names({"bad", "good"}));
  const TextClassificationDataset data(
      rows, tokenizer_, {.columns = {.first = "review", .label = "label"}, .labels = labels});
  EXPECT_EQ(data.size(), 3);
  EXPECT_EQ(data.get(0).input_ids, ids("God, said"));
  EXPECT_EQ(data.get(0).labels, Ids({1}));

  const auto test = std::make_shared<RecordFile>(file("test.csv", "review,label\nx,ugly\n"));
  EXPECT_THAT(
      error_of([&] {
        TextClassificationDataset(
            test, tokenizer_, {.columns = {.first = "review", .label = "label"}, .labels = labels});
      }),
      HasSubstr("test.csv, line 2: the label is 'ugly', none of the 2 classes (bad, good)"));
  EXPECT_THAT(error_of([&] {
                TextClassificationDataset(test, tokenizer_, {.columns = {.first = "text"}});
              }),
              HasSubstr("test.csv, line 2: there is no field 'text'"));
}

TEST_F(Classification, ChoosesColumnsAndRegressionAsRunGlue) {
  const RecordFile pairs(file("p.csv", "idx,sentence2,label,sentence1\n0,b,0.5,a\n1,d,1,c\n"));
  const TextColumns columns = default_columns(pairs);
  EXPECT_EQ(columns.first, "sentence1");
  EXPECT_EQ(columns.second, "sentence2");
  EXPECT_EQ(columns.label, "label");
  EXPECT_TRUE(discover_labels(pairs, "label").empty());  // 0.5: the labels are scores
  const TextClassificationDataset scores(std::make_shared<RecordFile>(pairs), tokenizer_,
                                         {.columns = columns});
  EXPECT_EQ(scores.get(0).values, std::vector<float>({0.5F}));
  EXPECT_TRUE(scores.get(0).labels.empty());
  EXPECT_EQ(scores.get(1).input_ids, ids("c", "d"));
  const RecordFile two(file("q.tsv", "x\ty\tlabel\na\tb\t3\nc\td\t1\n"));
  EXPECT_EQ(default_columns(two).second, "y");
  EXPECT_EQ(discover_labels(two, "label").names(), Names({"1", "3"}));
  const RecordFile json(file("r.jsonl", R"({"zeta": "a", "alpha": "b"})"));
  EXPECT_THAT(error_of([&] { default_columns(json); }), HasSubstr("name the columns"));
}

// The cases are from tools/golden/make_records.py.
TEST_F(Classification, TakesTextsAndLabelsAsRunGlue) {
  for (const nlohmann::json& one :
       read_json_file(testing::golden_path("records.json")).at("uses")) {
    if (one["use"] != "text" && one["use"] != "label") continue;
    SCOPED_TRACE(one.dump());
    const auto rows = std::make_shared<RecordFile>(file(one["name"], one["text"]));
    TextClassificationOptions options{.columns = {.first = "v"}};
    const auto open_rows = [&] {
      if (one["use"] == "label") {
        options.columns = {.first = "t", .label = "v"};
        options.labels = discover_labels(*rows, "v");
      }
      return TextClassificationDataset(rows, tokenizer_, options);
    };
    if (one["values"].is_null()) {
      const std::string problem = error_of([&] { open_rows(); });
      EXPECT_THAT(problem, HasSubstr(", line "));
      EXPECT_THAT(problem, ::testing::Not(HasSubstr("\n")));
      continue;
    }
    const TextClassificationDataset data = open_rows();
    EXPECT_EQ(data.size(), rows->size());
    const bool has_classes = one["use"] == "label" && one["values"] != "scores";
    EXPECT_EQ(options.labels.names(), has_classes ? one["values"].get<Names>() : Names());
  }
}

// Commit 39c9efe0 took the columns from the first record, and never read sentence2.
TEST_F(Classification, EveryRecordSaysWhichColumnsThereAre) {
  for (const char* first : {R"({"sentence1": "a", "label": 0})",
                            R"({"sentence1": "a", "sentence2": null, "label": 0})"}) {
    const auto rows = std::make_shared<RecordFile>(file(
        "a.jsonl",
        std::string(first) + "\n" + R"({"sentence1": "a", "sentence2": "b", "label": 1})" + "\n"));
    const TextColumns columns = default_columns(*rows);
    EXPECT_EQ(columns.second, "sentence2");
    EXPECT_THAT(error_of([&] {
                  TextClassificationDataset(rows, tokenizer_,
                                            {.columns = columns, .labels = LabelSet({"0", "1"})});
                }),
                HasSubstr("a.jsonl, line 1: there is no field 'sentence2'"));
  }
  const std::string labels = file("b.jsonl", R"({"sentence": "a", "label": null})"
                                             "\n"
                                             R"({"sentence": "God", "label": 1})"
                                             "\n");
  EXPECT_EQ(default_columns(RecordFile(labels)).label, "label");
  EXPECT_THAT(error_of([&] { open("sst2", labels); }),
              HasSubstr("b.jsonl, line 1: there is no field 'label'"));
  // A set for prediction has labels in some rows.
  const auto test = open("sst2", labels, {.needs_labels = false});
  EXPECT_EQ(test->get(0).labels, Ids({kIgnoreLabel}));
  EXPECT_EQ(test->get(1).labels, Ids({1}));
}

TEST_F(Classification, SaysWhichLabelIsNone) {
  for (const auto& [name, text] :
       {std::pair{"e.jsonl", " \n"}, {"e.json", " [ ]\n"}, {"e.json", ""}}) {
    const std::string path = file(name, text);
    EXPECT_EQ(error_of([&] { default_columns(RecordFile(path)); }),
              path + " is empty: it has no record");
    EXPECT_EQ(error_of([&] { open("sst2", path); }), path + " is empty: it has no record");
  }
  EXPECT_THAT(error_of([&] {
                default_columns(RecordFile(file("b.jsonl", "1\n"), {.bad = BadRecords::skip}));
              }),
              HasSubstr("b.jsonl: no row that can be used; the first: "));
  const auto rows = std::make_shared<RecordFile>(file("a.csv", "t,label\nx,b\ny,\nz,a\n"));
  TextClassificationOptions options{.columns = {.first = "t", .label = "label"},
                                    .labels = discover_labels(*rows, "label")};
  EXPECT_EQ(options.labels.names(), Names({"a", "b"}));
  EXPECT_THAT(error_of([&] { TextClassificationDataset(rows, tokenizer_, options); }),
              HasSubstr("a.csv, line 3: the label in 'label' is empty"));
  options.bad = BadRecords::skip;
  EXPECT_EQ(TextClassificationDataset(rows, tokenizer_, options).size(), 2);
  for (const char* score : {"nan", "-inf"}) {
    const auto scores = std::make_shared<RecordFile>(
        file("s.csv", std::string("t,label\nx,0.5\ny,") + score + "\n"));
    EXPECT_THAT(error_of([&] {
                  TextClassificationDataset(scores, tokenizer_,
                                            {.columns = {.first = "t", .label = "label"}});
                }),
                HasSubstr(std::string("s.csv, line 3: the score is ") + score +
                          ", which no model can learn"));
  }
}

TEST_F(Classification, ListsTheColumnsIfNoRowHasALabel) {
  const auto problem = [&](const char* name, const std::string& text, RecordOptions options = {}) {
    const std::string path = file(name, text);
    return error_of([&] { discover_labels(RecordFile(path, options), "label"); })
        .substr(path.size() - std::string(name).size());
  };
  const auto record = [](const char* label) {
    return fmt::format("{{\"sentence\": \"a\", \"label\": {}}}\n", label);
  };
  EXPECT_EQ(problem("a.jsonl", record("{\"x\": 1}") + record("{\"x\": 1}")),
            "a.jsonl, line 1: 'label' is an object, not a text or a number");
  EXPECT_EQ(problem("a.jsonl", record("null") + record("[1]")),
            "a.jsonl, line 2: 'label' is a list, not a text or a number");
  EXPECT_EQ(problem("a.csv", "sentence,label\na,\nb,\n"),
            "a.csv, line 2: the label in 'label' is empty, and no row has one");
  EXPECT_EQ(problem("a.csv", "sentence,label\n"), "a.csv: there is no row");
  EXPECT_THAT(problem("a.csv", "sentence,label\n1\n", {.bad = BadRecords::skip}),
              HasSubstr("a.csv: there is no row that can be used; the first: "));
}

TEST_F(Classification, SaysThatRecordsAreObjects) {
  const RecordFile plain(file("a.json", "[[1, 2]]")), other(file("b.json", "[{\"mood\": 1}]"));
  EXPECT_THAT(error_of([&] { plain.need_column("label", ""); }),
              HasSubstr("a.json: its records are no objects, so that none has the field 'label'; "
                        "write each record as an object"));
  EXPECT_THAT(error_of([&] { other.need_column("label", "give it"); }),
              HasSubstr("b.json: there is no column 'label'; there are mood; give it"));
}

// pandas reads 01, +1 and 1 as one number.
TEST_F(Classification, LabelsOfTablesAreNumbersByValue) {
  const auto rows =
      std::make_shared<RecordFile>(file("a.csv", "t,label\nx,01\nx,1\nx,+1\nx,-0\nx, 0\n"));
  const TextClassificationDataset data(
      rows, tokenizer_,
      {.columns = {.first = "t", .label = "label"}, .labels = discover_labels(*rows, "label")});
  for (const auto& [row, label] : {std::pair{0, 1}, {1, 1}, {2, 1}, {3, 0}, {4, 0}})
    EXPECT_EQ(data.get(row).labels, Ids({label})) << row;
}

TEST_F(Classification, ReadsRealRows) {
  SHOAL_SHARED_DATA_OR_SKIP(sst2, "sst2-dev.tsv");
  SHOAL_SHARED_DATA_OR_SKIP(mrpc, "mrpc-test.txt");
  const auto sentences = open("sst2", sst2);  // without a header
  ASSERT_EQ(sentences->size(), 872);
  std::int64_t positive = 0;
  for (std::int64_t i = 0; i < sentences->size(); ++i) positive += sentences->get(i).labels[0];
  EXPECT_EQ(positive, 444);
  EXPECT_EQ(sentences->get(0).input_ids, ids("one long string of cliches"));
  const auto pairs = open("mrpc", mrpc);
  ASSERT_EQ(pairs->size(), 1725);
  EXPECT_EQ(pairs->get(0).labels, Ids({1}));
}

}  // namespace
}  // namespace shoal
