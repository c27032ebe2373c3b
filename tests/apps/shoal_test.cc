// The real program: the effects of its subcommands, and its error messages.
#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <set>
#include <sstream>

#include "apps/shoal_fixture.h"
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "shoal/runtime/io/byte_source.h"
#include "shoal/runtime/io/safetensors.h"

namespace shoal {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Not;

TEST_F(Shoal, TrainsSavesReportsAndGenerates) {
  const auto trained = train(
      {"--eval_strategy", "steps", "--eval_steps", "3", "--validation_split_percentage", "5"});
  ASSERT_EQ(trained.status, 0) << trained.err;
  EXPECT_THAT(trained.out,
              AllOf(HasSubstr("global batch: 4 samples = 4 per device x 1 rank x 1 accumulated"),
                    HasSubstr("{'loss': "), HasSubstr("'eval_perplexity': "),
                    HasSubstr("'train_samples_per_second': "), HasSubstr("unigram"),
                    HasSubstr("validation_split_percentage has no effect")));
  for (const char* file : {"config.json", "tokenizer.json", "metrics.jsonl", "all_results.json",
                           "checkpoint-6/COMPLETE", "checkpoint-6/model.safetensors"})
    EXPECT_TRUE(fs::exists(out() + "/" + file)) << file;
  const auto settings = nlohmann::json::parse(std::ifstream(out() + "/run_settings.json"));
  EXPECT_EQ(settings.at("total_steps"), 6);
  EXPECT_EQ(settings.at("options").at("training").at("max_steps"), 6);
  EXPECT_THAT(settings.at("given").get<std::vector<std::string>>(), Contains("max_steps"));
  EXPECT_THAT(settings.at("given").get<std::vector<std::string>>(), Not(Contains("seed")));
  EXPECT_FALSE(settings.at("options").contains("later"));  // known, but refused
  EXPECT_EQ(settings.at("plan").dump(), "{}");
  const auto reported = shoal({"report", out()});
  EXPECT_THAT(reported.out, AllOf(HasSubstr("validation loss"), HasSubstr("step time"),
                                  HasSubstr("page             " + out() + "/report.html")));
  std::ostringstream page;
  page << std::ifstream(out() + "/report.html").rdbuf();
  for (const char* part : {"<h3>Loss</h3>", "<h3>Where a step&#39;s time goes</h3>",
                           "<h3>Memory of rank 0</h3>", "<h3>Perplexity</h3>", "max_steps"})
    EXPECT_THAT(page.str(), HasSubstr(part));
  EXPECT_THAT(page.str(), Not(HasSubstr("class=\"missing\"")));
  const auto numbers = nlohmann::json::parse(shoal({"report", out(), "--json"}).out).at(0);
  EXPECT_EQ(numbers.at("steps"), 6);
  // The run's last lines have the report's numbers: results first, then where things are.
  const std::string last = fmt::format("{:.4f} (step 6) last", numbers.at("loss").get<double>());
  EXPECT_THAT(trained.out, HasSubstr(last));
  EXPECT_GT(numbers.at("mfu").get<double>(), 0);
  EXPECT_LT(numbers.at("mfu").get<double>(), 1.5);
  EXPECT_THAT(trained.out, HasSubstr("peak: "));
  std::size_t at = 0;
  for (const std::string& line :
       {std::string("\nresult: perplexity "), std::string("\nvalidation loss: "),
        std::string("\ntraining loss: "), std::string("\nspeed: "), "\nmodel saved in " + out(),
        fmt::format("\nnext: `shoal report {0}` shows the run; `shoal generate --model {0}",
                    out())}) {
    at = trained.out.find(line, at);
    ASSERT_NE(at, std::string::npos) << line << trained.out;
  }
  EXPECT_EQ(numbers.at("ranks"), 1);
  EXPECT_TRUE(numbers.at("finished").get<bool>());
  EXPECT_GT(numbers.at("tokens_per_second").get<double>(), 0);
  EXPECT_THAT(shoal({"report", out(), out()}).err, HasSubstr("given twice"));
  EXPECT_THAT(shoal({"report", mine_ / "nothing"}).err, HasSubstr("nothing is not there; give"));
  EXPECT_THAT(shoal({"report", out(), "--output", mine_ / "no/page.html"}).err,
              HasSubstr("make the directory"));
  const auto words =
      std::vector<std::string>{"generate", "--model",      out(),
                               "--prompt", "the shoal",    "--max-new-tokens",
                               "8",        "--logits-out", mine_ / "logits.safetensors"};
  const auto said = shoal(words);
  EXPECT_EQ(said.status, 0) << said.err;
  EXPECT_THAT(said.out, HasSubstr("the shoal"));
  EXPECT_EQ(said.out, shoal(words).out);
  // Another seed draws other tokens. Greedy tokens do not depend on the seed.
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), words.begin(), words.end());
    return shoal(more).out;
  };
  EXPECT_NE(with({"--seed", "1"}), with({"--seed", "2"}));
  EXPECT_EQ(with({"--greedy", "--seed", "1"}), with({"--temperature", "0", "--seed", "2"}));
  const auto file = SafetensorsFile::open(mine_ / "logits.safetensors");
  EXPECT_EQ(file->tensor("logits").shape()[2], 300);
  EXPECT_EQ(file->tensor("input_ids").shape()[1], file->tensor("logits").shape()[1]);
}

TEST_F(Shoal, ReadsAFileOfOptions) {
  std::ofstream(mine_ / "run.json")
      << R"({"_why": "test", "training": {"max_steps": 2},
    "model_type": "gpt2", "config_overrides": "n_layer=1,n_head=2,n_embd=16,n_positions=32",
    "tokenizer_name": ")"
      << *data_ / "tok" << R"(", "block_size": "16", "train_file": ")" << *data_ / "train.txt"
      << R"(", "output_dir": ")" << out() << "\"}";
  const auto trained = shoal({"train", mine_ / "run.json", "--max-steps", "3"});
  ASSERT_EQ(trained.status, 0) << trained.err;
  EXPECT_THAT(trained.out, HasSubstr("steps: 3"));
}

TEST_F(Shoal, StopsOnSigtermAndResumesToTheSameModel) {
  ASSERT_EQ(train({"--max_steps", "400", "--save_steps", "1000"}).status, 0);
  const std::string whole = mine_ / "whole";
  fs::rename(out(), whole);
  ProgramOptions options;
  options.signal_when_out_has = "'loss'";
  const auto stopped = train({"--max_steps", "400", "--save_steps", "1000"}, options);
  EXPECT_EQ(stopped.status, 128 + 15) << stopped.err;  // `&&` and schedulers must stop here
  EXPECT_EQ(stopped.signal, 0);
  ASSERT_THAT(stopped.out,
              AllOf(HasSubstr("signal 15: saving "), HasSubstr("stopped by signal 15 at step"),
                    HasSubstr("--resume_from_checkpoint true continues it")));
  EXPECT_FALSE(fs::exists(model_file()));
  const auto rest =
      train({"--max_steps", "400", "--save_steps", "1000", "--resume_from_checkpoint", "true"});
  ASSERT_EQ(rest.status, 0) << rest.err;
  EXPECT_THAT(rest.out, HasSubstr("resuming from"));
  const auto bytes = [](const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  EXPECT_EQ(bytes(whole + "/model.safetensors"), bytes(model_file()));
}

// oneDNN's code uses the stack pointer for other purposes, so no signal handler's frame
// may be written there.
TEST_F(Shoal, TakesSignalsOnAThreadThatComputesNothing) {
  std::vector<std::string> words = {
      "sh",
      "-c",
      "log=$1; shift; \"$@\" > $log 2>&1 & run=$!\n"
      "until grep -q \"'loss'\" $log; do kill -0 $run || exit 1; sleep 0.02; done\n"
      "for task in /proc/$run/task/*; do\n"
      "  echo $((${task##*/} == run)) $(grep SigBlk $task/status); done\n"
      "kill -TERM $run; wait $run",
      "sh",
      mine_ / "log",
      SHOAL_PROGRAM};
  for (const std::string& word : train_words({"--max_steps", "100000", "--save_steps", "1000000"}))
    words.push_back(word);
  const ProgramResult result = test::run_program(words, {.environment = {"SHOAL_THREADS=2"}});
  EXPECT_EQ(result.status, 128 + 15) << result.out << result.err;
  int taking = 0;
  bool main_takes = true;
  std::istringstream lines(result.out);
  int is_main = 0;
  for (std::string label, mask; lines >> is_main >> label >> mask;) {
    const bool takes = (std::stoull(mask, nullptr, 16) >> (SIGTERM - 1) & 1) == 0;
    taking += takes ? 1 : 0;
    if (is_main == 1) main_takes = takes;
  }
  EXPECT_EQ(taking, 1) << result.out;
  EXPECT_FALSE(main_takes) << result.out;
}

// Into parts and back: the run resumes from it and ends with the same bytes.
TEST_F(Shoal, ConvertsCheckpointsThatRunsResumeFrom) {
  ASSERT_EQ(train().status, 0);
  const std::string parts = mine_ / "parts", whole = mine_ / "whole", light = mine_ / "light";
  const auto split =
      shoal({"checkpoint", "convert", out() + "/checkpoint-3", parts, "--shards", "3"});
  ASSERT_EQ(split.status, 0) << split.err;
  EXPECT_THAT(split.out, AllOf(HasSubstr("3 shards"), HasSubstr("trainer_state.json")));
  ASSERT_EQ(shoal({"checkpoint", "convert", parts, whole}).status, 0);
  const auto continued = [](const std::string& model, bool bf16) {
    std::vector<std::string> words{"generate", "-m", model, "-p", "the", "--max-new-tokens", "8"};
    if (bf16) words.emplace_back("--bf16");
    const auto done = shoal(words);
    EXPECT_EQ(done.status, 0) << done.err;
    return done.out;
  };
  for (const bool bf16 : {false, true}) EXPECT_EQ(continued(parts, bf16), continued(whole, bf16));
  const auto resumed = train({"--output_dir", mine_ / "more", "--resume_from_checkpoint", whole});
  ASSERT_EQ(resumed.status, 0) << resumed.err;
  const auto bytes = [](const std::string& path) {
    std::ifstream file(path);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  EXPECT_TRUE(bytes(mine_ / "more/model.safetensors") == bytes(model_file()));
  const auto newest = shoal({"checkpoint", "inspect", out(), "--json", "--verify"});
  EXPECT_EQ(newest.status, 0) << newest.err;
  const auto json = nlohmann::json::parse(newest.out);
  EXPECT_EQ(json.at("kind"), "trainer");
  EXPECT_EQ(json.at("step"), 6);
  EXPECT_EQ(json.at("verified"), true);
  expect_refused(shoal({"checkpoint", "convert", parts, whole}), "nothing is overwritten");
  expect_refused(shoal({"checkpoint", "inspect", *data_ / "tok"}), "is no checkpoint");
  fs::remove(parts + "/shard-00001-of-00003.safetensors");
  EXPECT_EQ(shoal({"checkpoint", "inspect", parts}).status, 1);
  ASSERT_EQ(
      shoal({"checkpoint", "convert", out(), light, "--dtype", "bf16", "--weights-only"}).status,
      0);
  EXPECT_THAT(shoal({"checkpoint", "inspect", light}).out,
              AllOf(HasSubstr("a Hugging Face model, complete"), HasSubstr("BF16")));
}

TEST_F(Shoal, RanksWithoutMpiTrainTheSameModel) {
  const auto alone = train();
  ASSERT_EQ(alone.status, 0) << alone.err;
  auto words = train_words({"--per_device_train_batch_size", "2", "--output_dir", mine_ / "two"});
  words.insert(words.begin(), SHOAL_PROGRAM);
  const std::string port = std::to_string(testing::free_port());
  const auto environment = [&](const char* rank) {
    return std::vector<std::string>{std::string("RANK=") + rank,
                                    std::string("LOCAL_RANK=") + rank,
                                    "WORLD_SIZE=2",
                                    "LOCAL_WORLD_SIZE=2",
                                    "MASTER_ADDR=127.0.0.1",
                                    "MASTER_PORT=" + port,
                                    "SHOAL_THREADS=1"};
  };
  const auto ranks = test::run_programs(words, {environment("0"), environment("1")});
  ASSERT_EQ(ranks[0].status, 0) << ranks[0].err;
  EXPECT_EQ(ranks[1].status, 0) << ranks[1].err;
  EXPECT_EQ(ranks[1].out, "");  // only rank 0 prints
  const auto loss = [](const std::string& directory) {
    std::ifstream file(directory + "/all_results.json");
    return nlohmann::json::parse(file)["eval_loss"].get<double>();
  };
  EXPECT_NEAR(loss(out()), loss(mine_ / "two"), 2e-5 * loss(out()));

  // An error that every rank finds is reported once, before any model is built.
  const auto again = test::run_programs(words, {environment("0"), environment("1")});
  EXPECT_GT(again[0].status, 0);
  EXPECT_TRUE(is_one_line(again[0].err + again[1].err)) << again[0].err << again[1].err;
  EXPECT_THAT(again[0].err, HasSubstr("holds 2 checkpoints already"));
  EXPECT_EQ(again[0].out, "");

  // A signal to one rank stops both ranks with a checkpoint. Both exit as programs
  // ended by a signal do.
  ProgramOptions stop;
  stop.signal_when_out_has = "'loss'";
  auto long_run = words;
  long_run.push_back("--overwrite_output_dir");
  *(std::find(long_run.begin(), long_run.end(), "--max_steps") + 1) = "100000";
  const auto stopped = test::run_programs(long_run, {environment("0"), environment("1")}, stop);
  EXPECT_EQ(stopped[0].status, 128 + 15) << stopped[0].err;
  EXPECT_EQ(stopped[1].status, 128 + 15) << stopped[1].err;
  EXPECT_THAT(stopped[0].out, HasSubstr("stopped by signal 15 at step"));

  // Only one rank finds an error. It is reported once, and both end.
  auto bad = words;
  bad.push_back("--overwrite_output_dir");
  *std::find(bad.begin(), bad.end(), *data_ / "train.txt") = mine_ / "none.txt";
  const auto failed = test::run_programs(bad, {environment("0"), environment("1")});
  EXPECT_GT(failed[0].status, 0);
  EXPECT_GT(failed[1].status, 0);
  EXPECT_TRUE(is_one_line(failed[0].err + failed[1].err)) << failed[0].err << failed[1].err;
  EXPECT_THAT(failed[0].err, HasSubstr("none.txt"));

  // Only rank 0 fails to write, during training. It reports the error with its rank,
  // and rank 1 ends too.
  fs::remove_all(mine_ / "two" + "/metrics.jsonl");
  fs::create_directory(mine_ / "two" + "/metrics.jsonl");
  auto longer = words;
  longer.push_back("--overwrite_output_dir");
  *(std::find(longer.begin(), longer.end(), "--max_steps") + 1) = "100000";
  const auto died = test::run_programs(longer, {environment("0"), environment("1")});
  EXPECT_EQ(died[0].status, 4);
  EXPECT_EQ(died[1].status, 4) << died[1].signal;
  EXPECT_THAT(died[0].err, AllOf(HasSubstr("metrics.jsonl"), HasSubstr("rank 0")));
  EXPECT_EQ(died[1].err, "");
}

// examples/gpt2-mesh.json with a smaller model. It trains as one rank does, resumes on another
// mesh, and one rank opens its model.
TEST_F(Shoal, TrainsOnAMesh) {
  const auto loss = [](const std::string& directory) {
    std::ifstream file(directory + "/all_results.json");
    return nlohmann::json::parse(file)["eval_loss"].get<double>();
  };
  const std::vector<std::string> small = {
      "--config_overrides", "n_layer=2,n_head=2,n_embd=32,n_positions=64",
      "--save_strategy",    "steps",
      "--do_eval",          "true"};
  ASSERT_EQ(train(small).status, 0);
  auto words = train_words(small);
  words.insert(words.begin() + 1, SHOAL_EXAMPLES "/gpt2-mesh.json");
  for (const char* own : {"learning_rate=5e-5", "weight_decay=0", "adam_beta2=0.999",
                          "lr_scheduler_type=linear", "warmup_steps=0", "eval_strategy=no"})
    words.push_back(std::string("--") + own);
  const auto with = [&](const std::string& directory, const std::vector<std::string>& more) {
    auto all = words;
    *(std::find(all.begin(), all.end(), "--output_dir") + 1) = mine_ / directory;
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  const auto mesh = on_ranks(4, with("mesh", {}));
  ASSERT_EQ(mesh[0].status, 0) << mesh[0].err;
  for (std::size_t rank = 1; rank < 4; ++rank) EXPECT_EQ(mesh[rank].out + mesh[rank].err, "");
  EXPECT_THAT(mesh[0].out, AllOf(HasSubstr("layout: 4 ranks = rdp 1 x pp 2 x tp 2"),
                                 HasSubstr("a microbatch takes embeddings "),
                                 HasSubstr("microbatches: 4 a step")));
  EXPECT_NEAR(loss(mine_ / "mesh"), loss(out()), 2e-5 * loss(out()));

  const auto parts = shoal({"checkpoint", "inspect", mine_ / "mesh/checkpoint-3", "--verify"});
  EXPECT_EQ(parts.status, 0) << parts.out;
  EXPECT_THAT(parts.out, HasSubstr("4 shards, step 3, complete (checksums verified)"));
  const auto resumed =
      on_ranks(2, with("resumed", {"--resume_from_checkpoint", mine_ / "mesh" + "/checkpoint-3",
                                   "--mp_parameters", R"({"pipeline_parallel_degree": 2})"}));
  ASSERT_EQ(resumed[0].status, 0) << resumed[0].err;
  EXPECT_THAT(resumed[0].out, HasSubstr("at step 3"));
  EXPECT_NEAR(loss(mine_ / "resumed"), loss(out()), 2e-5 * loss(out()));

  const auto opened = shoal({"train", "--model_name_or_path", mine_ / "mesh", "--do_train", "false",
                             "--validation_file", *data_ / "validation.txt", "--block_size", "32",
                             "--output_dir", mine_ / "opened"});
  ASSERT_EQ(opened.status, 0) << opened.err;
  EXPECT_NEAR(loss(mine_ / "opened"), loss(out()), 2e-5 * loss(out()));
}

// Starts two ranks as users do; empty if mpirun is not installed.
std::optional<ProgramResult> under_mpirun(std::vector<std::string> words) {
  if (test::run_program({"sh", "-c", "command -v mpirun"}).status != 0) return std::nullopt;
  ProgramOptions options;
  options.environment = {"OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
                         "SHOAL_THREADS=1"};
  const std::vector<std::string> launcher = {"mpirun", "--oversubscribe", "-n", "2", SHOAL_PROGRAM};
  words.insert(words.begin(), launcher.begin(), launcher.end());
  return test::run_program(words, options);
}

// The bits are the same as with plain processes.
TEST_F(Shoal, TrainsOnAMeshUnderMpirun) {
  const auto words =
      train_words({"--mp_parameters", R"({"pipeline_parallel_degree": 2, "microbatches": 2})",
                   "--save_strategy", "no", "--max_steps", "2", "--do_eval", "false"});
  const auto trained = under_mpirun(words);
  if (!trained) GTEST_SKIP() << "mpirun is not installed";
  ASSERT_EQ(trained->status, 0) << trained->err;
  EXPECT_THAT(trained->out, HasSubstr("layout: 2 ranks = rdp 1 x pp 2 x tp 1"));
  const std::string model = mine_ / "mpirun";
  fs::rename(out(), model);
  ASSERT_EQ(on_ranks(2, words)[0].status, 0);
  const auto bytes = [](const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  EXPECT_TRUE(bytes(model + "/model.safetensors") == bytes(model_file()));
}

TEST_F(Shoal, ReportsErrorsOnceUnderMpirun) {
  const auto refused = under_mpirun(train_words({"--mp_parameters", R"({"partitions": 3})"}));
  if (!refused) GTEST_SKIP() << "mpirun is not installed";
  EXPECT_EQ(refused->status, 2);
  const auto said = refused->err.find("shoal train: 2 ranks do not divide");
  ASSERT_NE(said, std::string::npos) << refused->err;
  EXPECT_EQ(refused->err.find("shoal train:", said + 1), std::string::npos) << refused->err;
}

TEST_F(Shoal, RefusesAMeshThatCannotBe) {
  const auto refused = [&](int ranks, const char* parameters, const std::string& text,
                           const std::vector<std::string>& more = {}, int status = 2) {
    auto words = train_words({"--mp_parameters", parameters});
    words.insert(words.end(), more.begin(), more.end());
    const auto results = on_ranks(ranks, words);
    std::string said;
    for (const ProgramResult& result : results) {
      EXPECT_EQ(result.status, status) << result.err;
      EXPECT_EQ(result.out, "");
      said += result.err;
    }
    EXPECT_EQ(said, results[0].err);  // only rank 0
    EXPECT_TRUE(is_one_line(said)) << said;
    EXPECT_THAT(said, HasSubstr(text));
  };
  refused(3, R"({"pipeline_parallel_degree": 2})", "start 2 or 4 ranks");
  refused(4, R"({"tensor_parallel_degree": 4, "ddp": true})", "2 attention heads");
  refused(2, R"({"pipeline_parallel_degree": 2, "microbatches": 3})", "that do: 1, 2, 4");
  refused(2, R"({"pipeline_parallel_degre": 2})", "pipeline_parallel_degree");
  refused(2, R"({"pipeline_parallel_degree": 2, "manual_partition": [2, 3]})", "the model 4 units");
  refused(2, R"({"pipeline_parallel_degree": 2})", "resume_from_checkpoint: there is no nix",
          {"--resume_from_checkpoint", "nix"}, 3);
  refused(2, R"({"pipeline_parallel_degree": 2})", "all_reduce:nix",
          {"--collectives", "all_reduce:nix"});
}

TEST_F(Shoal, RefusesWrongOptions) {
  expect_refused(train({"--learning_rat", "1"}), "learning_rate");
  expect_refused(train({"--max_steps", "many"}), "max_steps");
  expect_refused(train({"--deepspeed", "z.json"}), "deepspeed");
  const auto unknown = train({"--peft_config", "z.json"});
  expect_refused(unknown, "there is no option 'peft_config'");
  EXPECT_THAT(unknown.err, ::testing::Not(HasSubstr("fsdp_config"))) << "it is refused by itself";
  // An option set to its default value counts as given.
  expect_refused(train({"--max_grad_norm", "1.0", "--mp_parameters",
                        R"({"sharded_data_parallel_degree": 2, "sdp_gradient_clipping": 0.5})"}),
                 "sdp_gradient_clipping is 0.5");
  expect_refused(train({"--block_size", "128"}), "the model has 64 positions");
  expect_refused(train({"--config_overrides", "n_layers=2"}),
                 "model_type gpt2 has no 'n_layers'; did you mean n_layer?");
  expect_refused(train({"--model_type", "gtp2"}), "mbart; did you mean gpt2?");
  expect_refused(train({"--model_name_or_path", mine_ / "nobody"}), "there is no such directory");
  expect_refused(train({"--model_type", "bert"}), "bert");
  expect_refused(train({"--model_type", "bert", "--config_name", "gpt2"}), "bert");
  expect_refused(train({"--trace", mine_ / "none" + "/trace.json"}), "trace.json");
  EXPECT_FALSE(fs::exists(model_file()));  // detected before training
  expect_refused(train({"--do_train", "false", "--do_eval", "false"}), "nothing to do");
  expect_refused(train({"--do_train", "false", "--resume_from_checkpoint", "true"}),
                 "--model_name_or_path");
  // Without a validation set, an option that needs one is not ignored.
  auto alone = train_words({"--eval_on_start"});
  const auto held_out = std::find(alone.begin(), alone.end(), "--validation_file");
  alone.erase(held_out, held_out + 2);
  expect_refused(shoal(alone), "eval_on_start");
  alone.back() = "--do_train";
  alone.emplace_back("false");
  expect_refused(shoal(alone), "nothing to do");
  alone.pop_back();
  alone.back() = "--eval_strategy";
  alone.emplace_back("epoch");
  expect_refused(shoal(alone), "validation_split_percentage");
  std::ofstream(mine_ / "bad.json") << R"({"learning_rate": [1, 2]})";
  expect_refused(shoal({"train", mine_ / "bad.json"}), "learning_rate");
  std::ofstream(mine_ / "cut.json") << R"({"learning_rate": 1)";
  expect_refused(shoal({"train", mine_ / "cut.json"}), "cut.json");
  expect_refused(shoal({"train", mine_ / "none.json"}), "none.json");
}

TEST_F(Shoal, SaysWhichCommandWasMeant) {
  const auto expect = [this](std::vector<std::string> words, const std::string& text) {
    const auto result = shoal(std::move(words));
    EXPECT_EQ(result.status, 2);
    expect_refused(result, text);
  };
  expect({"trian"}, "did you mean train?");
  expect({"tokenizer", "encod"}, "did you mean encode?");
  expect({"tokenizer", "encode", "-t", "x", "--fil", "y"}, "did you mean --file?");
  expect({"generate"}, "shoal generate: --model is required (`shoal generate --help`");
  expect({"data"}, "shoal data: a command is needed: prepare");
  EXPECT_THAT(shoal({}).err, HasSubstr("a command is needed: train, predict"));
  // In any case, and by the words of other programs; nothing far off.
  expect({"TRAIN"}, "did you mean train?");
  expect({"Classify"}, "did you mean predict?");
  expect({"generate", "--MAX_LENGTH", "3"}, "did you mean --max-new-tokens?");
  for (const char* far : {"frobnicate", "x"})
    EXPECT_THAT(shoal({far}).err, ::testing::Not(HasSubstr("did you mean")));
  expect({"train", "--lr", "1"}, "did you mean learning_rate?");
  expect({"train", "--BS", "1"}, "did you mean per_device_train_batch_size?");
  for (const char* refused : {"--fsdpp", "--tf322", "--deepspeedd"})  // Shoal refuses fsdp itself
    EXPECT_THAT(shoal({"train", refused, "1"}).err, ::testing::Not(HasSubstr("did you mean")));
}

TEST_F(Shoal, SaysWhichNumbersItTakes) {
  expect_refused(shoal({"generate", "-m", "x", "--top-p", "2"}),
                 "--top-p: 2 is out of range; give a number from 0 to 1");
  expect_refused(shoal({"generate", "-m", "x", "--max-new-tokens", "-1"}),
                 "-1 is out of range; give a number of at least 0");
  expect_refused(shoal({"tokenizer", "train", "-o", "x", "--vocab-size", "big", "f"}),
                 "--vocab-size is big; it takes a whole number");
}

TEST_F(Shoal, HelpIsShortAndCompleteInOneStyle) {
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"train"}, {"generate"}, {"data", "prepare"}}) {
    auto with = [&](const char* last) {
      auto all = words;
      all.emplace_back(last);
      return shoal(all);
    };
    auto named = words;
    named.insert(named.begin(), "help");
    const ProgramResult few = with("--help"), all = with("--help-all");
    EXPECT_EQ(few.status, 0) << few.err;
    EXPECT_EQ(all.status, 0) << all.err;
    EXPECT_EQ(shoal(named).out, few.out);
    EXPECT_LT(few.out.size(), all.out.size());
    EXPECT_THAT(few.out, HasSubstr("--help-all"));
    EXPECT_THAT(few.out, HasSubstr("Usage: shoal " + words[0]));
  }
  EXPECT_EQ(shoal({"help"}).out, shoal({"--help"}).out);
  EXPECT_THAT(shoal({"train", "--help"}).out, ::testing::Not(HasSubstr("--adam_beta1")));
  EXPECT_THAT(shoal({"train", "--help-all"}).out, HasSubstr("--adam_beta1"));
  expect_refused(shoal({"help", "trian"}), "did you mean train?");
}

// Every option of `shoal generate` changes the text or a file.
TEST_F(Shoal, GenerateObeysItsOptions) {
  ASSERT_EQ(train({"--save_strategy", "no", "--learning_rate", "0.01"}).status, 0);
  const auto generate = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"generate", "-m", out()});
    return shoal(more);
  };
  const auto said = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"-p", "the shoal", "--max-new-tokens", "30", "--no-stop"});
    const auto result = generate(more);
    EXPECT_EQ(result.status, 0) << result.err;
    return result.out;
  };
  const std::string usual = said({}), greedy = said({"--greedy"});
  EXPECT_NE(usual, greedy);
  EXPECT_NE(usual, said({"--temperature", "3"}));
  EXPECT_NE(usual, said({"--top-k", "2"}));
  EXPECT_NE(usual, said({"--top-p", "0.3"}));
  EXPECT_EQ(greedy, said({"--top-k", "1"}));
  EXPECT_EQ(greedy, said({"--top-p", "0.000001"}));
  EXPECT_EQ(greedy, said({"--temperature", "0.00001"}));
  EXPECT_EQ(greedy, said({"--greedy", "--tokenizer", *data_ / "tok"}));
  EXPECT_EQ(generate({"-p", "the", "--max-new-tokens", "0"}).status, 0);
  expect_refused(generate({"-p", "the", "--tokenizer", mine_ / "none"}), "none");
  expect_refused(generate({"-p", "the", "--top-p", "0"}), "--greedy");
  expect_refused(generate({"-p", "the", "--num-beams", "2", "--top-k", "3"}), "leave one of them");
  // A prompt of a file gets the same text, to its last token.
  std::ofstream(mine_ / "prompts.txt") << "the shoal\n";
  for (const char* tokens : {"1", "7"}) {
    const std::vector<std::string> how{"--greedy", "--no-stop", "--max-new-tokens", tokens};
    std::vector<std::string> one{"-p", "the shoal"}, all{"--prompts", mine_ / "prompts.txt"};
    one.insert(one.end(), how.begin(), how.end());
    all.insert(all.end(), how.begin(), how.end());
    const auto row = nlohmann::json::parse(generate(all).out);
    EXPECT_EQ(generate(one).out, "the shoal" + row["text"].get<std::string>() + "\n");
  }
  // bf16 rounds the logits. Ids from a file give the same logits as the prompt.
  const auto logits = [&](std::vector<std::string> more) {
    more.insert(more.end(), {"--logits-out", mine_ / "l.safetensors"});
    EXPECT_EQ(generate(more).status, 0);
    const Tensor tensor = SafetensorsFile::open(mine_ / "l.safetensors")->tensor("logits");
    return std::vector<float>(tensor.const_data<float>(),
                              tensor.const_data<float>() + tensor.count());
  };
  const auto f32 = logits({"-p", "the shoal", "--max-new-tokens", "0"});
  EXPECT_NE(f32, logits({"-p", "the shoal", "--max-new-tokens", "0", "--bf16"}));
  fs::rename(mine_ / "l.safetensors", mine_ / "ids.safetensors");
  EXPECT_EQ(f32, logits({"--input-ids", mine_ / "ids.safetensors"}));
  expect_refused(generate({"-p", "x", "--input-ids", mine_ / "ids.safetensors", "--logits-out",
                           mine_ / "l.safetensors"}),
                 "choose one");
  // The model has 64 positions. Text beyond them is reported.
  const auto clipped = generate({"-p", "the shoal", "--max-new-tokens", "100", "--no-stop"});
  EXPECT_EQ(clipped.status, 0);
  EXPECT_THAT(clipped.err, HasSubstr("fit into the model's 64 positions"));
  std::string endless;
  for (int i = 0; i < 200; ++i) endless += "the shoal ";
  expect_refused(generate({"-p", endless}), "the model 64 positions");
}

TEST_F(Shoal, WritesAModelCardButNotOverAPersons) {
  ASSERT_EQ(train().status, 0);
  EXPECT_THAT(read_text_file(out() + "/README.md"), HasSubstr("- training_steps: 6\n"));
  std::ofstream(out() + "/README.md") << "# Mine\n";
  const auto again = train({"--overwrite_output_dir", "true", "--max_steps", "3"});
  ASSERT_EQ(again.status, 0) << again.err;
  EXPECT_EQ(read_text_file(out() + "/README.md"), "# Mine\n");
  EXPECT_THAT(again.out, HasSubstr("README.md is not generated and stays as it is"));
}

}  // namespace
}  // namespace shoal
