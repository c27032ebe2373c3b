#include <cmath>
#include <cstring>
#include <type_traits>
#include <vector>

#include "shoal/kernels/checks.h"
#include "shoal/kernels/reference/families.h"
#include "shoal/kernels/with_type.h"

namespace shoal::kernels {
namespace {

// Accumulator of a dtype: f32 for 16-bit floats, unsigned (wrapping) for integers, else the dtype
// itself.
template <class T>
struct Wide {
  using type =
      std::conditional_t<std::is_integral_v<T>, std::make_unsigned<T>, std::type_identity<T>>::type;
};
template <>
struct Wide<bfloat16> {
  using type = float;
};
template <>
struct Wide<float16> {
  using type = float;
};

template <class T>
T element(const void* base, std::int64_t i) {
  T value;
  std::memcpy(static_cast<void*>(&value),
              static_cast<const std::byte*>(base) + i * static_cast<std::int64_t>(sizeof(T)),
              sizeof(T));
  return value;
}

template <class T, class W>
W fold(Reduce operation, W a, W b) {
  switch (operation) {
    case Reduce::sum:
      return static_cast<W>(a + b);
    case Reduce::prod:
      // Multiplies in 64 bits, since a product of small unsigned integers may overflow int.
      if constexpr (std::is_integral_v<W>)
        return static_cast<W>(std::uint64_t{a} * std::uint64_t{b});
      else
        return a * b;
    case Reduce::min:
    case Reduce::max:
      break;
  }
  if constexpr (std::is_floating_point_v<W>) {
    if (std::isnan(a)) return a;
    if (std::isnan(b)) return b;
    return (operation == Reduce::min) == (b < a) ? b : a;
  } else {
    const auto x = static_cast<T>(a), y = static_cast<T>(b);
    return static_cast<W>((operation == Reduce::min) == (y < x) ? y : x);
  }
}

template <class T>
auto fold_all(Reduce operation, std::span<const void* const> sources, std::int64_t i) {
  using W = typename Wide<T>::type;
  W value = static_cast<W>(element<T>(sources[0], i));
  for (std::size_t s = 1; s < sources.size(); ++s)
    value = fold<T, W>(operation, value, static_cast<W>(element<T>(sources[s], i)));
  return value;
}

template <class T>
void reduce_typed(Reduce operation, std::span<const void* const> sources, void* destination,
                  std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    const T result = static_cast<T>(fold_all<T>(operation, sources, i));
    std::memcpy(static_cast<std::byte*>(destination) + i * static_cast<std::int64_t>(sizeof(T)),
                static_cast<const void*>(&result), sizeof(T));
  }
}

class ReferenceReduction final : public ReductionKernels {
 public:
  void reduce(Reduce operation, DType dtype, std::span<const void* const> sources,
              void* destination, std::int64_t count, Stream) override {
    check::reduce(sources, {&destination, 1}, count);
    with_type(dtype, [&](auto type) {
      reduce_typed<decltype(type)>(operation, sources, destination, count);
    });
  }

  void reduce_into_all(Reduce operation, DType dtype, std::span<const void* const> sources,
                       std::span<void* const> destinations, std::int64_t count, bool,
                       Stream stream) override {
    check::reduce(sources, destinations, count);
    if (count == 0) return;
    const auto bytes = static_cast<std::size_t>(count) * size_of(dtype);
    std::vector<std::byte> result(bytes);
    reduce(operation, dtype, sources, result.data(), count, stream);
    for (void* destination : destinations) std::memcpy(destination, result.data(), bytes);
  }

  void reduce_widened(Reduce operation, DType dtype, std::span<const void* const> sources,
                      float* destination, std::int64_t count, Stream) override {
    check::reduce_widened(dtype, sources, destination, count);
    for (std::int64_t i = 0; i < count; ++i)
      destination[i] = dtype == DType::bf16 ? fold_all<bfloat16>(operation, sources, i)
                                            : fold_all<float16>(operation, sources, i);
  }

  void scale(DType dtype, void* x, double factor, std::int64_t count, Stream) override {
    check::scale(dtype, count);
    with_type(dtype, [&](auto type) {
      using T = decltype(type);
      if constexpr (!std::is_integral_v<T>) {
        for (std::int64_t i = 0; i < count; ++i) {
          T result;
          if constexpr (std::is_same_v<T, double>)
            result = element<T>(x, i) * factor;
          else
            result = T(static_cast<float>(element<T>(x, i)) * static_cast<float>(factor));
          std::memcpy(static_cast<std::byte*>(x) + i * static_cast<std::int64_t>(sizeof(T)),
                      static_cast<const void*>(&result), sizeof(T));
        }
      }
    });
  }
};

}  // namespace

std::unique_ptr<ReductionKernels> make_reference_reduction() {
  return std::make_unique<ReferenceReduction>();
}

}  // namespace shoal::kernels
