#include "shoal/collectives/backend/scaled_reduction.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "shoal/collectives/backend/partial_sums.h"
#include "shoal/runtime/base/error.h"

namespace shoal::collectives {
namespace {

// Elements at a time: the accumulator and one source stay in the first-level cache.
constexpr std::int64_t kTile = 1024;

}  // namespace

void reduce_scaled(kernels::ReductionKernels& reduction, DType dtype,
                   std::span<const void* const> sources, std::span<const double> factors,
                   double factor, void* destination, std::int64_t count) {
  SHOAL_CHECK(is_floating(dtype) && !sources.empty() &&
                  (factors.empty() || factors.size() == sources.size()),
              "a scaled sum of {} sources of {} with {} factors", sources.size(), to_string(dtype),
              factors.size());
  const bool half = dtype == DType::f16 || dtype == DType::bf16;
  const DType wide = half ? DType::f32 : dtype;
  const auto element = static_cast<std::int64_t>(size_of(dtype));
  alignas(64) std::array<double, kTile> sum, next;
  for (std::int64_t begin = 0; begin < count; begin += kTile) {
    const std::int64_t n = std::min(kTile, count - begin);
    const auto bytes = static_cast<std::size_t>(n * element);
    for (std::size_t s = 0; s < sources.size(); ++s) {
      const auto* from = static_cast<const std::byte*>(sources[s]) + begin * element;
      void* const term = s == 0 ? sum.data() : next.data();
      if (half)
        widen(dtype, from, static_cast<float*>(term), n);
      else
        std::memcpy(term, from, bytes);
      if (!factors.empty() && factors[s] != 1) reduction.scale(wide, term, factors[s], n, Stream{});
      if (s == 0) continue;
      const std::array<const void*, 2> pair{sum.data(), next.data()};
      reduction.reduce(kernels::Reduce::sum, wide, pair, sum.data(), n, Stream{});
    }
    if (factor != 1) reduction.scale(wide, sum.data(), factor, n, Stream{});
    auto* to = static_cast<std::byte*>(destination) + begin * element;
    if (half)
      narrow(dtype, reinterpret_cast<const float*>(sum.data()), to, n);
    else
      std::memcpy(to, sum.data(), bytes);
  }
}

void scale_into(kernels::ReductionKernels& reduction, DType dtype, const void* source,
                double factor, void* destination, std::int64_t count) {
  const std::array<const void*, 1> sources{source};
  reduce_scaled(reduction, dtype, sources, {}, factor, destination, count);
}

}  // namespace shoal::collectives
