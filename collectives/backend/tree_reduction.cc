#include "shoal/collectives/backend/tree_reduction.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "shoal/collectives/algorithm/canonical_tree.h"
#include "shoal/collectives/backend/partial_sums.h"
#include "shoal/runtime/base/error.h"

namespace shoal::collectives {
namespace {

constexpr std::int64_t kTileBytes = 4096;  // a stack of a few tiles stays in the L1 cache
constexpr std::size_t kMostTiles = 32;     // canonical_depth of any int
constexpr std::size_t kFoldedAlike = 3;    // up to this many sources, the tree is the left fold

bool is_half(DType dtype) { return dtype == DType::f16 || dtype == DType::bf16; }

// Subtrees that wait for their sibling. Each is either a source or a tile.
class TileStack {
 public:
  TileStack(kernels::ReductionKernels& reduction, kernels::Reduce operation, DType dtype)
      : reduction_(reduction),
        operation_(operation),
        dtype_(dtype),
        wide_(is_half(dtype) ? DType::f32 : dtype) {}

  std::int64_t tile() const { return kTileBytes / static_cast<std::int64_t>(size_of(wide_)); }
  DType wide() const { return wide_; }

  void push(const void* source, double factor, std::int64_t count) {
    std::byte* own = tiles_[depth_].data();
    top_[depth_] = own;
    if (is_half(dtype_))
      widen(dtype_, source, reinterpret_cast<float*>(own), count);
    else if (factor != 1)
      std::memcpy(own, source, static_cast<std::size_t>(count) * size_of(dtype_));
    else
      top_[depth_] = source;
    if (factor != 1) reduction_.scale(wide_, own, factor, count, Stream{});
    ++depth_;
  }
  void combine(std::int64_t count) {
    --depth_;
    std::byte* sum = tiles_[depth_ - 1].data();
    reduction_.reduce(operation_, wide_, std::span(top_).subspan(depth_ - 1, 2), sum, count,
                      Stream{});
    top_[depth_ - 1] = sum;
  }
  const void* pop() { return top_[--depth_]; }
  std::byte* first_tile() { return tiles_[0].data(); }

 private:
  kernels::ReductionKernels& reduction_;
  kernels::Reduce operation_;
  DType dtype_, wide_;
  std::size_t depth_ = 0;
  std::array<const void*, kMostTiles> top_;
  alignas(64) std::array<std::array<std::byte, kTileBytes>, kMostTiles> tiles_;
};

class TreeReduction final : public kernels::ReductionKernels {
 public:
  explicit TreeReduction(std::unique_ptr<kernels::ReductionKernels> plain)
      : plain_(std::move(plain)) {}

  void reduce(kernels::Reduce operation, DType dtype, std::span<const void* const> sources,
              void* destination, std::int64_t count, Stream stream) override {
    if (folds(dtype, sources))
      return plain_->reduce(operation, dtype, sources, destination, count, stream);
    reduce_in_tree(*plain_, operation, dtype, sources, {}, 1, destination, count);
  }
  void reduce_into_all(kernels::Reduce operation, DType dtype, std::span<const void* const> sources,
                       std::span<void* const> destinations, std::int64_t count, bool past_caches,
                       Stream stream) override {
    if (folds(dtype, sources))
      return plain_->reduce_into_all(operation, dtype, sources, destinations, count, past_caches,
                                     stream);
    const auto element = static_cast<std::int64_t>(size_of(dtype));
    alignas(64) std::array<std::byte, kTileBytes> sum;
    std::vector<const void*> from(sources.begin(), sources.end());
    std::vector<void*> to(destinations.begin(), destinations.end());
    const std::int64_t tile = kTileBytes / element;
    for (std::int64_t begin = 0; begin < count; begin += tile) {
      const std::int64_t n = std::min(tile, count - begin), offset = begin * element;
      for (std::size_t s = 0; s < from.size(); ++s)
        from[s] = static_cast<const std::byte*>(sources[s]) + offset;
      for (std::size_t d = 0; d < to.size(); ++d)
        to[d] = static_cast<std::byte*>(destinations[d]) + offset;
      reduce_in_tree(*plain_, operation, dtype, from, {}, 1, sum.data(), n);
      const void* const one = sum.data();
      plain_->reduce_into_all(operation, dtype, {&one, 1}, to, n, past_caches, stream);
    }
  }
  // Callers with more sources do not call this: they sum and round in one step.
  void reduce_widened(kernels::Reduce operation, DType dtype, std::span<const void* const> sources,
                      float* destination, std::int64_t count, Stream stream) override {
    SHOAL_ASSERT(folds(dtype, sources));
    plain_->reduce_widened(operation, dtype, sources, destination, count, stream);
  }
  void scale(DType dtype, void* x, double factor, std::int64_t count, Stream stream) override {
    plain_->scale(dtype, x, factor, count, stream);
  }

 private:
  static bool folds(DType dtype, std::span<const void* const> sources) {
    return sources.size() <= kFoldedAlike || !is_floating(dtype);
  }
  std::unique_ptr<kernels::ReductionKernels> plain_;
};

}  // namespace

void reduce_in_tree(kernels::ReductionKernels& reduction, kernels::Reduce operation, DType dtype,
                    std::span<const void* const> sources, std::span<const double> factors,
                    double factor, void* destination, std::int64_t count) {
  SHOAL_CHECK(!sources.empty() && (factors.empty() || factors.size() == sources.size()) &&
                  (is_floating(dtype) || (factors.empty() && factor == 1)),
              "a reduction of {} sources of {} with {} factors", sources.size(), to_string(dtype),
              factors.size());
  const auto element = static_cast<std::int64_t>(size_of(dtype));
  TileStack stack(reduction, operation, dtype);
  const auto number = static_cast<int>(sources.size());
  for (std::int64_t begin = 0; begin < count; begin += stack.tile()) {
    const std::int64_t n = std::min(stack.tile(), count - begin);
    algorithm::walk_canonical_tree(
        number,
        [&](int i) {
          const auto s = static_cast<std::size_t>(i);
          stack.push(static_cast<const std::byte*>(sources[s]) + begin * element,
                     factors.empty() ? 1 : factors[s], n);
        },
        [&] { stack.combine(n); });
    const void* sum = stack.pop();
    const auto bytes = static_cast<std::size_t>(n) * size_of(stack.wide());
    if (factor != 1) {
      if (sum != stack.first_tile()) std::memcpy(stack.first_tile(), sum, bytes);
      sum = stack.first_tile();
      reduction.scale(stack.wide(), stack.first_tile(), factor, n, Stream{});
    }
    auto* const to = static_cast<std::byte*>(destination) + begin * element;
    if (is_half(dtype))
      narrow(dtype, static_cast<const float*>(sum), to, n);
    else
      std::memmove(to, sum, bytes);
  }
}

void scale_into(kernels::ReductionKernels& reduction, DType dtype, const void* source,
                double factor, void* destination, std::int64_t count) {
  const std::array<const void*, 1> sources{source};
  reduce_in_tree(reduction, kernels::Reduce::sum, dtype, sources, {}, factor, destination, count);
}

std::unique_ptr<kernels::ReductionKernels> make_rank_reduction(bool fixed_order) {
  auto plain = kernels::make_cpu_reduction();
  if (!fixed_order) return plain;
  return std::make_unique<TreeReduction>(std::move(plain));
}

}  // namespace shoal::collectives
