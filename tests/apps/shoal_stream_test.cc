// The real program on streams of shards, and its scaling study.
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>

#include "apps/shoal_fixture.h"
#include <nlohmann/json.hpp>

namespace shoal {
namespace {

std::string text_in(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class ShoalStream : public Shoal {
 protected:
  void SetUp() override {
    std::filesystem::create_directories(mine_ / "shards");
    std::istringstream lines(sentences(300));
    std::string line;
    for (int shard = 0; shard < 5; ++shard) {
      std::ofstream file(mine_ /
                         fmt::format("shards/part-{}.{}", shard, shard == 2 ? "jsonl" : "txt"));
      const int count = shard == 3 ? 0 : 20 + 15 * shard;
      for (int i = 0; i < count && std::getline(lines, line); ++i)
        if (shard == 2)
          file << nlohmann::json{{"text", line}}.dump() << "\n";
        else
          file << line << "\n";
    }
  }
  std::vector<std::string> words(const std::vector<std::string>& more = {}) const {
    return overlaid(train_words({"--streaming", "true", "--shuffle_buffer_size", "20",
                                 "--train_file", mine_ / "shards"}),
                    more);
  }
  static std::vector<double> losses_in(const std::string& directory) {
    std::istringstream file(text_in(directory + "/metrics.jsonl"));
    std::vector<double> losses;
    for (std::string line; std::getline(file, line);)
      if (const auto record = nlohmann::json::parse(line); record.contains("loss"))
        losses.push_back(record["loss"].get<double>());
    return losses;
  }
};

TEST_F(ShoalStream, TrainsAndResumesToTheBit) {
  const auto whole = shoal(words({"--dataloader_num_workers", "2"}));
  ASSERT_EQ(whole.status, 0) << whole.err;
  EXPECT_THAT(whole.out, HasSubstr("steps: 6 on a stream of 5 shards, shuffled through a buffer of "
                                   "20 samples"));
  const std::string model = text_in(model_file());
  const std::string state = text_in(out() + "/checkpoint-6/trainer_state.json");
  EXPECT_THAT(state, HasSubstr("\"shard_sizes\""));
  std::filesystem::remove_all(out() + "/checkpoint-6");
  const auto rest = shoal(words({"--resume_from_checkpoint", "true", "--train_file",
                                 mine_ / "shards/*.txt" + "," + mine_ / "shards/part-2.jsonl"}));
  expect_refused(rest, "other shards");  // the same files, in another order
  const auto again = shoal(words({"--resume_from_checkpoint", "true"}));
  ASSERT_EQ(again.status, 0) << again.err;
  EXPECT_EQ(text_in(model_file()), model);
  EXPECT_EQ(text_in(out() + "/checkpoint-6/trainer_state.json"), state);
}

TEST_F(ShoalStream, TwoRanksReadTheSameAsOne) {
  ASSERT_EQ(shoal(words({"--logging_steps", "1"})).status, 0);
  const auto alone = losses_in(out());
  const auto both = on_ranks(2, words({"--logging_steps", "1", "--per_device_train_batch_size", "2",
                                       "--output_dir", mine_ / "two"}));
  ASSERT_EQ(both[0].status, 0) << both[0].err;
  const auto two = losses_in(mine_ / "two");
  ASSERT_EQ(two.size(), alone.size());
  for (std::size_t i = 0; i < two.size(); ++i) EXPECT_NEAR(two[i], alone[i], 1e-3) << i;
}

TEST_F(ShoalStream, RefusesInOneLine) {
  expect_refused(shoal(words({"--max_steps", "-1"})), "streaming needs max_steps");
  expect_refused(shoal(words({"--train_file", mine_ / "none/*.txt"})), "nothing matches");
  expect_refused(shoal(words({"--train_file", mine_ / "shards/part-3.txt"})), "have no sample");
  expect_refused(shoal(words({"--max_train_samples", "4"})), "max_train_samples is 4");
  expect_refused(shoal(words({"--train_file", "s3://bucket/a.txt"})), "s3://bucket/a.txt");
  const std::string pipe = "pipe://" + (mine_ / "train");
  expect_refused(shoal(words({"--train_file", pipe + ".txt", "--streaming", "false"})),
                 "which passes by once; give --streaming true");
  expect_refused(shoal(words({"--train_file", pipe + ".shoaltok"})),
                 "through a pipe causal-lm reads .txt and .jsonl");
  expect_refused(shoal(words({"--validation_file", pipe + ".txt"})), "validation_file is pipe://");
  std::ofstream(mine_ / "train_0") << "a file\n";
  expect_refused(shoal(words({"--train_file", pipe + ".txt"})), "is no named pipe");
  expect_refused(on_ranks(2, words({"--train_file", pipe + ".txt"}))[0],
                 "2 ranks of this host would read one pipe");
  std::ofstream(mine_ / "shards/part-2.jsonl") << "{\"text\": \"a\"}\nno json\n";
  expect_refused(shoal(words({"--train_file", mine_ / "shards/part-2.jsonl"})),
                 "part-2.jsonl, line 2");
}

TEST_F(ShoalStream, StudiesHowItScales) {
  const auto scale = [&](const std::vector<std::string>& more) {
    auto all = overlaid({"scale", "--workers", "0,1", "--batches", "4", "--ranks", "1",
                         "--examples", "32", "-o", mine_ / "study"},
                        more);
    for (const std::string& word :
         {std::string("--model_type"), std::string("gpt2"), std::string("--config_overrides"),
          std::string("n_layer=1,n_head=2,n_embd=32,n_positions=64"),
          std::string("--tokenizer_name"), *data_ / "tok", std::string("--train_file"),
          *data_ / "train.txt", std::string("--block_size"), std::string("32")})
      all.push_back(word);
    return shoal(all);
  };
  const auto plan = scale({"--ranks", "1,2", "--dry-run"});
  ASSERT_EQ(plan.status, 0) << plan.err;
  EXPECT_EQ(std::count(plan.out.begin(), plan.out.end(), '\n'), 4);
  EXPECT_THAT(plan.out, HasSubstr("mpirun -n 2 "));
  EXPECT_THAT(plan.out, HasSubstr("--per_device_train_batch_size 4 --dataloader_num_workers 1 "
                                  "--gradient_accumulation_steps 1 --max_steps 8"));
  // A list of numbers ends at the configuration file.
  std::ofstream(mine_ / "run.json") << "{}";
  const auto unseen = shoal({"scale", "--dry-run", "--ranks", "1", mine_ / "none.json"});
  expect_refused(unseen, "none.json");
  EXPECT_EQ(unseen.out, "");
  expect_refused(scale({"--dry-run", "--validation_file", mine_ / "gone.txt"}),
                 "validation_file: there is no " + (mine_ / "gone.txt"));
  for (const char* list : {"--ranks", "--workers", "--batches"}) {
    const auto given = shoal({"scale", "--dry-run", list, "1,2", mine_ / "run.json"});
    EXPECT_THAT(given.out, HasSubstr("train " + (mine_ / "run.json"))) << list << given.err;
  }
  const auto done = scale({});
  ASSERT_EQ(done.status, 0) << done.err;
  EXPECT_THAT(done.out, HasSubstr("32 examples in every run"));
  const auto json = nlohmann::json::parse(text_in(mine_ / "study/study.json"));
  ASSERT_EQ(json["runs"].size(), 2U);
  for (const auto& run : json["runs"]) {
    EXPECT_EQ(run["steps"], 8);
    EXPECT_GT(run["samples_per_second"].get<double>(), 0);
    EXPECT_EQ(run["efficiency"], 1.0);
  }
  EXPECT_GT(json["runs"][0]["loader_stall_share"].get<double>(), 0);  // because it has no workers
  EXPECT_THAT(text_in(mine_ / "study/study.html"), HasSubstr("</svg>"));

  expect_refused(scale({"--examples", "33"}), "33 examples are not a whole number of steps");
  expect_refused(scale({"--max_steps", "5"}), "--max_steps is set by the study");
  expect_refused(scale({"--launch", "run"}), "write {ranks} there");
  expect_refused(scale({"--learning_rat", "1"}), "did you mean learning_rate?");
  expect_refused(scale({"--trace", mine_ / "none/trace.json"}),
                 "the run ranks1-workers0-batch4 ended with status");
  expect_refused(scale({"--ranks", "1,2", "--launch", "no-such-launcher {ranks}"}),
                 "cannot start no-such-launcher");
  expect_refused(shoal({"scale"}), "what is to be trained?");
}

}  // namespace
}  // namespace shoal
