// The real binary on other tasks than causal language modelling: tiny BERTs that classify rows and
// guess hidden words.
#include <filesystem>
#include <fstream>
#include <iterator>

#include "apps/shoal_fixture.h"
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

namespace shoal {
namespace {

using ::testing::AllOf;

std::string text_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

nlohmann::json json_of(const std::string& path) {
  return nlohmann::json::parse(text_of(path), nullptr, false);
}

class ShoalTasks : public Shoal {
 protected:
  void SetUp() override {
    std::filesystem::create_directories(vocabulary());
    std::ofstream words(vocabulary() + "/vocab.txt");
    words << "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n.\n##s\n";
    for (const char* word : {"the", "shoal", "swims", "in", "cold", "water", "and", "no", "fish",
                             "asks", "where", "it", "goes", "tonight", "good", "bad"})
      words << word << "\n";
    write_rows("train.tsv", 64, "sentence\tlabel\n", true);
    write_rows("dev.tsv", 21, "sentence\tlabel\n", true);
    write_rows("test.tsv", 21, "sentence\n", false);
  }
  std::string vocabulary() const { return mine_ / "words"; }
  // Whether the water is good or bad, said somewhere among other words.
  void write_rows(const std::string& name, int count, const char* header, bool labels) const {
    std::ofstream file(mine_ / name);
    file << header;
    std::string text = sentences(count);
    std::replace(text.begin(), text.end(), '.', ' ');
    std::size_t begin = 0;
    for (int i = 0; i < count; ++i) {
      const std::size_t end = text.find('\n', begin);
      const bool good = (i * 7 + i / 3) % 2 == 0;
      file << "the water " << (good ? "good " : "bad ") << text.substr(begin, end - begin - 1);
      if (labels) file << "\t" << (good ? "fine" : "awful");
      file << "\n";
      begin = end + 1;
    }
  }
  static std::vector<std::string> tiny_bert() {
    return {"--model_type", "bert", "--config_overrides",
            "hidden_size=32,num_hidden_layers=2,num_attention_heads=4,intermediate_size=64,"
            "max_position_embeddings=64,hidden_dropout_prob=0,attention_probs_dropout_prob=0"};
  }
  static std::vector<std::string> words_of(const std::vector<std::string>& model,
                                           const std::vector<std::string>& more) {
    return overlaid(overlaid({"train", "--save_strategy", "no", "--learning_rate", "3e-3",
                              "--logging_steps", "1", "--seed", "3"},
                             model),
                    more);
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

  // As it was saved, and by the names it has.
  const auto again =
      shoal({"train", "--model_name_or_path", out(), "--do_train", "false", "--validation_file",
             mine_ / "dev.tsv", "--output_dir", mine_ / "again"});
  ASSERT_EQ(again.status, 0) << again.err;
  EXPECT_EQ(json_of(mine_ / "again" + "/eval_results.json")["eval_accuracy"], 1.0);
  EXPECT_EQ(json_of(mine_ / "again" + "/eval_results.json")["eval_loss"],
            json_of(out() + "/eval_results.json")["eval_loss"]);
}

TEST_F(ShoalTasks, RanksPredictAsOne) {
  const std::vector<std::string> one_rank = {"--per_device_train_batch_size", "8", "--output_dir",
                                             mine_ / "one"};
  ASSERT_EQ(shoal(classify(tiny_bert(), one_rank)).status, 0);
  const auto losses = [&](const std::string& directory) {
    std::vector<double> all;
    std::ifstream lines(directory + "/metrics.jsonl");
    for (std::string line; std::getline(lines, line);)
      if (const auto record = nlohmann::json::parse(line); record.contains("loss"))
        all.push_back(record["loss"]);
    return all;
  };
  const std::vector<double> expected = losses(mine_ / "one");
  ASSERT_EQ(expected.size(), 40U);
  const std::vector<std::pair<const char*, std::vector<std::string>>> layouts = {
      {"dp", {"--per_device_train_batch_size", "4"}},
      {"tp",
       {"--per_device_train_batch_size", "8", "--mp_parameters",
        R"({"tensor_parallel_degree": 2, "prescaled_batch": true, "ddp": true})"}},
      {"pp",
       {"--per_device_train_batch_size", "8", "--mp_parameters",
        R"({"pipeline_parallel_degree": 2, "microbatches": 2, "ddp": true})"}}};
  for (const auto& [name, more] : layouts) {
    SCOPED_TRACE(name);
    std::vector<std::string> words = more;
    words.insert(words.end(), {"--output_dir", mine_ / name});
    const auto ranks = on_ranks(2, classify(tiny_bert(), words));
    ASSERT_EQ(ranks[0].status, 0) << ranks[0].err;
    EXPECT_EQ(ranks[1].status, 0) << ranks[1].err;
    EXPECT_EQ(text_of(mine_ / name + "/predict_results.txt"),
              text_of(mine_ / "one" + "/predict_results.txt"));
    const std::vector<double> own = losses(mine_ / name);
    ASSERT_EQ(own.size(), expected.size());
    for (std::size_t step = 0; step < own.size(); ++step)
      EXPECT_NEAR(own[step], expected[step], 2e-5 * (1 + expected[step])) << "step " << step + 1;
  }
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
  // A head that is new has nothing to evaluate.
  expect_refused(shoal(classify({"--model_name_or_path", mine_ / "masked"},
                                {"--do_train", "false", "--output_dir", out()})),
                 "do_train is false");
  const auto lines = shoal(words_of(
      {"--model_name_or_path", mine_ / "masked"},
      {"--train_file", *data_ / "train.txt", "--line_by_line", "--block_size", "16", "--max_steps",
       "2", "--whole_word_mask", "--mlm_probability", "0.3", "--output_dir", mine_ / "lines"}));
  EXPECT_EQ(lines.status, 0) << lines.err;
}

TEST_F(ShoalTasks, RefusesWhatDoesNotFit) {
  const auto refused = [&](const std::vector<std::string>& more, const std::string& words) {
    expect_refused(shoal(classify(tiny_bert(), more)), words);
  };
  expect_refused(train({"--task", "text-classification"}), "gpt2, which has no head for");
  expect_refused(train({"--task_name", "sst2"}), "task_name is given, but the task is causal-lm");
  expect_refused(shoal({"train", "--model_type", "t5", "--train_file", *data_ / "train.txt"}),
                 "gpt2, bert, roberta, distilbert and albert are known");
  expect_refused(shoal({"train", "--model_type", "bert", "--tokenizer_name", vocabulary(),
                        "--train_file", *data_ / "train.txt"}),
                 "give --task");
  refused({"--tokenizer_name", ""}, "needs a tokenizer");
  refused({"--test_file", ""}, "do_predict needs a test_file");
  refused({"--metric_for_best_model", "f1"}, "use one of loss, accuracy");
  refused({"--label_column_name", "mood", "--text_column_names", "sentence"},
          "there is no column 'mood'");
  std::ofstream(mine_ / "bad.tsv") << "sentence\tlabel\nthe shoal\tfine\nthe\tfish\tbad\n";
  refused({"--train_file", mine_ / "bad.tsv"}, "bad.tsv, line 3");
  std::ofstream(mine_ / "other.tsv") << "sentence\tlabel\nthe shoal\tfine\nthe fish\tgreat\n";
  refused({"--validation_file", mine_ / "other.tsv"}, "other.tsv, line 3");
}

}  // namespace
}  // namespace shoal
