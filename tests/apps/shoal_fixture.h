// The program `shoal`, with a text and a tokenizer that all tests of a file share.
#pragma once

#include <algorithm>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "apps/program.h"
#include "support/free_port.h"
#include "support/temporary_directory.h"
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace shoal {

using test::ProgramOptions;
using test::ProgramResult;
using ::testing::HasSubstr;

inline std::string sentences(int count) {
  static const char* words[] = {"the", "shoal", "swims", "in",    "cold", "water", "and",
                                "no",  "fish",  "asks",  "where", "it",   "goes",  "tonight"};
  std::string text;
  unsigned x = 12345;
  for (int i = 0; i < count; ++i) {
    for (int w = 0; w < 9; ++w) {
      x = x * 1664525U + 1013904223U;
      text += words[(x >> 16U) % 14U];
      text += w == 8 ? ".\n" : " ";
    }
  }
  return text;
}

inline bool is_one_line(const std::string& text) {
  return std::count(text.begin(), text.end(), '\n') == 1 && text.back() == '\n';
}

class Shoal : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    data_ = new testing::TemporaryDirectory;
    std::ofstream(*data_ / "train.txt") << sentences(300);
    std::ofstream(*data_ / "validation.txt") << sentences(30);
    const auto made = shoal(
        {"tokenizer", "train", "--vocab-size", "300", "-o", *data_ / "tok", *data_ / "train.txt"});
    ASSERT_EQ(made.status, 0) << made.err;
  }
  static void TearDownTestSuite() {
    delete data_;
    data_ = nullptr;
  }

  static ProgramResult shoal(std::vector<std::string> words, ProgramOptions options = {}) {
    words.insert(words.begin(), SHOAL_PROGRAM);
    options.environment.emplace_back("SHOAL_THREADS=1");
    return test::run_program(words, options);
  }
  // A small run. `more` comes last and so overrides the rest.
  std::vector<std::string> train_words(const std::vector<std::string>& more = {}) const {
    std::vector<std::string> words = {"train",
                                      "--model_type",
                                      "gpt2",
                                      "--config_overrides",
                                      "n_layer=2,n_head=2,n_embd=32,n_positions=64",
                                      "--tokenizer_name",
                                      *data_ / "tok",
                                      "--train_file",
                                      *data_ / "train.txt",
                                      "--validation_file",
                                      *data_ / "validation.txt",
                                      "--block_size",
                                      "32",
                                      "--max_steps",
                                      "6",
                                      "--logging_steps",
                                      "2",
                                      "--save_steps",
                                      "3",
                                      "--per_device_train_batch_size",
                                      "4",
                                      "--output_dir",
                                      out()};
    return overlaid(std::move(words), more);
  }
  // Replaces the value of an option that is already present, and appends the others.
  static std::vector<std::string> overlaid(std::vector<std::string> words,
                                           const std::vector<std::string>& more) {
    for (std::size_t i = 0; i < more.size(); ++i) {
      const auto same = std::find(words.begin(), words.end(), more[i]);
      if (more[i].starts_with("--") && same != words.end() && i + 1 < more.size()) {
        *(same + 1) = more[++i];
      } else {
        words.push_back(more[i]);
      }
    }
    return words;
  }
  // Returns the ranks' results, rank 0's first. `by`: the command that starts each rank.
  static std::vector<ProgramResult> on_ranks(int ranks, std::vector<std::string> words,
                                             const std::vector<std::string>& by = {}) {
    words.insert(words.begin(), SHOAL_PROGRAM);
    words.insert(words.begin(), by.begin(), by.end());
    const int port = testing::free_port();
    std::vector<std::vector<std::string>> environments;
    for (int rank = 0; rank < ranks; ++rank)
      environments.push_back({fmt::format("RANK={}", rank), fmt::format("LOCAL_RANK={}", rank),
                              fmt::format("WORLD_SIZE={}", ranks),
                              fmt::format("LOCAL_WORLD_SIZE={}", ranks), "MASTER_ADDR=127.0.0.1",
                              fmt::format("MASTER_PORT={}", port), "SHOAL_THREADS=1"});
    return test::run_programs(words, environments);
  }
  ProgramResult train(const std::vector<std::string>& more = {},
                      const ProgramOptions& options = {}) const {
    return shoal(train_words(more), options);
  }
  // Expects a non-zero status and one line that contains `words`.
  void expect_refused(const ProgramResult& result, const std::string& words) const {
    EXPECT_GT(result.status, 0) << result.out << result.err;
    EXPECT_THAT(result.err, HasSubstr(words));
    EXPECT_TRUE(is_one_line(result.err)) << result.err;
    EXPECT_THAT(result.err, ::testing::StartsWith("shoal"));
  }
  std::string out() const { return mine_ / "out"; }
  std::string model_file() const { return out() + "/model.safetensors"; }

  static inline testing::TemporaryDirectory* data_ = nullptr;
  testing::TemporaryDirectory mine_;
};

}  // namespace shoal
