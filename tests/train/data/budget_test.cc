// Hostile files of rows, documents and tokens stay within their budget.
#include "support/budget.h"

#include <cstring>
#include <fstream>

#include "support/temporary_directory.h"
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/io/byte_source.h"
#include "shoal/train/data/records.h"
#include "shoal/train/data/token_file.h"
#include "shoal/train/data/token_shards.h"
#include "shoal/train/data/tokenizer/sha256.h"

namespace shoal {
namespace {

using ::testing::HasSubstr;
using testing::within_budget;

std::string problem_of(const std::string& name, const std::string& text,
                       const RecordOptions& options = {}) {
  const testing::TemporaryDirectory directory;
  std::ofstream(directory / name) << text;
  return within_budget(text.size(), name + ": " + text.substr(0, 30), [&] {
    const RecordFile file(directory / name, options);
    for (std::int64_t row = 0; row < file.size(); ++row) (void)file.get(row);
  });
}

std::string row_of(int fields, char separator, const std::string& with) {
  std::string row;
  for (int i = 0; i < fields; ++i) row += fmt::format("{}{}{}", with, i, separator);
  row.back() = '\n';
  return row;
}

// Commit f990d27 compared each column name with all earlier ones.
TEST(RecordsBudget, SixtyThousandColumns) {
  constexpr int kColumns = 60'000;
  for (const auto& [name, separator] : {std::pair("a.csv", ','), std::pair("a.tsv", '\t')})
    EXPECT_EQ(problem_of(name, row_of(kColumns, separator, "c") + row_of(kColumns, separator, "")),
              "");
  std::string record = "{";
  for (int i = 0; i < kColumns; ++i) record += fmt::format("\"c{}\":{},", i, i);
  record.back() = '}';
  EXPECT_EQ(problem_of("a.jsonl", record + '\n' + record + '\n'), "");
}

TEST(RecordsBudget, ManyShortRows) {
  std::string rows = "a\n", records;
  for (int i = 0; i < 200'000; ++i) {
    rows += "x\n";
    records += "{\"a\":1}\n";
  }
  EXPECT_EQ(problem_of("a.csv", rows), "");
  EXPECT_EQ(problem_of("a.tsv", rows), "");
  EXPECT_EQ(problem_of("a.jsonl", records), "");
  EXPECT_NE(problem_of("a.csv", "a\n\"" + std::string(1'000'000, 'x')), "");
  problem_of("a.csv", "a\n" + std::string(1'000'000, '"'));
  problem_of("a.csv", "a\n" + std::string(1'000'000, ','));
  problem_of("a.csv", "a\n" + std::string(1'000'000, ','), {.bad = BadRecords::skip});
  problem_of("a.jsonl", std::string(1'000'000, '['));
}

std::string token_file(std::uint64_t ids, std::uint64_t documents, std::size_t body) {
  std::string bytes = "SHOALTOK";
  const auto put = [&](auto value) {
    bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
  };
  put(std::uint32_t{1}), put(std::uint32_t{2});
  bytes.append(48, '\0');
  bytes.append(body, '\0');
  const std::size_t trailer = bytes.size();
  put(ids), put(documents), put(std::int64_t{-1});
  bytes.append(64, '\0');
  const auto own = sha256(std::string_view(bytes).substr(trailer));
  bytes.append(reinterpret_cast<const char*>(own.data()), own.size());
  return bytes + "SHOALEND";
}

TEST(TokenFileBudget, ASmallFileThatSaysManyRows) {
  const testing::TemporaryDirectory directory;
  for (const auto& [ids, documents] : {std::pair(std::uint64_t{1} << 40, std::uint64_t{1}),
                                       {1, std::uint64_t{1} << 40},
                                       {std::uint64_t{1} << 63, 0},
                                       {0, (std::uint64_t{1} << 61) - 1},
                                       {UINT64_MAX, UINT64_MAX},
                                       {std::uint64_t{1} << 60, std::uint64_t{1} << 60}}) {
    const std::string bytes = token_file(ids, documents, 104);
    std::ofstream(directory / "a.shoaltok") << bytes;
    EXPECT_THAT(within_budget(bytes.size(), "a token file",
                              [&] { (void)TokenFile::open(directory / "a.shoaltok"); }),
                HasSubstr("do not hold"))
        << ids << " ids, " << documents << " documents";
  }
}

TEST(ShardListBudget, ManyNames) {
  const testing::TemporaryDirectory directory;
  std::string list;
  for (int i = 0; i < 50'000; ++i) list += fmt::format("{}.txt\n", i);
  std::ofstream(directory / "list") << list;
  within_budget(list.size(), "names", [&] { (void)expand_shards({"@" + directory / "list"}); });
}

}  // namespace
}  // namespace shoal
