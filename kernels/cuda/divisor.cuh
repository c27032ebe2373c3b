// Division by a number that is constant during a kernel.
#pragma once

#include <cstdint>

#include "shoal/kernels/cuda/host_device.cuh"

namespace shoal::kernels {

// n / d without a division, for any 32-bit n and d >= 1 (Granlund and Montgomery, "Division by
// invariant integers using multiplication", PLDI '94). Made on the host, passed by value.
struct Divisor {
  std::uint32_t divisor = 1, multiplier = 1, shift = 0;

  Divisor() = default;
  explicit Divisor(std::uint32_t d) : divisor(d) {
    while (shift < 32 && (std::uint64_t{1} << shift) < d) ++shift;
    multiplier = static_cast<std::uint32_t>(
        (std::uint64_t{1} << 32) * ((std::uint64_t{1} << shift) - d) / d + 1);
  }
  SHOAL_HOST_DEVICE std::uint32_t quotient(std::uint32_t n) const {
    const std::uint64_t high = (static_cast<std::uint64_t>(n) * multiplier) >> 32;
    return static_cast<std::uint32_t>((high + n) >> shift);
  }
};

}  // namespace shoal::kernels
