#include "shoal/train/data/records.h"

#include <functional>

#include "support/golden.h"
#include "support/temporary_directory.h"
#include <gtest/gtest.h>

#include "shoal/runtime/base/error.h"

namespace shoal {
namespace {

class Records : public ::testing::Test {
 protected:
  std::string file(const std::string& name, const std::string& text) {
    write_file_atomically(folder_ / name, text);
    return folder_ / name;
  }
  static std::string error_of(const std::function<void()>& action) {
    try {
      action();
    } catch (const Error& error) {
      return error.message();
    }
    return "no error";
  }
  testing::TemporaryDirectory folder_;
};

TEST_F(Records, TsvKeepsQuotationMarksAndEmptyFields) {
  const RecordFile rows(
      file("a.tsv", "\xEF\xBB\xBFsentence\tlabel\r\n\"it\ts\t\r\n\t1\n\n\t\nlast\t2"),
      {.bad = BadRecords::skip});
  EXPECT_EQ(rows.columns(), (std::vector<std::string>{"sentence", "label"}));
  ASSERT_EQ(rows.size(), 3);
  EXPECT_EQ(rows.get(0).text("sentence"), "");
  EXPECT_EQ(rows.get(0).integer("label"), 1);
  EXPECT_EQ(rows.get(1).text("label"), "");
  EXPECT_EQ(rows.get(2).text("sentence"), "last");
  EXPECT_EQ(rows.get(2).place(), (folder_ / "a.tsv") + ", line 6");
  EXPECT_EQ(rows.skipped(), 1);
  EXPECT_EQ(rows.first_skipped(),
            (folder_ / "a.tsv") + ", line 2: 3 fields where there are 2 columns");
}

TEST_F(Records, CsvFollowsRfc4180) {
  const RecordFile rows(file("a.csv", "a,b\n\"x,\"\"y\"\"\nz\",2.5\r\n,\n q ,-1e3\n"));
  ASSERT_EQ(rows.size(), 3);
  EXPECT_EQ(rows.get(0).text("a"), "x,\"y\"\nz");
  EXPECT_EQ(rows.get(0).number("b"), 2.5);
  EXPECT_EQ(rows.get(1).text("b"), "");
  EXPECT_EQ(rows.get(2).text("a"), " q ");
  EXPECT_EQ(rows.get(2).number("b"), -1000);
  EXPECT_EQ(rows.get(2).place(), (folder_ / "a.csv") + ", line 5");
  EXPECT_EQ(error_of([&] { RecordFile(file("b.csv", "a,b\n1,2\n\"3,4\n5,6\n")); }),
            (folder_ / "b.csv") + ", line 3: a quotation that the rest of the file does not end");
}

TEST_F(Records, JsonLinesHaveListsAndMissingFields) {
  const RecordFile rows(file(
      "a.jsonl",
      "{\"tokens\": [\"A\", \"b\"], \"tags\": [0, 3], \"x\": null}\n\n{\"x\": 1, \"ok\": true}\n"));
  ASSERT_EQ(rows.size(), 2);
  EXPECT_EQ(rows.columns(), (std::vector<std::string>{"tags", "tokens", "ok", "x"}));
  EXPECT_EQ(rows.get(0).texts("tokens"), (std::vector<std::string>{"A", "b"}));
  EXPECT_EQ(rows.get(0).values("tags"), (std::vector<std::string>{"0", "3"}));
  EXPECT_FALSE(rows.get(0).has("x"));
  EXPECT_EQ(rows.get(1).integer("x"), 1);
  EXPECT_EQ(rows.get(1).value("ok"), "true");
  const std::string place = (folder_ / "a.jsonl") + ", line 1: ";
  const std::string unknown = error_of([&] { rows.get(0).text("token"); });
  EXPECT_TRUE(
      unknown.starts_with(place + "there is no field 'token'; did you mean tokens? There are "))
      << unknown;
  EXPECT_EQ(error_of([&] { rows.get(0).text("tags"); }), place + "'tags' is a list, not a text");
}

TEST_F(Records, JsonValuesKeepTheirTypes) {
  const RecordFile rows(file("a.jsonl",
                             R"({"text": "0.5", "number": 1, "yes": true, "object": {"a": [1]},
          "list": ["a", 1, [2], null],
          "two": [0, true], "half": [0, 1.0], "words": ["a", 1]})"));
  const Record row = rows.get(0);
  const std::string place = (folder_ / "a.jsonl") + ", line 1: ";
  const auto refuses = [&](const char* name, auto read, const std::string& what) {
    EXPECT_EQ(error_of([&] { read(row, name); }), fmt::format("{}'{}' {}", place, name, what));
  };
  const auto text = [](const Record& r, const char* name) { r.text(name); };
  refuses("number", text, "is 1, not a text");
  refuses("yes", text, "is true, not a text");
  refuses("object", text, "is an object, not a text");
  const auto value = [](const Record& r, const char* name) { r.value(name); };
  refuses("object", value, "is an object, not a text or a number");
  refuses("list", value, "is a list, not a text or a number");
  const auto number = [](const Record& r, const char* name) { r.number(name); };
  refuses("text", number, "is the text '0.5', not a number");
  refuses("yes", number, "is true, not a number");
  const auto texts = [](const Record& r, const char* name) { r.texts(name); };
  refuses("list", texts, "holds 1, not a text");
  refuses("text", texts, "is the text '0.5', not a list");
  const auto values = [](const Record& r, const char* name) { r.values(name); };
  refuses("list", values, "holds a list, not a text or a number");
  refuses("two", values, "holds 0 and true, not values of one type");
  refuses("half", values, "holds 0 and 1.0, not values of one type");
  refuses("words", values, "holds a and 1, not values of one type");
  EXPECT_EQ(row.find_text("number"), nullptr);
  EXPECT_EQ(row.find_value("object"), nullptr);
  EXPECT_EQ(*row.find_value("number"), "1");
  EXPECT_EQ(row.number("number"), 1);
  EXPECT_EQ(row.kind("yes"), Record::Kind::boolean);
  // Fields of a table have no types.
  const RecordFile table(file("a.csv", "a,b\n 0.5,+1\n"));
  EXPECT_EQ(table.get(0).kind("a"), std::nullopt);
  EXPECT_EQ(table.get(0).number("a"), 0.5);
  EXPECT_EQ(table.get(0).number("b"), 1);
  EXPECT_EQ(table.get(0).text("a"), " 0.5");
}

TEST_F(Records, BadRowsStopOrAreSkipped) {
  const std::string path = file(
      "a.jsonl", "{\"t\": \"1\"}\n{\"t\": \n[1]\n{\"u\": 1}\n{\"t\": \"\xff\"}\n{\"t\": \"6\"}\n");
  EXPECT_NE(error_of([&] { RecordFile rows(path); }).find("a.jsonl, line 2"), std::string::npos);
  const RecordFile rows(path, {.needed = {"t"}, .bad = BadRecords::skip});
  EXPECT_EQ(rows.size(), 2);
  EXPECT_EQ(rows.skipped(), 4);
  EXPECT_EQ(rows.get(1).integer("t"), 6);
  EXPECT_NE(rows.first_skipped().find("line 2"), std::string::npos);
}

TEST_F(Records, ErrorsNameTheProblem) {
  const RecordFile rows(file("cola.tsv", "gj04\t1\t\tOur friends.\n"),
                        {.columns = {"source", "label", "mark", "sentence"}});
  EXPECT_EQ(rows.get(0).text("sentence"), "Our friends.");
  EXPECT_EQ(error_of([&] { rows.get(0).integer("sentence"); }),
            (folder_ / "cola.tsv") + ", line 1: 'sentence' is 'Our friends.', not a whole number");
  EXPECT_EQ(error_of([&] { rows.get(1); }), "row 1 of 1 in " + (folder_ / "cola.tsv"));
  EXPECT_NE(error_of([&] { RecordFile(file("x.parquet", "")); }).find("unknown format"),
            std::string::npos);
  EXPECT_NE(error_of([&] { RecordFile(file("e.tsv", "")); }).find("names the fields"),
            std::string::npos);
  EXPECT_EQ(error_of([&] { RecordFile(file("d.csv", "text,label,,,label\nx,1,,,0\n")); }),
            (folder_ / "d.csv") + ": two columns are called 'label'");
  // UTF-16, and one byte of ISO-8859-1 in each format.
  EXPECT_EQ(error_of([&] {
              RecordFile(file("u.tsv", std::string("\xff\xfe"
                                                   "a\0b\0",
                                                   6)));
            }),
            (folder_ / "u.tsv") + ", line 1: byte 0xff at offset 0 of the line is not UTF-8");
  EXPECT_EQ(error_of([&] { RecordFile(file("l.csv", "a,b\n1,caf\xe9\n")); }),
            (folder_ / "l.csv") + ", line 2: byte 0xe9 at offset 5 of the line is not UTF-8");
  EXPECT_EQ(error_of([&] { RecordFile(file("l.jsonl", "{\"a\": \"caf\xe9\"}\n")); }),
            (folder_ / "l.jsonl") + ", line 1: byte 0xe9 at offset 10 of the line is not UTF-8");
  EXPECT_NE(error_of([&] { RecordFile(folder_ / "none.tsv"); }).find("none.tsv"),
            std::string::npos);
  EXPECT_EQ(RecordFile(file("h.csv", "a,b\n")).size(), 0);
}

TEST(RecordsOfGlue, AreAllThere) {
  SHOAL_SHARED_DATA_OR_SKIP(mrpc, "mrpc-train.txt");
  SHOAL_SHARED_DATA_OR_SKIP(sst2, "sst2-dev.tsv");
  const RecordFile pairs(mrpc, {.needed = {"Quality", "#1 String", "#2 String"}});
  EXPECT_EQ(pairs.size(), 4076);
  EXPECT_EQ(pairs.get(0).integer("Quality"), 1);
  const RecordFile sentences(sst2, {.columns = {"sentence", "label"}});
  EXPECT_EQ(sentences.size(), 872);
}

}  // namespace
}  // namespace shoal
