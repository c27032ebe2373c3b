#include <cmath>

#include "shoal/kernels/kernels.h"
#include "shoal/nn/layers/functional_internal.h"

namespace shoal::nn {

Value noisy_embedding(Context& context, Value x, std::uint32_t path_hash, std::int64_t length) {
  if (!context.training() || context.embedding_noise == 0) return x;
  const Tensor& y = x.tensor;
  const std::int64_t rows = y.shape()[0], channels = y.shape()[2], size = y.shape()[1] * channels;
  const float most = context.embedding_noise /
                     std::sqrt(static_cast<float>(length) * static_cast<float>(channels));
  kernels::RandomSite site = context.next_site(path_hash);
  const auto first = static_cast<std::uint64_t>(context.activation.first_position * channels);
  const Tensor noise = context.empty({rows, size}, DType::f32, MemoryTag::workspace);
  const Tensor rounded = y.dtype() == DType::f32
                             ? noise
                             : context.empty({rows, size}, y.dtype(), MemoryTag::workspace);
  context.run("embedding.noise", {y}, {y, noise, rounded}, [&] {
    auto& elementwise = context.kernels().elementwise();
    for (std::int64_t row = 0; row < rows; ++row) {
      elementwise.fill_uniform(noise.narrowed(0, row, 1).reshaped({size}).view(), -most, most, site,
                               first, context.stream);
      site.sample_first += site.sample_stride;
    }
    if (y.dtype() != DType::f32) elementwise.cast(noise, rounded.view(), context.stream);
    const Tensor flat = y.reshaped({rows, size});
    elementwise.add(flat, rounded, flat.view(), context.stream);
  });
  return x;
}

}  // namespace shoal::nn
