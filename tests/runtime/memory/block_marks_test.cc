// Checks that AddressSanitizer distinguishes the blocks of a pool (block_marks.h). Compiled only
// under AddressSanitizer.
#include <optional>

#include <gtest/gtest.h>

#include "shoal/runtime/memory/memory_resource.h"

namespace shoal {
namespace {

class BlockMarksDeath : public ::testing::Test {
 protected:
  BlockMarksDeath() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
  std::unique_ptr<MemoryResource> memory_ = make_host_memory();
};

TEST_F(BlockMarksDeath, APoolsBlockEndsAtItsRequestedSize) {
  PoolMemory pool(*memory_);
  for (const std::size_t bytes : {300u, 257u, 320u, 261u}) {  // all of one size class
    SCOPED_TRACE(bytes);
    const Buffer block(pool, bytes, MemoryTag::data);
    auto* const at = static_cast<volatile char*>(block.data());
    at[bytes - 1] = 1;
    if (bytes < 320) {
      EXPECT_DEATH(at[bytes] = 1, "use-after-poison(.|\n)*WRITE of size 1");
    }
  }
}

TEST_F(BlockMarksDeath, AFreedBlockIsNotAccessible) {
  PoolMemory pool(*memory_);
  std::optional<Buffer> block(std::in_place, pool, 100, MemoryTag::data);
  auto* const at = static_cast<volatile char*>(block->data());
  block.reset();
  EXPECT_DEATH((void)at[0], "use-after-poison(.|\n)*READ of size 1");
  block.emplace(pool, 120, MemoryTag::data);
  ASSERT_EQ(block->data(), const_cast<char*>(at));
  at[119] = 1;
}

// Memory whose blocks are not marked, such as a mapping.
class PlainMemory final : public MemoryResource {
 public:
  void* allocate(std::size_t, MemoryTag, Stream) override { return bytes; }
  void deallocate(void*, std::size_t, MemoryTag, Stream) noexcept override {}
  Device device() const override { return Device::cpu(); }
  std::string name() const override { return "plain"; }
  alignas(64) char bytes[256] = {};
};

TEST_F(BlockMarksDeath, ReturnedMemoryIsUnmarked) {
  PlainMemory plain;
  {
    PoolMemory pool(plain);
    Buffer(pool, 100, MemoryTag::data).reset();
    volatile char& byte = plain.bytes[99];
    EXPECT_DEATH(byte = 1, "use-after-poison");
  }
  for (volatile char& byte : plain.bytes) byte = 1;
}

}  // namespace
}  // namespace shoal
