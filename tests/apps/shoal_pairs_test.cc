// The real program on summarization and translation: a tiny T5 and a tiny BART learn to reverse
// words, and to leave noise out.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iomanip>
#include <set>

#include "apps/piece_tokenizer.h"
#include "apps/shoal_task_fixture.h"
#include "support/golden.h"
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

namespace shoal {
namespace {

using nlohmann::json;

const std::vector<std::string> kWords = {"red", "blue", "sun", "sea", "old", "new",
                                         "cat", "dog",  "one", "two", "yes", "no"};

struct Pair {
  std::string source, target;
};

class ShoalPairs : public ShoalOnTasks {
 protected:
  void SetUp() override {
    std::vector<std::string> words = kWords;
    words.emplace_back("noise");
    write_piece_tokenizer(tokenizer(), words);
  }

  std::string tokenizer() const { return mine_ / "pieces"; }

  // Three to five words; the target reverses them.
  static std::vector<Pair> reversed(int count, unsigned seed) {
    std::vector<Pair> pairs;
    unsigned x = seed;
    const auto draw = [&x](unsigned bound) {
      x = x * 1664525U + 1013904223U;
      return (x >> 16U) % bound;
    };
    for (int i = 0; i < count; ++i) {
      Pair pair;
      for (unsigned left = 3 + draw(3); left > 0; --left) {
        const std::string& word = kWords[draw(static_cast<unsigned>(kWords.size()))];
        pair.source += (pair.source.empty() ? "" : " ") + word;
        pair.target = word + (pair.target.empty() ? "" : " ") + pair.target;
      }
      pairs.push_back(pair);
    }
    return pairs;
  }
  // The target is the source without the words that are noise.
  static std::vector<Pair> noisy(int count, unsigned seed) {
    std::vector<Pair> pairs = reversed(count, seed);
    for (Pair& pair : pairs) {
      std::string source;
      pair.target = pair.source;
      for (const char c : pair.source) source += c == ' ' ? " noise " : std::string(1, c);
      pair.source = source;
    }
    return pairs;
  }

  std::string write_translations(const std::string& name, const std::vector<Pair>& pairs) const {
    std::ofstream file(mine_ / name);
    for (const Pair& pair : pairs)
      file << json{{"translation", {{"en", pair.source}, {"de", pair.target}}}} << "\n";
    return mine_ / name;
  }
  std::string write_summaries(const std::string& name, const std::vector<Pair>& pairs) const {
    std::ofstream file(mine_ / name);
    file << "text,summary\n";
    for (const Pair& pair : pairs) file << pair.source << "," << pair.target << "\n";
    return mine_ / name;
  }

  static std::vector<std::string> tiny_t5() {
    return {"--model_type", "t5", "--config_overrides",
            "d_model=64,d_kv=16,d_ff=128,num_layers=2,num_heads=4,dropout_rate=0,"
            "relative_attention_num_buckets=8,relative_attention_max_distance=16"};
  }
  static std::vector<std::string> tiny_bart() {
    return {"--model_type", "bart", "--config_overrides",
            "d_model=64,encoder_layers=2,decoder_layers=2,encoder_ffn_dim=128,decoder_ffn_dim=128,"
            "encoder_attention_heads=4,decoder_attention_heads=4,max_position_embeddings=64,"
            "dropout=0,init_std=0.1"};
  }
  std::vector<std::string> learns(const std::vector<std::string>& model,
                                  const std::vector<std::string>& more) const {
    return overlaid(
        words_of(model, {"--tokenizer_name", tokenizer(), "--max_source_length", "32",
                         "--max_target_length", "16", "--pad_to_multiple_of", "4",
                         "--per_device_train_batch_size", "32", "--per_device_eval_batch_size",
                         "32", "--lr_scheduler_type", "linear", "--warmup_steps", "20"}),
        more);
  }
  static std::vector<std::string> languages() {
    return {"--task", "translation", "--source_lang", "en", "--target_lang", "de"};
  }
  static std::vector<std::string> lines_of(const std::string& text) {
    std::vector<std::string> lines;
    std::istringstream stream(text);
    for (std::string line; std::getline(stream, line);) lines.push_back(line);
    return lines;
  }
  // The share of lines that equal the pairs' targets.
  static double exact(const std::vector<std::string>& lines, const std::vector<Pair>& pairs) {
    EXPECT_EQ(lines.size(), pairs.size());
    int right = 0;
    for (std::size_t i = 0; i < std::min(lines.size(), pairs.size()); ++i)
      right += lines[i] == pairs[i].target ? 1 : 0;
    return right / static_cast<double>(pairs.size());
  }
};

TEST_F(ShoalPairs, T5LearnsToReverseWords) {
  const std::vector<Pair> held_out = reversed(100, 77);
  const std::string train = write_translations("train.jsonl", reversed(4000, 5)),
                    test = write_translations("test.jsonl", held_out);
  const auto trained = shoal(learns(
      tiny_t5(),
      overlaid(languages(), {"--train_file", train, "--validation_file", test, "--test_file", test,
                             "--do_predict", "--max_steps", "1300", "--output_dir", out()})));
  ASSERT_EQ(trained.status, 0) << trained.err;
  EXPECT_GE(exact(lines_of(text_of(out() + "/generated_predictions.txt")), held_out), 0.99);
  const json metrics = json_of(out() + "/eval_results.json");
  EXPECT_GE(metrics["eval_bleu"], 97.0);
  EXPECT_GE(metrics["eval_chrf"], 97.0);
  const json config = json_of(out() + "/config.json");
  EXPECT_EQ(config["architectures"][0], "T5ForConditionalGeneration");
  EXPECT_TRUE(config["pad_token_id"].is_number());
  EXPECT_EQ(config["decoder_start_token_id"], config["pad_token_id"]);  // transformers needs it

  // The saved model predicts alone, with the same texts.
  const auto lines = shoal(overlaid(
      {"predict", "--model", out(), test, "--max-source-length", "32", "--max-target-length", "16"},
      languages()));
  ASSERT_EQ(lines.status, 0) << lines.err;
  std::vector<std::string> texts;
  for (const std::string& line : lines_of(lines.out)) {
    const json row = json::parse(line);
    EXPECT_EQ(row["index"], texts.size());
    texts.push_back(row["prediction"]);
  }
  EXPECT_EQ(texts, lines_of(text_of(out() + "/generated_predictions.txt")));
  const auto measured = shoal(overlaid({"evaluate", "-m", out(), test, "--json",
                                        "--max-source-length", "32", "--max-target-length", "16"},
                                       languages()));
  ASSERT_EQ(measured.status, 0) << measured.err;
  EXPECT_EQ(json::parse(measured.out)["eval_bleu"], metrics["eval_bleu"]);
}

TEST_F(ShoalPairs, BartLearnsToLeaveNoiseOut) {
  const std::vector<Pair> held_out = noisy(100, 78);
  const std::string train = write_summaries("train.csv", noisy(2000, 6)),
                    test = write_summaries("test.csv", held_out);
  const auto trained =
      shoal(learns(tiny_bart(), {"--task", "summarization", "--train_file", train,
                                 "--validation_file", test, "--test_file", test, "--do_predict",
                                 "--max_steps", "300", "--output_dir", out()}));
  ASSERT_EQ(trained.status, 0) << trained.err;
  EXPECT_GE(exact(lines_of(text_of(out() + "/generated_predictions.txt")), held_out), 0.99);
  const json metrics = json_of(out() + "/eval_results.json");
  for (const char* name : {"eval_rouge1", "eval_rouge2", "eval_rougeL", "eval_rougeLsum"})
    EXPECT_GE(metrics[name], 98.0) << name;
  EXPECT_EQ(json_of(out() + "/generation_config.json")["decoder_start_token_id"], 1);
  // The evaluation after training shows its first texts.
  const std::vector<std::string> samples = lines_of(text_of(out() + "/samples.jsonl"));
  ASSERT_EQ(samples.size(), 4U);
  for (std::size_t i = 0; i < samples.size(); ++i)
    EXPECT_EQ(samples[i],
              fmt::format(R"({{"step":300,"index":{},"source":"{}","reference":"{}",)"
                          R"("text":"{}"}})",
                          i, held_out[i].source, held_out[i].target, held_out[i].target));
}

TEST_F(ShoalPairs, AdaptersLearnOnAFrozenModel) {
  const std::string train = write_translations("train.jsonl", reversed(200, 5));
  const auto words = [&](const std::vector<std::string>& model, const std::string& to,
                         const std::vector<std::string>& more) {
    return learns(
        model, overlaid(overlaid(languages(),
                                 {"--train_file", train, "--validation_file", train, "--max_steps",
                                  "30", "--predict_with_generate", "false", "--output_dir", to}),
                        more));
  };
  for (const auto& model : {tiny_t5(), tiny_bart()}) {
    SCOPED_TRACE(model[1]);
    const std::string base = mine_ / (model[1] + "-base"), adapter = mine_ / (model[1] + "-lora");
    const auto made = shoal(words(model, base, {}));
    ASSERT_EQ(made.status, 0) << made.err;
    const auto trained =
        shoal(words({"--model_name_or_path", base}, adapter,
                    {"--lora_r", "4", "--lora_target_modules", "all-linear", "--lora_alpha", "16",
                     "--max_steps", "60", "--learning_rate", "1e-2"}));
    ASSERT_EQ(trained.status, 0) << trained.err;
    EXPECT_EQ(json_of(adapter + "/adapter_config.json")["task_type"], "SEQ_2_SEQ_LM");
    const double loss = json_of(adapter + "/eval_results.json")["eval_loss"];
    EXPECT_LT(loss, json_of(base + "/eval_results.json")["eval_loss"].get<double>() - 0.1);
    const auto merged = shoal({"checkpoint", "convert", adapter, adapter + "-merged", "--merge"});
    ASSERT_EQ(merged.status, 0) << merged.err;
    std::vector<std::string> texts;
    for (const std::string& directory : {adapter, adapter + "-merged"}) {
      const auto measured =
          shoal(overlaid({"evaluate", "-m", directory, train, "--json", "--max-source-length", "32",
                          "--max-target-length", "16"},
                         languages()));
      ASSERT_EQ(measured.status, 0) << measured.err;
      EXPECT_NEAR(json::parse(measured.out)["eval_loss"], loss, 1e-3);
      const auto text = shoal({"generate", "-m", directory, "-p", "red sun one", "--greedy"});
      ASSERT_EQ(text.status, 0) << text.err;
      texts.push_back(text.out);
    }
    EXPECT_EQ(texts[0], texts[1]);
  }
}

// The same rows as objects, as CSV with quotation and as TSV without.
TEST_F(ShoalPairs, TranslationsInColumnsTrainAsObjectsDo) {
  std::vector<Pair> pairs = reversed(32, 11);
  pairs.push_back({R"(red, "sun" one)", R"(one "sun" red,)"});
  write_translations("rows.jsonl", pairs);
  std::ofstream csv(mine_ / "rows.csv"), tsv(mine_ / "rows.tsv");
  csv << "de,en\n";
  tsv << "en\tde\n";
  for (const Pair& pair : pairs) {
    csv << std::quoted(pair.target, '"', '"') << "," << std::quoted(pair.source, '"', '"') << "\n";
    tsv << pair.source << "\t" << pair.target << "\n";
  }
  csv.close();
  tsv.close();
  std::vector<double> losses;
  for (const char* name : {"rows.jsonl", "rows.csv", "rows.tsv"}) {
    SCOPED_TRACE(name);
    const std::string to = fmt::format("{}-{}", out(), name);
    const auto trained = shoal(
        learns(tiny_t5(), overlaid(languages(), {"--train_file", mine_ / name, "--validation_file",
                                                 mine_ / name, "--predict_with_generate", "false",
                                                 "--max_steps", "3", "--output_dir", to})));
    ASSERT_EQ(trained.status, 0) << trained.err;
    losses.push_back(json_of(to + "/eval_results.json")["eval_loss"]);
  }
  EXPECT_EQ(losses[1], losses[0]);
  EXPECT_EQ(losses[2], losses[0]);
}

// Rows are copied so that each rank predicts several, and their number is odd.
TEST_F(ShoalPairs, RanksLearnAndPredictAsOneDoes) {
  const std::vector<Pair> held_out = reversed(11, 79);
  const std::string train = write_translations("train.jsonl", reversed(64, 7)),
                    test = write_translations("test.jsonl", held_out);
  for (const auto& [model, beams] : {std::pair{tiny_t5(), "4"}, {tiny_bart(), "1"}}) {
    SCOPED_TRACE(model[1]);
    for (const char* name : {"one", "dp", "tp", "pp"}) std::filesystem::remove_all(mine_ / name);
    expect_ranks_as_one(
        learns(model,
               overlaid(languages(),
                        {"--train_file", train, "--validation_file", test, "--test_file", test,
                         "--do_predict", "--per_device_eval_batch_size", "4", "--num_beams", beams,
                         "--num_train_epochs", "5", "--warmup_steps", "0"})),
        {"generated_predictions.txt"});
    EXPECT_EQ(lines_of(text_of(mine_ / "one" + "/generated_predictions.txt")).size(),
              held_out.size());
  }
}

TEST_F(ShoalPairs, RanksThatShareAModelFollowItsGenerationConfig) {
  const std::string train = write_translations("train.jsonl", reversed(64, 7)),
                    base = mine_ / "base";
  const auto made = shoal(learns(
      tiny_t5(), overlaid(languages(), {"--train_file", train, "--max_steps", "20", "--output_dir",
                                        base, "--predict_with_generate", "false"})));
  ASSERT_EQ(made.status, 0) << made.err;
  const auto texts = [&](const json& fields, int ranks, const std::string& mp) {
    json config = json_of(base + "/generation_config.json");
    config.update(fields);
    std::ofstream(base + "/generation_config.json") << config;
    const auto words =
        learns({"--model_name_or_path", base},
               overlaid(languages(), {"--train_file", train, "--test_file", train, "--do_predict",
                                      "--max_steps", "1", "--learning_rate", "0", "--mp_parameters",
                                      mp, "--output_dir", out(), "--overwrite_output_dir"}));
    const auto results = on_ranks(ranks, words);
    for (const auto& result : results) EXPECT_EQ(result.status, 0) << result.err;
    EXPECT_THAT(results[0].out, HasSubstr("num_return_sequences 2; evaluation takes the best"));
    return text_of(out() + "/generated_predictions.txt");
  };
  const json fields = {{"do_sample", true},
                       {"temperature", 1.5},
                       {"no_repeat_ngram_size", 2},
                       {"num_return_sequences", 2}};
  const std::string stages = R"({"pipeline_parallel_degree": 2, "microbatches": 2, "ddp": true})",
                    sampled = texts(fields, 1, "{}");
  EXPECT_EQ(lines_of(sampled).size(), 64U);
  EXPECT_EQ(texts(fields, 2, stages), sampled);
  EXPECT_NE(texts({{"do_sample", false}}, 2, stages), sampled);
  json ends = {1};  // and every word
  for (std::size_t word = 0; word <= kWords.size(); ++word) ends.push_back(4 + word);
  EXPECT_EQ(texts({{"eos_token_id", ends}}, 2, stages).find(' '), std::string::npos);
}

TEST_F(ShoalPairs, RanksWithAdaptersPredictAsOneDoes) {
  const std::vector<Pair> held_out = reversed(11, 79);
  const std::string train = write_translations("train.jsonl", reversed(64, 7)),
                    test = write_translations("test.jsonl", held_out);
  const auto words = [&](const std::vector<std::string>& model,
                         const std::vector<std::string>& more) {
    return learns(
        model,
        overlaid(overlaid(languages(), {"--train_file", train, "--warmup_steps", "0"}), more));
  };
  for (const auto& model : {tiny_t5(), tiny_bart()}) {
    SCOPED_TRACE(model[1]);
    const std::string base = mine_ / (model[1] + "-base");
    for (const char* name : {"one", "dp", "tp", "pp"}) std::filesystem::remove_all(mine_ / name);
    const auto made = shoal(words(model, {"--max_steps", "30", "--output_dir", base}));
    ASSERT_EQ(made.status, 0) << made.err;
    expect_ranks_as_one(
        words({"--model_name_or_path", base},
              {"--lora_r", "4", "--lora_alpha", "16", "--lora_dropout", "0.1",
               "--lora_target_modules", "all-linear", "--learning_rate", "1e-2", "--test_file",
               test, "--do_predict", "--per_device_eval_batch_size", "4", "--max_steps", "10"}),
        {"generated_predictions.txt"});
    const std::string adapted = text_of(mine_ / "one" + "/generated_predictions.txt");
    EXPECT_EQ(lines_of(adapted).size(), held_out.size());
    const auto unadapted = shoal(overlaid({"predict", "--model", base, test, "--max-source-length",
                                           "32", "--max-target-length", "16"},
                                          languages()));
    ASSERT_EQ(unadapted.status, 0) << unadapted.err;
    std::string texts;
    for (const std::string& line : lines_of(unadapted.out))
      texts += json::parse(line)["prediction"].get<std::string>() + "\n";
    EXPECT_NE(texts, adapted) << "the adapters change nothing";
  }
}

// Their other heads. A text's class is in its first word, a word's tag in the word.
TEST_F(ShoalPairs, ModelsOfPairsClassifyTextsAndWords) {
  std::ofstream rows(mine_ / "rows.tsv"), words(mine_ / "words.conll");
  rows << "sentence\tlabel\n";
  for (const Pair& pair : reversed(80, 11)) {
    std::istringstream text(pair.source);
    std::string first, word;
    while (text >> word) {
      if (first.empty()) first = word;
      words << word << " " << (word < "new" ? "B-EARLY" : "O") << "\n";
    }
    words << "\n";
    rows << pair.source << "\t" << (first < "new" ? "early" : "late") << "\n";
  }
  rows.close();
  words.close();
  const auto learning = [&](const std::vector<std::string>& model, const std::string& task,
                            const std::string& file, const std::vector<std::string>& more) {
    return overlaid(
        words_of(model, {"--task", task, "--tokenizer_name", tokenizer(), "--train_file", file,
                         "--validation_file", file, "--test_file", file, "--do_predict",
                         "--per_device_train_batch_size", "8", "--max_seq_length", "32"}),
        more);
  };
  for (const auto& model : {tiny_t5(), tiny_bart()}) {
    SCOPED_TRACE(model[1]);
    std::filesystem::remove_all(out());
    const auto trained = shoal(learning(model, "text-classification", mine_ / "rows.tsv",
                                        {"--max_steps", "60", "--output_dir", out()}));
    ASSERT_EQ(trained.status, 0) << trained.err;
    EXPECT_THAT(trained.out, HasSubstr(model[1] + " for sequence classification"));
    EXPECT_EQ(json_of(out() + "/eval_results.json")["eval_accuracy"], 1.0);
    const json config = json_of(out() + "/config.json");
    EXPECT_EQ(config["architectures"][0],
              model[1] == "t5" ? "T5ForSequenceClassification" : "BartForSequenceClassification");
    EXPECT_EQ(config["id2label"]["0"], "early");
    const auto predicted = shoal({"predict", "-m", out(), mine_ / "rows.tsv"});
    ASSERT_EQ(predicted.status, 0) << predicted.err;
    EXPECT_EQ(lines_of(predicted.out).size(), 80U);

    for (const char* name : {"one", "dp", "tp", "pp"}) std::filesystem::remove_all(mine_ / name);
    expect_ranks_as_one(learning(model, "text-classification", mine_ / "rows.tsv",
                                 {"--max_steps", "5", "--pad_to_multiple_of", "4"}),
                        {"predict_results.txt"});
  }
  std::filesystem::remove_all(out());
  const auto tagged = shoal(learning(tiny_t5(), "token-classification", mine_ / "words.conll",
                                     {"--max_steps", "60", "--output_dir", out()}));
  ASSERT_EQ(tagged.status, 0) << tagged.err;
  EXPECT_GE(json_of(out() + "/eval_results.json")["eval_f1"], 0.99);
  expect_refused(shoal(learning(tiny_bart(), "token-classification", mine_ / "words.conll",
                                {"--output_dir", out()})),
                 "which has no head for token-classification");
}

TEST_F(ShoalPairs, QuestionsAboutArticlesAreLearntByHeart) {
  SHOAL_SHARED_DATA_OR_SKIP(path, "squad-v1.1-sample.json");
  const json squad = json::parse(text_of(path));
  std::ofstream rows(mine_ / "articles.jsonl");
  std::set<std::string> words;
  for (std::size_t i = 0; i < 16; ++i) {
    const json& paragraph = squad["data"][0]["paragraphs"][i];
    const json row = {{"context", paragraph["context"]},
                      {"question", paragraph["qas"][0]["question"]}};
    rows << row << "\n";
    for (const json& text : row) {
      std::istringstream stream(text.get<std::string>());
      for (std::string word; stream >> word;) words.insert(word);
    }
  }
  rows.close();
  write_piece_tokenizer(tokenizer(), {words.begin(), words.end()});
  const auto trained = shoal(learns(tiny_t5(), {"--task",
                                                "summarization",
                                                "--text_column",
                                                "context",
                                                "--summary_column",
                                                "question",
                                                "--train_file",
                                                mine_ / "articles.jsonl",
                                                "--validation_file",
                                                mine_ / "articles.jsonl",
                                                "--predict_with_generate",
                                                "true",
                                                "--max_source_length",
                                                "64",
                                                "--max_target_length",
                                                "32",
                                                "--max_steps",
                                                "150",
                                                "--per_device_train_batch_size",
                                                "16",
                                                "--output_dir",
                                                out()}));
  ASSERT_EQ(trained.status, 0) << trained.err;
  EXPECT_GE(json_of(out() + "/eval_results.json")["eval_rougeL"], 95.0);
}

// The recipes, with a tiny model and a few rows.
TEST_F(ShoalPairs, RecipesTrainInEachVariant) {
  std::filesystem::create_directories(mine_ / "data");
  const auto pairs = reversed(16, 9);
  for (const auto& [recipe, model] : {std::pair{std::string("t5-base-translation"), tiny_t5()},
                                      {std::string("bart-large-summarization"), tiny_bart()}}) {
    const bool translates = recipe.starts_with("t5");
    for (const char* name : {"data/train.jsonl", "data/validation.jsonl"}) {
      std::ofstream file(mine_ / name);
      for (const Pair& pair : pairs)
        file << (translates ? json{{"translation", {{"en", pair.source}, {"de", pair.target}}}}
                            : json{{"article", pair.source}, {"highlights", pair.target}})
             << "\n";
    }
    for (const auto& [variant, ranks] : {std::pair{"", 1}, {"-dp", 2}, {"-mp", 2}}) {
      SCOPED_TRACE(recipe + variant);
      const auto results = on_ranks(
          ranks,
          overlaid(
              overlaid({"train", recipe + variant, "--tokenizer_name", tokenizer(), "--data",
                        mine_ / "data", "--output_dir", mine_ / (recipe + variant)},
                       model),
              {"--max_source_length", "32", "--max_target_length", "16", "--val_max_target_length",
               "16", "--per_device_train_batch_size", "4", "--gradient_accumulation_steps", "1",
               "--max_steps", "2", "--logging_steps", "1"}));
      for (const auto& result : results) ASSERT_EQ(result.status, 0) << result.err;
      const json metrics = json_of(mine_ / (recipe + variant) + "/eval_results.json");
      EXPECT_TRUE(metrics.contains("eval_loss"));
      EXPECT_TRUE(metrics.contains(translates ? "eval_bleu" : "eval_rougeLsum"));
    }
  }
}

TEST_F(ShoalPairs, RefuseOptionsThatCannotBeDone) {
  const std::string train = write_translations("train.jsonl", reversed(8, 7));
  const auto with = [&](const std::vector<std::string>& more) {
    return shoal(learns(
        tiny_t5(),
        overlaid(overlaid(languages(), {"--train_file", train, "--output_dir", out()}), more)));
  };
  expect_refused(with({"--ignore_pad_token_for_loss", "false"}),
                 "the loss would depend on how samples are padded");
  expect_refused(with({"--block_size", "16"}), "give max_source_length and max_target_length");
  expect_refused(with({"--summary_column", "x"}), "give --task summarization");
  expect_refused(with({"--target_lang", "fr"}), "has no text in 'fr'");
  expect_refused(with({"--forced_bos_token", "fr_XX"}), "the tokenizer has no such token");
  expect_refused(with({"--do_predict", "--test_file", train, "--predict_with_generate", "false"}),
                 "predict_with_generate is false");
  expect_refused(with({"--task", "masked-lm", "--source_lang", "", "--target_lang", ""}),
                 "t5, bart and mbart do summarization, translation, span-corruption, denoising, "
                 "text-classification and question-answering, t5 also token-classification");
  expect_refused(with({"--task", "", "--source_lang", "", "--target_lang", ""}),
                 "give --task summarization, translation, span-corruption, denoising, "
                 "text-classification or question-answering");
  expect_refused(
      shoal(overlaid(words_of(tiny_bert(), languages()), {"--train_file", train, "--tokenizer_name",
                                                          tokenizer(), "--output_dir", out()})),
      "which has no head for translation");
}

}  // namespace
}  // namespace shoal
