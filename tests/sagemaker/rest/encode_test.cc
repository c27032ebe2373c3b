#include "shoal/sagemaker/rest/encode.h"

#include "support/golden.h"
#include <gmock/gmock.h>

#include "shoal/runtime/base/error.h"
#include "shoal/sagemaker/rest/checksum.h"
#include "shoal/sagemaker/rest/http.h"

namespace shoal::sagemaker {
namespace {

TEST(Encode, PercentAndBack) {
  EXPECT_EQ(percent_encode("a b/c+~é%"), "a%20b%2Fc%2B~%C3%A9%25");
  EXPECT_EQ(percent_encode("a b/c", true), "a%20b/c");
  EXPECT_EQ(percent_decode("a%20b%2Fc%2b%C3%A9%"), "a b/c+é%");
  EXPECT_EQ(percent_decode("%zz%4"), "%zz%4");
  std::string all;
  for (int i = 0; i < 256; ++i) all += static_cast<char>(i);
  EXPECT_EQ(percent_decode(percent_encode(all)), all);
}

TEST(Encode, HashesOfPublishedTexts) {
  // The values are from FIPS 180-4.
  EXPECT_EQ(sha256_hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST(Encode, Times) {
  const auto moment = parse_time("2015-08-30T12:36:00Z");
  ASSERT_TRUE(moment);
  EXPECT_EQ(basic_time(*moment), "20150830T123600Z");
  EXPECT_EQ(extended_time(*moment), "2015-08-30T12:36:00Z");
  EXPECT_EQ(to_epoch(*moment), 1440938160);
  EXPECT_EQ(from_epoch(1440938160), *moment);
  EXPECT_EQ(parse_time("2015-08-30T14:36:00.123456+02:00"), moment);
  EXPECT_EQ(parse_time("2015-08-30T07:06:00-0530"), moment);
  EXPECT_EQ(parse_http_date("Sun, 30 Aug 2015 12:36:00 GMT"), moment);
  for (const char* wrong : {"", "2015-08-30", "2015-08-30T12:36:00", "2015-02-30T12:36:00Z",
                            "2015-08-30T25:36:00Z", "2015-08-30T12:36:00Q"})
    EXPECT_FALSE(parse_time(wrong)) << wrong;
  for (const char* wrong : {"", "Sun, 30 Agu 2015 12:36:00 GMT", "30 Aug 2015 12:36:00 GMT"})
    EXPECT_FALSE(parse_http_date(wrong)) << wrong;
}

TEST(Checksums, AgreeWithPublishedValuesForAnyPieces) {
  // The check values are from the CRC catalogue (reveng.sourceforge.io) and from RFC 1321.
  const std::string digits = "123456789";
  const std::pair<const char*, const char*> expected[] = {
      {"crc32", "cbf43926"},
      {"crc32c", "e3069283"},
      {"crc64nvme", "ae8b14860a799888"},
      {"md5", "25f9e794323b453885f5181f1b624d0b"},
      {"sha1", "f7c3bc1d808e04732adf679965ccc34ca7ae3441"}};
  for (const auto& [name, value] : expected) {
    for (std::size_t cut = 0; cut <= digits.size(); ++cut) {
      const auto sum = make_checksum(name);
      ASSERT_NE(sum, nullptr) << name;
      const auto bytes = std::as_bytes(std::span(digits));
      sum->add(bytes.first(cut));
      sum->add(bytes.subspan(cut));
      EXPECT_EQ(hex(sum->finish()), value) << name << " cut at " << cut;
    }
  }
  EXPECT_EQ(make_checksum("crc16"), nullptr);
}

TEST(Urls, Parts) {
  const Url url = parse_url("HTTPS://Example.COM:8443/a/b?c=d", "a test");
  EXPECT_EQ(url.host, "example.com");
  EXPECT_EQ(url.port, 8443);
  EXPECT_EQ(url.path, "/a/b");
  EXPECT_EQ(url.query, "c=d");
  EXPECT_EQ(url.text(), "https://example.com:8443/a/b?c=d");
  EXPECT_EQ(parse_url("https://example.com:443", "a test").authority(), "example.com");
  EXPECT_EQ(parse_url("http://[::1]:8080/x", "a test").authority(), "[::1]:8080");
  for (const char* wrong :
       {"", "example.com", "ftp://x/", "https://", "https://u:p@x/", "https://x:0/",
        "https://x:70000/", "https://x:1y/", "https://x/#a", "https://x/a b"})
    EXPECT_THROW((void)parse_url(wrong, "a test"), Error) << wrong;
  EXPECT_TRUE(is_loopback(parse_url("http://127.0.0.1:1", "")));
  EXPECT_FALSE(is_loopback(parse_url("http://127.0.0.1.example.com", "")));
}

}  // namespace
}  // namespace shoal::sagemaker
