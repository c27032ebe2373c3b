#include "shoal/train/data/content_digest.h"

#include <algorithm>
#include <vector>

#include <fmt/format.h>

#include "shoal/runtime/base/error.h"
#include "shoal/train/data/tokenizer/sha256.h"

namespace shoal {

std::string content_digest(const ByteSource& source, const ContentDigestOptions& options) {
  SHOAL_CHECK(options.blocks >= 2 && options.block_bytes > 0 &&
                  options.blocks * options.block_bytes <= options.whole_bytes,
              "content_digest: {} blocks of {} bytes of files above {} bytes", options.blocks,
              options.block_bytes, options.whole_bytes);
  const std::int64_t size = source.size();
  const bool whole = size <= options.whole_bytes;
  const std::int64_t blocks =
      whole ? (size + options.block_bytes - 1) / options.block_bytes : options.blocks;
  Sha256 hash;
  hash.add(fmt::format("{} {} {}\n", size, whole ? 0 : blocks, options.block_bytes));
  std::vector<std::byte> bytes(static_cast<std::size_t>(std::min(size, options.block_bytes)));
  for (std::int64_t i = 0; i < blocks; ++i) {
    const std::int64_t begin =
        whole ? i * options.block_bytes : i * (size - options.block_bytes) / (blocks - 1);
    const std::span<std::byte> block(
        bytes.data(), static_cast<std::size_t>(std::min(options.block_bytes, size - begin)));
    source.read(begin, block);
    hash.add(block.data(), block.size());
  }
  const std::string digest = "sha256:" + to_hex(hash.finish()).substr(0, 32);
  return whole ? digest : fmt::format("{} of {} blocks", digest, blocks);
}

}  // namespace shoal
