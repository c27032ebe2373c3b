// Text for causal language models has the special tokens that run_clm's tokenization gives
// (tools/golden/make_causal_lm_texts.py).
#include <algorithm>

#include "support/golden.h"
#include "support/temporary_directory.h"
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "shoal/runtime/io/files.h"
#include "shoal/runtime/io/json.h"
#include "shoal/train/data/packing.h"
#include "shoal/train/data/prepare.h"
#include "shoal/train/data/token_shards.h"
#include "shoal/train/data/tokenizer/load.h"

namespace shoal {
namespace {

using nlohmann::json;
using Ids = std::vector<TokenId>;
using Documents = std::vector<Ids>;

const json& golden() {
  static const json all = read_json_file(testing::golden_path("causal_lm_texts.json"));
  return all;
}

std::vector<std::string> names() {
  std::vector<std::string> all;
  for (const auto& [name, unused] : golden().at("cases").items()) all.push_back(name);
  return all;
}

Documents documents_of(const TokenFile& file) {
  Documents documents;
  for (std::int64_t i = 0; i < file.documents(); ++i) {
    const TextSpan span = file.document(i);
    documents.emplace_back(static_cast<std::size_t>(span.end - span.begin));
    file.read(span.begin, documents.back());
  }
  return documents;
}

Documents samples_of(const Dataset& dataset) {
  Documents samples;
  for (std::int64_t i = 0; i < dataset.size(); ++i) samples.push_back(dataset.get(i).input_ids);
  return samples;
}

class CausalLmText : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    write_file_atomically(folder_ / "a.txt", golden().at("text").get<std::string>());
    std::string records;
    for (const json& text : golden().at("records")) records += json{{"text", text}}.dump() + "\n";
    write_file_atomically(folder_ / "a.jsonl", records);
  }
  PrepareOptions options(const std::string& input) const {
    PrepareOptions options;
    options.inputs = {folder_ / input};
    options.output_directory = folder_ / "out";
    return options;
  }
  std::shared_ptr<const TokenFile> prepared(const PrepareOptions& options) const {
    return TokenFile::open(prepare_data(*tokenizer_, options).train.path);
  }
  const json& theirs(const std::string& input) const {
    return golden().at("cases").at(GetParam()).at(input);
  }

  testing::TemporaryDirectory folder_;
  std::shared_ptr<const Tokenizer> tokenizer_ =
      load_tokenizer(testing::golden_path("tokenizer/" + GetParam()));
};

TEST_P(CausalLmText, HasRunClmsTokensWhenPrepared) {
  for (const char* input : {"a.txt", "a.jsonl"}) {
    SCOPED_TRACE(input);
    PrepareOptions with = options(input);
    EXPECT_EQ(documents_of(*prepared(with)), theirs(input).at("with").get<Documents>());
    with.add_special_tokens = false;
    EXPECT_EQ(documents_of(*prepared(with)), theirs(input).at("without").get<Documents>());
  }
}

TEST_P(CausalLmText, HasThemInAStream) {
  const auto block = golden().at("block").get<std::int64_t>();
  TokenShards shards({folder_ / "a.txt", folder_ / "a.jsonl"},
                     {.tokenizer = tokenizer_, .prepare = options("a.txt"), .block_size = block});
  EXPECT_EQ(samples_of(*shards.open(0)), theirs("a.txt").at("blocks").get<Documents>());
  EXPECT_EQ(samples_of(*shards.open(1)), theirs("a.jsonl").at("blocks").get<Documents>());
}

TEST_P(CausalLmText, HasThemInPackedDocuments) {
  const auto theirs_with = theirs("a.txt").at("with").get<Documents>();
  const PackedDataset packed(prepared(options("a.txt")),
                             {.strategy = PackingStrategy::bfd, .block_size = 64});
  for (const Ids& block : samples_of(packed)) {
    std::size_t at = 0;
    while (at < block.size()) {
      const auto found = std::ranges::find_if(theirs_with, [&](const Ids& document) {
        return document.size() <= block.size() - at &&
               std::equal(document.begin(), document.end(),
                          block.begin() + static_cast<std::ptrdiff_t>(at));
      });
      if (found == theirs_with.end()) break;  // padding
      at += found->size();
    }
    EXPECT_GT(at, 0U);
    for (; at < block.size(); ++at) EXPECT_EQ(block[at], 0);
  }
}

// Text with and without special tokens has two cache entries. If the tokenizer adds
// none, both share one.
TEST_P(CausalLmText, IsNotMixedUpInTheCache) {
  PrepareOptions with = options("a.txt");
  const std::string key = prepare_data(*tokenizer_, with).key;
  with.add_special_tokens = false;
  const PreparedData without = prepare_data(*tokenizer_, with);
  const bool adds = tokenizer_->sequence_template().special_tokens(false) > 0;
  EXPECT_EQ(without.key == key, !adds);
  EXPECT_EQ(without.reused, !adds);
}

TEST_P(CausalLmText, EndsWithOneEosAtMost) {
  if (!tokenizer_->roles().eos) GTEST_SKIP() << "the tokenizer has no eos token";
  PrepareOptions with = options("a.jsonl");
  with.append_eos = true;
  Documents expected = theirs("a.jsonl").at("with").get<Documents>();
  const auto& last = tokenizer_->sequence_template().single.back();
  const bool ends = last.text == SequenceTemplate::kSpecial && last.id == tokenizer_->roles().eos;
  if (!ends)
    for (Ids& ids : expected) ids.push_back(*tokenizer_->roles().eos);
  EXPECT_EQ(documents_of(*prepared(with)), expected);
}

INSTANTIATE_TEST_SUITE_P(Tokenizers, CausalLmText, ::testing::ValuesIn(names()),
                         [](const auto& one) {
                           std::string name = one.param;
                           for (char& c : name)
                             if (c == '/' || c == '.') c = '_';
                           return name;
                         });

}  // namespace
}  // namespace shoal
