#include "shoal/train/data/content_digest.h"

#include <algorithm>
#include <set>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shoal/runtime/base/error.h"

namespace shoal {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

std::string text_of(std::size_t bytes) {
  std::string text;
  unsigned x = 1;
  while (text.size() < bytes) text += static_cast<char>((x = x * 1664525U + 1013904223U) >> 24U);
  return text;
}

std::string digest_of(const std::string& text, const ContentDigestOptions& options = {}) {
  return content_digest(*make_memory_source(text, "text"), options);
}

// Files larger than 100 bytes are hashed by four blocks of 10.
constexpr ContentDigestOptions kFew{.whole_bytes = 100, .blocks = 4, .block_bytes = 10};

// The expected values are from `sha256sum` of size, 0 (all bytes are hashed) or the block
// size, and the bytes.
TEST(ContentDigest, IsSha256OfSizeAndBytes) {
  EXPECT_EQ(digest_of("the shoal swims"), "sha256:a37776973ecb150f71d7dbd580814495");
  EXPECT_EQ(digest_of(""), "sha256:385511785667412dbf0f113dc1c95055");
}

TEST(ContentDigest, DependsOnEveryByteOfASmallFile) {
  for (const std::size_t bytes : {1U, 9U, 10U, 11U, 99U, 100U}) {
    const std::string text = text_of(bytes);
    std::set<std::string> all{digest_of(text, kFew), digest_of(text + "x", kFew)};
    for (std::size_t i = 0; i < bytes; ++i) {
      std::string other = text;
      other[i] = static_cast<char>(other[i] ^ 1);
      all.insert(digest_of(other, kFew));
    }
    EXPECT_THAT(all, SizeIs(bytes + 2));
    EXPECT_THAT(digest_of(text, kFew), Not(HasSubstr("blocks")));
  }
}

// The file has 1003 bytes. The blocks 0 to 9, 331 to 340, 662 to 671 and 993 to 1002 are hashed.
TEST(ContentDigest, DependsOnSizeHeadTailAndBlocksOfALargeFile) {
  const std::string text = text_of(1003);
  const std::string was = digest_of(text, kFew);
  EXPECT_THAT(was, EndsWith(" of 4 blocks"));
  for (std::size_t i = 0; i < text.size(); ++i) {
    std::string other = text;
    other[i] = static_cast<char>(other[i] ^ 1);
    const bool seen = i % 331 < 10;
    EXPECT_EQ(digest_of(other, kFew) != was, seen) << "byte " << i;
  }
  EXPECT_NE(digest_of(std::string(1003, 'a'), kFew), digest_of(std::string(1004, 'a'), kFew));
  EXPECT_THAT(digest_of(text_of(101), kFew), EndsWith(" of 4 blocks"));
}

// Records which ranges are read.
class Noted final : public ByteSource {
 public:
  explicit Noted(std::int64_t size) : size_(size) {}
  std::int64_t size() const override { return size_; }
  const std::string& name() const override { return name_; }
  void read(std::int64_t offset, std::span<std::byte> destination) const override {
    if (offset < 0 || offset + std::ssize(destination) > size_)
      throw_error(ErrorCode::corrupt_data, "beyond the end");
    std::ranges::fill(destination, std::byte{});
    read_ += std::ssize(destination);
  }
  std::int64_t read_bytes() const { return read_; }

 private:
  std::int64_t size_;
  std::string name_ = "noted";
  mutable std::int64_t read_ = 0;
};

TEST(ContentDigest, ReadsNoMoreThan64MiB) {
  constexpr std::int64_t kMiB = std::int64_t{1} << 20;
  for (const auto& [size, read] :
       {std::pair{kMiB + 5, kMiB + 5}, std::pair{64 * kMiB, 64 * kMiB},
        std::pair{64 * kMiB + 1, 64 * kMiB}, std::pair{std::int64_t{1} << 50, 64 * kMiB}}) {
    const Noted source(size);
    content_digest(source);
    EXPECT_EQ(source.read_bytes(), read) << size;
  }
}

TEST(ContentDigest, RefusesBlocksThatAreMoreThanTheFile) {
  EXPECT_THROW(digest_of("x", {.whole_bytes = 30, .blocks = 4, .block_bytes = 10}), Error);
  EXPECT_THROW(digest_of("x", {.blocks = 1}), Error);
}

}  // namespace
}  // namespace shoal
