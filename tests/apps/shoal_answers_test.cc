// The real program on questions about texts and on tagged words.
#include <algorithm>
#include <filesystem>
#include <fstream>

#include "apps/shoal_task_fixture.h"
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

namespace shoal {
namespace {

using nlohmann::json;
using ::testing::AllOf;

// Each text contains "good" or "bad", and its question asks for that word.
class ShoalQuestions : public ShoalOnTasks {
 protected:
  void SetUp() override {
    ShoalOnTasks::SetUp();
    write("train.json", 48, true);
    write("dev.json", 21, true);
    write("test.json", 21, false);
  }
  static std::string answer_of(int i) { return i % 3 == 0 ? "bad" : "good"; }
  void write(const std::string& name, int count, bool answers) const {
    json entries = json::array();
    int i = 0;
    for (const std::string& line : lines(count)) {
      // Every fourth text is too long for one feature.
      std::string context = line + " " + answer_of(i) + " water";
      if (i % 4 == 0) context = line + " " + line + " " + context;
      json question = {{"id", fmt::format("q{}", i)}, {"question", "where it goes"}};
      if (answers)
        question["answers"] = {
            {{"text", answer_of(i)}, {"answer_start", context.find(" " + answer_of(i)) + 1}}};
      entries.push_back(
          {{"title", "t"},
           {"paragraphs", {{{"context", context}, {"qas", json::array({question})}}}}});
      ++i;
    }
    std::ofstream(mine_ / name) << json{{"version", "1.1"}, {"data", entries}};
  }
  std::vector<std::string> ask(const std::vector<std::string>& model,
                               const std::vector<std::string>& more) const {
    return overlaid(words_of(model, {"--task",
                                     "question-answering",
                                     "--tokenizer_name",
                                     vocabulary(),
                                     "--train_file",
                                     mine_ / "train.json",
                                     "--validation_file",
                                     mine_ / "dev.json",
                                     "--test_file",
                                     mine_ / "test.json",
                                     "--do_predict",
                                     "--max_seq_length",
                                     "24",
                                     "--doc_stride",
                                     "6",
                                     "--max_answer_length",
                                     "4",
                                     "--n_best_size",
                                     "3",
                                     "--num_train_epochs",
                                     "3"}),
                    more);
  }
};

TEST_F(ShoalQuestions, LearnsToAnswer) {
  const auto trained = shoal(ask(tiny_bert(), {"--num_train_epochs", "8", "--output_dir", out()}));
  ASSERT_EQ(trained.status, 0) << trained.err;
  EXPECT_THAT(trained.out, AllOf(HasSubstr("bert for question answering"),
                                 HasSubstr("train.json: 48 questions, 60 features of at most 24"),
                                 HasSubstr("predict_predictions.json")));
  const json results = json_of(out() + "/eval_results.json");
  EXPECT_EQ(results["eval_exact_match"], 100.0) << results;
  EXPECT_EQ(results["eval_f1"], 100.0);
  EXPECT_EQ(json_of(out() + "/config.json")["architectures"][0], "BertForQuestionAnswering");
  // Keyed by id, in the order of the file.
  json answers = json::object();
  std::string in_order = "{";
  for (int i = 0; i < 21; ++i) {
    answers[fmt::format("q{}", i)] = answer_of(i);
    in_order += fmt::format("{}\n    \"q{}\": \"{}\"", i > 0 ? "," : "", i, answer_of(i));
  }
  EXPECT_EQ(text_of(out() + "/predict_predictions.json"), in_order + "\n}\n");
  EXPECT_EQ(json_of(out() + "/eval_predictions.json"), answers);
  const json best = json_of(out() + "/predict_nbest_predictions.json");
  ASSERT_EQ(best.size(), 21U);
  EXPECT_EQ(best["q0"].size(), 3U);
  EXPECT_EQ(best["q0"][0]["text"], "bad");
  EXPECT_GT(best["q0"][0]["probability"], best["q0"][1]["probability"]);
  EXPECT_FALSE(json_of(out() + "/predict_results.json").contains("test_f1"));  // without answers

  const auto predicted = shoal(
      {"predict", "-m", out(), mine_ / "test.json", "--max_seq_length", "24", "--doc_stride", "6"});
  ASSERT_EQ(predicted.status, 0) << predicted.err;
  const json first = json::parse(predicted.out.substr(0, predicted.out.find('\n')));
  EXPECT_EQ(first["id"], "q0");
  EXPECT_EQ(first["prediction"], "bad");
  EXPECT_GT(first["probability"], 0.5);

  // The saved config.json states the task. Only the first questions are evaluated.
  const auto again =
      shoal({"train", "--model_name_or_path", out(), "--do_train", "false", "--validation_file",
             mine_ / "dev.json", "--max_eval_samples", "5", "--max_seq_length", "24",
             "--doc_stride", "6", "--output_dir", mine_ / "again"});
  ASSERT_EQ(again.status, 0) << again.err;
  EXPECT_EQ(json_of(mine_ / "again" + "/eval_results.json")["eval_f1"], 100.0);
  EXPECT_EQ(json_of(mine_ / "again" + "/eval_predictions.json").size(), 5U);
}

TEST_F(ShoalQuestions, RanksAnswerAsOne) {
  // The softmaxes of answers run over padding too.
  expect_ranks_as_one(ask(tiny_bert(), {"--pad_to_max_length"}),
                      {"predict_predictions.json", "eval_predictions.json"});
}

// For decoders the question comes before the context, without special tokens around them.
TEST_F(ShoalQuestions, AGpt2Answers) {
  const auto trained = shoal(overlaid(
      ask({}, {"--num_train_epochs", "10", "--max_seq_length", "40", "--output_dir", out()}),
      tiny_gpt2()));
  ASSERT_EQ(trained.status, 0) << trained.err;
  EXPECT_THAT(trained.out, HasSubstr("gpt2 for question answering"));
  EXPECT_EQ(json_of(out() + "/eval_results.json")["eval_exact_match"], 100.0);
  EXPECT_EQ(json_of(out() + "/config.json")["architectures"][0], "GPT2ForQuestionAnswering");
}

TEST_F(ShoalQuestions, RanksOfLlamaAnswerAsOne) {
  expect_ranks_as_one(ask(tiny_llama(), {"--pad_to_max_length", "--max_steps", "5"}),
                      {"predict_predictions.json", "eval_predictions.json"});
}

TEST_F(ShoalQuestions, AnswersThatThereIsNone) {
  std::string text = text_of(mine_ / "dev.json");
  json file = json::parse(text);
  file["data"][0]["paragraphs"][0]["qas"][0]["answers"] = json::array();
  std::ofstream(mine_ / "dev2.json") << file;
  const auto run = [&](const std::vector<std::string>& more) {
    return shoal(ask(tiny_bert(), overlaid({"--validation_file", mine_ / "dev2.json", "--max_steps",
                                            "1", "--output_dir", out()},
                                           more)));
  };
  expect_refused(run({}), "version_2_with_negative");
  ASSERT_EQ(run({"--version_2_with_negative"}).status, 0);
  EXPECT_EQ(json_of(out() + "/eval_results.json")["eval_NoAns_total"], 1.0);
  EXPECT_EQ(json_of(out() + "/predict_null_odds.json").size(), 21U);
  // With this option the question is left out.
  const auto skipped = run({"--skip_bad_rows"});
  EXPECT_EQ(skipped.status, 0) << skipped.err;
  EXPECT_THAT(skipped.out, HasSubstr("dev2.json: 1 questions are left out"));
}

TEST_F(ShoalQuestions, AreStreamed) {
  for (const char* name : {"a.json", "b.json"}) write(name, 24, true);
  const auto streamed =
      shoal(ask(tiny_bert(), {"--streaming", "true", "--max_steps", "6", "--train_file",
                              mine_ / "a.json" + "," + mine_ / "b.json", "--output_dir", out()}));
  ASSERT_EQ(streamed.status, 0) << streamed.err;
  EXPECT_THAT(streamed.out,
              AllOf(HasSubstr("on a stream of 2 shards"), HasSubstr("dev.json: 21 questions"),
                    ::testing::Not(HasSubstr("a.json: 24 questions"))));
  EXPECT_EQ(losses(out()).size(), 6U);
}

TEST_F(ShoalQuestions, RefusesWhatDoesNotFit) {
  const auto refused = [&](const std::vector<std::string>& more, const std::string& words) {
    expect_refused(shoal(ask(tiny_bert(), more)), words);
  };
  refused({"--test_file", ""}, "do_predict needs a test_file");
  refused({"--max_seq_length", "128"}, "the model has 64 positions");
  refused({"--doc_stride", "22"}, "no more than doc_stride 22");
  refused({"--text_column_names", "question"},
          "give --task text-classification or token-classification");
  refused({"--metric_for_best_model", "accuracy"}, "use one of loss, exact_match, f1");
  refused({"--train_file", mine_ / "none.json"}, "none.json");
  std::ofstream(mine_ / "empty.json") << "";
  refused({"--train_file", mine_ / "empty.json"}, "empty.json");
  std::ofstream(mine_ / "none.json") << R"({"data": []})";
  refused({"--train_file", mine_ / "none.json"}, "no question of 0 entries can be used");
  json file = json_of(mine_ / "dev.json");
  file["data"][7]["paragraphs"][0]["qas"][0]["answers"][0]["answer_start"] = 1;
  std::ofstream(mine_ / "bad.json") << file;
  refused({"--validation_file", mine_ / "bad.json"},
          "entry 7, paragraph 0, question 0 (q7): the answer 'good' is not at character 1");
  refused({"--label_all_tokens"}, "label_all_tokens is given, but the task is question-answering");
}

// The tags mark which water is cold, as entities of two words.
class ShoalTags : public ShoalOnTasks {
 protected:
  void SetUp() override {
    ShoalOnTasks::SetUp();
    write("train.conll", 64, true);
    write("dev.conll", 21, true);
    write("test.conll", 21, false);
  }
  static std::string tag_of(const std::string& word) {
    if (word == "cold") return "B-TEMP";
    return word == "goods" ? "I-TEMP" : "O";
  }
  static std::vector<std::vector<std::string>> tagged(int count) {
    std::vector<std::vector<std::string>> all;
    for (const std::string& line : lines(count)) {
      std::vector<std::string>& words = all.emplace_back();
      std::istringstream in(line + " it");
      for (std::string word; in >> word;) {
        words.push_back(word);
        if (word == "cold") words.emplace_back("goods");  // two tokens
      }
    }
    return all;
  }
  void write(const std::string& name, int count, bool tags) const {
    std::ofstream file(mine_ / name);
    for (const auto& words : tagged(count)) {
      for (const std::string& word : words)
        file << word << (tags ? " X " + tag_of(word) : std::string()) << "\n";
      file << "\n";
    }
  }
  std::vector<std::string> tag(const std::vector<std::string>& model,
                               const std::vector<std::string>& more) const {
    return overlaid(
        words_of(model, {"--task", "token-classification", "--tokenizer_name", vocabulary(),
                         "--train_file", mine_ / "train.conll", "--validation_file",
                         mine_ / "dev.conll", "--test_file", mine_ / "test.conll", "--do_predict",
                         "--pad_to_multiple_of", "4", "--num_train_epochs", "1"}),
        more);
  }
};

TEST_F(ShoalTags, LearnsToTag) {
  const auto trained = shoal(tag(tiny_bert(), {"--num_train_epochs", "14", "--output_dir", out()}));
  ASSERT_EQ(trained.status, 0) << trained.err;
  EXPECT_THAT(trained.out, AllOf(HasSubstr("bert for token classification"), HasSubstr("3 labels"),
                                 HasSubstr("21 predictions in ")));
  const json results = json_of(out() + "/eval_results.json");
  for (const char* name : {"eval_precision", "eval_recall", "eval_f1", "eval_accuracy"})
    EXPECT_EQ(results[name], 1.0) << name;
  const json config = json_of(out() + "/config.json");
  EXPECT_EQ(config["id2label"], json({{"0", "B-TEMP"}, {"1", "I-TEMP"}, {"2", "O"}}));
  EXPECT_EQ(config["architectures"][0], "BertForTokenClassification");
  std::string expected;
  for (const auto& words : tagged(21)) {
    for (std::size_t w = 0; w < words.size(); ++w)
      expected += (w > 0 ? " " : "") + tag_of(words[w]);
    expected += "\n";
  }
  EXPECT_EQ(text_of(out() + "/predictions.txt"), expected);
  const auto predicted = shoal({"predict", "-m", out(), mine_ / "test.conll"});
  ASSERT_EQ(predicted.status, 0) << predicted.err;
  const json first = json::parse(predicted.out.substr(0, predicted.out.find('\n')));
  EXPECT_EQ(first["words"], json(tagged(1)[0]));
  EXPECT_EQ(first["prediction"].size(), first["words"].size());
  for (std::size_t w = 0; w < first["words"].size(); ++w)
    EXPECT_EQ(first["prediction"][w], tag_of(first["words"][w]));
  EXPECT_EQ(first["probability"].size(), first["words"].size());

  // The saved model is evaluated on JSON lines and on the same data as CSV. Words within the
  // length limit are tagged.
  std::ofstream lists(mine_ / "dev.jsonl"), cells(mine_ / "dev.csv");
  cells << "words,tags\n";
  for (const auto& words : tagged(21)) {
    std::vector<std::string> tags;
    for (const std::string& word : words) tags.push_back(tag_of(word));
    lists << json{{"tokens", words}, {"ner_tags", tags}} << "\n";
    cells << fmt::format("{},{}\n", fmt::join(words, " "), fmt::join(tags, " "));
  }
  lists.close();
  cells.close();
  for (const char* name : {"dev.jsonl", "dev.csv"}) {
    const auto again =
        shoal({"train", "--model_name_or_path", out(), "--do_train", "false", "--validation_file",
               mine_ / name, "--test_file", mine_ / name, "--do_predict", "--max_seq_length", "5",
               "--return_entity_level_metrics", "--output_dir", mine_ / "again"});
    ASSERT_EQ(again.status, 0) << again.err;
    const json scores = json_of(mine_ / "again" + "/eval_results.json");
    EXPECT_EQ(scores["eval_TEMP_f1"], 1.0) << scores;
    EXPECT_EQ(scores["eval_overall_f1"], 1.0);
    const std::string cut = text_of(mine_ / "again" + "/predictions.txt");
    EXPECT_EQ(std::count(cut.begin(), cut.end(), '\n'), 21);
    EXPECT_THAT(cut, ::testing::StartsWith(expected.substr(0, expected.find(' '))));
    EXPECT_LT(cut.size(), expected.size() / 2);
  }
}

TEST_F(ShoalTags, AGpt2Tags) {
  const auto trained =
      shoal(overlaid(tag({}, {"--num_train_epochs", "14", "--output_dir", out()}), tiny_gpt2()));
  ASSERT_EQ(trained.status, 0) << trained.err;
  EXPECT_THAT(trained.out,
              AllOf(HasSubstr("gpt2 for token classification"), HasSubstr("3 labels")));
  EXPECT_EQ(json_of(out() + "/eval_results.json")["eval_f1"], 1.0);
  EXPECT_EQ(json_of(out() + "/config.json")["architectures"][0], "GPT2ForTokenClassification");
}

TEST_F(ShoalTags, RanksOfGpt2TagAsOne) {
  expect_ranks_as_one(overlaid(tag({}, {"--max_steps", "5"}), tiny_gpt2()), {"predictions.txt"});
}

// datasets' ClassLabel stores numbers; their names are in a file beside the shards.
TEST_F(ShoalTags, AreStreamed) {
  const std::vector<std::string> names = {"B-TEMP", "I-TEMP", "O"};
  std::filesystem::create_directories(mine_ / "shards/train");
  const auto all = tagged(60);
  for (std::size_t shard = 0; shard < 3; ++shard) {
    std::ofstream file(mine_ / fmt::format("shards/train/{}.jsonl", shard));
    for (std::size_t i = shard; i < all.size(); i += 3) {
      std::vector<std::int64_t> ids;
      for (const std::string& word : all[i])
        ids.push_back(std::find(names.begin(), names.end(), tag_of(word)) - names.begin());
      file << json{{"tokens", all[i]}, {"ner_tags", ids}} << "\n";
    }
  }
  const std::vector<std::string> stream = {"--streaming",  "true",         "--max_steps",
                                           "100",          "--train_file", mine_ / "shards/train",
                                           "--output_dir", out()};
  expect_refused(shoal(tag(tiny_bert(), stream)), "give label_list, or put the data set's");
  std::ofstream(mine_ / "shards/dataset_info.json")
      << json{{"features", {{"ner_tags", {{"feature", {{"names", names}}}}}}}};
  const auto streamed = shoal(tag(tiny_bert(), stream));
  ASSERT_EQ(streamed.status, 0) << streamed.err;
  EXPECT_THAT(streamed.out, HasSubstr("on a stream of 3 shards"));
  EXPECT_EQ(json_of(out() + "/config.json")["id2label"]["1"], "I-TEMP");
  EXPECT_GT(json_of(out() + "/eval_results.json")["eval_f1"], 0.9);
}

TEST_F(ShoalTags, RanksTagAsOne) { expect_ranks_as_one(tag(tiny_bert(), {}), {"predictions.txt"}); }

TEST_F(ShoalTags, RefusesWhatDoesNotFit) {
  const auto refused = [&](const std::vector<std::string>& more, const std::string& words) {
    expect_refused(shoal(tag(tiny_bert(), more)), words);
  };
  refused({"--test_file", ""}, "do_predict needs a test_file");
  refused({"--version_2_with_negative"}, "give --task question-answering");
  refused({"--text_column_names", "a,b"}, "text_column_names has 2 names");
  refused({"--metric_for_best_model", "exact"}, "use one of loss, precision, recall, f1, accuracy");
  std::ofstream(mine_ / "bad.conll") << "the O\nshoal\n";
  refused({"--train_file", mine_ / "bad.conll"}, "bad.conll, line 2: 'shoal' is not a word and");
  std::ofstream(mine_ / "empty.conll") << "\n\n";
  refused({"--train_file", mine_ / "empty.conll"}, "no sentence that can be used");
  std::ofstream(mine_ / "other.conll") << "the O\nshoal B-FISH\n";
  refused({"--validation_file", mine_ / "other.conll"},
          "other.conll, line 1: the label is 'B-FISH', none of the 3 classes (B-TEMP, I-TEMP, O)");
  std::ofstream(mine_ / "odd.jsonl") << R"({"tokens": ["a"], "tags": ["O", "O"]})"
                                     << "\n";
  refused({"--train_file", mine_ / "odd.jsonl"}, "odd.jsonl, line 1: 1 words but 2 tags");
  std::ofstream(mine_ / "none.jsonl") << R"({"tokens": [], "tags": []})"
                                      << "\n";
  refused({"--train_file", mine_ / "none.jsonl"}, "none.jsonl: no sentence has a tag");
  // A model of another task: its weights are used, but a head without training is refused.
  ASSERT_EQ(shoal(tag(tiny_bert(), {"--max_steps", "1", "--output_dir", out()})).status, 0);
  expect_refused(
      shoal({"train", "--task", "question-answering", "--model_name_or_path", out(), "--do_train",
             "false", "--validation_file", mine_ / "dev.conll", "--output_dir", mine_ / "again"}),
      "dev.conll");
}

}  // namespace
}  // namespace shoal
