// The program `shoal` on tasks other than language modelling: a tiny vocabulary and tiny models.
#pragma once

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "apps/shoal_fixture.h"
#include <nlohmann/json.hpp>

namespace shoal {

inline std::string text_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline nlohmann::json json_of(const std::string& path) {
  return nlohmann::json::parse(text_of(path), nullptr, false);
}

class ShoalOnTasks : public Shoal {
 protected:
  void SetUp() override {
    std::filesystem::create_directories(vocabulary());
    std::ofstream words(vocabulary() + "/vocab.txt");
    words << "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n.\n##s\n";
    for (const char* word : {"the", "shoal", "swims", "in", "cold", "water", "and", "no", "fish",
                             "asks", "where", "it", "goes", "tonight", "good", "bad"})
      words << word << "\n";
  }
  std::string vocabulary() const { return mine_ / "words"; }
  // The lines of sentences(), without their full stops.
  static std::vector<std::string> lines(int count) {
    std::vector<std::string> all;
    const std::string text = sentences(count);
    for (std::size_t begin = 0; begin < text.size();) {
      const std::size_t end = text.find('\n', begin);
      all.push_back(text.substr(begin, end - begin - 1));
      begin = end + 1;
    }
    return all;
  }
  static std::vector<std::string> tiny_bert() {
    return {"--model_type", "bert", "--config_overrides",
            "hidden_size=32,num_hidden_layers=2,num_attention_heads=4,intermediate_size=64,"
            "max_position_embeddings=64,hidden_dropout_prob=0,attention_probs_dropout_prob=0"};
  }
  // Uses the byte-level tokenizer, which has neither padding nor special tokens around texts.
  static std::vector<std::string> tiny_gpt2() {
    return {"--model_type",
            "gpt2",
            "--tokenizer_name",
            *data_ / "tok",
            "--config_overrides",
            "n_embd=32,n_layer=2,n_head=4,n_positions=64,resid_pdrop=0,embd_pdrop=0,attn_pdrop=0"};
  }
  static std::vector<std::string> tiny_llama() {
    return {"--model_type", "llama", "--config_overrides",
            "hidden_size=32,num_hidden_layers=2,num_attention_heads=4,num_key_value_heads=2,"
            "intermediate_size=64,max_position_embeddings=64"};
  }
  static std::vector<std::string> words_of(const std::vector<std::string>& model,
                                           const std::vector<std::string>& more) {
    return overlaid(overlaid({"train", "--save_strategy", "no", "--learning_rate", "3e-3",
                              "--logging_steps", "1", "--seed", "3"},
                             model),
                    more);
  }
  // The losses that a run logged, step by step.
  static std::vector<double> losses(const std::string& directory) {
    std::vector<double> all;
    std::ifstream records(directory + "/metrics.jsonl");
    for (std::string line; std::getline(records, line);)
      if (const auto record = nlohmann::json::parse(line); record.contains("loss"))
        all.push_back(record["loss"]);
    return all;
  }
  // `words` train on one rank with batches of 8. Two ranks must give the same losses and the same
  // bytes in `files`, for every layout of the model.
  void expect_ranks_as_one(const std::vector<std::string>& words,
                           const std::vector<std::string>& files) const {
    const auto with = [&](const char* name, const std::vector<std::string>& more) {
      return overlaid(overlaid(words, more), {"--output_dir", mine_ / name});
    };
    const auto alone = shoal(with("one", {"--per_device_train_batch_size", "8"}));
    ASSERT_EQ(alone.status, 0) << alone.err;
    const std::vector<double> expected = losses(mine_ / "one");
    ASSERT_GT(expected.size(), 4U);
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
      const auto ranks = on_ranks(2, with(name, more));
      ASSERT_EQ(ranks[0].status, 0) << ranks[0].err;
      EXPECT_EQ(ranks[1].status, 0) << ranks[1].err;
      for (const std::string& file : files) {
        EXPECT_FALSE(text_of(mine_ / "one" + "/" + file).empty()) << file;
        EXPECT_EQ(text_of(mine_ / name + "/" + file), text_of(mine_ / "one" + "/" + file)) << file;
      }
      const std::vector<double> own = losses(mine_ / name);
      ASSERT_EQ(own.size(), expected.size());
      for (std::size_t step = 0; step < own.size(); ++step)
        EXPECT_NEAR(own[step], expected[step], 2e-5 * (1 + expected[step])) << "step " << step + 1;
    }
  }
};

}  // namespace shoal
