// Null means absent. A wrong type is reported with the file.
#include "shoal/runtime/io/json_fields.h"

#include "support/error_text.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shoal/runtime/io/ordered_fields.h"

namespace shoal {
namespace {

using test::error_text;
using ::testing::HasSubstr;

TEST(JsonFields, NullIsAbsent) {
  const auto json = nlohmann::json::parse(R"({"a": null, "b": 3, "c": true, "d": "x", "e": 0.5})");
  const JsonFields fields(json, "config.json");
  std::int64_t number = 7;
  fields.integer("a", number), fields.integer("z", number);
  EXPECT_EQ(number, 7);
  fields.integer("b", number);
  EXPECT_EQ(number, 3);
  bool flag = false;
  fields.boolean("a", flag), fields.boolean("c", flag);
  EXPECT_TRUE(flag);
  std::string text = "kept";
  fields.text("a", text);
  EXPECT_EQ(text, "kept");
  double real = 1;
  fields.number("a", real), fields.number("e", real);
  EXPECT_EQ(real, 0.5);
  std::optional<std::int64_t> optional = 4;
  fields.optional_integer("z", optional);
  EXPECT_EQ(optional, 4);
  fields.optional_integer("a", optional);
  EXPECT_EQ(optional, std::nullopt);
  EXPECT_EQ(fields.find("a"), nullptr);
  EXPECT_EQ(find_field(nlohmann::json(3), "a"), nullptr);
  const nlohmann::ordered_json ordered{{"a", nullptr}, {"b", 1}};
  EXPECT_EQ(find_field(ordered, "a"), nullptr);
  ASSERT_NE(find_field(ordered, "b"), nullptr);
}

TEST(JsonFields, AnotherTypeOrRangeIsNamed) {
  const auto json = nlohmann::json::parse(R"({"a": "x", "b": 4294967296, "c": -1})");
  const JsonFields fields(json, "config.json");
  std::int64_t number = 0;
  EXPECT_THAT(error_text([&] { fields.integer("a", number); }),
              HasSubstr(R"(config.json has a: "x", where an integer is expected)"));
  std::int32_t small = 0;
  EXPECT_THAT(error_text([&] { fields.integer("b", small); }), HasSubstr("4294967296"));
  std::uint32_t positive = 0;
  EXPECT_THAT(error_text([&] { fields.integer("c", positive); }), HasSubstr("-1"));
  EXPECT_THAT(error_text([] { JsonFields(nlohmann::json(3), "config.json"); }),
              HasSubstr("not a JSON object"));
}

TEST(JsonFields, AFieldOfAnotherTypeNamesItsFile) {
  const nlohmann::ordered_json json = nlohmann::ordered_json::parse(
      R"({"text": 5, "names": ["a", null], "count": 1.5, "size": 4294967296, "on": 1, "gone": null})");
  const auto wrong = [&](const char* key, auto otherwise) {
    return error_text([&] { (void)field_or(json, key, otherwise, "f.json"); });
  };
  EXPECT_EQ(wrong("text", std::string()), "f.json has text: 5, where a string is expected");
  EXPECT_EQ(wrong("names", std::vector<std::string>()),
            "f.json has names: null, where a string is expected");
  EXPECT_EQ(wrong("text", std::vector<std::string>()),
            "f.json has text: 5, where a list is expected");
  EXPECT_THAT(wrong("count", std::int64_t{0}), HasSubstr("1.5, where an integer"));
  EXPECT_THAT(wrong("size", 0), HasSubstr("4294967296, where a number of another size"));
  EXPECT_THAT(wrong("on", false), HasSubstr("1, where true or false"));
  EXPECT_THAT(wrong("names", 0.5), HasSubstr("a number is expected"));
  EXPECT_EQ(field_or(json, "gone", 7, "f.json"), 7);
  EXPECT_EQ(field_or(nlohmann::json(3), "gone", 7, "f.json"), 7);
  EXPECT_EQ(need_field<std::int64_t>(json, "size", "f.json"), 4294967296);
  EXPECT_EQ(error_text([&] { (void)need_field<int>(json, "gone", "f.json"); }),
            "f.json lacks gone");
  // The message is one line and does not copy the file.
  const nlohmann::json long_one = {{"text", {std::string(1'000'000, 'x')}}};
  EXPECT_LT(error_text([&] { (void)field_or(long_one, "text", 1, "f.json"); }).size(), 200U);
}

TEST(OrderedFields, BehaveLikeAnOrderedObject) {
  OrderedFields fields(nlohmann::ordered_json{{"b", 1}, {"a", 2}});
  fields["c"] = 3;
  fields["a"] = 4;
  EXPECT_TRUE(fields["d"].is_null());
  EXPECT_TRUE(fields.contains("d"));
  EXPECT_FALSE(fields.contains("e"));
  const nlohmann::ordered_json json = std::move(fields).json();
  EXPECT_EQ(json.dump(), R"({"b":1,"a":4,"c":3,"d":null})");
  std::string names;
  for (const auto& [name, value] : sorted_fields(json)) names += name;
  EXPECT_EQ(names, "abcd");
  EXPECT_TRUE(sorted_fields(nlohmann::ordered_json(3)).empty());
  EXPECT_EQ(OrderedFields(nullptr).fields().size(), 0U);
}

}  // namespace
}  // namespace shoal
