#include "shoal/runtime/base/error.h"

#include <gtest/gtest.h>

namespace shoal {
namespace {

TEST(Error, OneLineNamesContextAndRemedy) {
  Error error(ErrorCode::timeout, "no answer in 600 s", "look at rank 1's log");
  error.at_rank(3).with_peer(1).in_operation("all_reduce");
  EXPECT_STREQ(error.what(),
               "no answer in 600 s [rank 3, peer 1, all_reduce]; look at rank 1's log");
  EXPECT_EQ(error.code(), ErrorCode::timeout);
}

TEST(Error, ChecksThrowInvalidArgumentWithTheNumbers) {
  try {
    SHOAL_CHECK(1 > 2, "{} is not above {}", 1, 2);
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    EXPECT_EQ(error.message(), "1 is not above 2");
  }
}

}  // namespace
}  // namespace shoal
