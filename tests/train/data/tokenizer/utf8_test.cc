#include "shoal/train/data/tokenizer/utf8.h"

#include <gtest/gtest.h>

#include "shoal/runtime/base/error.h"
#include "shoal/train/data/tokenizer/sha256.h"

namespace shoal {
namespace {

const std::string kMark = "\xEF\xBF\xBD";

TEST(Utf8, WellFormed) {
  for (const char* text : {"", "plain ascii, longer than eight bytes", "\xC2\x80", "\xDF\xBF",
                           "\xE0\xA0\x80", "\xED\x9F\xBF", "\xEE\x80\x80", "\xF0\x90\x80\x80",
                           "\xF4\x8F\xBF\xBF", "1234567\xC3\xA9 1234567\xE4\xBD\xA0"}) {
    EXPECT_EQ(first_invalid_utf8(text), -1) << text;
    EXPECT_EQ(repair_utf8(text), text);
  }
}

TEST(Utf8, IllFormedAsPythonAndRustRepairIt) {
  struct Case {
    std::string text;
    std::int64_t at;
    std::string repaired;
  };
  const Case cases[] = {
      {"\x80", 0, kMark},
      {"ab\xFF"
       "cd",
       2, "ab" + kMark + "cd"},
      {"\xC0\x80", 0, kMark + kMark},              // overlong
      {"\xE0\x80\x80", 0, kMark + kMark + kMark},  // overlong
      {"\xED\xA0\x80", 0, kMark + kMark + kMark},  // a surrogate
      {"\xF4\x90\x80\x80", 0, kMark + kMark + kMark + kMark},
      {"\xE4\xBD", 0, kMark},  // truncated: one maximal part
      {"\xF0\x9F\x91", 0, kMark},
      {"\xF0\x9F\x91x", 0, kMark + "x"},
      {"\xE4\xBD\xE4\xBD\xA0", 0, kMark + "\xE4\xBD\xA0"},
      {"12345678\xC3", 8, "12345678" + kMark},
  };
  for (const Case& c : cases) {
    EXPECT_EQ(first_invalid_utf8(c.text), c.at);
    EXPECT_EQ(repair_utf8(c.text), c.repaired);
    EXPECT_EQ(first_invalid_utf8(repair_utf8(c.text)), -1);
  }
}

TEST(Utf8, CheckNamesSourceByteAndOffset) {
  try {
    check_utf8("caf\xE9 au lait", "menu.txt");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    EXPECT_EQ(error.message(), "menu.txt: byte 0xe9 at offset 3 is not UTF-8");
    EXPECT_EQ(error.remedy(), "convert the text to UTF-8");
  }
}

TEST(Sha256, StandardVectorsAndHex) {
  EXPECT_EQ(to_hex(sha256("abc")),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(to_hex(sha256("")), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(digest_from_hex(to_hex(sha256("abc"))), sha256("abc"));
  EXPECT_THROW(digest_from_hex("abc"), Error);
  EXPECT_THROW(digest_from_hex(std::string(64, 'g')), Error);
}

}  // namespace
}  // namespace shoal
