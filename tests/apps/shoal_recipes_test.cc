// The real program on examples/recipes and on hyperparameter dictionaries of SageMaker jobs, with
// tiny models and data instead of the real ones.
#include <filesystem>
#include <fstream>
#include <set>
#include <tuple>

#include "apps/shoal_task_fixture.h"
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

namespace shoal {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::AllOf;

struct Job {
  const char *name, *model_type, *overrides;
};
constexpr Job kJobs[] = {
    {"bert-large-squad", "bert",
     "hidden_size=16,num_hidden_layers=4,num_attention_heads=2,intermediate_size=16"},
    {"roberta-large-mnli", "roberta",
     "hidden_size=16,num_hidden_layers=4,num_attention_heads=2,intermediate_size=16,"
     "max_position_embeddings=514,type_vocab_size=2"},
    {"distilbert-sst2", "distilbert", "dim=16,n_layers=2,n_heads=2,hidden_dim=16"},
    {"albert-base-mlm", "albert",
     "embedding_size=8,hidden_size=16,num_hidden_layers=2,num_attention_heads=2,"
     "intermediate_size=16"},
    {"gpt2-wikitext", "gpt2", "n_layer=4,n_head=2,n_embd=16,n_positions=512"}};

const Job& job_of(const std::string& name) {
  for (const Job& job : kJobs)
    if (name.starts_with(job.name)) return job;
  throw std::out_of_range(name);
}

class Recipes : public ShoalOnTasks {
 protected:
  // A directory with a model of the job's type, initialised from the seed, and its tokenizer.
  std::string model(const Job& job) const {
    const std::string type = job.model_type, directory = mine_ / type;
    const bool causal = type == "gpt2";
    const auto made = shoal({"train", "--task", causal ? "causal-lm" : "masked-lm", "--model_type",
                             type, "--config_overrides", job.overrides, "--tokenizer_name",
                             causal ? *data_ / "tok" : vocabulary(), "--train_file",
                             *data_ / "validation.txt", "--block_size", "16", "--max_steps", "1",
                             "--save_strategy", "no", "--output_dir", directory});
    EXPECT_EQ(made.status, 0) << made.err;
    return directory;
  }

  // Files named as in the published data set.
  std::string data(const Job& job) const {
    const std::string name = job.name, directory = mine_ / "data";
    fs::create_directories(directory);
    const auto open = [&](const std::string& file) {
      const fs::path path = fs::path(directory) / file;
      fs::create_directories(path.parent_path());
      return std::ofstream(path);
    };
    const std::vector<std::string> all = lines(16);
    if (name == "bert-large-squad") {
      json questions = json::array();
      for (std::size_t i = 0; i < all.size(); ++i)
        questions.push_back({{"id", std::to_string(i)},
                             {"question", "where it goes"},
                             {"context", all[i]},
                             {"answers",
                              {{"text", json::array({all[i].substr(0, all[i].find(' '))})},
                               {"answer_start", json::array({0})}}}});
      for (const char* file : {"train-v1.1.json", "dev-v1.1.json"})
        open(file) << json{{"data", questions}};
    } else if (name == "roberta-large-mnli") {
      const char* labels[] = {"entailment", "neutral", "contradiction"};
      for (const char* file :
           {"train", "dev_matched", "dev_mismatched", "test_matched", "test_mismatched"}) {
        std::ofstream rows = open(std::string("MNLI/") + file + ".tsv");
        rows << "index\tsentence1\tsentence2\tgold_label\n";
        for (std::size_t i = 0; i < all.size(); ++i)
          rows << i << "\t" << all[i] << "\tno fish\t" << labels[i % 3] << "\n";
      }
    } else if (name == "distilbert-sst2") {
      for (const char* file : {"train", "dev"}) {
        std::ofstream rows = open(std::string("SST-2/") + file + ".tsv");
        rows << "sentence\tlabel\n";
        for (std::size_t i = 0; i < all.size(); ++i) rows << all[i] << "\t" << i % 2 << "\n";
      }
    } else {
      open("wikitext-103/wiki.train.tokens") << sentences(500);
      open("wikitext-103/wiki.valid.tokens") << sentences(60);
    }
    return directory;
  }
};

class EachRecipe : public Recipes, public ::testing::WithParamInterface<Job> {};

TEST_P(EachRecipe, RunsOnOneRankDataParallelAndModelParallel) {
  const Job& job = GetParam();
  const std::string model = this->model(job), data = this->data(job);
  for (const std::string variant : {"", "-dp", "-mp"}) {
    SCOPED_TRACE(job.name + variant);
    const std::string recipe = job.name + variant;
    const json options = json_of(SHOAL_EXAMPLES "/recipes/" + recipe + ".json");
    ASSERT_TRUE(options.is_object());
    int ranks = variant == "-dp" ? 2 : 1;
    if (variant == "-mp") {
      const json& mp = options.at("mp_parameters");
      ranks = mp.value("partitions", mp.value("pipeline_parallel_degree", 1)) *
              mp.value("tensor_parallel_degree", 1);
      EXPECT_THAT(options.at("_comment").get<std::string>(),
                  HasSubstr(fmt::format("launch {} ranks", ranks)));
    }
    const std::string batch = variant == "-mp" ? "4" : "2";
    const std::string output = mine_ / ("out" + variant);
    const std::vector<std::string> words = {"train",
                                            recipe,
                                            "--model",
                                            model,
                                            "--data",
                                            data,
                                            "--output_dir",
                                            output,
                                            "--max_steps",
                                            "2",
                                            "--per_device_train_batch_size",
                                            batch,
                                            "--per_device_eval_batch_size",
                                            "4",
                                            "--gradient_accumulation_steps",
                                            "1",
                                            "--logging_steps",
                                            "1"};
    const auto results = on_ranks(ranks, words);
    for (const auto& result : results) ASSERT_EQ(result.status, 0) << result.err;
    EXPECT_THAT(results[0].out, AllOf(HasSubstr("steps: 2"), HasSubstr("bf16")));
    EXPECT_EQ(losses(output).size(), 2U);
    EXPECT_TRUE(fs::exists(output + "/model.safetensors"));
    EXPECT_TRUE(json_of(output + "/eval_results.json").contains("eval_loss"));
  }
}

INSTANTIATE_TEST_SUITE_P(Jobs, EachRecipe, ::testing::ValuesIn(kJobs), [](const auto& test) {
  std::string name = test.param.name;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

// Recipes for the user's own rows. The rows are sorted by class, so the front of the file would not
// do for validation.
TEST_F(Recipes, TakeOwnRows) {
  const std::vector<std::string> all = lines(40);
  std::ofstream rows(mine_ / "rows.csv"), sentences(mine_ / "sentences.csv");
  rows << "text,label\n";
  sentences << "tokens,ner_tags\n";
  for (std::size_t i = 0; i < all.size(); ++i) {
    rows << all[i] << (i < 20 ? ",bad\n" : ",good\n");
    sentences << (i < 20 ? "the water,O B-bad\n" : "cold fish,O B-good\n");
  }
  rows.close();
  sentences.close();
  const auto words = [&](const std::string& recipe, const std::string& file,
                         const std::vector<std::string>& more = {}) {
    return overlaid(overlaid({"train", recipe, "--tokenizer_name", vocabulary(), "--train_file",
                              mine_ / file, "--max_steps", "4", "--output_dir", out()},
                             tiny_bert()),
                    overlaid({"--max_seq_length", "16"}, more));
  };
  for (const auto& [recipe, file, metric] :
       {std::tuple{"classify-csv", "rows.csv", "'eval_accuracy'"},
        {"tag-csv", "sentences.csv", "'eval_f1'"}})
    for (const int ranks : {1, 2}) {
      SCOPED_TRACE(recipe);
      fs::remove_all(out());
      const auto results = on_ranks(ranks, words(recipe, file));
      for (const auto& result : results) ASSERT_EQ(result.status, 0) << result.err;
      EXPECT_THAT(results[0].out, AllOf(HasSubstr("36 rows train and 4 validate"),
                                        HasSubstr(metric), HasSubstr("steps: 4")));
    }
  // Another split at a resumed run is another training set.
  const auto resumed = shoal(words("tag-csv", "sentences.csv",
                                   {"--resume_from_checkpoint", "true", "--max_steps", "6",
                                    "--validation_split_percentage", "20"}));
  ASSERT_EQ(resumed.status, 0) << resumed.err;
  EXPECT_THAT(resumed.out + resumed.err, AllOf(HasSubstr("32 rows train and 8 validate"),
                                               HasSubstr("validation_split_percentage")));
  const auto given =
      shoal(words("classify-csv", "rows.csv",
                  {"--validation_file", mine_ / "rows.csv", "--output_dir", mine_ / "given"}));
  ASSERT_EQ(given.status, 0) << given.err;
  EXPECT_THAT(given.out, AllOf(HasSubstr("validation_split_percentage has no effect"),
                               ::testing::Not(HasSubstr("rows train"))));
  expect_refused(shoal(words("clasify-csv", "rows.csv")), "did you mean classify-csv?");
  expect_refused(shoal(words("classify-csv", "rows.csv",
                             {"--task", "question-answering", "--output_dir", mine_ / "none"})),
                 "validation_split_percentage is of text and rows");
  fs::create_directories(mine_ / "few");
  std::ofstream(mine_ / "few/train.csv") << "text,label\nthe water,good\n";
  expect_refused(shoal(words("classify-csv", "few/train.csv",
                             {"--label_list", "good,bad", "--output_dir", mine_ / "none"})),
                 "1 rows leave none to train");
}

TEST(Recipe, AreListedByHelp) {
  const auto list = test::run_program({SHOAL_PROGRAM, "help", "recipes"});
  ASSERT_EQ(list.status, 0) << list.err;
  for (const auto& entry : fs::directory_iterator(SHOAL_EXAMPLES "/recipes"))
    if (entry.path().extension() == ".json") {
      const std::string name = entry.path().stem();
      EXPECT_THAT(list.out, HasSubstr("  " + name + "\n"));
      EXPECT_EQ(test::run_program({SHOAL_PROGRAM, "help", "recipes", name}).out,
                text_of(entry.path()));
    }
  const auto unknown = test::run_program({SHOAL_PROGRAM, "help", "recipes", "tag-cvs"});
  EXPECT_EQ(unknown.status, 3);
  EXPECT_THAT(unknown.err, HasSubstr("did you mean tag-csv?"));
}

// Each recipe has a test, and each job has all three variants.
TEST(Recipe, FilesAreTheJobsVariants) {
  std::set<std::string> expected = {"classify-csv.json", "tag-csv.json"}, there;
  for (const Job& job : kJobs)
    for (const char* variant : {"", "-dp", "-mp"})
      expected.insert(std::string(job.name) + variant + ".json");
  for (const char* job :
       {"bart-large-summarization", "t5-base-translation"})  // shoal_pairs_test.cc
    for (const char* variant : {"", "-dp", "-mp"})
      expected.insert(std::string(job) + variant + ".json");
  for (const auto& entry : fs::directory_iterator(SHOAL_EXAMPLES "/recipes"))
    if (entry.path().extension() == ".json") there.insert(entry.path().filename().string());
  EXPECT_EQ(there, expected);
}

// Hyperparameters in the form of a SageMaker job: all are strings, with names instead of paths.
class Dictionaries : public Recipes {
 protected:
  // Caches the model under a name of the hub, as `huggingface_hub` does.
  void cache(const std::string& name, const Job& job) const {
    const std::string folder = mine_ / "hf" + "/hub/models--" + name;
    fs::create_directories(folder + "/refs");
    fs::create_directories(folder + "/snapshots");
    std::ofstream(folder + "/refs/main") << "0123abcd\n";
    fs::rename(model(job), folder + "/snapshots/0123abcd");
  }
  // Runs with sizes reduced for a test, and all else unchanged.
  ProgramResult run(const json& dictionary, std::vector<std::string> environment,
                    const std::vector<std::string>& more = {}) const {
    json strings = json::object();
    for (const auto& [key, value] : dictionary.items())
      strings[key] = value.is_string() ? value : json(value.dump());
    std::ofstream(mine_ / "hyperparameters.json") << strings;
    ProgramOptions options;
    options.environment = std::move(environment);
    options.environment.push_back("HF_HOME=" + (mine_ / "hf"));
    return shoal(overlaid({"train", mine_ / "hyperparameters.json", "--output_dir", out(),
                           "--max_steps", "2", "--per_device_train_batch_size", "2"},
                          more),
                 options);
  }
};

TEST_F(Dictionaries, QuestionAnswering) {
  const Job& job = job_of("bert-large-squad");
  cache("bert-large-uncased-whole-word-masking", job);
  const auto result = run({{"model_name_or_path", "bert-large-uncased-whole-word-masking"},
                           {"dataset_name", "squad"},
                           {"do_train", true},
                           {"do_eval", true},
                           {"fp16", true},
                           {"per_device_train_batch_size", 4},
                           {"per_device_eval_batch_size", 4},
                           {"num_train_epochs", 2},
                           {"max_seq_length", 384},
                           {"max_steps", 100},
                           {"pad_to_max_length", true},
                           {"doc_stride", 128},
                           {"output_dir", "/opt/ml/model"}},
                          {"SM_CHANNEL_SQUAD=" + data(job)});
  ASSERT_EQ(result.status, 0) << result.err;
  EXPECT_THAT(result.out,
              AllOf(HasSubstr("task: question-answering, because dataset_name is squad"),
                    HasSubstr("bert for question answering"), HasSubstr("steps: 2"),
                    HasSubstr("'eval_exact_match'")));
}

TEST_F(Dictionaries, SequenceClassification) {
  const Job& job = job_of("roberta-large-mnli");
  cache("roberta-large", job);
  const auto result = run({{"model_name_or_path", "roberta-large"},
                           {"task_name", "mnli"},
                           {"per_device_train_batch_size", 16},
                           {"per_device_eval_batch_size", 16},
                           {"do_train", true},
                           {"do_eval", true},
                           {"do_predict", true},
                           {"num_train_epochs", 2},
                           {"output_dir", "/opt/ml/model"},
                           {"max_steps", 500}},
                          {}, {"--data", data(job)});
  ASSERT_EQ(result.status, 0) << result.err;
  EXPECT_THAT(result.out,
              AllOf(HasSubstr("because task_name is mnli"), HasSubstr("3 labels"),
                    HasSubstr("validation_mismatched: "), HasSubstr("16 predictions in "),
                    HasSubstr("predict_results_mm.txt")));
}

TEST_F(Dictionaries, SpotTraining) {
  const Job& job = job_of("distilbert-sst2");
  cache("distilbert-base-uncased", job);
  const std::string data = this->data(job);
  fs::create_directories(mine_ / "test");
  fs::rename(data + "/SST-2/dev.tsv", mine_ / "test/test.tsv");
  const auto result =
      run({{"epochs", 1},
           {"train_batch_size", 32},
           {"model_name", "distilbert-base-uncased"},
           {"output_dir", "/opt/ml/checkpoints"}},
          {"SM_CHANNEL_TRAIN=" + data + "/SST-2", "SM_CHANNEL_TEST=" + (mine_ / "test")});
  // "--per_device_train_batch_size 2" and train_batch_size are one option; the command line wins.
  ASSERT_EQ(result.status, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("task: text-classification, because of its rows"),
                                HasSubstr("distilbert for sequence classification"),
                                HasSubstr("'eval_accuracy'")));
}

TEST_F(Dictionaries, LanguageModelling) {
  for (const char* name : {"gpt2-wikitext", "albert-base-mlm"}) {
    SCOPED_TRACE(name);
    const Job& job = job_of(name);
    const bool causal = std::string(job.model_type) == "gpt2";
    cache(job.model_type, job);
    const auto result = run({{"model_name_or_path", job.model_type},
                             {"tokenizer_name", job.model_type},
                             {"dataset_name", "wikitext"},
                             {"dataset_config_name", "wikitext-103-v1"},
                             {"do_train", true},
                             {"do_eval", false},
                             {"num_train_epochs", 1},
                             {causal ? "block_size" : "max_seq_length", 512},
                             {"overwrite_output_dir", true},
                             {"save_strategy", "no"},
                             {"evaluation_strategy", "no"},
                             {"logging_strategy", "epoch"},
                             {"output_dir", "/opt/ml/model"},
                             {"dataloader_drop_last", true},
                             {"preprocessing_num_workers", 12},
                             {"per_device_train_batch_size", 13},
                             {"learning_rate", 2.03e-5}},
                            {}, {"--data", data(job)});
    ASSERT_EQ(result.status, 0) << result.err;
    EXPECT_THAT(result.out, HasSubstr(causal ? "model: gpt2" : "albert for masked language"));
    EXPECT_FALSE(fs::exists(out() + "/eval_results.json"));
  }
}

TEST_F(Dictionaries, ReportUnsupportedKeys) {
  const Job& job = job_of("bert-large-squad");
  cache("bert", job);
  const auto refused = [&](const json& dictionary, const std::string& words) {
    json all = {{"model_name_or_path", "bert"}};
    all.update(dictionary);
    expect_refused(run(all, {}), words);
  };
  refused({{"dataset_name", "squad"}}, "give --data DIRECTORY; nothing is downloaded");
  refused({{"data", mine_ / "none"}}, "there is no ");
  fs::create_directories(mine_ / "empty");
  refused({{"data", mine_ / "empty"}, {"dataset_name", "squad"}},
          "no train_file for question-answering; looked for train-v1.1.json, train.json");
  refused({{"data", "s3://bucket/squad"}}, "objects are not read");
  refused({{"model_name_or_path", "s3://bucket/bert"}}, "objects are not read");
  refused(
      {{"model_name_or_path", "bert-of-nobody"}, {"data", data(job)}, {"dataset_name", "squad"}},
      "bert-of-nobody is no model: there is no such directory, no channel 'bert-of-nobody' of "
      "SageMaker, and no main revision of it in Hugging Face's cache, ");
  const auto missing = [&](const std::string& option, const std::string& name) {
    json all = {{"model_name_or_path", "bert"}, {"data", data(job)}, {"dataset_name", "squad"}};
    all[option] = name;
    const auto result = run(all, {});
    EXPECT_EQ(result.status, 3) << result.err;
    return result.err;
  };
  EXPECT_THAT(missing("model_name_or_path", "org/bert"),
              HasSubstr("/models--org--bert; `hf download org/bert` puts it into that cache"));
  EXPECT_THAT(missing("tokenizer_name", "org/bert"), HasSubstr("`hf download org/bert`"));
  EXPECT_THAT(
      missing("model_name_or_path", "/nowhere/bert"),
      HasSubstr("there is no such directory; give a directory in Hugging Face's format, or"));
}

}  // namespace
}  // namespace shoal
