// The real program with adapters (LoRA): tiny models learn them, resume, and are used with them.
#include <filesystem>
#include <fstream>

#include "apps/shoal_task_fixture.h"
#include <gmock/gmock.h>

namespace shoal {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::Not;

class ShoalLora : public ShoalOnTasks {
 protected:
  std::string base() const { return mine_ / "base"; }
  std::string adapter() const { return mine_ / "adapter"; }
  // A small model without dropout, to adapt.
  void make_base(const std::vector<std::string>& more = {}) const {
    const std::string shape =
        "n_layer=2,n_head=2,n_embd=32,n_positions=64,resid_pdrop=0,embd_pdrop=0,attn_pdrop=0";
    const auto made = shoal(train_words(overlaid(
        {"--config_overrides", shape, "--save_strategy", "no", "--output_dir", base()}, more)));
    ASSERT_EQ(made.status, 0) << made.err;
  }
  // Trains adapters of all linear layers of base().
  std::vector<std::string> adapts(const std::vector<std::string>& more = {}) const {
    return overlaid({"train",
                     "--model_name_or_path",
                     base(),
                     "--train_file",
                     *data_ / "train.txt",
                     "--validation_file",
                     *data_ / "validation.txt",
                     "--block_size",
                     "32",
                     "--max_steps",
                     "6",
                     "--logging_steps",
                     "1",
                     "--save_steps",
                     "3",
                     "--per_device_train_batch_size",
                     "4",
                     "--learning_rate",
                     "1e-2",
                     "--lora_r",
                     "3",
                     "--lora_alpha",
                     "12",
                     "--lora_dropout",
                     "0.1",
                     "--lora_target_modules",
                     "all-linear",
                     "--output_dir",
                     adapter()},
                    more);
  }
  static std::string weights(const std::string& directory) {
    return text_of(directory + "/adapter_model.safetensors");
  }
  double loss_of(const std::string& directory, const std::vector<std::string>& more = {}) const {
    const auto result = shoal(overlaid({"evaluate", "-m", directory, *data_ / "validation.txt",
                                        "--max-seq-length", "32", "--json"},
                                       more));
    EXPECT_EQ(result.status, 0) << result.err;
    return result.status == 0 ? json::parse(result.out)["eval_loss"].get<double>() : 0;
  }
};

TEST_F(ShoalLora, AdaptersAreTrainedResumedAndUsed) {
  make_base();
  const auto trained = shoal(adapts());
  ASSERT_EQ(trained.status, 0) << trained.err;
  EXPECT_THAT(trained.out, HasSubstr("LoRA: adapters of 8 layers; 3072 of 40192 parameters are "
                                     "trained (7.64 %)"));
  const std::string checkpoint = adapter() + "/checkpoint-3";
  for (const std::string& directory : {adapter(), checkpoint}) {
    EXPECT_FALSE(fs::exists(directory + "/model.safetensors")) << directory;
    // Beside a config.json, transformers would look for the whole model.
    EXPECT_FALSE(fs::exists(directory + "/config.json")) << directory;
    EXPECT_TRUE(fs::exists(directory + "/tokenizer.json")) << directory;
    const json config = json_of(directory + "/adapter_config.json");
    EXPECT_EQ(config["base_model_name_or_path"], base());
    EXPECT_EQ(config["task_type"], "CAUSAL_LM");
    EXPECT_EQ(config["r"], 3);
    EXPECT_EQ(config["lora_alpha"], 12);
    EXPECT_EQ(config["target_modules"].size(), 8U);
  }
  const double loss = json_of(adapter() + "/eval_results.json")["eval_loss"];
  EXPECT_EQ(loss_of(adapter()), loss);
  EXPECT_LT(loss, loss_of(base()) - 0.01);

  // A run that ended after step 3 continues to the same bits.
  const std::string whole = weights(adapter());
  fs::remove_all(adapter() + "/checkpoint-6");
  fs::remove(adapter() + "/adapter_model.safetensors");
  const auto resumed = shoal(adapts({"--resume_from_checkpoint", "true"}));
  ASSERT_EQ(resumed.status, 0) << resumed.err;
  EXPECT_THAT(resumed.out, HasSubstr("at step 3"));
  EXPECT_THAT(resumed.out, Not(HasSubstr("warning")));
  EXPECT_FALSE(whole.empty());
  EXPECT_EQ(weights(adapter()), whole);

  // Another run trains the adapter on.
  const auto more =
      shoal(overlaid(adapts({"--model_name_or_path", adapter(), "--lora_r", "0", "--lora_alpha",
                             "8", "--lora_dropout", "0", "--lora_target_modules", "[]"}),
                     {"--output_dir", mine_ / "more"}));
  ASSERT_EQ(more.status, 0) << more.err;
  EXPECT_EQ(json_of(mine_ / "more" + "/adapter_config.json"),
            json_of(adapter() + "/adapter_config.json"));
  EXPECT_LT(losses(mine_ / "more").front(), losses(adapter()).front() - 0.01);

  const auto text = shoal({"generate", "-m", adapter(), "-p", "the shoal", "--greedy"});
  EXPECT_EQ(text.status, 0) << text.err;
  EXPECT_THAT(text.out, HasSubstr("the shoal"));
}

TEST_F(ShoalLora, RanksTrainAsOneDoes) {
  make_base();
  const std::vector<std::string> words =
      adapts({"--logging_steps", "1", "--save_strategy", "no", "--lora_dropout", "0.2"});
  expect_ranks_as_one(words, {"adapter_config.json", "adapted_config.json"});
  const double alone = loss_of(mine_ / "one");
  for (const char* name : {"dp", "tp", "pp"})
    EXPECT_NEAR(loss_of(mine_ / name), alone, 1e-4) << name;
}

// Checkpoints in parts hold only what is trained, and any layout continues them.
TEST_F(ShoalLora, CheckpointsInPartsAreThoseOfOneRank) {
  make_base();
  const auto with = [&](const char* name, const std::vector<std::string>& more) {
    return overlaid(adapts({"--output_dir", mine_ / name, "--per_device_train_batch_size", "4",
                            "--lora_dropout", "0"}),
                    more);
  };
  const auto one = shoal(with("whole", {}));
  ASSERT_EQ(one.status, 0) << one.err;
  const double expected = loss_of(mine_ / "whole");
  int layout = 0;
  for (const std::string plan :
       {R"({"tensor_parallel_degree": 2, "prescaled_batch": true, "ddp": true})",
        R"({"pipeline_parallel_degree": 2, "microbatches": 2, "ddp": true})",
        R"({"sharded_data_parallel_degree": 2, "ddp": true})"}) {
    SCOPED_TRACE(plan);
    const std::string name = "parts" + std::to_string(++layout);
    const bool divides_batch = plan.find("sharded") != plan.npos;
    const std::vector<std::string> words =
        with(name.c_str(),
             {"--mp_parameters", plan, "--per_device_train_batch_size", divides_batch ? "2" : "4"});
    const auto ranks = on_ranks(2, words);
    ASSERT_EQ(ranks[0].status, 0) << ranks[0].err;
    const std::string directory = mine_ / name, whole = weights(directory);
    const std::string checkpoint = directory + "/checkpoint-3";
    std::uintmax_t bytes = 0;
    for (const auto& file : fs::directory_iterator(checkpoint))
      if (file.path().filename().string().starts_with("shard-")) bytes += file.file_size();
    EXPECT_GT(bytes, 3072 * 12);  // factors and two moments
    EXPECT_LT(bytes, 3072 * 12 + 30000);
    EXPECT_NEAR(loss_of(directory), expected, 1e-4);
    fs::remove_all(directory + "/checkpoint-6");
    const double third = loss_of(checkpoint);  // a checkpoint in parts is a model
    const auto again = on_ranks(2, overlaid(words, {"--resume_from_checkpoint", "true"}));
    ASSERT_EQ(again[0].status, 0) << again[0].err;
    EXPECT_EQ(weights(directory), whole);
    const auto alone = shoal(with("alone", {"--resume_from_checkpoint", checkpoint}));
    ASSERT_EQ(alone.status, 0) << alone.err;
    EXPECT_NEAR(loss_of(mine_ / "alone"), expected, 1e-4);
    EXPECT_NEAR(third, loss_of(mine_ / "whole" + "/checkpoint-3"), 1e-4);
    const auto text = shoal({"generate", "-m", checkpoint, "-p", "the shoal", "--greedy"});
    EXPECT_EQ(text.status, 0) << text.err;
    fs::remove_all(mine_ / "alone");
  }
}

// The model with merged weights, from a whole adapter and from one in parts, computes the same.
TEST_F(ShoalLora, AdaptersAreConvertedAndMerged) {
  make_base();
  const auto ranks = on_ranks(
      2, adapts({"--mp_parameters",
                 R"({"tensor_parallel_degree": 2, "prescaled_batch": true, "ddp": true})"}));
  ASSERT_EQ(ranks[0].status, 0) << ranks[0].err;
  const std::string parts = adapter() + "/checkpoint-6", whole = mine_ / "whole";
  const double loss = loss_of(adapter());
  const auto converted = shoal({"checkpoint", "convert", parts, whole});
  ASSERT_EQ(converted.status, 0) << converted.err;
  EXPECT_EQ(weights(whole), weights(adapter()));
  EXPECT_EQ(loss_of(whole), loss);
  const auto back = shoal({"checkpoint", "convert", whole, mine_ / "back", "--shards", "3"});
  ASSERT_EQ(back.status, 0) << back.err;
  EXPECT_EQ(loss_of(mine_ / "back"), loss);
  const auto resumed = shoal(adapts({"--output_dir", mine_ / "resumed", "--max_steps", "7",
                                     "--resume_from_checkpoint", mine_ / "back"}));
  EXPECT_EQ(resumed.status, 0) << resumed.err;
  for (const std::string& directory : {whole, parts}) {
    const auto inspected = shoal({"checkpoint", "inspect", directory});
    EXPECT_EQ(inspected.status, 0) << inspected.out;
  }

  int count = 0;
  for (const std::string& directory : {adapter(), parts}) {
    const std::string merged = mine_ / ("merged" + std::to_string(++count));
    const auto made = shoal({"checkpoint", "convert", directory, merged, "--merge"});
    ASSERT_EQ(made.status, 0) << made.err;
    EXPECT_FALSE(fs::exists(merged + "/adapter_config.json"));
    EXPECT_EQ(json_of(merged + "/config.json"), json_of(base() + "/config.json"));
    EXPECT_EQ(text_of(merged + "/tokenizer.json"), text_of(base() + "/tokenizer.json"));
    EXPECT_NEAR(loss_of(merged), loss, 2e-5);
    EXPECT_GT(std::abs(loss_of(base()) - loss), 1e-2);
  }
  EXPECT_EQ(text_of(mine_ / "merged1" + "/model.safetensors"),
            text_of(mine_ / "merged2" + "/model.safetensors"));
  const auto half =
      shoal({"checkpoint", "convert", adapter(), mine_ / "half", "--merge", "--dtype", "bf16"});
  ASSERT_EQ(half.status, 0) << half.err;
  EXPECT_EQ(json_of(mine_ / "half" + "/config.json")["torch_dtype"], "bfloat16");
  EXPECT_NEAR(loss_of(mine_ / "half"), loss, 2e-2);

  expect_refused(shoal({"checkpoint", "convert", base(), mine_ / "x", "--merge"}),
                 "base is no adapter; leave --merge out");
  expect_refused(
      shoal({"checkpoint", "convert", adapter(), mine_ / "x", "--merge", "--shards", "2"}),
      "leave --shards out");
  expect_refused(shoal({"checkpoint", "convert", adapter(), base(), "--merge"}),
                 "base exists already");
  EXPECT_FALSE(fs::exists(mine_ / "x"));
}

// A new head is trained whole; its labels are in adapted_config.json.
TEST_F(ShoalLora, AClassifierIsAdaptedWithItsHead) {
  std::ofstream rows(mine_ / "train.tsv");
  rows << "sentence\tlabel\n";
  for (int i = 0; i < 40; ++i)
    rows << "the water " << (i % 2 ? "good" : "bad") << " tonight\t" << (i % 2 ? "fine" : "awful")
         << "\n";
  rows.close();
  std::ofstream(mine_ / "lines.txt") << sentences(60);
  const auto made =
      shoal(words_of(tiny_bert(), {"--task", "masked-lm", "--tokenizer_name", vocabulary(),
                                   "--train_file", mine_ / "lines.txt", "--block_size", "8",
                                   "--max_steps", "2", "--output_dir", base()}));
  ASSERT_EQ(made.status, 0) << made.err;
  const std::vector<std::string> words =
      words_of({}, {"--model_name_or_path", base(), "--task", "text-classification", "--train_file",
                    mine_ / "train.tsv", "--validation_file", mine_ / "train.tsv", "--max_steps",
                    "40", "--learning_rate", "1e-2", "--lora_r", "2", "--output_dir", adapter()});
  // The golden base has no pooler, which a classifier of BERT needs.
  expect_refused(shoal(words),
                 "bert.pooler.dense.weight is newly initialised, but only adapters are trained; "
                 "name its module: --lora_modules_to_save bert.pooler.dense");
  const auto trained = shoal(
      overlaid(words, {"--lora_modules_to_save", "pooler", "--overwrite_output_dir", "true"}));
  ASSERT_EQ(trained.status, 0) << trained.err;
  EXPECT_EQ(json_of(adapter() + "/eval_results.json")["eval_accuracy"], 1.0);
  EXPECT_EQ(json_of(adapter() + "/adapter_config.json")["task_type"], "SEQ_CLS");
  const auto predicted = shoal({"predict", "-m", adapter(), mine_ / "train.tsv"});
  ASSERT_EQ(predicted.status, 0) << predicted.err;
  EXPECT_EQ(json::parse(predicted.out.substr(0, predicted.out.find('\n')))["prediction"], "awful");
}

TEST_F(ShoalLora, RefusesWhatCannotBeDone) {
  make_base({"--max_steps", "1"});
  expect_refused(shoal(train_words({"--lora_r", "4"})), "a new model has no weights to adapt");
  expect_refused(shoal(adapts({"--lora_r", "0"})), "a lora option is given, but lora_r is 0");
  expect_refused(shoal(adapts({"--lora_r", "-1"})), "lora_r");
  expect_refused(shoal(adapts({"--lora_dropout", "1"})), "lora_dropout");
  expect_refused(shoal(adapts({"--lora_alpha", "0"})), "lora_alpha");
  expect_refused(shoal(adapts({"--lora_target_modules", "q_proj"})),
                 "no linear layer is named q_proj; the last parts of the names there are: c_attn, "
                 "c_fc, c_proj; or all-linear");
  const auto trained = shoal(adapts({"--max_steps", "3"}));
  ASSERT_EQ(trained.status, 0) << trained.err;
  const auto resumed = [&](const std::vector<std::string>& more) {
    return shoal(adapts(overlaid({"--resume_from_checkpoint", "true"}, more)));
  };
  expect_refused(resumed({"--lora_alpha", "8"}), "lora_alpha is 12 in ");
  expect_refused(resumed({"--lora_r", "2"}), "lora_r is 3 in ");
  expect_refused(resumed({"--lora_target_modules", "c_attn,c_fc"}),
                 "transformer.h.0.attn.c_proj, transformer.h.0.mlp.c_proj, ");
  expect_refused(shoal(adapts({"--model_name_or_path", adapter(), "--output_dir", out()})),
                 "is an adapter already");
  const std::vector<std::string> none = {"--lora_r",       "0", "--lora_alpha",          "8",
                                         "--lora_dropout", "0", "--lora_target_modules", "[]"};
  expect_refused(resumed(none),
                 "it has adapters, and this run trains the whole model; give "
                 "--lora_r 3");
  const std::string checkpoint = mine_ / "plain" + "/checkpoint-3";
  const auto plain = shoal(adapts(overlaid(none, {"--output_dir", mine_ / "plain"})));
  ASSERT_EQ(plain.status, 0) << plain.err;
  expect_refused(resumed({"--resume_from_checkpoint", checkpoint}), "it has no adapters");
  // A base model that is gone.
  fs::rename(base(), mine_ / "elsewhere");
  for (const char* command : {"generate", "evaluate"}) {
    std::vector<std::string> words = {command, "-m", adapter()};
    if (words[0] == "generate")
      words.insert(words.end(), {"-p", "the"});
    else
      words.emplace_back(*data_ / "validation.txt");
    expect_refused(shoal(words), "/adapter adapts '" + base() +
                                     "': there is no such directory; bring that model there, or "
                                     "change base_model_name_or_path in the adapter's "
                                     "adapter_config.json");
  }
}

}  // namespace
}  // namespace shoal
