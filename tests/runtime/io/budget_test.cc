// Each parser of this library stays within its budget on adversarial inputs.
#define SHOAL_TEST_COUNTS_MEMORY
#include "support/budget.h"

#include <chrono>
#include <filesystem>
#include <fstream>

#include "support/temporary_directory.h"
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sys/stat.h>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/io/base64.h"
#include "shoal/runtime/io/byte_source.h"
#include "shoal/runtime/io/files.h"
#include "shoal/runtime/io/json.h"
#include "shoal/runtime/io/protobuf.h"
#include "shoal/runtime/io/safetensors.h"
#include "shoal/runtime/io/sharded_safetensors.h"

namespace shoal {
namespace {

using ::testing::HasSubstr;
using testing::within;
using testing::within_budget;

std::string times(std::string_view text, std::size_t count) {
  std::string all;
  all.reserve(text.size() * count);
  for (std::size_t i = 0; i < count; ++i) all += text;
  return all;
}

std::string list_of(std::string_view item, std::size_t count) {
  std::string text = "[" + times(std::string(item) + ",", count);
  text.back() = ']';
  return text;
}

std::string object_of(std::size_t keys, std::string_view value) {
  std::string text = "{";
  for (std::size_t i = 0; i < keys; ++i) text += fmt::format("\"{}\":{},", i, value);
  text.back() = '}';
  return text;
}

std::string framed(const std::string& header) {
  std::string text;
  for (int i = 0; i < 8; ++i) text += static_cast<char>((header.size() >> (8 * i)) & 0xff);
  return text + header;
}

TEST(Budget, HoldsForJson) {
  const std::vector<std::pair<const char*, std::string>> documents = {
      {"many keys", object_of(100'000, "0")},
      {"many objects", list_of("{}", 200'000)},
      {"many arrays", list_of("[]", 200'000)},
      {"many numbers", list_of("0", 300'000)},
      {"objects of one key", list_of(R"({"":0})", 100'000)},
      {"objects of objects", object_of(50'000, R"({"":{}})")},
      {"arrays to the greatest depth", list_of(times("[", 60) + times("]", 60), 5'000)},
      {"one long string", '"' + std::string(1'000'000, 'a') + '"'},
      {"one long number", std::string(1'000'000, '1')},
      {"one long fraction", "0." + std::string(1'000'000, '1')},
      {"a long string without end", '"' + std::string(1'000'000, 'a')},
      {"escapes", '"' + times("\\u00e9", 200'000) + '"'},
      {"white space", std::string(1'000'000, ' ')},
      {"brackets only", std::string(1'000'000, '[')},
      {"braces only", times("{\"\":", 200'000)},
  };
  for (const auto& [name, text] : documents) {
    within_budget(text.size(), name, [&] { (void)parse_json(text, "f"); });
    within_budget(text.size(), std::string("ordered: ") + name,
                  [&] { (void)parse_ordered_json(text, "f"); });
    within_budget(text.size(), std::string("if valid: ") + name,
                  [&] { (void)json_if_valid(text); });
  }
}

TEST(Budget, HoldsForMessagesAboutAHugeToken) {
  const std::string text =
      "{\"" + std::string(100'000, 'k') + "\":1,\"" + std::string(100'000, 'k') + "\":2}";
  EXPECT_LT(within_budget(text.size(), "twice", [&] { (void)parse_json(text, "f"); }).size(), 400U);
  const std::string open = '"' + std::string(100'000, 'a');
  EXPECT_LT(within_budget(open.size(), "open", [&] { (void)parse_json(open, "f"); }).size(), 400U);
}

std::string header_of(int tensors) {
  std::string header = "{";
  for (int i = 0; i < tensors; ++i)
    header += fmt::format(
        R"("model.layers.{}.weight":{{"dtype":"U8","shape":[1],"data_offsets":[{},{}]}},)", i, i,
        i + 1);
  header.back() = '}';
  return header;
}

TEST(Budget, HoldsForASafetensorsHeaderOf300000Tensors) {
  constexpr int kTensors = 300'000;
  const std::string header = header_of(kTensors), file = framed(header);
  const testing::TemporaryDirectory directory;
  const std::string path = directory.path() + "/model.safetensors";
  std::ofstream(path) << file << std::string(kTensors, '\1');
  // 7 µs a tensor, less than a tenth of what its bytes may take.
  EXPECT_EQ(
      within(
          {.seconds = 2 * testing::kSlowBuild, .bytes = testing::allowed_use(file.size()).bytes},
          "the file",
          [&] { EXPECT_EQ(SafetensorsFile::open(path)->entries().size(), std::size_t{kTensors}); }),
      "");
  std::string index = R"({"weight_map":{)";
  for (int i = 0; i < kTensors; ++i)
    index += fmt::format(R"("model.layers.{}.weight":"model.safetensors",)", i);
  index.back() = '}';
  const std::string index_path = directory.path() + "/model.safetensors.index.json";
  std::ofstream(index_path) << index << '}';
  EXPECT_EQ(within_budget(file.size() + index.size(), "with an index",
                          [&] { (void)ShardedSafetensors::open(index_path); }),
            "");
}

TEST(Budget, HoldsForManyWrittenTensors) {
  std::vector<SafetensorsEntry> entries;
  for (int i = 0; i < 50'000; ++i)
    entries.push_back(
        {.name = fmt::format("model.layers.{}.weight", i), .dtype = "U8", .sizes = {1}});
  const testing::TemporaryDirectory directory;
  EXPECT_EQ(within_budget(header_of(50'000).size(), "the header",
                          [&] { SafetensorsWriter(directory.path() + "/a.safetensors", entries); }),
            "");
}

TEST(Budget, HoldsForFalseSafetensorsHeaders) {
  const auto problem = [](const std::string& header) {
    const std::string file = framed(header);
    return within_budget(file.size(), header.substr(0, 80),
                         [&] { (void)parse_safetensors_header(file, std::ssize(file), "f"); });
  };
  EXPECT_THAT(
      problem(R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}})"),
      HasSubstr("overflows"));
  EXPECT_THAT(
      problem(R"({"a":{"dtype":"F32","shape":[1099511627776],"data_offsets":[0,4398046511104]}})"),
      HasSubstr("truncated"));
  EXPECT_THAT(problem(R"({"a":{"dtype":"U8","shape":[9223372036854775808],"data_offsets":[0,0]}})"),
              HasSubstr("has the size"));
  EXPECT_THAT(problem(R"({"a":{"dtype":"U8","shape":[)" + times("1,", 500'000) +
                      R"(1],"data_offsets":[0,0]}})"),
              HasSubstr("takes 1 bytes"));
  EXPECT_THAT(problem(R"({"__metadata__":)" + object_of(100'000, "\"\"") + "}"),
              ::testing::IsEmpty());
}

// Writing costs as little as reading.
TEST(Budget, HoldsForWritingManyTensors) {
  constexpr int kTensors = 50'000;
  const std::uint8_t byte = 1;
  std::vector<SafetensorsEntry> entries;
  std::size_t bytes = 0;
  for (int i = 0; i < kTensors; ++i) {
    entries.push_back(make_entry(fmt::format("model.layers.{}.weight", i), DType::u8, {1}));
    bytes += 80;  // in the header; the index is as large
  }
  const testing::TemporaryDirectory directory;
  const auto value = [&](const std::string&) { return ConstView(&byte, {1}, DType::u8); };
  for (const std::int64_t shard : {kTensors, kTensors / 2}) {
    // Each value is a separate write.
    EXPECT_EQ(
        within_budget(
            bytes, "tensors",
            [&] { (void)write_sharded_safetensors(directory.path(), entries, value, shard); }),
        "");
    EXPECT_EQ(ShardedSafetensors::open(directory.path()).names().size(), std::size_t{kTensors});
  }
}

TEST(Budget, HoldsForMessagesAboutALongName) {
  const std::string name(100'000, 'n');
  const auto problem = [&](const std::string& value) {
    const std::string file = framed("{\"" + name + "\":" + value + "}");
    return within_budget(file.size(), value,
                         [&] { (void)parse_safetensors_header(file, std::ssize(file), "f"); });
  };
  for (const char* value : {"0", R"({"dtype":"F32","shape":[1],"data_offsets":[4,8]})",
                            R"({"dtype":"F3\n2","shape":[1],"data_offsets":[0,4]})",
                            R"({"dtype":"F32","shape":[-1],"data_offsets":[0,4]})"}) {
    EXPECT_THAT(problem(value), HasSubstr("tensor 'nnn"));
    EXPECT_LT(problem(value).size(), 400U) << value;
    EXPECT_EQ(problem(value).find('\n'), std::string::npos) << value;
  }
}

TEST(Budget, HoldsForProtobuf) {
  const auto all = [](const std::string& message) {
    return within_budget(message.size(), "a message", [&] {
      ProtobufReader reader(message, "f");
      while (reader.next()) {
      }
    });
  };
  EXPECT_EQ(all(times(std::string("\x08\x00", 2), 500'000)), "");
  EXPECT_EQ(all(times(std::string("\x0a\x00", 2), 500'000)), "");
  EXPECT_THAT(all(std::string("\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f", 10)),
              HasSubstr("are left"));
  EXPECT_THAT(all(std::string(1'000'000, '\xff')), HasSubstr("has no end"));
}

TEST(Budget, HoldsForBase64) {
  const std::string text(1'000'000, 'A');
  within_budget(text.size(), "base64", [&] { (void)from_base64(text); });
}

// On f990d27 each of these waited forever in open().
TEST(NotAFile, ANamedPipeIsRefusedAtOnce) {
  const testing::TemporaryDirectory directory;
  const std::string pipe = directory.path() + "/config.json";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  for (const std::string& path : {pipe, std::string("/dev/zero"), directory.path()}) {
    const std::vector<std::function<void()>> readers = {[&] { (void)open_file(path); },
                                                        [&] { (void)MappedFile::open(path); },
                                                        [&] { (void)read_text_file(path); },
                                                        [&] { (void)read_json_file(path); },
                                                        [&] { (void)SafetensorsFile::open(path); },
                                                        [&] { (void)open_whole(path); }};
    for (const auto& read : readers)
      EXPECT_THAT(within_budget(0, path, read), HasSubstr("it is not a regular file but a"));
  }
}

TEST(Json, RefusesANulByteAfterTheDocument) {
  const auto problem = [](const std::string& text) {
    try {
      (void)parse_json(text, "f.jsonl line 3");
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  using namespace std::string_literals;
  for (const std::string& text : {"{}\0"s, "{} \0x"s, "1\0"s, "\"a\"\0\0"s, "[1]\n\0{\"a\":2}"s})
    EXPECT_THAT(problem(text), HasSubstr("f.jsonl line 3: a NUL byte after the JSON document"));
  for (const std::string& text : {"{\0}"s, "\0"s, "[1,\0"s, "{\"a\"\0:1}"s})
    EXPECT_THAT(problem(text), HasSubstr("a NUL byte within the JSON document"));
  EXPECT_EQ(problem("{} \t\r\n"), "");
  EXPECT_THROW((void)parse_ordered_json("{}\0"s, "f"), Error);
  EXPECT_FALSE(json_if_valid("{}\0"s));
  const std::string header = framed("{}\0\0\0\0\0\0"s);
  EXPECT_THROW((void)parse_safetensors_header(header, std::ssize(header), "f"), Error);
  const std::string spaces = framed("{}      ");
  EXPECT_TRUE(parse_safetensors_header(spaces, std::ssize(spaces), "f").entries.empty());
}

// A message shows only the beginning of a long name.
TEST(SafetensorsNames, AreShortenedInMessages) {
  const testing::TemporaryDirectory directory;
  const std::string name(1'000'000, 'n');
  const auto problem = [](const auto& action) {
    try {
      action();
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  const SafetensorsEntry entry{.name = name, .dtype = "F32", .sizes = {0}, .bytes = 0};
  const std::string path = directory / "model.safetensors";
  {
    SafetensorsWriter writer(path, {entry}, {});
    writer.append(name, {});
    writer.commit();
  }
  for (const std::string& text :
       {problem([&] { (void)ShardedSafetensors::open(directory.path()).entry(name + "x"); }),
        problem([&] { SafetensorsWriter(path, {entry, entry}, {}); })}) {
    EXPECT_THAT(text, HasSubstr("nnn...'"));
    EXPECT_LT(text.size(), 2'000U);
  }
}

TEST(Json, OtherEncodingsSuggestHowToConvertThem) {
  using namespace std::string_literals;
  for (const auto& [text, encoding] : {std::pair{"\xff\xfe{\0}\0"s, "UTF-16"},
                                       {"\xfe\xff\0{\0}"s, "UTF-16"},
                                       {"{\0}\0"s, "UTF-16LE"},
                                       {"\0{\0}"s, "UTF-16BE"}})
    EXPECT_EQ(
        within_budget(text.size(), "UTF-16", [&] { (void)parse_json(text, "f.json"); }),
        fmt::format("f.json is {0}, and JSON is UTF-8; convert the file: iconv -f {0} -t UTF-8",
                    encoding));
  EXPECT_THAT(within_budget(8, "UTF-32", [&] { (void)parse_json("\xff\xfe\0\0{\0\0\0"s, "f"); }),
              HasSubstr("iconv -f UTF-32 -t UTF-8"));
  EXPECT_THAT(within_budget(10, "ISO-8859-1", [&] { (void)parse_json("\"caf\xe9 \"", "f.json"); }),
              HasSubstr("iconv -f ITS-ENCODING -t UTF-8"));
  for (const char* text : {"", " ", "\n\t\r\n"})
    EXPECT_EQ(within_budget(4, "empty", [&] { (void)parse_json(text, "f.json"); }),
              "f.json is empty, where a JSON document is expected");
}

TEST(Json, ExactIntegersHave64Bits) {
  const testing::TemporaryDirectory directory;
  const std::string path = directory / "config.json";
  for (const char* number :
       {"18446744073709551616", "-9223372036854775809", "123456789012345678901234567890"}) {
    std::ofstream(path) << R"({"a": [)" << number << "]}";
    EXPECT_TRUE(read_json_file(path)["a"][0].is_number_float());
    const auto problem =
        within_budget(40, number, [&] { (void)read_json_file(path, JsonIntegers::exact); });
    EXPECT_THAT(problem, HasSubstr(fmt::format("the integer {} has more than 64 bits", number)));
    EXPECT_THROW((void)parse_ordered_json(number, "f", JsonIntegers::exact), Error);
  }
  for (const char* number : {"18446744073709551615", "-9223372036854775808", "1e30", "1.5", "-0.0"})
    EXPECT_EQ(parse_ordered_json(number, "f", JsonIntegers::exact),
              parse_ordered_json(number, "f"));
}

TEST(Json, OrderedJsonKeepsTheOrderAndRefusesTheSameInputs) {
  const auto json = parse_ordered_json(R"({"b": 1, "a": [{"z": 1, "y": {}}], "c": null})", "f");
  EXPECT_EQ(json.dump(), R"({"b":1,"a":[{"z":1,"y":{}}],"c":null})");
  for (const char* text : {R"({"k":1,"k":1})", "", "{", "1 2", "[1e999]"})
    EXPECT_THROW((void)parse_ordered_json(text, "f"), Error) << text;
}

}  // namespace
}  // namespace shoal
