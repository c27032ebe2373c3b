// Sizes of an embedding, and of the sort in its backward.
#pragma once

#include <cstddef>
#include <cstdint>

namespace shoal::kernels {

struct EmbeddingShape {
  std::int64_t count;  // ids
  std::int64_t vocabulary, columns;
};

// Scratch of embedding_backward, as byte offsets into one block.
struct EmbeddingSort {
  static constexpr std::int64_t kTile = 1024;  // ids per block in the sort
  static constexpr std::int64_t kChunk = 32;   // sorted ids that one warp sums
  static constexpr int kDigitBits = 8, kDigits = 1 << kDigitBits;

  std::int64_t tiles, chunks;
  int passes;  // of the sort, one digit each
  std::size_t keys[2], positions[2], counts, partials, bytes;

  explicit EmbeddingSort(EmbeddingShape shape)
      : tiles((shape.count + kTile - 1) / kTile), chunks((shape.count + kChunk - 1) / kChunk) {
    passes = 1;
    while (((shape.vocabulary - 1) >> (passes * kDigitBits)) > 0) ++passes;
    bytes = 0;
    const auto place = [&](std::int64_t words) {
      const std::size_t begin = bytes;
      bytes += (static_cast<std::size_t>(words) * 4 + 255) / 256 * 256;
      return begin;
    };
    for (int half = 0; half < 2; ++half) {
      keys[half] = place(shape.count);
      positions[half] = place(shape.count);
    }
    counts = place(kDigits * tiles);
    partials = place(2 * chunks * shape.columns);
  }
};

}  // namespace shoal::kernels
