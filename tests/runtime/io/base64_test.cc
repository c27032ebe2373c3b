#include "shoal/runtime/io/base64.h"

#include <string>

#include <gtest/gtest.h>

namespace shoal {
namespace {

// RFC 4648, chapter 10.
TEST(Base64, DecodesPublishedTexts) {
  const std::string text = "foobar";
  const char* const published[] = {"", "Zg==", "Zm8=", "Zm9v", "Zm9vYg==", "Zm9vYmE=", "Zm9vYmFy"};
  for (std::size_t length = 0; length <= text.size(); ++length) {
    EXPECT_EQ(to_base64(text.substr(0, length)), published[length]);
    EXPECT_EQ(from_base64(published[length]), text.substr(0, length));
  }
  std::string all;
  for (int i = 0; i < 256; ++i) all += static_cast<char>(i);
  EXPECT_EQ(from_base64(to_base64(all)), all);
}

TEST(Base64, RefusesOtherText) {
  for (const char* text : {"Zg=", "Zg", "Z", "Zm9vYg==-3", "Zm9*", "QUJD----", "QUJD\n\n\n\n",
                           "====", "Q=Q=", "Zg==Zg=="})
    EXPECT_FALSE(from_base64(text)) << text;
}

}  // namespace
}  // namespace shoal
