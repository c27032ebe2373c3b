#include "shoal/train/data/draws.h"

#include <cmath>
#include <numeric>

#include "shoal/kernels/random.h"

namespace shoal {

std::vector<std::int64_t> shuffled(std::int64_t count, Draws& draws) {
  std::vector<std::int64_t> numbers(static_cast<std::size_t>(count));
  std::iota(numbers.begin(), numbers.end(), 0);
  shuffle(numbers, draws);
  return numbers;
}

SampleDraws::SampleDraws(std::uint64_t seed, std::uint32_t site, std::int64_t ordinal,
                         std::int64_t epoch)
    : seed_(seed),
      counter_{0, static_cast<std::uint32_t>(ordinal), static_cast<std::uint32_t>(epoch),
               site ^ static_cast<std::uint32_t>(static_cast<std::uint64_t>(ordinal) >> 32)} {}

std::uint64_t SampleDraws::bits() {
  if (left_ == 0) {
    const auto words = kernels::philox(seed_, counter_);
    ++counter_[0];
    ready_ = {std::uint64_t{words[3]} << 32 | words[2], std::uint64_t{words[1]} << 32 | words[0]};
    left_ = 2;
  }
  return ready_[static_cast<std::size_t>(--left_)];
}

std::int64_t SampleDraws::below(std::int64_t bound) {
  __extension__ using Wide = unsigned __int128;
  return static_cast<std::int64_t>((static_cast<Wide>(bits()) * static_cast<Wide>(bound)) >> 64);
}

std::int64_t SampleDraws::poisson(double mean) {
  const double uniform = static_cast<double>(bits() >> 11) * 0x1p-53;
  double probability = std::exp(-mean), sum = probability;
  std::int64_t value = 0;
  // The bound ends the search where rounding leaves the sum below 1.
  for (; uniform >= sum && value < 1000; sum += probability)
    probability *= mean / static_cast<double>(++value);
  return value;
}

}  // namespace shoal
