// Hostile files of rows stay within the parser's budget.
#define SHOAL_TEST_COUNTS_MEMORY
#include "support/budget.h"
#include "support/temporary_directory.h"
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/io/files.h"
#include "shoal/train/data/documents.h"
#include "shoal/train/data/labels.h"
#include "shoal/train/data/records.h"

namespace shoal {
namespace {

using testing::within_budget;

std::string times(std::string_view text, std::size_t count) {
  std::string all;
  all.reserve(text.size() * count);
  for (std::size_t i = 0; i < count; ++i) all += text;
  return all;
}

std::string columns(std::size_t count, char between) {
  std::string all;
  for (std::size_t i = 0; i < count; ++i) all += fmt::format("{}{}", i, between);
  all.back() = '\n';
  return all;
}

class RecordFilesBudget : public ::testing::Test {
 protected:
  void expect_within(const std::string& name, const std::string& ending, const std::string& text,
                     const RecordOptions& options = {}) {
    const std::string path = folder_ / ("a" + ending);
    write_file_atomically(path, text);
    const std::string problem = within_budget(text.size(), name, [&] {
      const RecordFile rows(path, options);
      if (rows.size() > 0) rows.get(rows.size() - 1).text("no such field");
    });
    EXPECT_LT(problem.size(), 4000U) << name;
  }
  testing::TemporaryDirectory folder_;
};

TEST_F(RecordFilesBudget, HoldsForManyColumns) {
  constexpr std::size_t kCount = 60'000;
  expect_within("names of columns", ".csv", columns(kCount, ',') + columns(kCount, ','));
  expect_within("names of columns", ".tsv", columns(kCount, '\t') + columns(kCount, '\t'));
  expect_within("two columns of one name", ".csv", "0," + columns(kCount, ','));
  const std::string commas = times(",", 500'000) + "\n", tabs = times("\t", 500'000) + "\n";
  expect_within("columns without names", ".csv", commas + commas);
  expect_within("columns without names", ".tsv", tabs + tabs);
  std::string fields;
  for (std::size_t i = 0; i < kCount; ++i) fields += fmt::format("{}\"{}\":1", i ? "," : "{", i);
  expect_within("fields", ".jsonl", fields + "}\n" + fields + "}\n");
  std::string own;
  for (int i = 0; i < 200'000; ++i) own += fmt::format("{{\"{}\":1}}\n", i);
  expect_within("a field of its own in each record", ".jsonl", own);
  expect_within("the same behind a bad record", ".jsonl", "x\n" + own, {.bad = BadRecords::skip});
}

TEST_F(RecordFilesBudget, HoldsForMessagesAboutLongFields) {
  const std::string path = folder_ / "a.csv", word(1'000'000, 'w');
  write_file_atomically(path, word + ",b\n" + word + ",1\n");
  const RecordFile rows(path, {});
  const Record row = rows.get(0);
  const std::string problem =
      within_budget(2 * word.size(), "a number", [&] { (void)row.number(word); });
  EXPECT_NE(problem.find("w...', not a number"), problem.npos) << problem.substr(0, 500);
  EXPECT_LT(problem.size(), 1000U);
  EXPECT_LT(within_budget(2 * word.size(), "a name", [&] { (void)row.text(word + "x"); }).size(),
            1000U);
}

TEST_F(RecordFilesBudget, HoldsForManyQuotationMarks) {
  constexpr std::size_t kCount = 500'000;
  const RecordOptions skip{.bad = BadRecords::skip};
  expect_within("marks", ".csv", "a\n" + times("\"", 2 * kCount), skip);
  expect_within("marks in a field", ".csv", "a\nx" + times("\"", 2 * kCount), skip);
  expect_within("an open quotation", ".csv", "a\n\"" + times("x\n", kCount), skip);
  expect_within("commas in a quotation", ".csv", "a\n\"" + times(",", kCount) + "\"\n", skip);
  expect_within("empty quotations", ".csv", "a\n" + times("\"\"\n", kCount), skip);
}

TEST_F(RecordFilesBudget, HoldsForManyLines) {
  constexpr std::size_t kCount = 500'000;
  for (const std::string ending : {".csv", ".tsv", ".jsonl"})
    for (const std::string end : {"\n", "\r", "\r\n", " \n"}) {
      const std::string first = ending == ".jsonl" ? "{}\n" : "a\n";
      expect_within("blank lines", ending, first + times(end, kCount), {.bad = BadRecords::skip});
    }
  expect_within("\\r before the only \\n", ".tsv", "a\n" + times("b\r", kCount) + "\n");
  expect_within("short rows", ".csv", times("a\n", kCount));
  expect_within("short records", ".jsonl", times("{}\n", kCount));
}

TEST_F(RecordFilesBudget, HoldsForManyBadRows) {
  constexpr std::size_t kCount = 300'000;
  const RecordOptions skip{.bad = BadRecords::skip};
  expect_within("short rows", ".csv", "a,b\n" + times("x\n", kCount), skip);
  expect_within("short rows", ".tsv", "a\tb\n" + times("x\n", kCount), skip);
  expect_within("short lines", ".jsonl", times("x\n", kCount), skip);
  expect_within("numbers", ".json", "[" + times("1,", kCount) + "1]", skip);
  expect_within("numbers among records", ".json", "[{}," + times("1,", kCount) + "1]", skip);
  // Each line looks like a record until it is parsed.
  for (const char* line :
       {"{x}\n", "{:}\n", "{\"}\n", "{}}\n", "{\"a\"}\n", "{\"a\":}\n", "{1:2}\n", "{\"a\":1,}\n",
        "{\"a\":tru}\n", "{\xff}\n", "{\"a\":\"\\u\"}\n"})
    expect_within(line, ".jsonl", times(line, kCount), skip);
  expect_within("records that lack the field", ".jsonl", times("{\"b\":1}\n", kCount),
                {.needed = {"a"}, .bad = BadRecords::skip});
}

TEST_F(RecordFilesBudget, HoldsForObjectsOverSeveralLines) {
  constexpr std::size_t kCount = 300'000;
  const RecordOptions skip{.bad = BadRecords::skip};
  expect_within("over two lines", ".json", times("{\n}\n", kCount));
  expect_within("over two lines", ".json", times("{\r}\r", kCount));
  expect_within("in one line", ".json", times("{}", kCount));
  expect_within("blanks behind them", ".json", times("{}", kCount) + std::string(kCount, ' '));
  expect_within("lines cut off", ".jsonl", times("{\"a\":[\n", kCount), skip);
  expect_within("lists", ".jsonl", "{\"a\":" + times("[\n", kCount), skip);
  expect_within("objects that do not end", ".jsonl", times("{\"a\":\n", kCount), skip);
  expect_within("a last one that does not end", ".jsonl", times("{\"a\":[],\n", kCount), skip);
  expect_within("an open text", ".jsonl", times("{\"\n", kCount), skip);
  expect_within("texts", ".json", "[" + times("\"\",", kCount) + "1]");
}

TEST_F(RecordFilesBudget, HoldsForJsonArrays) {
  constexpr std::size_t kCount = 300'000;
  expect_within("short records", ".json", "[" + times("{},", kCount) + "{}]");
  expect_within("an array that does not end", ".json", "[" + times("{},", kCount));
  expect_within("lines before the array breaks", ".json", "[{}" + times("\n", kCount) + "] x");
  expect_within("brackets", ".json", times("[", kCount));
  expect_within("marks", ".json", "[" + times("\"", kCount));
  expect_within("a list", ".json", "[{\"a\":[" + times("1,", kCount) + "1]}]");
}

TEST_F(RecordFilesBudget, HoldsForDocumentsAndLabels) {
  constexpr std::size_t kCount = 500'000;
  for (const std::string& text :
       {times("\r", kCount), times("x\r", kCount) + "\n", times("\n", kCount)})
    for (const auto document : {PrepareOptions::Document::line, PrepareOptions::Document::paragraph,
                                PrepareOptions::Document::file}) {
      const std::string path = folder_ / "a.txt";
      write_file_atomically(path, text);
      within_budget(text.size(), "lines", [&] {
        PrepareOptions options;
        options.document = document;
        const DocumentSource source(path, options);
        std::size_t bytes = 0;
        source.for_each([&](std::string_view raw, std::int64_t number) {
          bytes += source.needs_text_of() ? source.text_of(raw, number).size() : raw.size();
        });
      });
    }
  std::vector<std::string> names;
  std::size_t bytes = 0;
  for (int i = 0; i < 60'000; ++i) bytes += names.emplace_back(fmt::format("name {}", i)).size();
  within_budget(2 * bytes, "labels", [&] {
    const LabelSet labels = LabelSet::discover(names);
    for (const std::string& name : names) labels.need(name, "a.csv, line 1");
    EXPECT_TRUE(labels.ids_in(labels));
  });
}

}  // namespace
}  // namespace shoal
