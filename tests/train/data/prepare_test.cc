#include "shoal/train/data/prepare.h"

#include <set>

#include "support/budget.h"
#include "support/golden.h"
#include "support/temporary_directory.h"
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sys/file.h>
#include <unistd.h>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/io/byte_source.h"
#include "shoal/runtime/io/file_system.h"
#include "shoal/runtime/io/files.h"
#include "shoal/train/data/token_file.h"
#include "shoal/train/data/tokenizer/load.h"
#include "shoal/train/data/tokenizer/tokenizer_base.h"

namespace shoal {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class PrepareTest : public ::testing::Test {
 protected:
  PrepareOptions with(const std::string& name, std::string_view text) {
    write_file_atomically(folder_ / name, text);
    PrepareOptions options;
    options.inputs = {folder_ / name};
    options.output_directory = folder_ / "out";
    return options;
  }
  std::vector<std::string> documents(const std::string& path) const {
    const auto file = TokenFile::open(path);
    file->verify(2);
    std::vector<std::string> texts;
    for (std::int64_t i = 0; i < file->documents(); ++i) {
      const TextSpan span = file->document(i);
      std::vector<TokenId> ids(static_cast<std::size_t>(span.end - span.begin));
      file->read(span.begin, ids);
      texts.push_back(tokenizer_->decode(ids, false));
    }
    return texts;
  }
  std::string error_of(const PrepareOptions& options, ErrorCode code) const {
    try {
      prepare_data(*tokenizer_, options);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), code) << error.what();
      return error.what();
    }
    ADD_FAILURE() << "no error";
    return {};
  }

  testing::TemporaryDirectory folder_;
  std::shared_ptr<const Tokenizer> tokenizer_ =
      load_tokenizer(testing::golden_path("tokenizer/plain.json"));
};

using Texts = std::vector<std::string>;

TEST_F(PrepareTest, DocumentsAreLinesParagraphsOrFiles) {
  auto options = with("a.txt", "one\r\n\ntwo\n  \n\nthree\nmore");
  EXPECT_EQ(documents(prepare_data(*tokenizer_, options).train.path),
            Texts({"one\n", "\n", "two\n", "  \n", "\n", "three\n", "more"}));
  options.document = PrepareOptions::Document::paragraph;
  EXPECT_EQ(documents(prepare_data(*tokenizer_, options).train.path),
            Texts({"one\n\n", "two\n  \n\n", "three\nmore"}));
  options.document = PrepareOptions::Document::file;
  options.append_eos = true;
  EXPECT_EQ(documents(prepare_data(*tokenizer_, options).train.path),
            Texts({"one\n\ntwo\n  \n\nthree\nmore<|endoftext|>"}));
}

// Prepared data is found again only for the same tokens.
TEST_F(PrepareTest, EachOptionThatChangesTokensChangesTheKey) {
  tokenizer_ = load_tokenizer(testing::golden_path("tokenizer/word_piece.json"));
  const PrepareOptions plain = with("a.txt", "God said\n\nthe earth\nthe deep\n");
  const auto key_of = [&](const auto& change) {
    PrepareOptions options = plain;
    change(options);
    return prepare_data(*tokenizer_, options).key;
  };
  std::set<std::string> keys = {key_of([](auto&) {})};
  using Document = PrepareOptions::Document;
  keys.insert(key_of([](auto& o) { o.document = Document::paragraph; }));
  keys.insert(key_of([](auto& o) { o.document = Document::file; }));
  keys.insert(key_of([](auto& o) { o.text_field = "body"; }));
  keys.insert(key_of([](auto& o) { o.validation_fraction = 0.25; }));
  keys.insert(key_of([](auto& o) {
    o.validation_fraction = 0.25;
    o.split = PrepareOptions::Split::first;
  }));
  keys.insert(key_of([](auto& o) { o.add_special_tokens = false; }));
  keys.insert(key_of([](auto& o) { o.keep_line_ends = false; }));
  keys.insert(key_of([](auto& o) { o.drops_white_space = true; }));
  keys.insert(key_of([](auto& o) { o.repair_utf8 = true; }));
  keys.insert(key_of([&](auto& o) { o.validation_inputs = plain.inputs; }));
  EXPECT_EQ(keys.size(), 11U);
  EXPECT_TRUE(keys.contains(key_of([](auto& o) { o.threads = 2; })));
}

TEST_F(PrepareTest, JsonLinesGiveTheirField) {
  auto options = with("a.jsonl", "{\"text\":\"one\\n\"}\n\n{\"n\":1,\"text\":\"\\u00e9\"}\n");
  EXPECT_EQ(documents(prepare_data(*tokenizer_, options).train.path), Texts({"one\n", "\xC3\xA9"}));
  options.text_field = "body";
  EXPECT_THAT(error_of(options, ErrorCode::corrupt_data),
              HasSubstr("a.jsonl, line 1: not an object with the string 'body'"));
  EXPECT_THAT(error_of(with("b.jsonl", "{\"text\":\"x\"}\n{\"text\":"), ErrorCode::corrupt_data),
              HasSubstr("b.jsonl, line 2"));
}

TEST_F(PrepareTest, TheSecondTimeNothingIsDone) {
  auto options = with("a.txt", "one\ntwo\nthree\n");
  options.validation_fraction = 0.3;
  int calls = 0;
  // A total of 0 reports that earlier prepared data is being read.
  options.progress = [&](std::int64_t, std::int64_t total) { calls += total > 0; };
  const PreparedData first = prepare_data(*tokenizer_, options);
  EXPECT_FALSE(first.reused);
  EXPECT_EQ(first.train.documents, 2);
  EXPECT_EQ(first.validation.documents, 1);
  EXPECT_GT(calls, 0);
  calls = 0;
  const PreparedData second = prepare_data(*tokenizer_, options);
  EXPECT_TRUE(second.reused);
  EXPECT_EQ(calls, 0);
  EXPECT_EQ(second.train.path, first.train.path);
  EXPECT_EQ(second.train.tokens, first.train.tokens);
  EXPECT_EQ(second.validation.documents, 1);

  options.overwrite_cache = true;
  EXPECT_FALSE(prepare_data(*tokenizer_, options).reused);
  options.overwrite_cache = false;
  write_file_atomically(first.train.path, "damaged");
  EXPECT_FALSE(prepare_data(*tokenizer_, options).reused);
  // Flip one bit of one id. Only the checksum of the contents detects it.
  std::string bytes = read_text_file(first.validation.path);
  bytes[64] = static_cast<char>(bytes[64] ^ 1);
  write_file_atomically(first.validation.path, bytes);
  EXPECT_FALSE(prepare_data(*tokenizer_, options).reused);
  EXPECT_TRUE(prepare_data(*tokenizer_, options).reused);
  options.append_eos = true;
  EXPECT_FALSE(prepare_data(*tokenizer_, options).reused);
  options.append_eos = false;
  write_file_atomically(folder_ / "a.txt", "one\ntwo\nfour\n");
  EXPECT_FALSE(prepare_data(*tokenizer_, options).reused);
  const auto other = load_tokenizer(testing::golden_path("tokenizer/trimmed.json"));
  EXPECT_FALSE(prepare_data(*other, options).reused);
}

TEST_F(PrepareTest, ALockThatNobodyHoldsIsRemovedAndAHeldOneStays) {
  const auto options = with("a.txt", "one\ntwo\n");
  const std::string lock = (folder_ / "out/") + prepare_data(*tokenizer_, options).key + ".lock";
  EXPECT_FALSE(path_exists(lock));
  write_file(lock, "");
  {
    const int held = ::open(lock.c_str(), O_RDONLY | O_CLOEXEC);
    ASSERT_EQ(::flock(held, LOCK_EX), 0);
    EXPECT_TRUE(prepare_data(*tokenizer_, options).reused);  // does not wait for the holder
    EXPECT_TRUE(path_exists(lock));
    ::close(held);
  }
  EXPECT_TRUE(prepare_data(*tokenizer_, options).reused);
  EXPECT_FALSE(path_exists(lock));
}

TEST_F(PrepareTest, SplitsTakeEveryDocumentOnce) {
  std::string text;
  for (int i = 0; i < 200; ++i) text += "line " + std::to_string(i) + "\n";
  auto options = with("a.txt", text);
  options.validation_fraction = 0.1;
  for (const auto split : {PrepareOptions::Split::first, PrepareOptions::Split::last,
                           PrepareOptions::Split::scattered}) {
    options.split = split;
    const PreparedData data = prepare_data(*tokenizer_, options);
    const Texts train = documents(data.train.path), held_out = documents(data.validation.path);
    EXPECT_EQ(train.size() + held_out.size(), 200u);
    std::set<std::string> all(train.begin(), train.end());
    all.insert(held_out.begin(), held_out.end());
    EXPECT_EQ(all.size(), 200u);
    if (split == PrepareOptions::Split::first) {
      EXPECT_EQ(held_out.front(), "line 0\n");
    }
    if (split == PrepareOptions::Split::last) {
      EXPECT_EQ(held_out.back(), "line 199\n");
    }
    if (split != PrepareOptions::Split::scattered) {
      EXPECT_EQ(held_out.size(), 20u);
    }
    EXPECT_NEAR(static_cast<double>(held_out.size()), 20, 14);
  }
}

TEST_F(PrepareTest, ValidationFilesOfTheirOwn) {
  auto options = with("a.txt", "train\n");
  write_file_atomically(folder_ / "b.txt", "held out\n");
  options.validation_inputs = {folder_ / "b.txt"};
  const PreparedData data = prepare_data(*tokenizer_, options);
  EXPECT_EQ(documents(data.train.path), Texts({"train\n"}));
  EXPECT_EQ(documents(data.validation.path), Texts({"held out\n"}));
  options.validation_fraction = 0.5;
  EXPECT_THAT(error_of(options, ErrorCode::invalid_argument), HasSubstr("both validation files"));
}

TEST_F(PrepareTest, ThreadsChangeNothing) {
  std::string text;
  const std::string verse = read_text_file(testing::golden_path("tokenizer/genesis.txt"));
  while (text.size() < 1'500'000) text += verse;
  auto options = with("a.txt", text);
  options.threads = 1;
  const std::string one = read_text_file(prepare_data(*tokenizer_, options).train.path);
  options.overwrite_cache = true;
  options.threads = 4;
  EXPECT_TRUE(read_text_file(prepare_data(*tokenizer_, options).train.path) == one);
}

// Each document could once spend 8 ms on a backtracking pattern: 16 s for these.
TEST_F(PrepareTest, ManyShortDocumentsStayWithinTheBudgetOfTheFile) {
  nlohmann::json file =
      nlohmann::json::parse(read_text_file(testing::golden_path("tokenizer/plain.json")));
  file["pre_tokenizer"] = {
      {"type", "Sequence"},
      {"pretokenizers",
       {{{"type", "Split"},
         {"pattern", {{"Regex", "(?:a+)+b"}}},
         {"behavior", "Isolated"},
         {"invert", false}},
        {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}}};
  tokenizer_ = tokenizer_from_json(file.dump(), "t.json");
  std::string text;
  for (int i = 0; i < 2'000; ++i) text += std::string(15, 'a') + '\n';
  PrepareOptions options = with("a.txt", text);
  for (const int threads : {1, 3}) {
    options.threads = threads;
    EXPECT_THAT(testing::within_budget(text.size() + 10'000, "documents",
                                       [&] { prepare_data(*tokenizer_, options); }),
                HasSubstr("takes too many steps on texts of 32000 bytes together"));
  }
  EXPECT_EQ(prepare_data(*tokenizer_, with("b.txt", text.substr(0, 16))).train.documents, 1);
}

TEST_F(PrepareTest, IllFormedTextIsRefusedOrRepaired) {
  auto options = with("a.txt",
                      "good\nb\xFF"
                      "d\n");
  EXPECT_THAT(error_of(options, ErrorCode::invalid_argument),
              AllOf(HasSubstr("a.txt: byte 0xff at offset 6 is not UTF-8"),
                    HasSubstr("`shoal data prepare --repair-utf8`")));
  options.repair_utf8 = true;
  EXPECT_EQ(documents(prepare_data(*tokenizer_, options).train.path), Texts({"good\n",
                                                                             "b\xEF\xBF\xBD"
                                                                             "d\n"}));
}

TEST_F(PrepareTest, NothingToTrainOnIsAnErrorThatLeavesNothing) {
  auto options = with("a.txt", "");
  EXPECT_THAT(error_of(options, ErrorCode::invalid_argument),
              HasSubstr("the training data have no tokens (0 documents of " + options.inputs[0]));
  EXPECT_TRUE(std::filesystem::is_empty(folder_ / "out"));
  options = with("a.txt", "one line\n");
  options.validation_fraction = 0.5;
  EXPECT_THAT(error_of(options, ErrorCode::invalid_argument), HasSubstr("leaves none to train on"));
  options.validation_fraction = 1.0;
  EXPECT_THAT(error_of(options, ErrorCode::invalid_argument),
              HasSubstr("validation_fraction is 1"));
  options.inputs = {};
  EXPECT_THAT(error_of(options, ErrorCode::invalid_argument), HasSubstr("no input files"));
  options.inputs = {folder_ / "missing.txt"};
  options.validation_fraction = 0;
  EXPECT_THAT(error_of(options, ErrorCode::not_found), HasSubstr("missing.txt"));
}

TEST_F(PrepareTest, AnUnwritableDirectoryIsOneClearLine) {
  auto options = with("a.txt", "text\n");
  options.output_directory = folder_ / "a.txt/below";
  EXPECT_THAT(error_of(options, ErrorCode::io), HasSubstr("cannot make the directory"));
}

TEST_F(PrepareTest, ProgressReachesTheEndAndMayCancel) {
  auto options = with("a.txt", "text\nmore\n");
  std::int64_t last = 0, all = 0;
  options.progress = [&](std::int64_t done, std::int64_t total) { last = done, all = total; };
  prepare_data(*tokenizer_, options);
  EXPECT_EQ(last, 10);
  EXPECT_EQ(all, 10);
  options.overwrite_cache = true;
  options.progress = [](std::int64_t, std::int64_t) { throw Error(ErrorCode::aborted, "enough"); };
  error_of(options, ErrorCode::aborted);
}

}  // namespace
}  // namespace shoal
