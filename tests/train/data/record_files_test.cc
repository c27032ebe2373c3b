// Rows and lines of files, against Python's csv, pandas and datasets
// (tools/golden/make_records.py).
#include <functional>

#include "support/error_text.h"
#include "support/golden.h"
#include "support/temporary_directory.h"
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/progress.h"
#include "shoal/runtime/base/white_space.h"
#include "shoal/runtime/io/byte_source.h"
#include "shoal/runtime/io/files.h"
#include "shoal/runtime/io/json.h"
#include "shoal/train/data/documents.h"
#include "shoal/train/data/records.h"
#include "shoal/train/data/token_shards.h"
#include "shoal/train/data/tokenizer/bpe_trainer.h"
#include "shoal/train/data/tokenizer/characters.h"

namespace shoal {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using Texts = std::vector<std::string>;

class RecordFiles : public ::testing::Test {
 protected:
  static json golden(const char* part) {
    return read_json_file(testing::golden_path("records.json")).at(part);
  }
  std::string file(const std::string& name, const std::string& text) {
    write_file_atomically(folder_ / name, text);
    return folder_ / name;
  }
  static json rows_of(const RecordFile& rows) {
    json all = json::array();
    for (std::int64_t i = 0; i < rows.size(); ++i) {
      const Record record = rows.get(i);
      json row = json::array();
      for (const std::string& name : rows.columns()) row.push_back(record.text(name));
      all.push_back(std::move(row));
    }
    return all;
  }
  testing::TemporaryDirectory folder_;
};

// A rank that reads must report progress, because the others wait only until a deadline
// after its last report.
TEST_F(RecordFiles, ReportProgress) {
  std::string lines = "a,b\n", objects;
  for (int i = 0; i < 50'000; ++i) {
    lines += fmt::format("{},x\n", i);
    objects += fmt::format("{}\"a\": {}{}\n", '{', i, '}');
  }
  for (const auto& [name, text] : {std::pair{"a.csv", lines}, {"a.jsonl", objects}}) {
    const std::string path = file(name, text);
    int signs = 0;
    {
      const progress::Listener listener([&] { ++signs; });
      const RecordFile rows(path);
      EXPECT_GE(signs, 5) << name;
      signs = 0;
      const DocumentSource documents(path, {});
      EXPECT_GE(signs, 5) << name;
      signs = 0;
      read_text_file(path);
      EXPECT_GE(signs, 1) << name;
    }
    signs = 0;
    const RecordFile rows(path);
    EXPECT_EQ(signs, 0);
    const progress::Listener listener([] { throw Error(ErrorCode::peer_lost, "rank 1 is gone"); });
    EXPECT_THROW(RecordFile(path, {.bad = BadRecords::skip}), Error);
  }
}

TEST_F(RecordFiles, WhiteSpaceIsPythonsAndRusts) {
  const json spaces = golden("spaces")[0];
  std::vector<std::uint32_t> python, rust;
  for (std::uint32_t c = 0; c < 0x110000; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    std::string bytes;
    append_utf8(bytes, c);
    const auto goes = [&](auto is_space) {
      const bool behind = without_spaces_behind("x" + bytes, is_space) == "x";
      EXPECT_EQ(without_spaces_in_front(bytes + "x", is_space) == "x", behind) << c;
      return behind;
    };
    if (goes(is_python_space)) python.push_back(c);
    if (goes(is_rust_space)) rust.push_back(c);
  }
  EXPECT_EQ(python, spaces["python"].get<std::vector<std::uint32_t>>());
  EXPECT_EQ(rust, spaces["rust"].get<std::vector<std::uint32_t>>());
  for (const std::string_view text : {"", "\x85", "\xE2\x80", "\x80\x80", "\xC2"}) {
    EXPECT_EQ(without_spaces_behind(text, is_python_space), text);
    EXPECT_EQ(without_spaces_in_front(text, is_python_space), text);
  }
}

TEST_F(RecordFiles, CsvAndTsvHaveTheRowsOfPandas) {
  for (const char* format : {"csv", "tsv"}) {
    for (const json& one : golden(format)) {
      const std::string path = file(std::string("a.") + format, one["text"]);
      if (one["rows"].is_null()) {
        EXPECT_THROW(RecordFile rows(path), Error) << one;
        continue;
      }
      const RecordFile rows(path);
      EXPECT_EQ(rows.columns(), one["columns"].get<Texts>()) << one;
      EXPECT_EQ(rows_of(rows), one["rows"]) << one;
    }
  }
}

TEST_F(RecordFiles, RandomCsvHasTheRowsOfPythonsCsv) {
  for (const json& one : golden("rows")) {
    const RecordFile rows(file("a.csv", one["text"]),
                          {.columns = {"a", "b"}, .bad = BadRecords::skip});
    EXPECT_EQ(rows_of(rows), one["rows"]) << one;
  }
}

// The line number of each row is right for all line endings and quoted newlines.
TEST_F(RecordFiles, CsvRowsHaveTheirLineNumbers) {
  for (const std::string end : {"\n", "\r", "\r\n"}) {
    std::string text;
    for (const char* line : {"a,b", "1,\"x", "\"\"y", "z\"", "", "2,3", "4,5,6"})
      text += line + end;
    const RecordFile rows(file("a.csv", text), {.bad = BadRecords::skip});
    EXPECT_EQ(rows.get(0).place(), (folder_ / "a.csv") + ", line 2");
    EXPECT_EQ(rows.get(1).place(), (folder_ / "a.csv") + ", line 6");
    EXPECT_EQ(rows.first_skipped(),
              (folder_ / "a.csv") + ", line 7: 3 fields where there are 2 columns");
  }
}

TEST_F(RecordFiles, JsonHasTheRecordsOfDatasets) {
  for (const json& one : golden("json")) {
    const std::string path = file(one["name"], one["text"]);
    if (one["rows"].is_null()) {
      EXPECT_THROW(RecordFile rows(path), Error) << one;
      continue;
    }
    const RecordFile rows(path);
    ASSERT_EQ(rows.size(), std::ssize(one["rows"])) << one;
    for (std::int64_t i = 0; i < rows.size(); ++i) {
      const json& row = one["rows"][static_cast<std::size_t>(i)];
      const Record record = rows.get(i);
      EXPECT_EQ(record.names().size(), row.size()) << one;
      for (const auto& [name, value] : row.items()) {
        const auto text = [](const json& item) {
          return item.is_string() ? item.get<std::string>() : item.dump();
        };
        if (value.is_object()) {
          EXPECT_THROW(record.value(name), Error) << one;
          continue;
        }
        if (!value.is_array()) {
          EXPECT_EQ(record.value(name), text(value)) << one;
          continue;
        }
        Texts list;
        for (const json& item : value) list.push_back(text(item));
        EXPECT_EQ(record.values(name), list) << one;
      }
    }
  }
}

TEST_F(RecordFiles, JsonHasTheFieldsOfAllRecords) {
  for (const json& one : golden("fields")) {
    for (const BadRecords bad : {BadRecords::stop, BadRecords::skip}) {
      // A row after a bad one takes another code path.
      const std::string in_front = bad == BadRecords::skip ? "x\n" : "";
      const RecordFile rows(file("a.jsonl", in_front + one["text"].get<std::string>()),
                            {.bad = bad});
      EXPECT_EQ(rows.columns(), one["columns"].get<Texts>()) << one;
      ASSERT_EQ(rows.size(), std::ssize(one["rows"])) << one;
      for (std::int64_t i = 0; i < rows.size(); ++i) {
        const json& row = one["rows"][static_cast<std::size_t>(i)];
        for (const std::string& name : rows.columns())
          EXPECT_EQ(rows.get(i).has(name), row.contains(name)) << one;
      }
    }
  }
}

TEST_F(RecordFiles, ErrorsInAnArrayNameRecordAndLine) {
  const std::string path = file("a.json", "[\n  {\"a\": 1},\n  {\"a\":\n 2, }, 3,\n {\"b\": 4}]");
  const std::string place = path + ", record 2: ";
  EXPECT_THAT(test::error_text([&] { RecordFile rows(path); }), HasSubstr(place));
  const RecordFile rows(path, {.needed = {"a"}, .bad = BadRecords::skip});
  EXPECT_EQ(rows.size(), 1);
  EXPECT_EQ(rows.skipped(), 3);
  EXPECT_EQ(rows.get(0).place(), path + ", record 1");
  EXPECT_EQ(rows.columns(), Texts({"a"}));
  for (const auto& [text, problem] :
       {std::pair{"[\n{\"a\": 1},\n{\"a\": 2}", ", line 3: the file ends within its array"},
        {"[\n{\"a\": 1}\n]\n{\"a\": 2}", ", line 4: the array of records has ended"},
        {"[\n{\"a\": 1},\n]", ", line 3: a record is missing in front of it"}})
    EXPECT_THAT(
        test::error_text([&] { RecordFile(file("b.json", text), {.bad = BadRecords::skip}); }),
        HasSubstr(problem));
  EXPECT_EQ(RecordFile(file("e.json", " [ ] \n")).size(), 0);
}

TEST_F(RecordFiles, AnArrayInAJsonLinesFileIsReported) {
  for (const char* text : {"[{\"a\": 1}]", "\n[\n{\"a\": 1},\n{\"a\": 2}\n]\n"})
    for (const BadRecords bad : {BadRecords::stop, BadRecords::skip})
      EXPECT_THAT(test::error_text([&] { RecordFile rows(file("a.jsonl", text), {.bad = bad}); }),
                  HasSubstr("a.jsonl is one JSON array, where a .jsonl has a record on each line; "
                            "name it .json"));
  // A bad first line counts as a bad row.
  EXPECT_EQ(RecordFile(file("b.jsonl", "[1]\n{\"a\": 1}\n"), {.bad = BadRecords::skip}).size(), 1);
}

TEST_F(RecordFiles, ErrorsForPythonsNumbersSayHowToWriteThem) {
  const char* const remedy =
      ", which Python writes but JSON does not have; write null in its place, or leave the field "
      "out";
  for (const std::string number : {"NaN", "Infinity"}) {
    EXPECT_THAT(test::error_text(
                    [&] { RecordFile(file("a.jsonl", "{\"a\": 1}\n{\"a\": " + number + "}\n")); }),
                HasSubstr("a.jsonl, line 2: " + number + " at byte 6" + remedy));
    EXPECT_THAT(
        test::error_text([&] { RecordFile(file("a.json", "[{\"a\": [-" + number + "]}]")); }),
        HasSubstr("a.json, record 1: " + number + " at byte 8" + remedy));
    const DocumentSource source(file("b.jsonl", "{}"), {});
    EXPECT_THAT(test::error_text([&] { source.text_of("{\"text\": " + number + "}", 1); }),
                HasSubstr(remedy));
  }
}

TEST_F(RecordFiles, TextHasTheLinesOfDatasets) {
  for (const json& one : golden("text")) {
    PrepareOptions options;
    const DocumentSource source(file("a.txt", one["text"]), options);
    Texts lines;
    source.for_each([&](std::string_view raw, std::int64_t number) {
      lines.push_back(source.needs_text_of() ? source.text_of(raw, number) : std::string(raw));
      EXPECT_EQ(number, std::ssize(lines));
    });
    EXPECT_EQ(lines, one["lines"].get<Texts>()) << one;
  }
}

// ASCII characters in UTF-16 are valid UTF-8 with a NUL byte for each character.
TEST_F(RecordFiles, ErrorsForUtf16WithoutAMarkSayHowToConvertIt) {
  const auto wide = [](std::u16string_view text, bool little) {
    std::string bytes;
    for (const char16_t c : text) {
      const char low = static_cast<char>(c & 0xFF), high = static_cast<char>(c >> 8);
      bytes += little ? low : high;
      bytes += little ? high : low;
    }
    return bytes;
  };
  const std::u16string russian =
      u"\u0442\u0435\u043a\u0441\u0442,\u0438\n\u043e\u0434\u0438\u043d \u0434\u0432\u0430,1\n"
      u"\u0442\u0440\u0438 \u0438 "
      u"\u0447\u0435\u0442\u044b\u0440\u0435,0\n\u043e\u0434\u0438\u043d,1\n";
  for (const auto& [name, text] : {std::pair{"a.csv", std::u16string(u"t,label\nx,1\n")},
                                   {"a.tsv", u"t\tlabel\nx\t1\n"},
                                   {"a.jsonl", u"{\"text\": \"x\"}\n"},
                                   {"a.json", u"[{\"text\": \"x\"}]"},
                                   {"a.txt", u"some text\n"},
                                   {"b.csv", russian}})
    for (const bool little : {true, false}) {
      const std::string path = file(name, wide(text, little));
      const std::string remedy = fmt::format(
          "{}: it looks like UTF-16{}; convert the file: iconv -f UTF-16{} -t UTF-8",
          "zero bytes among its characters", little ? "LE" : "BE", little ? "LE" : "BE");
      EXPECT_THAT(test::error_text([&] { DocumentSource source(path, {}); }), HasSubstr(remedy));
      for (const BadRecords bad : {BadRecords::stop, BadRecords::skip})
        EXPECT_THAT(test::error_text([&] { RecordFile rows(path, {.bad = bad}); }),
                    HasSubstr(remedy));
      EXPECT_THAT(test::error_text([&] { BpeTrainer({}).add_file(path); }), HasSubstr(remedy));
      EXPECT_THAT(test::error_text([&] { expand_shards({"@" + path}); }), HasSubstr(remedy));
    }
  // Occasional NULs count as text.
  using namespace std::string_literals;
  const RecordFile rows(file("c.csv", "t,label\na\0b\0,1\nlonger,0\n"s));
  EXPECT_EQ(rows.get(0).text("t"), "a\0b\0"s);
  EXPECT_EQ(DocumentSource(file("c.txt", "a\0bc\0d\0e\0fgh\0\n"s), {}).bytes(), 14);
}

TEST_F(RecordFiles, JsonTextsAreLinesOrAnArray) {
  for (const auto& [name, text] :
       {std::pair{"a.jsonl", "{\"text\": \"x\"}\r\r{\"text\": \"y\\r\\n\"}"},
        {"a.json", "{\"text\": \"x\"}\n{\"text\": \"y\\r\\n\"}\n"},
        {"b.json", "[{\"text\": \"x\"},\n{\"text\": \"y\\r\\n\"}]"}}) {
    const DocumentSource source(file(name, text), {});
    Texts texts;
    source.for_each([&](std::string_view raw, std::int64_t number) {
      texts.push_back(source.text_of(raw, number));
    });
    EXPECT_EQ(texts, Texts({"x", "y\r\n"})) << name;
  }
  const DocumentSource wrong(file("c.json", "[{\"text\": \"x\"}, {\"t\": 1}]"), {});
  EXPECT_THAT(test::error_text([&] { wrong.text_of("{\"t\": 1}", 2); }),
              HasSubstr("c.json, record 2: not an object with the string 'text'"));
  EXPECT_THAT(test::error_text([&] { DocumentSource source(file("d.jsonl", "[{}]"), {}); }),
              HasSubstr("name it .json"));
}

}  // namespace
}  // namespace shoal
