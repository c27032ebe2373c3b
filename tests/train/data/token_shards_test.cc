#include "shoal/train/data/token_shards.h"

#include <filesystem>
#include <fstream>
#include <thread>

#include "support/golden.h"
#include "support/temporary_directory.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/io/files.h"
#include "shoal/train/data/token_file.h"
#include "shoal/train/data/tokenizer/load.h"

namespace shoal {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class TokenShardsTest : public ::testing::Test {
 protected:
  std::string file(const std::string& name, std::string_view text) {
    std::filesystem::create_directories(std::filesystem::path(folder_ / name).parent_path());
    write_file_atomically(folder_ / name, text);
    return folder_ / name;
  }
  TokenShards shards(std::vector<std::string> names, std::int64_t block_size = 4) {
    TokenShardOptions options{.tokenizer = tokenizer_, .block_size = block_size};
    options.prepare.output_directory = folder_ / "cache";
    return TokenShards(expand_shards(names, sources_), [&] {
      options.prepare.sources = sources_;
      return options;
    }());
  }
  std::string text_of(const Dataset& samples) const {
    std::string text;
    for (std::int64_t i = 0; i < samples.size(); ++i)
      text += tokenizer_->decode(samples.get(i).input_ids, false) + "|";
    return text;
  }
  std::string error_of(const std::vector<std::string>& names) {
    try {
      expand_shards(names, sources_);
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  }

  testing::TemporaryDirectory folder_;
  SourceRegistry sources_;
  std::shared_ptr<const Tokenizer> tokenizer_ =
      load_tokenizer(testing::golden_path("tokenizer/plain.json"));
};

TEST_F(TokenShardsTest, NamesAreFilesDirectoriesPatternsAndLists) {
  const std::string a = file("d/a.txt", "a"), b = file("d/b.jsonl", "{}"), c = file("d/c.txt", "c");
  file("d/notes.md", "no shard");
  file("d/below/deep.txt", "not in it");
  EXPECT_THAT(expand_shards({folder_ / "d"}), ElementsAre(a, b, c));
  EXPECT_THAT(expand_shards({folder_ / "d/"}), ElementsAre(a, b, c));
  EXPECT_THAT(expand_shards({folder_ / "d/*.txt"}), ElementsAre(a, c));
  EXPECT_THAT(expand_shards({c, folder_ / "d/[ab].*"}), ElementsAre(c, a, b));
  const std::string odd = file("d/x[1].txt", "a name that looks like a pattern");
  EXPECT_THAT(expand_shards({odd}), ElementsAre(odd));
  const std::string list = file("list", fmt::format("# two\n\n  {} \r\n{}", c, folder_ / "d/a*"));
  EXPECT_THAT(expand_shards({"@" + list}), ElementsAre(c, a));

  EXPECT_THAT(error_of({folder_ / "d/*.csv"}), HasSubstr("nothing matches"));
  EXPECT_THAT(error_of({folder_ / "d/*.md"}), HasSubstr("of 1 files there, none ends with .txt"));
  EXPECT_THAT(error_of({folder_ / "d/notes.md"}), HasSubstr("a shard's name ends with"));
  EXPECT_THAT(error_of({}), HasSubstr("no shards are named"));
  EXPECT_THAT(error_of({"@" + file("own", "@own")}), HasSubstr("cannot name another"));
  EXPECT_THAT(error_of({"@" + (folder_ / "none")}), HasSubstr("none"));
  EXPECT_THAT(error_of({"s3://bucket/a.txt"}), HasSubstr("reads the schemes file"));
}

TEST_F(TokenShardsTest, TextAndTokensAndNothingAreShards) {
  const std::string text = file("a.txt", "abcdefghij\n");
  const std::string records = file("b.jsonl", "{\"text\":\"abcdefgh\"}\n{\"text\":\"ijklmnop\"}\n");
  const std::string nothing = file("c.txt", "");
  PrepareOptions prepare;
  prepare.inputs = {text};
  prepare.output_directory = folder_ / "tokens";
  const std::string tokens = prepare_data(*tokenizer_, prepare).train.path;
  const TokenShards all = shards({text, records, nothing, tokens});
  ASSERT_EQ(all.count(), 4);
  const std::string of_text = text_of(*all.open(0));
  EXPECT_GT(all.open(0)->size(), 0);
  EXPECT_THAT(of_text, ::testing::StartsWith("abcd"));
  EXPECT_GT(all.open(1)->size(), 0);
  EXPECT_EQ(all.open(2)->size(), 0);
  EXPECT_EQ(text_of(*all.open(3)), of_text);
  EXPECT_EQ(all.name(3), tokens);
}

TEST_F(TokenShardsTest, AnyReaderServesShards) {
  std::map<std::string, std::string> store = {{"mem://box/a.txt", "abcdefgh\n"},
                                              {"mem://box/b.txt", "ijklmnopqrst\n"},
                                              {"mem://box/below/c.txt", "not in it\n"}};
  PrepareOptions prepare;
  prepare.inputs = {file("t.txt", "abcdefgh\n")};
  prepare.output_directory = folder_ / "tokens";
  {
    std::ifstream in(prepare_data(*tokenizer_, prepare).train.path, std::ios::binary);
    store["mem://box/t.shoaltok"] = {std::istreambuf_iterator<char>(in), {}};
  }
  int opened = 0;
  sources_.add(
      "mem",
      [&](const std::string& uri) {
        ++opened;
        const auto found = store.find(uri);
        if (found == store.end()) throw_error(ErrorCode::not_found, "there is no {}", uri);
        return make_memory_source(found->second, uri);
      },
      [&](const std::string& prefix) {
        std::vector<std::string> names;
        for (const auto& [name, text] : store)
          if (name.starts_with(prefix)) names.push_back(name);
        return names;
      });
  const TokenShards all = shards({"mem://box/*", "mem://box/", "mem://box/none.txt"});
  ASSERT_EQ(all.count(), 7);
  EXPECT_EQ(opened, 0);  // a shard is read when it is needed
  EXPECT_THAT(text_of(*all.open(0)), HasSubstr("abcd"));
  EXPECT_EQ(text_of(*all.open(2)), text_of(*all.open(0)));
  EXPECT_EQ(all.name(3), "mem://box/a.txt");
  EXPECT_THROW(all.open(6), Error);
  EXPECT_THAT(error_of({"mem://box/x*"}), HasSubstr("nothing matches mem://box/x*"));
  sources_.add("mem", {});
  EXPECT_THAT(error_of({"mem://box/*"}), HasSubstr("give each file by its whole name"));
}

TEST_F(TokenShardsTest, RanksThatOpenTheSameShardTokenizeItOnce) {
  std::string text;
  for (int i = 0; i < 3000; ++i) text += fmt::format("line {} of a shard\n", i);
  const std::string name = file("a.txt", text);
  std::vector<std::thread> ranks;
  std::vector<std::string> seen(6);
  std::atomic<int> prepared{0};
  for (std::size_t rank = 0; rank < seen.size(); ++rank)
    ranks.emplace_back([&, rank] {
      PrepareOptions options;
      options.inputs = {name};
      options.output_directory = folder_ / "cache";
      const PreparedData data = prepare_data(*tokenizer_, options);
      prepared += data.reused ? 0 : 1;
      seen[rank] = data.train.path;
    });
  for (std::thread& rank : ranks) rank.join();
  EXPECT_EQ(prepared, 1);
  for (const std::string& path : seen) EXPECT_EQ(path, seen[0]);
  int files = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder_ / "cache"))
    ++files;
  EXPECT_EQ(files, 1);  // no lock and no temporary file
}

TEST_F(TokenShardsTest, ATokenThatRotOnTheDiskIsTokenizedAgain) {
  const std::string name = file("a.txt", "abcdefghijklmnop\n");
  const TokenShards all = shards({name});
  const std::string whole = text_of(*all.open(0));
  for (const auto& entry : std::filesystem::directory_iterator(folder_ / "cache")) {
    std::fstream tokens(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    tokens.seekp(64);  // the first id
    tokens.put('\x01');
  }
  EXPECT_EQ(text_of(*all.open(0)), whole);
}

TEST_F(TokenShardsTest, ErrorsAreOneLine) {
  TokenShardOptions options;
  options.block_size = 4;
  try {
    const TokenShards none({"a.shoaltok", "b.txt"}, options);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("b.txt is text, and there is no tokenizer"));
  }
  const TokenShards all = shards({file("a.jsonl", "{\"text\":\"fine\"}\n{\"body\":1}\n")});
  try {
    all.open(0);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("a.jsonl, line 2"));
  }
}

}  // namespace
}  // namespace shoal
