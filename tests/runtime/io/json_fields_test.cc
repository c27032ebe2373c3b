// Null means absent; another type is named with its file.
#include "shoal/runtime/io/json_fields.h"

#include "support/error_text.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

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

}  // namespace
}  // namespace shoal
