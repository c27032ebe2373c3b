#include "shoal/kernels/cuda/reduction.cuh"

#include <algorithm>

#include "shoal/kernels/checks.h"
#include "shoal/kernels/cuda/families.h"
#include "shoal/runtime/base/error.h"

namespace shoal::kernels {
namespace {

class CudaReduction final : public ReductionKernels {
 public:
  explicit CudaReduction(CudaResources& resources) : resources_(resources) {}

  void reduce(Reduce operation, DType dtype, std::span<const void* const> sources,
              void* destination, std::int64_t count, Stream stream) override {
    reduce_into_all(operation, dtype, sources, {&destination, 1}, count, false, stream);
  }

  // Ignores `past_caches`: data stored to a peer is cached at most on the peer.
  void reduce_into_all(Reduce operation, DType dtype, std::span<const void* const> sources,
                       std::span<void* const> destinations, std::int64_t count, bool,
                       Stream stream) override {
    check::reduce(sources, destinations, count);
    check_cuda(
        launch_reduce(begin(stream), operation, dtype, pointers_of(sources, destinations), count),
        "reduce");
  }

  void reduce_widened(Reduce operation, DType dtype, std::span<const void* const> sources,
                      float* destination, std::int64_t count, Stream stream) override {
    check::reduce_widened(dtype, sources, destination, count);
    void* const to = destination;
    check_cuda(launch_reduce_widened(begin(stream), operation, dtype,
                                     pointers_of(sources, {&to, 1}), count),
               "reduce_widened");
  }

  void scale(DType dtype, void* x, double factor, std::int64_t count, Stream stream) override {
    check::scale(dtype, count);
    check_cuda(launch_reduction_scale(begin(stream), dtype, x, factor, count), "scale");
  }

 private:
  static ReducePointers pointers_of(std::span<const void* const> sources,
                                    std::span<void* const> destinations) {
    constexpr std::size_t kMost = ReducePointers::kMost;
    SHOAL_CHECK(sources.size() <= kMost && destinations.size() <= kMost,
                "reduce: {} sources into {} destinations; a GPU takes {} of each", sources.size(),
                destinations.size(), kMost);
    ReducePointers pointers{};
    std::ranges::copy(sources, pointers.sources);
    std::ranges::copy(destinations, pointers.destinations);
    pointers.source_count = static_cast<int>(sources.size());
    pointers.destination_count = static_cast<int>(destinations.size());
    return pointers;
  }
  Launch begin(Stream stream) { return {resources_.begin(stream), resources_.multiprocessors()}; }

  CudaResources& resources_;
};

}  // namespace

std::unique_ptr<ReductionKernels> make_cuda_reduction(CudaResources& resources) {
  return std::make_unique<CudaReduction>(resources);
}

}  // namespace shoal::kernels
