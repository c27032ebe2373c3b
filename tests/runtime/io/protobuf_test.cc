#include "shoal/runtime/io/protobuf.h"

#include <algorithm>
#include <vector>

#include <gtest/gtest.h>

#include "shoal/runtime/base/error.h"

namespace shoal {
namespace {

TEST(ProtobufReader, RefusesTruncatedOrMistypedInput) {
  const std::string good =
      ProtobufWriter().integer(1, 300).real(2, 1.5F).bytes(3, "abc").real64(4, 2).message();
  ProtobufReader reader(good, "m");
  ASSERT_TRUE(reader.next());
  EXPECT_EQ(reader.integer(), 300u);
  EXPECT_THROW(reader.real(), Error);
  ASSERT_TRUE(reader.next());
  EXPECT_EQ(reader.real(), 1.5F);
  EXPECT_THROW(reader.bytes(), Error);
  ASSERT_TRUE(reader.next());
  EXPECT_EQ(reader.bytes(), "abc");
  ASSERT_TRUE(reader.next());
  EXPECT_FALSE(reader.next());
  const std::vector<std::size_t> ends = {0, 3, 8, 13, good.size()};
  for (std::size_t size = 0; size < good.size(); ++size) {
    ProtobufReader cut(std::string_view(good).substr(0, size), "m");
    const auto all = [&] {
      while (cut.next()) continue;
    };
    if (std::find(ends.begin(), ends.end(), size) != ends.end())
      EXPECT_NO_THROW(all()) << size;
    else
      EXPECT_THROW(all(), Error) << size;
  }
}

}  // namespace
}  // namespace shoal
