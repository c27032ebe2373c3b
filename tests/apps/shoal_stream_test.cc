// The real program on streams of shards.
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

}  // namespace
}  // namespace shoal
