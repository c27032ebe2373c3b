// Access to elements at any alignment, in packs of 16 bytes if the addresses agree.
#pragma once

#include <cstdint>

#include "shoal/kernels/cuda/host_device.cuh"

namespace shoal::kernels {

// Splits `count` elements of `bytes` bytes into packs of 16 bytes. The first `head` elements, up to
// the first address where every pointer is aligned, are accessed one by one.
struct PackedRange {
  enum Access { by_bytes, by_elements, by_packs } access = by_packs;
  std::int64_t head = 0;
  std::int64_t packs = 0;  // including the head, if there is one

  // `first`: the address in one of the pointers. `differing`: the bits in which the other pointers
  // differ from it.
  PackedRange(std::int64_t count, std::int64_t bytes, std::uintptr_t first,
              std::uintptr_t differing) {
    const auto size = static_cast<std::uintptr_t>(bytes);
    const std::int64_t width = 16 / bytes;
    if ((first | differing) % size != 0) {
      access = by_bytes;
    } else if (differing % 16 != 0) {
      access = by_elements;
    } else {
      head = static_cast<std::int64_t>((16 - first % 16) % 16) / bytes;
      if (head > count) head = count;
    }
    packs = (count - head + width - 1) / width + (head > 0);
  }
};

// Range of elements in a thread's pack.
struct Piece {
  std::int64_t first;  // element
  int count;

  SHOAL_HOST_DEVICE Piece(const PackedRange& range, std::int64_t pack, std::int64_t total,
                          int width) {
    const bool is_head = range.head > 0 && pack == 0;
    first = is_head ? 0 : range.head + (pack - (range.head > 0)) * width;
    const std::int64_t left = is_head ? range.head : total - first;
    count = static_cast<int>(left < width ? left : width);
  }
};

}  // namespace shoal::kernels
