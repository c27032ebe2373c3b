#include "shoal/train/data/token_file.h"

#include <fstream>
#include <numeric>

#include "support/temporary_directory.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/io/byte_source.h"
#include "shoal/runtime/io/files.h"

namespace shoal {
namespace {

using ::testing::HasSubstr;

const std::string kHash(64, 'a');

std::vector<TokenId> ids_from(TokenId first, std::int64_t count) {
  std::vector<TokenId> ids(static_cast<std::size_t>(count));
  std::iota(ids.begin(), ids.end(), first);
  return ids;
}

void write(const std::string& path, int bytes_per_id, const std::vector<std::int64_t>& documents) {
  TokenFileWriter writer(path, bytes_per_id, kHash);
  TokenId next = 0;
  for (const std::int64_t length : documents) {
    writer.append_document(ids_from(next, length));
    next += static_cast<TokenId>(length);
  }
  writer.commit();
}

std::vector<TokenId> read_all_ids(const TokenFile& file) {
  std::vector<TokenId> ids(static_cast<std::size_t>(file.tokens()));
  file.read(0, ids);
  return ids;
}

void spill(const std::string& path, std::string_view bytes) {  // without the fsync of a real write
  std::ofstream(path, std::ios::binary) << bytes;
}

template <typename Call>
std::string error_of(const Call& call, ErrorCode code) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return {};
}

TEST(TokenFile, HoldsWhatWasWritten) {
  const testing::TemporaryDirectory folder;
  for (const int bytes : {2, 4})
    for (const std::vector<std::int64_t>& documents :
         std::vector<std::vector<std::int64_t>>{{}, {0}, {1}, {3, 0, 5, 1}, {1000, 3333}}) {
      const std::string path = folder / "a.shoaltok";
      write(path, bytes, documents);
      const auto file = TokenFile::open(path);
      const std::int64_t tokens = std::accumulate(documents.begin(), documents.end(), 0ll);
      EXPECT_EQ(file->tokens(), tokens);
      EXPECT_EQ(file->max_id(), tokens - 1);
      EXPECT_EQ(file->bytes_per_id(), bytes);
      EXPECT_EQ(file->tokenizer_hash(), kHash);
      EXPECT_EQ(read_all_ids(*file), ids_from(0, tokens));
      ASSERT_EQ(file->documents(), static_cast<std::int64_t>(documents.size()));
      std::int64_t begin = 0;
      for (std::int64_t i = 0; i < file->documents(); ++i) {
        const std::int64_t end = begin + documents[static_cast<std::size_t>(i)];
        EXPECT_EQ(file->document(i), (TextSpan{begin, end}));
        begin = end;
      }
      file->verify(2);
    }
}

TEST(TokenFile, RefusesWhatDoesNotFit) {
  const testing::TemporaryDirectory folder;
  TokenFileWriter writer(folder / "a", 2, kHash);
  EXPECT_THAT(error_of([&] { writer.append_document(std::vector<TokenId>{65536}); },
                       ErrorCode::invalid_argument),
              HasSubstr("the id 65536 does not fit into 2 bytes"));
  EXPECT_THROW(writer.append_document(std::vector<TokenId>{-1}), Error);
  EXPECT_THROW(TokenFileWriter(folder / "b", 3, kHash), Error);
  EXPECT_THROW(TokenFileWriter(folder / "b", 2, "abc"), Error);
  EXPECT_THAT(error_of([&] { TokenFileWriter(folder / "none/b", 2, kHash); }, ErrorCode::io),
              HasSubstr("none/b"));
}

TEST(TokenFile, WithoutCommitNothingIsLeft) {
  const testing::TemporaryDirectory folder;
  write(folder / "a", 2, {7});
  {
    TokenFileWriter writer(folder / "a", 2, kHash);
    writer.append_document(ids_from(0, 1'000'000 % 60'000));
  }
  EXPECT_EQ(folder.files(), 1);
  EXPECT_EQ(TokenFile::open(folder / "a")->tokens(), 7);
}

TEST(TokenFile, RangesAreChecked) {
  const testing::TemporaryDirectory folder;
  write(folder / "a", 4, {10});
  const auto file = TokenFile::open(folder / "a");
  std::vector<TokenId> ids(3);
  file->read(7, ids);
  EXPECT_EQ(ids, ids_from(7, 3));
  file->read(10, std::span<TokenId>());
  EXPECT_THROW(file->read(8, ids), Error);
  EXPECT_THROW(file->read(-1, ids), Error);
  EXPECT_THROW(file->read(std::numeric_limits<std::int64_t>::max(), ids), Error);
  EXPECT_THROW(file->document(1), Error);
  EXPECT_THAT(error_of([&] { file->check_vocab(9); }, ErrorCode::invalid_argument),
              HasSubstr("the id 9 is beyond the model's vocabulary of 9"));
  file->check_vocab(10);
}

TEST(TokenFile, EveryTruncationAndEveryFlippedByteIsNoticed) {
  const testing::TemporaryDirectory folder;
  write(folder / "a", 2, {3, 6});
  const std::string good = read_text_file(folder / "a");
  const std::string path = folder / "bad";
  for (std::size_t size = 0; size < good.size(); ++size) {
    spill(path, std::string_view(good).substr(0, size));
    error_of([&] { TokenFile::open(path); }, ErrorCode::corrupt_data);
  }
  for (std::size_t at = 0; at < good.size(); ++at) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 0x10);
    spill(path, bad);
    error_of([&] { TokenFile::open(path)->verify(); }, ErrorCode::corrupt_data);
  }
  spill(path, good + "x");
  error_of([&] { TokenFile::open(path); }, ErrorCode::corrupt_data);
  error_of([&] { TokenFile::open(folder / "missing"); }, ErrorCode::not_found);
}

TEST(CausalLmDataset, CutsBlocksAsGroupTextsDoes) {
  const testing::TemporaryDirectory folder;
  write(folder / "a", 2, {4, 0, 5, 2});  // 11 ids; documents are concatenated
  const auto file = TokenFile::open(folder / "a");
  const CausalLmDataset dataset(file, 3, 11);
  ASSERT_EQ(dataset.size(), 3);  // the remainder of 2 is dropped
  for (std::int64_t i = 0; i < 3; ++i) {
    const Sample sample = dataset.get(i);
    EXPECT_EQ(sample.input_ids, ids_from(static_cast<TokenId>(3 * i), 3));
    EXPECT_TRUE(sample.labels.empty());
  }
  EXPECT_THROW(dataset.get(3), Error);
  EXPECT_THROW(dataset.get(-1), Error);
  EXPECT_THROW(CausalLmDataset(file, 0, 0), Error);
  EXPECT_THAT(error_of([&] { CausalLmDataset(file, 12, 0); }, ErrorCode::invalid_argument),
              HasSubstr("11 tokens are less than one block of 12"));
  EXPECT_THROW(CausalLmDataset(file, 3, 10), Error);
  EXPECT_EQ(CausalLmDataset(file, 11, 0).size(), 1);
}

}  // namespace
}  // namespace shoal
