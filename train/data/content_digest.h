// A cheap digest that identifies a file's content. Its cost does not depend on the file's size.
#pragma once

#include <cstdint>
#include <string>

#include "shoal/runtime/io/byte_source.h"

namespace shoal {

struct ContentDigestOptions {
  std::int64_t whole_bytes = std::int64_t{64} << 20;  // files up to this size are hashed whole
  std::int64_t blocks = 64;                           // evenly spaced samples of a larger file
  std::int64_t block_bytes = std::int64_t{1} << 20;   // first block: file's start; last: its end
};

// "sha256:<32 hex digits>": the first half of a SHA-256 over size and bytes. A larger file yields
// "sha256:<...> of 64 blocks"; a change between the blocks is not detected. `blocks` must be at
// least 2, and all blocks together at most whole_bytes. Blocks; rethrows read errors.
std::string content_digest(const ByteSource& source, const ContentDigestOptions& options = {});

}  // namespace shoal
