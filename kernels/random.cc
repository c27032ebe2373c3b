#include "shoal/kernels/random.h"

#include <algorithm>
#include <cmath>

namespace shoal::kernels {

std::array<std::uint32_t, 4> philox(std::uint64_t key, std::array<std::uint32_t, 4> counter) {
  auto key0 = static_cast<std::uint32_t>(key), key1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t product0 = std::uint64_t{0xD2511F53u} * counter[0];
    const std::uint64_t product1 = std::uint64_t{0xCD9E8D57u} * counter[2];
    counter = {static_cast<std::uint32_t>(product1 >> 32) ^ counter[1] ^ key0,
               static_cast<std::uint32_t>(product1),
               static_cast<std::uint32_t>(product0 >> 32) ^ counter[3] ^ key1,
               static_cast<std::uint32_t>(product0)};
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return counter;
}

std::uint32_t random_bits(const RandomSite& site, std::uint32_t sample_ordinal,
                          std::uint64_t element) {
  const std::uint64_t block = element / 4;
  const std::array<std::uint32_t, 4> counter{
      static_cast<std::uint32_t>(block),
      (sample_ordinal << 8) | (static_cast<std::uint32_t>(block >> 32) & 0xffu), site.site,
      site.state ? site.state->step : 0};
  return philox(site.seed, counter)[element % 4];
}

std::uint32_t dropout_threshold(float probability) {
  const double scaled = std::round(static_cast<double>(probability) * 0x1p32);
  return static_cast<std::uint32_t>(std::clamp(scaled, 0.0, 4294967295.0));
}

}  // namespace shoal::kernels
