// What a file's bytes are told by, cheaply, however large it is.
#pragma once

#include <cstdint>
#include <string>

#include "shoal/runtime/io/byte_source.h"

namespace shoal {

struct ContentDigestOptions {
  std::int64_t whole_bytes = std::int64_t{64} << 20;  // of files up to this size, every byte
  std::int64_t blocks = 64;                           // else so many, the first at the file's head,
  std::int64_t block_bytes = std::int64_t{1} << 20;   // the last at its tail, at even distances
};

// "sha256:<32 hex digits>", the first half of SHA-256 over size and bytes; of a larger file
// "sha256:<...> of 64 blocks": a change between the blocks goes unnoticed. Blocks; throws what
// reading throws. At least 2 blocks, which together are at most whole_bytes.
std::string content_digest(const ByteSource& source, const ContentDigestOptions& options = {});

}  // namespace shoal
