// The real program on texts: training and using tokenizers, preparing token files.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>

#include "apps/shoal_fixture.h"
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "shoal/runtime/io/safetensors.h"

namespace shoal {
namespace {

TEST_F(Shoal, TokenizesBothWays) {
  const auto ids = shoal({"tokenizer", "encode", "-t", *data_ / "tok", "the shoal swims"});
  ASSERT_EQ(ids.status, 0) << ids.err;
  EXPECT_EQ(
      shoal({"tokenizer", "decode", "-t", *data_ / "tok", ids.out.substr(0, ids.out.size() - 1)})
          .out,
      "the shoal swims\n");
  std::ofstream(mine_ / "text.txt") << "the shoal swims";
  EXPECT_EQ(ids.out,
            shoal({"tokenizer", "encode", "-t", *data_ / "tok", "-f", mine_ / "text.txt"}).out);
  const auto decode = [&](const std::vector<std::string>& more) {
    std::vector<std::string> words = {"tokenizer", "decode", "-t", *data_ / "tok", "0"};
    words.insert(words.end(), more.begin(), more.end());
    return shoal(words).out;
  };
  EXPECT_EQ(decode({}), "<|endoftext|>\n");
  EXPECT_EQ(decode({"--skip-special"}), "\n");
  expect_refused(shoal({"tokenizer", "decode", "-t", *data_ / "tok", "70000"}), "70000");
  expect_refused(shoal({"tokenizer", "encode", "-t", mine_ / "none", "x"}), "none");
  expect_refused(
      shoal({"tokenizer", "encode", "-t", *data_ / "tok", "-f", *data_ / "train.txt", "x"}),
      "choose one");
}

// A Llama directory with only tokenizer.model: texts, training, generation.
TEST_F(Shoal, AcceptsADirectoryWithOnlyTokenizerModel) {
  namespace fs = std::filesystem;
  const std::string model =
      SHOAL_EXAMPLES "/../tests/golden/tokenizer/sentence_piece/llama/tokenizer.model";
  fs::create_directories(mine_ / "llama");
  fs::copy_file(model, mine_ / "llama/tokenizer.model");
  const auto ids = shoal({"tokenizer", "encode", "-t", mine_ / "llama", "the shoal \u4f60"});
  ASSERT_EQ(ids.status, 0) << ids.err;
  EXPECT_EQ(shoal({"tokenizer", "decode", "-t", model, ids.out.substr(0, ids.out.size() - 1)}).out,
            "the shoal \u4f60\n");
  const std::string sizes =
      "num_hidden_layers=1,hidden_size=32,num_attention_heads=2,num_key_value_heads=1,"
      "intermediate_size=32,max_position_embeddings=64";
  const auto trained = shoal(train_words(
      {"--model_type", "llama", "--tokenizer_name", mine_ / "llama", "--config_overrides", sizes}));
  ASSERT_EQ(trained.status, 0) << trained.err;
  const auto generate = [&] {
    const auto result =
        shoal({"generate", "-m", out(), "-p", "the", "--max-new-tokens", "12", "--greedy"});
    EXPECT_EQ(result.status, 0) << result.err;
    return result.out;
  };
  const std::string by_json = generate();
  EXPECT_EQ(by_json.find("the"), 0U);
  EXPECT_NE(by_json.find(' '), std::string::npos) << by_json;  // marks became spaces
  fs::remove(fs::path(out()) / "tokenizer.json");
  EXPECT_TRUE(fs::exists(fs::path(out()) / "tokenizer.model"));  // saved as it was read
  EXPECT_EQ(generate(), by_json);
}

// Every option of `shoal data prepare` changes the files or the set of refused inputs.
TEST_F(Shoal, PreparesAsItsOptionsSay) {
  std::ofstream(mine_ / "text.txt")
      << "the shoal asks where it goes\n\nswims in\ncold water\n\nand no fish\n";
  std::ofstream(mine_ / "records.jsonl") << R"({"text": "the fish", "body": "asks"})"
                                         << "\n";
  std::ofstream(mine_ / "bytes.txt") << "good \xff\n";
  int runs = 0;
  const auto prepare = [&](std::vector<std::string> more) {
    const std::string directory = mine_ / ("tokens" + std::to_string(runs++));
    more.insert(more.begin(), {"data", "prepare", "-t", *data_ / "tok", "-o", directory});
    const auto result = shoal(more);
    EXPECT_EQ(result.status, 0) << result.err;
    // "train: PATH (6 documents, 30 tokens)" without the path.
    std::string counts;
    std::istringstream lines(result.out);
    for (std::string line; std::getline(lines, line);)
      if (const auto at = line.find('('); at != std::string::npos)
        counts += line.substr(0, line.find(':')) + line.substr(at);
    return counts;
  };
  const std::string text = mine_ / "text.txt";
  EXPECT_THAT(prepare({text}), HasSubstr("(6 documents, "));
  EXPECT_THAT(prepare({text, "--document", "paragraph"}), HasSubstr("(3 documents, "));
  EXPECT_THAT(prepare({text, "--document", "file"}), HasSubstr("(1 documents, "));
  EXPECT_NE(prepare({text}), prepare({text, "--append-eos"}));
  EXPECT_THAT(prepare({text, "--validation", *data_ / "validation.txt"}),
              HasSubstr("validation(30 documents"));
  const std::vector<std::string> half = {text, "--validation-fraction", "0.34", "--split"};
  std::set<std::string> splits;
  for (const char* split : {"first", "last"}) {
    auto words = half;
    words.emplace_back(split);
    splits.insert(prepare(words));
  }
  EXPECT_EQ(splits.size(), 2U);
  EXPECT_NE(prepare({mine_ / "records.jsonl"}),
            prepare({mine_ / "records.jsonl", "--text-field", "body"}));
  EXPECT_THAT(prepare({mine_ / "bytes.txt", "--repair-utf8"}), HasSubstr("1 documents"));
  const auto again = [&](const std::vector<std::string>& more) {
    std::vector<std::string> words = {
        "data", "prepare", "-t", *data_ / "tok", "-o", mine_ / "tokens0", text, "--threads", "1"};
    words.insert(words.end(), more.begin(), more.end());
    return shoal(words).out;
  };
  EXPECT_THAT(again({}), HasSubstr("prepared before"));
  EXPECT_THAT(again({"--overwrite"}), HasSubstr("prepared in"));
  expect_refused(
      shoal({"data", "prepare", "-t", *data_ / "tok", "-o", mine_ / "x", mine_ / "bytes.txt"}),
      "bytes.txt");
  expect_refused(shoal({"data", "prepare", "-t", *data_ / "tok", "-o", mine_ / "x", text,
                        "--validation-fraction", "2"}),
                 "validation_fraction is 2");
}

TEST_F(Shoal, TrainsTokenizersAsItsOptionsSay) {
  const auto made = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"tokenizer", "train", "-o", mine_ / "t", *data_ / "train.txt"});
    const auto result = shoal(more);
    EXPECT_EQ(result.status, 0) << result.err;
    std::ifstream file(mine_ / "t" + "/tokenizer.json");
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  const std::string usual = made({"--vocab-size", "280"});
  EXPECT_NE(usual, made({"--vocab-size", "270"}));
  EXPECT_NE(usual, made({"--vocab-size", "280", "--min-frequency", "300"}));
  EXPECT_NE(usual, made({"--vocab-size", "280", "--special-token", "<s>"}));
  EXPECT_NE(usual, made({"--vocab-size", "280", "--add-prefix-space"}));
  EXPECT_EQ(usual, made({"--vocab-size", "280", "--threads", "2"}));
  expect_refused(
      shoal({"tokenizer", "train", "-o", mine_ / "t", "--vocab-size", "10", *data_ / "train.txt"}),
      "10");
}

TEST_F(Shoal, EvaluatesALanguageModelAlone) {
  ASSERT_EQ(train({"--save_strategy", "no"}).status, 0);
  const auto measured = shoal(
      {"evaluate", "-m", out(), *data_ / "validation.txt", "--max_seq_length", "32", "--json"});
  ASSERT_EQ(measured.status, 0) << measured.err;
  std::ifstream file(out() + "/eval_results.json");
  EXPECT_EQ(nlohmann::json::parse(measured.out)["eval_loss"],
            nlohmann::json::parse(file)["eval_loss"]);
  expect_refused(shoal({"predict", "-m", out(), *data_ / "validation.txt"}),
                 "a model for causal-lm has no labels to predict; `shoal evaluate`");
}

// The error comes before any data is read, and names the option. The same holds for the data cache.
TEST_F(Shoal, RefusesAnOutputDirectoryThatCannotBe) {
  std::ofstream(mine_ / "file") << "in the way";
  const auto refused = [this](const std::vector<std::string>& more, const std::string& text) {
    const auto result = train(more);
    expect_refused(result, text);
    EXPECT_EQ(result.status, 2);
    EXPECT_THAT(result.err, HasSubstr("; choose another directory, or "));
    EXPECT_EQ(result.out, "");
  };
  const std::string file = mine_ / "file";
  refused({"--output_dir", file}, "shoal train: output_dir " + file + ": Not a directory");
  refused({"--output_dir", file + "/in"}, "shoal train: output_dir " + file + "/in: Not a dir");
  refused({"--output_dir", file, "--data_cache_dir", mine_ / "tokens"}, "train: output_dir ");
  refused({"--data_cache_dir", file}, "shoal train: data_cache_dir " + file + ": Not a directory");
  if (::geteuid() == 0) return;  // permissions do not restrict root
  std::filesystem::create_directory(mine_ / "kept");
  namespace fs = std::filesystem;
  fs::permissions(mine_ / "kept", fs::perms::owner_read | fs::perms::owner_exec);
  refused({"--output_dir", mine_ / "kept"}, "output_dir " + (mine_ / "kept") + ": Permission");
}

// As in run_clm by default: Llama's <s> before each line.
TEST_F(Shoal, PutsTheTokenizersSpecialTokensAroundLines) {
  std::ofstream(mine_ / "three.txt") << "the shoal\n\nthe sea\n";
  const auto prepared = [this](std::vector<std::string> more) {
    const std::string llama = SHOAL_EXAMPLES "/../tests/golden/tokenizer/sentence_piece/llama";
    more.insert(more.begin(),
                {"data", "prepare", "-t", llama, "-o", mine_ / "tokens", mine_ / "three.txt"});
    return shoal(more);
  };
  const auto with = prepared({}), without = prepared({"--add-special-tokens", "false"});
  ASSERT_EQ(with.status, 0) << with.err;
  ASSERT_EQ(without.status, 0) << without.err;
  const auto tokens_in = [](const std::string& out) {
    const std::string_view before = "(3 documents, ";
    const auto at = out.find(before);
    return at == out.npos ? 0 : std::stoi(out.substr(at + before.size()));
  };
  EXPECT_GT(tokens_in(without.out), 0) << without.out;
  EXPECT_EQ(tokens_in(with.out), tokens_in(without.out) + 3) << with.out;
  expect_refused(train({"--model_type", "bert", "--task", "masked-lm", "--config_overrides",
                        "hidden_size=32,num_attention_heads=2,intermediate_size=32",
                        "--add_special_tokens", "false"}),
                 "add_special_tokens false is given, but the task is masked-lm");
}

// The error names the user's file, not the token file made from it.
TEST_F(Shoal, NamesTheTextThatFillsNoBlock) {
  const std::string few = mine_ / "few.txt";
  std::ofstream(few) << "the shoal";
  expect_refused(train({"--train_file", few}), "shoal train: train_file " + few + ": ");
  expect_refused(train({"--validation_file", few}), "shoal train: validation_file " + few + ": ");
  expect_refused(train({"--train_file", few, "--packing", "--packing_strategy", "wrapped"}),
                 "shoal train: train_file " + few + ": ");
  const std::string some = *data_ / "train.txt";
  expect_refused(train({"--validation_file", "", "--validation_split_percentage", "0.01"}),
                 "shoal train: validation_split_percentage 0.01 of " + some + ": ");
}

}  // namespace
}  // namespace shoal
