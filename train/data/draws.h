// The random decisions that corrupting a sample takes.
#pragma once

#include <array>
#include <cstdint>
#include <utility>
#include <vector>

namespace shoal {

class Draws {
 public:
  virtual ~Draws() = default;
  virtual std::int64_t below(std::int64_t bound) = 0;  // uniform in [0, bound)
  virtual std::int64_t poisson(double mean) = 0;       // 0 <= mean <= 100
};

// In random order: for i from the last down to 1, thing i changes places with thing below(i + 1),
// as in numpy.random.shuffle.
template <class T>
void shuffle(std::vector<T>& things, Draws& draws) {
  for (std::size_t i = things.size(); i-- > 1;)
    std::swap(things[i],
              things[static_cast<std::size_t>(draws.below(static_cast<std::int64_t>(i) + 1))]);
}
// 0 to count - 1 in random order, as numpy.random.permutation.
std::vector<std::int64_t> shuffled(std::int64_t count, Draws& draws);

// Philox with key = seed and counter = (number of the draw, the sample's ordinal, epoch, site), so
// that ranks, workers and batch sizes change no decision (decision 10). `site` tells uses of one
// sample apart.
class SampleDraws final : public Draws {
 public:
  SampleDraws(std::uint64_t seed, std::uint32_t site, std::int64_t ordinal, std::int64_t epoch);
  std::int64_t below(std::int64_t bound) override;
  std::int64_t poisson(double mean) override;

 private:
  std::uint64_t bits();

  std::uint64_t seed_;
  std::array<std::uint32_t, 4> counter_;
  std::array<std::uint64_t, 2> ready_ = {};
  int left_ = 0;  // of ready_
};

}  // namespace shoal
