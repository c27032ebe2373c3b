// `shoal train` on a Hugging Face directory saves the files that it read unchanged.
#include <filesystem>
#include <map>

#include "apps/shoal_task_fixture.h"
#include "support/golden.h"

namespace shoal {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// A family's tiny model, with fields and files that Shoal does not know.
class Directories : public ShoalOnTasks {
 protected:
  void prepare(const std::string& golden) {
    fs::create_directories(model());
    const std::string from = testing::golden_path(golden);
    fs::copy_file(from + "/model.safetensors", model() + "/model.safetensors");
    config_ = json_of(from + "/config.json");
    config_["a_field_of_tomorrow"] = {{"list", {1, nullptr}}};
    config_["_name_or_path"] = "ann/tiny";
    config_["eos_token_id"] = {2, 3};
    // RoBERTa's positions count from the padding's id.
    const bool counts = config_["model_type"].get<std::string>().ends_with("roberta");
    config_["pad_token_id"] = counts ? 1 : 0;
    if (counts) std::swap(words_[0], words_[1]);
    write("config.json", config_.dump());
    files_ = {{"generation_config.json", "{\"eos_token_id\": [2,3],  \"top_k\": 7}\n"},
              {"tokenizer_config.json",
               R"({"tomorrow":  [null], "pad_token": "[PAD]", "mask_token": "[MASK]",)"
               R"( "cls_token": "[CLS]", "sep_token": "[SEP]", "unk_token": "[UNK]"})"},
              {"special_tokens_map.json", "{ }"},
              {"chat_template.jinja", "{{ messages }}"}};
    for (const std::string& word : words_) files_["vocab.txt"] += word + "\n";
    for (const auto& [name, text] : files_) write(name, text);
    const std::string text = sentences(60);
    std::ofstream(mine_ / "train.txt") << text;
    std::ofstream rows(mine_ / "train.tsv");
    rows << "sentence\tlabel\n";
    for (int i = 0; i < 16; ++i)
      rows << "the water " << i << "\t" << (i % 2 ? "fine" : "awful") << "\n";
  }
  void write(const std::string& name, const std::string& text) const {
    std::ofstream(model() + "/" + name) << text;
  }
  std::string model() const { return mine_ / "model"; }
  std::vector<std::string> words(const std::string& task,
                                 const std::vector<std::string>& more = {}) const {
    return overlaid(
        {"train", "--model_name_or_path", model(), "--task", task, "--train_file",
         mine_ / (task == "text-classification" ? "train.tsv" : "train.txt"), "--block_size", "8",
         "--max_steps", "1", "--learning_rate", "0", "--per_device_train_batch_size", "2",
         "--save_strategy", "no", "--output_dir", out()},
        more);
  }
  // Expects every file unchanged. In config.json, `changed` and the class of the
  // weights may differ.
  void expect_kept(const std::string& directory, const std::string& architecture,
                   const json& changed = json::object()) const {
    for (const auto& [name, text] : files_)
      if (name != "generation_config.json" || architecture.find("LM") != std::string::npos) {
        EXPECT_EQ(text_of(directory + "/" + name), text) << directory << ": " << name;
      }
    json expected = config_;
    expected.update(changed);
    expected["architectures"] = {architecture};
    expected[expected.contains("dtype") ? "dtype" : "torch_dtype"] = "float32";
    EXPECT_EQ(json_of(directory + "/config.json"), expected) << directory;
  }

  json config_;
  std::map<std::string, std::string> files_;
  std::vector<std::string> words_{"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".",   "##s",
                                  "the",   "water", "shoal", "swims", "in",     "cold"};
};

struct Family {
  const char *golden, *language_model, *classifier;
};
void PrintTo(const Family& family, std::ostream* out) { *out << family.golden; }

class DirectoriesOf : public Directories, public ::testing::WithParamInterface<Family> {};

TEST_P(DirectoriesOf, AreKeptThroughCheckpointsResumesAndExports) {
  const Family& family = GetParam();
  prepare(family.golden);
  const std::string name = family.golden;
  const bool decoder = !name.starts_with("encoders");
  if (!decoder) files_.erase("generation_config.json");
  const std::string task = decoder ? "causal-lm" : "masked-lm";
  const auto trained = shoal(words(task, {"--save_strategy", "steps", "--save_steps", "1"}));
  ASSERT_EQ(trained.status, 0) << trained.err;
  expect_kept(out(), family.language_model);
  const std::string checkpoint = out() + "/checkpoint-1";
  expect_kept(checkpoint, family.language_model);
  const auto resumed = shoal(words(task, {"--max_steps", "2", "--resume_from_checkpoint", "true"}));
  ASSERT_EQ(resumed.status, 0) << resumed.err;
  expect_kept(out(), family.language_model);
  const auto converted = shoal({"checkpoint", "convert", checkpoint, mine_ / "converted"});
  ASSERT_EQ(converted.status, 0) << converted.err;
  expect_kept(mine_ / "converted", family.language_model);

  const auto classifies = shoal(words("text-classification", {"--output_dir", mine_ / "classes"}));
  ASSERT_EQ(classifies.status, 0) << classifies.err;
  json changed = {{"id2label", {{"0", "awful"}, {"1", "fine"}}},
                  {"label2id", {{"awful", 0}, {"fine", 1}}},
                  {"problem_type", "single_label_classification"}};
  expect_kept(mine_ / "classes", family.classifier, changed);
}

INSTANTIATE_TEST_SUITE_P(
    Families, DirectoriesOf,
    ::testing::Values(
        Family{"gpt2/tiny", "GPT2LMHeadModel", "GPT2ForSequenceClassification"},
        Family{"llama/tied", "LlamaForCausalLM", "LlamaForSequenceClassification"},
        Family{"qwen3/tied", "Qwen3ForCausalLM", "Qwen3ForSequenceClassification"},
        Family{"gpt_neox/parallel", "GPTNeoXForCausalLM", "GPTNeoXForSequenceClassification"},
        Family{"gemma/tied", "GemmaForCausalLM", "GemmaForSequenceClassification"},
        Family{"gemma2/windows", "Gemma2ForCausalLM", "Gemma2ForSequenceClassification"},
        Family{"gemma3_text/windows", "Gemma3ForCausalLM", "Gemma3TextForSequenceClassification"},
        Family{"encoders/bert", "BertForMaskedLM", "BertForSequenceClassification"},
        Family{"encoders/roberta", "RobertaForMaskedLM", "RobertaForSequenceClassification"},
        Family{"encoders/distilbert", "DistilBertForMaskedLM",
               "DistilBertForSequenceClassification"},
        Family{"encoders/albert", "AlbertForMaskedLM", "AlbertForSequenceClassification"},
        Family{"encoders/xlm-roberta", "XLMRobertaForMaskedLM",
               "XLMRobertaForSequenceClassification"},
        Family{"encoders/electra", "ElectraForMaskedLM", "ElectraForSequenceClassification"},
        Family{"encoders/modernbert", "ModernBertForMaskedLM",
               "ModernBertForSequenceClassification"}),
    [](const auto& test) {
      std::string name = test.param.golden;
      for (const char other : {'/', '-'}) std::ranges::replace(name, other, '_');
      return name;
    });

// An inspection refuses what generation refuses, with the same reason.
TEST_P(DirectoriesOf, AreInspectedWithTheirConfiguration) {
  prepare(GetParam().golden);
  const auto inspected = [&] { return shoal({"checkpoint", "inspect", model()}); };
  EXPECT_EQ(inspected().status, 0) << inspected().out;
  for (const auto& [field, size] :
       std::map<std::string, std::int64_t>{{"head_dim", std::int64_t{1} << 31},
                                           {"vocab_size", std::int64_t{1} << 40},
                                           {"n_layer", 99'999},
                                           {"num_hidden_layers", 99'999},
                                           {"n_layers", 99'999}}) {
    if (!config_.contains(field)) continue;
    json changed = config_;
    changed[field] = size;
    write("config.json", changed.dump());
    const auto refused = inspected();
    EXPECT_EQ(refused.status, 1) << field;
    EXPECT_THAT(refused.out, HasSubstr("config.json does not describe a")) << field;
    if (std::string(GetParam().golden).find("encoders") != std::string::npos) continue;
    const auto generated = shoal({"generate", "-m", model(), "-p", "the"});
    const auto at = generated.err.find("config.json"), end = generated.err.find('\n', at);
    ASSERT_NE(at, std::string::npos) << generated.err;
    EXPECT_THAT(refused.out, HasSubstr(generated.err.substr(at, end - at))) << field;
  }
  write("config.json", "{\"model_type\": ");
  EXPECT_THAT(inspected().out, HasSubstr("config.json: parse error"));
  write("config.json", R"({"model_type": "mamba", "state_size": 9999999999})");
  EXPECT_EQ(inspected().status, 0) << "Shoal does not check other models";
}

// Each rank holds a part of each tensor, or of the layers. Checkpoints are in parts.
TEST_F(Directories, AreKeptByRanksThatShareAModel) {
  prepare("llama/tied");
  for (const char* layout : {R"({"tensor_parallel_degree": 2, "ddp": true})",
                             R"({"pipeline_parallel_degree": 2, "microbatches": 2, "ddp": true})",
                             R"({"sharded_data_parallel_degree": 2, "ddp": true})"}) {
    const std::string to = mine_ / fmt::format("out{}", fs::hash_value(layout));
    const auto ranks =
        on_ranks(2, words("causal-lm", {"--mp_parameters", layout, "--save_strategy", "steps",
                                        "--save_steps", "1", "--output_dir", to}));
    for (const auto& rank : ranks) ASSERT_EQ(rank.status, 0) << layout << rank.err;
    expect_kept(to, "LlamaForCausalLM");
    expect_kept(to + "/checkpoint-1", "LlamaForCausalLM");
    const auto resumed = shoal(
        words("causal-lm", {"--max_steps", "2", "--resume_from_checkpoint", to + "/checkpoint-1",
                            "--per_device_train_batch_size", "4", "--output_dir", to + "-on"}));
    ASSERT_EQ(resumed.status, 0) << resumed.err;
    expect_kept(to + "-on", "LlamaForCausalLM");
  }
}

TEST_F(Directories, WithoutAModelTypeOpenWithTheOption) {
  prepare("gpt2/tiny");
  json without = config_;
  without["model_type"] = nullptr;
  write("config.json", without.dump());
  const auto trained = shoal(words("causal-lm", {"--model_type", "gpt2"}));
  ASSERT_EQ(trained.status, 0) << trained.err;
  expect_kept(out(), "GPT2LMHeadModel");
  expect_refused(shoal(words("masked-lm", {"--model_type", "bret"})), "did you mean bert?");
  write("config.json", config_.dump());
  expect_refused(shoal(words("masked-lm", {"--model_type", "bert"})),
                 "model_type is bert, but " + model() + "/config.json is of a model of type");
}

TEST_F(Directories, HubModelsAreFoundOrTheErrorNamesTheFolder) {
  prepare("gpt2/tiny");
  const std::string folder = mine_ / "cache/huggingface/hub/models--ann--tiny";
  ProgramOptions options;
  for (const char* name : {"HF_HUB_CACHE=", "HUGGINGFACE_HUB_CACHE=", "HF_HOME="})
    options.environment.emplace_back(name);
  options.environment.push_back("XDG_CACHE_HOME=" + (mine_ / "cache"));
  const auto named = words("causal-lm", {"--model_name_or_path", "ann/tiny"});
  expect_refused(shoal(named, options), folder);
  expect_refused(
      shoal(overlaid(named, {"--model_name_or_path", model(), "--tokenizer_name", "ann/tiny"}),
            options),
      folder);
  expect_refused(shoal({"generate", "-m", "ann/tiny", "-p", "x"}, options), folder);
  fs::create_directories(folder + "/snapshots");
  fs::create_directories(folder + "/refs");
  std::ofstream(folder + "/refs/main") << "0a1b";
  fs::rename(model(), folder + "/snapshots/0a1b");
  const auto found = shoal(named, options);
  EXPECT_EQ(found.status, 0) << found.err;
}

// Checkpoints of transformers' Trainer are given by name, or are in output_dir.
TEST_F(Directories, CheckpointsOfTransformersTrainerAreRecognised) {
  prepare("gpt2/tiny");
  const std::string theirs = mine_ / "theirs/checkpoint-5";
  fs::create_directories(mine_ / "theirs");
  fs::rename(model(), theirs);
  std::ofstream(theirs + "/trainer_state.json") << R"({"global_step": 5, "log_history": []})";
  std::ofstream(theirs + "/optimizer.pt") << "PK";
  const auto begin = words("causal-lm", {"--model_name_or_path", theirs});
  const std::string remedy = "--model_name_or_path " + theirs;
  const auto named = shoal(overlaid(begin, {"--resume_from_checkpoint", theirs}));
  expect_refused(named, "checkpoint of transformers' Trainer");
  EXPECT_THAT(named.err, HasSubstr(remedy));
  const auto beside = shoal(overlaid(begin, {"--output_dir", mine_ / "theirs"}));
  expect_refused(beside, "another --output_dir");
  EXPECT_THAT(beside.err, HasSubstr(remedy));
  expect_refused(shoal(overlaid(begin, {"--model_name_or_path", mine_ / "theirs"})),
                 "it is a checkpoint of transformers' Trainer");
  const auto trained = shoal(begin);
  EXPECT_EQ(trained.status, 0) << trained.err;
  const auto converted = shoal({"checkpoint", "convert", theirs, mine_ / "converted"});
  EXPECT_EQ(converted.status, 0) << converted.err;
  const auto inspected = shoal({"checkpoint", "inspect", theirs});
  EXPECT_EQ(inspected.status, 0) << inspected.out;
  EXPECT_THAT(inspected.out, HasSubstr("transformers' Trainer wrote it"));
  const auto newest = shoal(
      overlaid(begin, {"--resume_from_checkpoint", "true", "--output_dir", mine_ / "theirs"}));
  EXPECT_THAT(newest.out + newest.err,
              ::testing::AllOf(HasSubstr("of transformers' Trainer"), HasSubstr(remedy)));
}

}  // namespace
}  // namespace shoal
