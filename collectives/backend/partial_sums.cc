#include "shoal/collectives/backend/partial_sums.h"

#include <cstddef>
#include <cstring>

// Compiles the hot loops once for each worthwhile instruction set; the dynamic linker picks one
// copy. Not under sanitizers, because the linker runs the resolvers before the sanitizers are
// initialised.
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
#define SHOAL_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define SHOAL_CLONES
#endif

namespace shoal::collectives {
namespace {

// Buffers may be unaligned: memcpy compiles to plain loads.
template <typename T>
T load(const std::byte* from, std::int64_t index) {
  T value;
  std::memcpy(&value, from + index * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
  return value;
}

template <typename T>
void store(std::byte* to, std::int64_t index, T value) {
  std::memcpy(to + index * static_cast<std::int64_t>(sizeof(T)), &value, sizeof(T));
}

SHOAL_CLONES void widen_bf16(const std::byte* source, float* destination, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i)
    destination[i] = static_cast<float>(load<bfloat16>(source, i));
}

SHOAL_CLONES void narrow_bf16(const float* source, std::byte* destination, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) store(destination, i, bfloat16(source[i]));
}

}  // namespace

void widen(DType dtype, const void* source, float* destination, std::int64_t count) {
  const auto* from = static_cast<const std::byte*>(source);
  if (dtype == DType::bf16) return widen_bf16(from, destination, count);
  for (std::int64_t i = 0; i < count; ++i)
    destination[i] = static_cast<float>(load<float16>(from, i));
}

void narrow(DType dtype, const float* source, void* destination, std::int64_t count) {
  auto* to = static_cast<std::byte*>(destination);
  if (dtype == DType::bf16) return narrow_bf16(source, to, count);
  for (std::int64_t i = 0; i < count; ++i) store(to, i, float16(source[i]));
}

}  // namespace shoal::collectives
