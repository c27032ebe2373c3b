// Tens of thousands of undeclared options.
#define SHOAL_TEST_COUNTS_MEMORY
#include "support/budget.h"
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "shoal/runtime/config/options.h"

namespace shoal {
namespace {

TEST(OptionsBudget, UnknownNamesStayWithinIt) {
  nlohmann::json many = nlohmann::json::object(), lengthy = many;
  for (int i = 0; i < 50'000; ++i) many[fmt::format("k{}", i)] = i;
  for (int i = 0; i < 100; ++i) lengthy[std::string(10'000, 'x') + std::to_string(i)] = i;
  for (const auto& values : {many, lengthy}) {
    const std::string problem = testing::within_budget(values.dump().size(), "unknown names", [&] {
      OptionSet options;
      std::vector<std::int64_t> fields(300);
      auto section = options.section("all");
      for (std::size_t i = 0; i < fields.size(); ++i)
        section.integer(fmt::format("per_device_option_{}", i), &fields[i]);
      options.add_json(values, "run.json");
      options.finish();
    });
    EXPECT_THAT(problem, ::testing::HasSubstr("there is no option '"));
  }
}

}  // namespace
}  // namespace shoal
