// Parsers of runtime/io and runtime/config.
#include <optional>
#include <string>
#include <vector>

#include "fuzz/frame.h"
#include <nlohmann/json.hpp>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/shortened.h"
#include "shoal/runtime/base/terminal.h"
#include "shoal/runtime/config/options.h"
#include "shoal/runtime/io/base64.h"
#include "shoal/runtime/io/byte_source.h"
#include "shoal/runtime/io/json.h"
#include "shoal/runtime/io/protobuf.h"
#include "shoal/runtime/io/safetensors.h"
#include "shoal/runtime/io/sharded_safetensors.h"
#include "shoal/runtime/io/text_encoding.h"
#include "shoal/runtime/io/text_lines.h"

namespace shoal::fuzz {
namespace {

FUZZ(json, "runtime/io/json.cc runtime/io/text_encoding.cc") {
  const std::string_view text = input.rest();
  const std::optional<nlohmann::json> valid = json_if_valid(text);
  expect(ordered_json_if_valid(text).has_value() == valid.has_value(), "both kinds agree");
  std::optional<std::string> refused;
  try {
    const nlohmann::json read = parse_json(text, "f");
    expect(valid == read, "json_if_valid() gives what parse_json() does");
    expect(parse_json(read.dump(), "f") == read, "what is written reads the same");
  } catch (const Error& error) {
    refused = error.what();
  }
  expect(refused.has_value() != valid.has_value(),
         "json_if_valid() accepts what parse_json() does");
  (void)parse_ordered_json(text, "f", JsonIntegers::exact);
}

FUZZ(safetensors, "runtime/io/safetensors.cc") {
  const auto file = SafetensorsFile::open(input.file("model.safetensors", input.rest()));
  std::int64_t bytes = 0;
  for (const SafetensorsEntry& entry : file->entries()) {
    expect(file->entry(entry.name).offset == entry.offset, "an entry is found by its name");
    bytes += std::ssize(file->bytes(entry.name));
    try {
      expect(file->tensor(entry.name).shape().count() >= 0, "a tensor has a shape");
    } catch (const Error& error) {
      expect(error.code() == ErrorCode::unavailable || error.code() == ErrorCode::invalid_argument,
             error.what());
    }
  }
  expect(bytes <= static_cast<std::int64_t>(input.rest().size()), "tensors lie within the file");
}

// The index, then two shards.
FUZZ(safetensors_index, "runtime/io/sharded_safetensors.cc") {
  input.optional_file("model.safetensors.index.json");
  input.optional_file("model-00001-of-00002.safetensors");
  input.optional_file("model-00002-of-00002.safetensors");
  const auto model = ShardedSafetensors::open(Input::folder());
  for (const std::string& name : model.names())
    expect(model.entry(name).name == name, "an entry is found by its name");
}

FUZZ(protobuf, "runtime/io/protobuf.cc") {
  ProtobufReader reader(input.rest(), "f");
  std::size_t bytes = 0;
  while (reader.next()) {
    for (const auto& read : std::vector<void (*)(const ProtobufReader&)>{
             [](const ProtobufReader& one) { (void)one.integer(); },
             [](const ProtobufReader& one) { (void)one.real(); },
             [](const ProtobufReader& one) {
               ProtobufReader inner(one.bytes(), "inner");
               while (inner.next()) {
               }
             }})
      try {
        read(reader);
      } catch (const Error& error) {
        expect(error.code() == ErrorCode::corrupt_data, error.what());
      }
    expect(++bytes <= input.rest().size(), "each field takes a byte");
  }
}

FUZZ(base64, "runtime/io/base64.cc") {
  const std::string text(input.rest());
  if (const auto bytes = from_base64(text))
    expect(to_base64(*bytes).size() == text.size(), "base64 has one length");
  expect(from_base64(to_base64(text)) == text, "a round trip of any bytes");
}

FUZZ(text,
     "runtime/io/text_encoding.cc runtime/io/text_lines.h runtime/base/shortened.cc "
     "runtime/base/terminal.cc") {
  const std::string_view text = input.rest();
  std::string joined;
  std::string_view line;
  for (TextLines lines(text); lines.next(line);) {
    expect(line.find_first_of("\r\n") == line.npos, "a line has no line end");
    (joined += line) += '\n';
  }
  const std::string whole = with_newlines(text);
  expect(joined == whole || joined == whole + '\n', "lines are those of Python's open()");
  expect(shortened(text, 40).size() <= 2 * 40 + 3, "a shortened text is short");
  const std::string visible = terminal::visible(text);
  expect(terminal::visible(visible) == visible, "a visible text stays as it is");
  (void)wide_encoding(text);
  refuse_unmarked_utf16(text, "f");
}

enum class Word { one, two };

struct Fields {
  bool flag = false, automatic = false;
  std::optional<bool> maybe;
  std::int64_t count = 1;
  int small = 1;
  std::optional<std::int64_t> steps;
  double rate = 0.1;
  std::optional<double> limit;
  std::string name;
  std::optional<std::string> path;
  std::vector<std::string> words;
  std::vector<std::int64_t> numbers;
  Word word = Word::one;
  nlohmann::json object;
};

OptionSet declared(Fields& fields) {
  OptionSet options;
  auto first = options.section("first", "some options");
  first.boolean("flag", &fields.flag, {.aliases = {"switch"}}).boolean("maybe", &fields.maybe);
  first.boolean_or_auto("use", &fields.flag, &fields.automatic);
  first.integer("count", &fields.count, {.min = -5, .max = 1'000'000});
  first.integer("small", &fields.small, IntegerRules{.min = 0}).integer("steps", &fields.steps);
  first.real("rate", &fields.rate, {.min = 0, .max = 1, .open_min = true});
  first.real("limit", &fields.limit);
  auto second = options.section("second");
  second.string("name", &fields.name).string("path", &fields.path);
  second.list("words", &fields.words).list("numbers", &fields.numbers, IntegerRules{.min = 1});
  second.choice("word", &fields.word, {{"one", Word::one}, {"two", Word::two}});
  second.object("object", &fields.object).ignored("workers", "there are none");
  return options;
}

// A file of options; then words of a command, a line each.
FUZZ(options, "runtime/config/options.cc runtime/config/binding.cc", .lists_problems = true) {
  Fields fields;
  OptionSet options = declared(fields);
  options.add_file(input.file("run.json", input.part()));
  std::vector<std::string> words;
  std::string_view word;
  for (TextLines lines(input.part()); lines.next(word);) words.emplace_back(word);
  options.add_arguments(words);
  options.finish();
  const auto dumped = options.dump();
  (void)options.notices();
  Fields again;
  OptionSet same = declared(again);
  same.add_json(nlohmann::json(dumped), "dump");
  same.finish();
  expect(again.count == fields.count && again.rate == fields.rate && again.words == fields.words &&
             again.object == fields.object && again.name == fields.name,
         "add_json() accepts what dump() gives");
}

}  // namespace
}  // namespace shoal::fuzz
