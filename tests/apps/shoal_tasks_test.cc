// The real program on tasks other than causal language modelling: tiny BERTs that classify rows and
// predict masked words.
#include <algorithm>
#include <filesystem>
#include <fstream>

#include "apps/shoal_task_fixture.h"
#include "support/pipe_writer.h"
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "shoal/train/checkpoint/run_lock.h"

namespace shoal {
namespace {

using ::testing::AllOf;

class ShoalTasks : public ShoalOnTasks {
 protected:
  void SetUp() override {
    ShoalOnTasks::SetUp();
    write_rows("train.tsv", 64, "sentence\tlabel\n", true);
    write_rows("dev.tsv", 21, "sentence\tlabel\n", true);
    write_rows("test.tsv", 21, "sentence\n", false);
  }
  // Each row says whether the water is good or bad, somewhere among other words.
  void write_rows(const std::string& name, int count, const char* header, bool labels) const {
    std::ofstream file(mine_ / name);
    file << header;
    int i = 0;
    for (const std::string& line : lines(count)) {
      const bool good = (i * 7 + i / 3) % 2 == 0;
      file << "the water " << (good ? "good " : "bad ") << line;
      if (labels) file << "\t" << (good ? "fine" : "awful");
      file << "\n";
      ++i;
    }
  }
  std::vector<std::string> classify(const std::vector<std::string>& model,
                                    const std::vector<std::string>& more) const {
    return overlaid(
        words_of(model, {"--task", "text-classification", "--tokenizer_name", vocabulary(),
                         "--train_file", mine_ / "train.tsv", "--validation_file",
                         mine_ / "dev.tsv", "--test_file", mine_ / "test.tsv", "--do_predict",
                         "--pad_to_multiple_of", "4", "--num_train_epochs", "5"}),
        more);
  }
};

TEST_F(ShoalTasks, LearnsToClassifyAndPredicts) {
  const auto trained =
      shoal(classify(tiny_bert(), {"--num_train_epochs", "16", "--output_dir", out()}));
  ASSERT_EQ(trained.status, 0) << trained.err;
  EXPECT_THAT(trained.out,
              AllOf(HasSubstr("bert for sequence classification"), HasSubstr("2 labels"),
                    HasSubstr("'eval_accuracy': 1"), HasSubstr("21 predictions in ")));
  EXPECT_EQ(json_of(out() + "/eval_results.json")["eval_accuracy"], 1.0);
  const nlohmann::json config = json_of(out() + "/config.json");
  EXPECT_EQ(config["id2label"]["0"], "awful");
  EXPECT_EQ(config["label2id"]["fine"], 1);
  EXPECT_EQ(config["architectures"][0], "BertForSequenceClassification");
  // The rows of dev.tsv and test.tsv have the same texts.
  std::string expected = "index\tprediction\n";
  for (int i = 0; i < 21; ++i)
    expected += fmt::format("{}\t{}\n", i, (i * 7 + i / 3) % 2 == 0 ? "fine" : "awful");
  EXPECT_EQ(text_of(out() + "/predict_results.txt"), expected);

  // The saved model is read again, with its label names.
  const auto again =
      shoal({"train", "--model_name_or_path", out(), "--do_train", "false", "--validation_file",
             mine_ / "dev.tsv", "--output_dir", mine_ / "again"});
  ASSERT_EQ(again.status, 0) << again.err;
  EXPECT_EQ(json_of(mine_ / "again" + "/eval_results.json")["eval_accuracy"], 1.0);
  EXPECT_EQ(json_of(mine_ / "again" + "/eval_results.json")["eval_loss"],
            json_of(out() + "/eval_results.json")["eval_loss"]);
}

// `shoal predict` and `shoal evaluate` have the numbers of a run of `shoal train`.
TEST_F(ShoalTasks, PredictsAndEvaluatesAlone) {
  const auto trained =
      shoal(classify(tiny_bert(), {"--num_train_epochs", "2", "--output_dir", out()}));
  ASSERT_EQ(trained.status, 0) << trained.err;
  const ProgramOptions aside{.environment = {"TMPDIR=" + (mine_ / "tmp")}};
  std::filesystem::create_directory(mine_ / "tmp");
  const auto lines = shoal({"predict", "--model", out(), mine_ / "test.tsv"}, aside);
  ASSERT_EQ(lines.status, 0) << lines.err;
  std::istringstream rows(lines.out);
  std::string expected = "index\tprediction\n";
  int count = 0;
  for (std::string line; std::getline(rows, line); ++count) {
    const nlohmann::json row = nlohmann::json::parse(line);
    expected += fmt::format("{}\t{}\n", count, row["prediction"].get<std::string>());
    const nlohmann::json& shares = row["probabilities"];
    EXPECT_NEAR(shares["awful"].get<double>() + shares["fine"].get<double>(), 1, 2e-6) << line;
    EXPECT_EQ(row["probability"], shares[row["prediction"].get<std::string>()]);
    EXPECT_GE(row["probability"], 0.5);
    EXPECT_EQ(row["index"], count);
  }
  EXPECT_EQ(count, 21);
  EXPECT_EQ(text_of(out() + "/predict_results.txt"), expected);

  for (const auto& [name, header] :
       {std::pair{"rows.csv", "index,prediction,probability,probabilities.awful,"},
        {"rows.tsv", "index\tprediction\tprobability\tprobabilities.awful\t"}}) {
    const auto table = shoal({"predict", "-m", out(), mine_ / "test.tsv", "-o", mine_ / name});
    ASSERT_EQ(table.status, 0) << table.err;
    EXPECT_THAT(table.out, HasSubstr("21 predictions in " + (mine_ / name)));
    const std::string text = text_of(mine_ / name);
    EXPECT_THAT(text, ::testing::StartsWith(header));
    EXPECT_EQ(std::ranges::count(text, '\n'), 22);
  }

  const auto measured = shoal({"evaluate", "-m", out(), mine_ / "dev.tsv", "--json"}, aside);
  ASSERT_EQ(measured.status, 0) << measured.err;
  const nlohmann::json metrics = nlohmann::json::parse(measured.out);
  const nlohmann::json before = json_of(out() + "/eval_results.json");
  EXPECT_EQ(metrics["eval_accuracy"], before["eval_accuracy"]);
  EXPECT_EQ(metrics["eval_loss"], before["eval_loss"]);
  EXPECT_THAT(shoal({"evaluate", "-m", out(), mine_ / "dev.tsv"}).out,
              ::testing::StartsWith("eval_accuracy "));
  EXPECT_TRUE(std::filesystem::is_empty(mine_ / "tmp"));  // nothing is left

  expect_refused(shoal({"predict", "-m", out(), mine_ / "test.tsv", "-o", "x.txt"}),
                 "give a name that ends with .jsonl, .csv or .tsv");
  expect_refused(shoal({"predict", "-m", out(), mine_ / "none.tsv"}), "none.tsv");
  expect_refused(shoal({"generate", "-m", out(), "-p", "the shoal"}),
                 "use `shoal predict --model " + out() + " FILE`");
}

TEST_F(ShoalTasks, EvaluatesInTheDirectoryOfTheTraining) {
  const auto trained = shoal(
      classify(tiny_bert(), {"--max_steps", "1", "--do_eval", "false", "--output_dir", out()}));
  ASSERT_EQ(trained.status, 0) << trained.err;
  const std::vector<std::string> evaluate = {
      "train",           "--model_name_or_path", out(), "--do_train", "false", "--validation_file",
      mine_ / "dev.tsv", "--output_dir",         out()};
  {
    const RunLock training(out());
    const auto refused = shoal(evaluate);
    EXPECT_NE(refused.status, 0);
    EXPECT_THAT(refused.err, HasSubstr(" is in use by process "));
    EXPECT_FALSE(std::filesystem::exists(out() + "/eval_results.json"));
  }
  const nlohmann::json before = json_of(out() + "/all_results.json");
  const auto evaluated = shoal(evaluate);
  ASSERT_EQ(evaluated.status, 0) << evaluated.err;
  const nlohmann::json all = json_of(out() + "/all_results.json");
  EXPECT_EQ(all["train_loss"], before.at("train_loss"));
  EXPECT_EQ(all["eval_loss"], json_of(out() + "/eval_results.json").at("eval_loss"));
}

TEST_F(ShoalTasks, RanksPredictAsOne) {
  // Two ranks that split positions pad to a multiple of 2 as well.
  expect_ranks_as_one(
      classify(tiny_bert(), {"--num_train_epochs", "1", "--pad_to_multiple_of", "3"}),
      {"predict_results.txt"});
}

TEST_F(ShoalTasks, LearnsHiddenWordsThenClasses) {
  const auto masked = shoal(words_of(
      tiny_bert(), {"--task", "masked-lm", "--tokenizer_name", vocabulary(), "--train_file",
                    *data_ / "train.txt", "--validation_file", *data_ / "validation.txt",
                    "--block_size", "32", "--max_steps", "5", "--output_dir", mine_ / "masked"}));
  ASSERT_EQ(masked.status, 0) << masked.err;
  EXPECT_THAT(masked.out, AllOf(HasSubstr("bert for masked language modelling"),
                                HasSubstr("'eval_perplexity'"), HasSubstr("unigram")));
  const auto classes = shoal(classify({"--model_name_or_path", mine_ / "masked"},
                                      {"--max_steps", "1", "--output_dir", out()}));
  ASSERT_EQ(classes.status, 0) << classes.err;
  EXPECT_THAT(classes.out, AllOf(HasSubstr("newly initialised"), HasSubstr("classifier.weight"),
                                 HasSubstr("not used: "), HasSubstr("cls.predictions")));
  // A new head is untrained, so evaluating it is refused.
  expect_refused(shoal(classify({"--model_name_or_path", mine_ / "masked"},
                                {"--do_train", "false", "--output_dir", out()})),
                 "do_train is false");
  const auto lines = shoal(words_of(
      {"--model_name_or_path", mine_ / "masked"},
      {"--train_file", *data_ / "train.txt", "--line_by_line", "--block_size", "16", "--max_steps",
       "2", "--whole_word_mask", "--mlm_probability", "0.3", "--output_dir", mine_ / "lines"}));
  EXPECT_EQ(lines.status, 0) << lines.err;
}

// As in run_glue: eval_accuracy and eval_accuracy_mm, one after the other, with a file for each.
TEST_F(ShoalTasks, EvaluatesAndPredictsBothPartsOfMnli) {
  const char* labels[] = {"entailment", "neutral", "contradiction"};
  const auto write = [&](const std::string& name, int count, int shift) {
    std::ofstream rows(mine_ / name);
    rows << "index\tsentence1\tsentence2\tgold_label\n";
    int i = 0;
    for (const std::string& line : lines(count)) {
      const int is = (i + shift) % 3;
      rows << i << "\t" << line << "\t"
           << (is == 0   ? "good"
               : is == 1 ? "bad"
                         : "tonight")
           << "\t" << labels[shift > 0 ? 0 : is] << "\n";
      ++i;
    }
  };
  write("train.tsv", 48, 0);
  write("dev_matched.tsv", 12, 0);
  write("dev_mismatched.tsv", 9, 1);  // at most a third of them are right
  write("test_matched.tsv", 12, 0);
  write("test_mismatched.tsv", 7, 0);
  const auto done = shoal(words_of(
      tiny_bert(), {"--task_name", "mnli", "--data", mine_ / "", "--tokenizer_name", vocabulary(),
                    "--do_predict", "--eval_strategy", "epoch", "--num_train_epochs", "12",
                    "--max_seq_length", "24", "--output_dir", out()}));
  ASSERT_EQ(done.status, 0) << done.err;
  const nlohmann::json results = json_of(out() + "/eval_results.json");
  EXPECT_EQ(results["eval_accuracy"], 1.0) << results;
  EXPECT_NEAR(results["eval_accuracy_mm"].get<double>(), 1.0 / 3, 1e-9) << results;
  EXPECT_GT(results["eval_loss_mm"], results["eval_loss"]);
  const nlohmann::json predicted = json_of(out() + "/predict_results.json");
  EXPECT_EQ(predicted["test_accuracy"], 1.0) << predicted;
  EXPECT_EQ(predicted["test_accuracy_mm"], 1.0);
  const auto rows_in = [&](const char* name) {
    const std::string text = text_of(out() + "/" + name);
    return std::count(text.begin(), text.end(), '\n') - 1;
  };
  EXPECT_EQ(rows_in("predict_results.txt"), 12);
  EXPECT_EQ(rows_in("predict_results_mm.txt"), 7);
  // During training only the matched part is evaluated.
  const std::string log = text_of(out() + "/metrics.jsonl");
  const auto times = [&](const std::string& name) {
    int count = 0;
    for (auto at = log.find(name); at != std::string::npos; at = log.find(name, at + 1)) ++count;
    return count;
  };
  EXPECT_EQ(times("\"eval_loss\""), 13);
  EXPECT_EQ(times("\"eval_loss_mm\""), 1);

  const auto refused = [&](const std::vector<std::string>& more, const std::string& words) {
    expect_refused(shoal(classify(tiny_bert(), more)), words);
  };
  refused({"--validation_mismatched_file", mine_ / "dev.tsv"}, "MNLI alone has a part");
  refused({"--task_name", "mnli", "--validation_file", "", "--validation_mismatched_file",
           mine_ / "dev.tsv"},
          "validation_mismatched_file is given without validation_file");
}

TEST_F(ShoalTasks, MrpcOfMicrosoftHasNoValidationSet) {
  std::filesystem::create_directories(mine_ / "msr");
  std::ofstream rows(mine_ / "msr/msr_paraphrase_train.txt");
  rows << "\xEF\xBB\xBFQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n";
  for (const std::string& line : lines(8)) rows << "1\t1\t2\t" << line << "\t" << line << "\n";
  rows.close();
  const std::vector<std::string> words = {
      "--task_name", "mrpc", "--data",           mine_ / "msr", "--tokenizer_name", vocabulary(),
      "--max_steps", "1",    "--max_seq_length", "24",          "--output_dir",     out()};
  const auto done = shoal(words_of(tiny_bert(), words));
  ASSERT_EQ(done.status, 0) << done.err;
  EXPECT_THAT(done.out, HasSubstr("there is no validation_file: " + (mine_ / "msr")));
  auto evaluating = words;
  evaluating.insert(evaluating.end(), {"--eval_strategy", "epoch", "--overwrite_output_dir"});
  expect_refused(shoal(words_of(tiny_bert(), evaluating)), "there is no validation set");
}

// Streaming shards of rows in order gives the same training as one file of these rows in order.
TEST_F(ShoalTasks, RowsAreStreamedShardByShard) {
  std::filesystem::create_directories(mine_ / "shards");
  std::ifstream whole(mine_ / "train.tsv");
  std::string header, line;
  std::getline(whole, header);
  for (int shard = 0; shard < 4; ++shard) {
    std::ofstream file(mine_ / fmt::format("shards/part-{}.tsv", shard));
    file << header << "\n";
    for (int i = 0; i < 16 && std::getline(whole, line); ++i) file << line << "\n";
  }
  const std::vector<std::string> same = {"--max_steps", "8", "--output_dir"};
  auto one = same, stream = same;
  one.insert(one.end(), {mine_ / "one", "--train_sampling_strategy", "sequential"});
  stream.insert(stream.end(), {mine_ / "stream", "--streaming", "true", "--train_file",
                               mine_ / "shards", "--shuffle_buffer_size", "0"});
  const auto alone = shoal(classify(tiny_bert(), one));
  ASSERT_EQ(alone.status, 0) << alone.err;
  expect_refused(shoal(classify(tiny_bert(), stream)),
                 "what classes there are is not known without reading every shard");
  // `datasets` writes the class names beside its shards.
  const std::string info = mine_ / "shards/dataset_info.json";
  std::ofstream(info) << R"({"features": {"label": {"names": ["awful", "fine"]}}})";
  const auto streamed = shoal(classify(tiny_bert(), stream));
  ASSERT_EQ(streamed.status, 0) << streamed.err;
  EXPECT_THAT(streamed.out, HasSubstr("on a stream of 4 shards, in their order"));
  EXPECT_EQ(losses(mine_ / "stream"), losses(mine_ / "one"));
  ASSERT_EQ(losses(mine_ / "one").size(), 8U);
  EXPECT_EQ(json_of(mine_ / "stream" + "/eval_results.json")["eval_accuracy"],
            json_of(mine_ / "one" + "/eval_results.json")["eval_accuracy"]);
  // The user may also give the names, and may be wrong.
  std::filesystem::remove(info);
  auto listed = stream;
  listed.insert(listed.end(), {"--label_list", "awful,great", "--validation_file", ""});
  expect_refused(shoal(classify(tiny_bert(), listed)), "part-0.tsv, line 2");
  listed = stream;
  listed.insert(listed.end(), {"--label_list", "awful,fine", "--group_by_length", "true"});
  expect_refused(shoal(classify(tiny_bert(), listed)), "shuffle_buffer_size 0 reads a stream in");
}

// Two objects of a channel in Pipe mode arrive one after the other, each with its header.
TEST_F(ShoalTasks, RowsComeThroughPipes) {
  std::string rows = text_of(mine_ / "train.tsv");
  std::ranges::replace(rows, '\t', ',');
  const std::string header = rows.substr(0, rows.find('\n') + 1);
  const std::size_t middle = rows.find('\n', rows.size() / 2) + 1;
  const testing::PipeWriter writer(mine_ / "rows",
                                   rows.substr(0, middle) + header + rows.substr(middle));
  const auto piped =
      shoal(classify(tiny_bert(), {"--max_steps", "20", "--streaming", "true", "--train_file",
                                   "pipe://" + (mine_ / "rows.csv"), "--shuffle_buffer_size", "0",
                                   "--label_list", "awful,fine", "--output_dir", mine_ / "piped"}));
  ASSERT_EQ(piped.status, 0) << piped.err;
  EXPECT_THAT(piped.out, HasSubstr("on a stream from " + (mine_ / "rows.csv")));
  const auto whole = shoal(classify(tiny_bert(), {"--max_steps", "20", "--train_sampling_strategy",
                                                  "sequential", "--output_dir", mine_ / "whole"}));
  ASSERT_EQ(whole.status, 0) << whole.err;
  EXPECT_EQ(losses(mine_ / "piped"), losses(mine_ / "whole"));
  EXPECT_GE(writer.epochs_begun(), 2);
}

// A decoder classifies by the last token, whatever the padding after it.
TEST_F(ShoalTasks, ALlamaClassifies) {
  const auto trained =
      shoal(classify(tiny_llama(), {"--num_train_epochs", "10", "--output_dir", out()}));
  ASSERT_EQ(trained.status, 0) << trained.err;
  EXPECT_THAT(trained.out, AllOf(HasSubstr("llama for sequence classification"),
                                 HasSubstr("2 labels"), HasSubstr("21 predictions in ")));
  EXPECT_EQ(json_of(out() + "/eval_results.json")["eval_accuracy"], 1.0);
  const nlohmann::json config = json_of(out() + "/config.json");
  EXPECT_EQ(config["architectures"][0], "LlamaForSequenceClassification");
  EXPECT_EQ(config["id2label"]["0"], "awful");
  EXPECT_EQ(config["pad_token_id"], 0);
  const auto again =
      shoal({"train", "--model_name_or_path", out(), "--do_train", "false", "--validation_file",
             mine_ / "dev.tsv", "--output_dir", mine_ / "again", "--pad_to_max_length"});
  ASSERT_EQ(again.status, 0) << again.err;
  EXPECT_NEAR(json_of(mine_ / "again" + "/eval_results.json")["eval_loss"].get<double>(),
              json_of(out() + "/eval_results.json")["eval_loss"].get<double>(), 1e-5);
  expect_refused(shoal(classify(tiny_llama(), {"--task", "masked-lm"})),
                 "gpt2, llama, mistral, qwen2, qwen3, gpt_neox, gemma, gemma2, gemma3_text do "
                 "causal-lm, "
                 "text-classification, question-answering ");
}

// GPT-2 pads with its end-of-text token, and the saved directory records it.
TEST_F(ShoalTasks, AGpt2Classifies) {
  // The token's id must not be 0, which is the default padding value.
  const auto tokenizer =
      shoal({"tokenizer", "train", "--vocab-size", "300", "--special-token", "<|first|>",
             "<|endoftext|>", "-o", mine_ / "tok", *data_ / "train.txt"});
  ASSERT_EQ(tokenizer.status, 0) << tokenizer.err;
  const auto words =
      overlaid(overlaid(classify({}, {}), tiny_gpt2()), {"--tokenizer_name", mine_ / "tok"});
  const auto trained = shoal(overlaid(words, {"--num_train_epochs", "12", "--output_dir", out()}));
  ASSERT_EQ(trained.status, 0) << trained.err;
  EXPECT_THAT(trained.out, AllOf(HasSubstr("gpt2 for sequence classification"),
                                 HasSubstr("no token is for padding: <|endoftext|> (1)"),
                                 HasSubstr("21 predictions in ")));
  EXPECT_EQ(json_of(out() + "/eval_results.json")["eval_accuracy"], 1.0);
  const nlohmann::json config = json_of(out() + "/config.json");
  EXPECT_EQ(config["architectures"][0], "GPT2ForSequenceClassification");
  EXPECT_EQ(config["pad_token_id"], 1);
  EXPECT_EQ(json_of(out() + "/tokenizer_config.json")["pad_token"], "<|endoftext|>");
  // The saved model is evaluated with another padded length.
  const auto again =
      shoal({"train", "--model_name_or_path", out(), "--do_train", "false", "--validation_file",
             mine_ / "dev.tsv", "--output_dir", mine_ / "again", "--pad_to_max_length"});
  ASSERT_EQ(again.status, 0) << again.err;
  EXPECT_THAT(again.out, ::testing::Not(HasSubstr("no token is for padding")));
  EXPECT_NEAR(json_of(mine_ / "again" + "/eval_results.json")["eval_loss"].get<double>(),
              json_of(out() + "/eval_results.json")["eval_loss"].get<double>(), 1e-5);
  // config.json decides the padding token, even if the tokenizer names another one.
  const auto other =
      shoal({"train", "--model_name_or_path", out(), "--tokenizer_name", mine_ / "tok",
             "--do_train", "false", "--validation_file", mine_ / "dev.tsv", "--output_dir",
             mine_ / "other", "--pad_to_max_length"});
  ASSERT_EQ(other.status, 0) << other.err;
  EXPECT_EQ(json_of(mine_ / "other" + "/eval_results.json")["eval_loss"],
            json_of(mine_ / "again" + "/eval_results.json")["eval_loss"]);
}

TEST_F(ShoalTasks, RanksOfGpt2PredictAsOne) {
  expect_ranks_as_one(overlaid(classify({}, {"--max_steps", "5"}), tiny_gpt2()),
                      {"predict_results.txt"});
}

// Grouping rows of similar length needs less padding. The samples are the same for any number of
// ranks.
TEST_F(ShoalTasks, GroupsRowsByLength) {
  std::ofstream rows(mine_ / "mixed.tsv");
  rows << "sentence\tlabel\n";
  int i = 0;
  for (const std::string& line : lines(64)) {
    rows << "the water " << (i % 2 == 0 ? "good" : "bad") << (i % 3 == 0 ? " " + line : "") << "\t"
         << i % 2 << "\n";
    ++i;
  }
  rows.close();
  const auto tokens = [&](const std::string& name, const std::vector<std::string>& more) {
    const auto done = shoal(overlaid(
        words_of(tiny_bert(), {"--task", "text-classification", "--tokenizer_name", vocabulary(),
                               "--train_file", mine_ / "mixed.tsv", "--num_train_epochs", "1",
                               "--pad_to_multiple_of", "1", "--output_dir", mine_ / name}),
        more));
    EXPECT_EQ(done.status, 0) << done.err;
    std::int64_t seen = 0;
    std::ifstream file(mine_ / name + "/metrics.jsonl");
    for (std::string line; std::getline(file, line);)
      seen = std::max(seen, nlohmann::json::parse(line).value("tokens_seen", std::int64_t{0}));
    return seen;
  };
  const std::int64_t drawn = tokens("drawn", {}),
                     grouped = tokens("grouped", {"--group_by_length", "true"});
  EXPECT_LT(grouped, 0.8 * static_cast<double>(drawn));
  // The minimum is the rows' own tokens: 22 rows of about 16 and 42 of 5 tokens.
  EXPECT_GT(grouped, 500);
}

TEST_F(ShoalTasks, RefusesWhatDoesNotFit) {
  const auto refused = [&](const std::vector<std::string>& more, const std::string& words,
                           int status = 2) {
    const auto result = shoal(classify(tiny_bert(), more));
    expect_refused(result, words);
    EXPECT_EQ(result.status, status) << words;
  };
  expect_refused(train({"--task", "masked-lm"}), "gpt2, which has no head for masked-lm");
  expect_refused(train({"--task", "causal-lm", "--task_name", "sst2"}),
                 "task_name is given, but the task is causal-lm");
  expect_refused(
      shoal({"train", "--model_type", "xlnet", "--train_file", *data_ / "train.txt"}),
      "it takes one of gpt2, llama, mistral, qwen2, qwen3, gpt_neox, gemma, gemma2, gemma3_text, "
      "bert, roberta, distilbert, albert, xlm-roberta, electra, modernbert, t5, bart, mbart");
  expect_refused(shoal({"train", "--model_type", "bert", "--tokenizer_name", vocabulary(),
                        "--train_file", *data_ / "train.txt"}),
                 "give --task");
  refused({"--tokenizer_name", ""}, "needs a tokenizer");
  refused({"--test_file", ""}, "do_predict needs a test_file");
  refused({"--metric_for_best_model", "f1"}, "use one of loss, accuracy");
  refused({"--label_column_name", "mood", "--text_column_names", "sentence"},
          "there is no column 'mood'");
  std::ofstream(mine_ / "bad.tsv") << "sentence\tlabel\nthe shoal\tfine\nthe\tfish\tbad\n";
  refused({"--train_file", mine_ / "bad.tsv"}, "bad.tsv, line 3", 3);
  refused({"--train_file", mine_.path()}, "names several files, and takes one");
  std::ofstream(mine_ / "other.tsv") << "sentence\tlabel\nthe shoal\tfine\nthe fish\tgreat\n";
  refused({"--validation_file", mine_ / "other.tsv"}, "other.tsv, line 3", 3);
}

// On commit 39c9efe0 each file had its own columns, chosen from its first record.
TEST_F(ShoalTasks, ReadsTheSameColumnsInEveryFile) {
  std::ofstream(mine_ / "more.tsv") << "idx\tsentence\tlabel\n0\tthe shoal\tfine\n";
  expect_refused(shoal(classify(tiny_bert(), {"--validation_file", mine_ / "more.tsv"})),
                 "more.tsv: the run would read idx and sentence here, but sentence in train.tsv; "
                 "name the columns with text_column_names");
  std::ofstream(mine_ / "late.jsonl") << R"({"sentence1": "the", "label": "fine"})"
                                      << "\n"
                                      << R"({"sentence1": "a", "sentence2": "b", "label": "awful"})"
                                      << "\n";
  expect_refused(shoal(classify(tiny_bert(), {"--train_file", mine_ / "late.jsonl"})),
                 "late.jsonl, line 1: there is no field 'sentence2'");
  std::filesystem::create_directories(mine_ / "shards");
  for (const auto& [name, second] : {std::pair{"a", ""}, {"b", R"("sentence2": "fish", )"}})
    std::ofstream(mine_ / fmt::format("shards/{}.jsonl", name))
        << R"({"sentence1": "the shoal", )" << second << R"("label": "fine"})"
        << "\n";
  expect_refused(
      shoal(words_of(
          tiny_bert(),
          {"--task", "text-classification", "--tokenizer_name", vocabulary(), "--streaming", "true",
           "--max_steps", "8", "--shuffle_buffer_size", "0", "--label_list", "awful,fine",
           "--train_file", mine_ / "shards", "--output_dir", mine_ / "stream"})),
      "b.jsonl: the run would read sentence1 and sentence2 here, but sentence1 in a.jsonl");
}

}  // namespace
}  // namespace shoal
