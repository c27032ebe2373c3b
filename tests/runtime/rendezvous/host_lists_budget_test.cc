// Short host lists that expand to very many hosts.
#define SHOAL_TEST_COUNTS_MEMORY
#include "support/budget.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/rendezvous/world.h"

namespace shoal {
namespace {

using ::testing::HasSubstr;
using testing::within_budget;

TEST(HostListBudget, HoldsForRangesAndProducts) {
  std::string ranges = "n[", brackets = "n";
  for (int i = 0; i < 100'000; ++i) ranges += "1-60000,", brackets += "[1]";
  ranges.back() = ']';
  for (const std::string& list : {std::string("node[1-999999999]"), std::string("n[0-65536]"),
                                  std::string("n[0-999][0-999][0-999][0-999]"), ranges})
    EXPECT_THAT(
        within_budget(list.size(), list.substr(0, 40), [&] { (void)expand_host_list(list); }),
        HasSubstr("more than 65536 hosts"));
  EXPECT_THAT(within_budget(brackets.size(), "brackets", [&] { (void)expand_host_list(brackets); }),
              HasSubstr("more than 253 characters"));
  for (const std::string& list :
       {std::string("node[1-60000]"), std::string("n[000000001-000060000]")})
    EXPECT_EQ(within_budget(list.size(), list,
                            [&] { EXPECT_EQ(expand_host_list(list).size(), 60'000U); }),
              "");
  EXPECT_THAT(within_budget(20, "tasks", [] { (void)expand_tasks_per_node("1(x999999999)"); }),
              HasSubstr("more than 65536 hosts"));
}

}  // namespace
}  // namespace shoal
