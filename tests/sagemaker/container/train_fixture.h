// A tiny job for the entry point: a tree laid out like /opt/ml, a tokenizer and a text.
#pragma once

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <future>
#include <string>
#include <vector>

#include "apps/program.h"
#include "sagemaker/container/opt_ml.h"
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shoal/runtime/io/byte_source.h"

namespace shoal::sagemaker {

inline std::string sentences(int count) {
  static const char* words[] = {"the", "shoal", "swims", "in", "cold", "water", "and", "asks"};
  std::string text;
  unsigned x = 12345;
  for (int i = 0; i < 9 * count; ++i) {
    x = x * 1664525U + 1013904223U;
    text += words[(x >> 16U) % 8U];
    text += i % 9 == 8 ? ".\n" : " ";
  }
  return text;
}

class Train : public ::testing::Test {
 protected:
  using Json = OptMl::Json;

  static void SetUpTestSuite() {
    shared_ = new testing::TemporaryDirectory;
    std::ofstream(*shared_ / "train.txt") << sentences(200);
    const auto made =
        test::run_program({SHOAL_PROGRAM, "tokenizer", "train", "--vocab-size", "280", "-o",
                           *shared_ / "tok", *shared_ / "train.txt"},
                          {.directory = {}, .environment = {}, .signal_when_out_has = {}});
    ASSERT_EQ(made.status, 0) << made.err;
  }
  static void TearDownTestSuite() {
    delete shared_;
    shared_ = nullptr;
  }
  // A tiny run of `steps` steps, with a channel for its text.
  static Json hyperparameters(int steps, const Json& more = Json::object()) {
    Json all = {{"model_type", "\"gpt2\""},
                {"config_overrides", "\"n_layer=1,n_head=2,n_embd=16,n_positions=32\""},
                {"tokenizer_name", Json(*shared_ / "tok").dump()},
                {"block_size", "16"},
                {"max_steps", std::to_string(steps)},
                {"logging_steps", "1"},
                {"save_strategy", "\"no\""},
                {"per_device_train_batch_size", "2"},
                {"use_cpu", "true"},
                {"sagemaker_region", "\"us-east-1\""}};
    for (const auto& [name, value] : more.items()) all[name] = value;
    return all;
  }
  static void fill(OptMl& ml, const Json& hyperparameters) {
    ml.hyperparameters(hyperparameters);
    ml.channels({{"train", {"text.txt"}}});
    std::filesystem::copy_file(*shared_ / "train.txt", ml.path("input/data/train/text.txt"),
                               std::filesystem::copy_options::overwrite_existing);
  }
  // The code archive as SageMaker provides it to a job without a network.
  static void fill_with_archive(OptMl& ml) {
    const testing::TemporaryDirectory code;
    std::ofstream(code / "run.json") << R"({"max_steps": 2, "run_name": "from the archive"})";
    std::filesystem::create_directories(ml.path("input/data/code"));
    const std::string archive = ml.path("input/data/code/sourcedir.tar.gz");
    ASSERT_EQ(test::run_program({"tar", "-czf", archive, "-C", code.path(), "run.json"}).status, 0);
    Json all = hyperparameters(
        2, {{"sagemaker_program", "\"run.json\""},
            {"sagemaker_submit_directory", "\"/opt/ml/input/data/code/sourcedir.tar.gz\""}});
    all.erase("max_steps");
    fill(ml, all);
  }
  // For ranks that read the pipes of a channel, where a file of another kind has the first pipe's
  // name.
  static void fill_with_no_pipe(OptMl& ml) {
    ml.hyperparameters({{"sagemaker_mpi_enabled", "true"},
                        {"sagemaker_mpi_num_of_processes_per_host", "2"},
                        {"streaming", "true"},
                        {"max_steps", "5"}});
    ml.inputs({{"train", {{"TrainingInputMode", "Pipe"}}}});
    ml.write("input/data/train_0", "no pipe");
  }
  static void expect_no_pipe(const OptMl& ml) {
    EXPECT_THAT(read_text_file(ml.path("output/failure")),
                ::testing::HasSubstr("channel train: " + ml.path("input/data/train_0") +
                                     " is no named pipe"));
  }
  // All paths below a directory, one a line.
  static std::string listing(const std::string& directory) {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(directory))
      names.push_back(entry.path().string());
    std::ranges::sort(names);
    return fmt::format("{}", fmt::join(names, "\n"));
  }
  static test::ProgramResult train(const OptMl& ml, std::vector<std::string> words = {},
                                   test::ProgramOptions options = {}) {
    words.insert(words.begin(), {SHOAL_SAGEMAKER_TRAIN, "--prefix", ml.root(), "--poll-seconds",
                                 "0.05", "--quiet-seconds", "0.2", "--ssh-keys",
                                 ml.path("ssh-keys"), "--ssh-keyscan", ml.path("ssh-keyscan")});
    if (std::ranges::find(words, "--shoal") == words.end())
      words.insert(words.end(), {"--shoal", SHOAL_PROGRAM});
    for (const char* variable :
         {"SHOAL_THREADS=1", "OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
          "AWS_SECRET_ACCESS_KEY=geheim"})
      options.environment.insert(options.environment.begin(), variable);
    return test::run_program(words, options);
  }
  static void script(const std::string& path, const std::string& text) {
    std::ofstream(path) << "#!/bin/sh\n" << text;
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  }
  static std::string model_of(const OptMl& ml) {
    return read_text_file(ml.path("model/model.safetensors"));
  }
  // Stops a run once it has logged a loss and starts it again, as after a spot interruption.
  // Compares it with an unbroken run.
  static void expect_resumed_as_unbroken(int steps, const Json& changes) {
    OptMl unbroken({"localhost"}, "localhost"), broken({"localhost"}, "localhost");
    fill(unbroken, hyperparameters(steps, changes));
    fill(broken, hyperparameters(steps, changes));
    auto beside = std::async(std::launch::async, [&unbroken] { return train(unbroken); });
    test::ProgramOptions stop;
    stop.signal_when_out_has = "'loss': ";
    const test::ProgramResult stopped = train(broken, {}, stop);
    EXPECT_EQ(stopped.status, 128 + SIGTERM) << stopped.out << stopped.err;
    EXPECT_THAT(stopped.out, ::testing::HasSubstr("stopped by signal 15"));
    EXPECT_FALSE(std::filesystem::exists(broken.path("model/model.safetensors")));
    EXPECT_FALSE(std::filesystem::exists(broken.path("output/failure")));
    const test::ProgramResult resumed = train(broken);
    EXPECT_EQ(resumed.status, 0) << resumed.out << resumed.err;
    const test::ProgramResult whole = beside.get();
    ASSERT_EQ(whole.status, 0) << whole.out << whole.err;
    EXPECT_EQ(model_of(broken), model_of(unbroken));
  }

  static inline testing::TemporaryDirectory* shared_ = nullptr;
};

}  // namespace shoal::sagemaker
