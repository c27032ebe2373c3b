#include "shoal/collectives/verifiable/verifiable.h"

#include <algorithm>
#include <cmath>
#include <type_traits>
#include <vector>

#include "shoal/runtime/base/error.h"

namespace shoal::collectives {
namespace {

template <typename T>
T from_number(double value) {
  if constexpr (std::is_same_v<T, bfloat16> || std::is_same_v<T, float16>)
    return T(static_cast<float>(value));
  else
    return static_cast<T>(value);
}

template <typename T>
double to_number(T value) {
  if constexpr (std::is_same_v<T, bfloat16> || std::is_same_v<T, float16>)
    return static_cast<double>(static_cast<float>(value));
  else
    return static_cast<double>(value);
}

template <typename Visit>
auto with_type(DType dtype, Visit&& visit) {
  switch (dtype) {
    case DType::f32:
      return visit(float{});
    case DType::bf16:
      return visit(bfloat16{});
    case DType::f16:
      return visit(float16{});
    case DType::f64:
      return visit(double{});
    case DType::i64:
      return visit(std::int64_t{});
    case DType::i32:
      return visit(std::int32_t{});
    case DType::u8:
      return visit(std::uint8_t{});
    case DType::i8:
      return visit(std::int8_t{});
  }
  SHOAL_ASSERT(false);
}

// Largest N for which the dtype represents every integer from 0 to N.
std::int64_t exact_up_to(DType dtype) {
  switch (dtype) {
    case DType::bf16:
      return 256;
    case DType::f16:
      return 2048;
    case DType::u8:
      return 255;
    case DType::i8:
      return 127;
    default:
      return 1 << 20;
  }
}

// Values repeat after this many elements, so one table serves buffers of any size. The period is
// prime, so a misplaced slice or shard does not see the same values.
constexpr std::int64_t kPeriod = 1021;

// avg divides once; everything else is exact.
double tolerance(DType dtype, ReduceOp op) {
  if (op != ReduceOp::avg) return 0;
  if (dtype == DType::bf16) return 0x1p-7;
  return dtype == DType::f16 ? 0x1p-10 : dtype == DType::f32 ? 0x1p-22 : 0x1p-51;
}

}  // namespace

std::int64_t Verifiable::highest() const {
  // Leaves room for sums with factors of up to two.
  return std::clamp<std::int64_t>(exact_up_to(dtype) / (2 * std::int64_t{ranks}), 1, 9);
}

std::int64_t Verifiable::stride() const {
  const std::int64_t addends = exact_up_to(dtype) / 2;
  return (std::int64_t{ranks} + addends - 1) / addends;
}

std::int64_t Verifiable::value(int rank, std::int64_t index) const {
  const std::int64_t position = index % kPeriod + seed;
  // With more ranks than a narrow dtype can count, only some ranks contribute at each position.
  if (op != ReduceOp::prod && stride() > 1) return (position + rank) % stride() == 0 ? 1 : 0;
  const std::int64_t mixed = position * 7 + rank * 5 + position / 11;
  // Few factors of two: at most six ranks contribute one at any position.
  if (op == ReduceOp::prod)
    return (position + rank) % std::max<std::int64_t>(3, (ranks + 5) / 6) == 0 ? 2 : 1;
  return mixed % (highest() + 1);
}

double Verifiable::reduced(std::int64_t index) const {
  auto result = static_cast<double>(value(0, index));
  for (int rank = 1; rank < ranks; ++rank) {
    const auto next = static_cast<double>(value(rank, index));
    switch (op) {
      case ReduceOp::prod:
        result *= next;
        break;
      case ReduceOp::min:
        result = std::min(result, next);
        break;
      case ReduceOp::max:
        result = std::max(result, next);
        break;
      case ReduceOp::premultiplied_sum:
        result += factor(rank) * next;
        break;
      case ReduceOp::sum:
      case ReduceOp::avg:
        result += next;
        break;
    }
  }
  return op == ReduceOp::avg ? result / ranks : result;
}

void Verifiable::fill(int rank, std::int64_t first, std::int64_t count, void* data) const {
  with_type(dtype, [&]<typename T>(T) {
    std::vector<T> table(static_cast<std::size_t>(kPeriod));
    for (std::int64_t i = 0; i < kPeriod; ++i)
      table[static_cast<std::size_t>(i)] = from_number<T>(static_cast<double>(value(rank, i)));
    auto* to = static_cast<T*>(data);
    for (std::int64_t i = 0; i < count; ++i)
      to[i] = table[static_cast<std::size_t>((first + i) % kPeriod)];
  });
}

std::int64_t Verifiable::wrong_reduced(std::int64_t first, std::int64_t count,
                                       const void* data) const {
  std::vector<double> table(static_cast<std::size_t>(kPeriod));
  for (std::int64_t i = 0; i < kPeriod; ++i) table[static_cast<std::size_t>(i)] = reduced(i);
  const double slack = tolerance(dtype, op);
  return with_type(dtype, [&]<typename T>(T) {
    const auto* from = static_cast<const T*>(data);
    std::int64_t wrong = 0;
    for (std::int64_t i = 0; i < count; ++i) {
      const double want = table[static_cast<std::size_t>((first + i) % kPeriod)];
      // Written so that NaN counts as wrong.
      wrong += !(std::abs(to_number(from[i]) - want) <= slack * std::abs(want));
    }
    return wrong;
  });
}

std::int64_t Verifiable::wrong_copied(int rank, std::int64_t first, std::int64_t count,
                                      const void* data) const {
  std::vector<double> table(static_cast<std::size_t>(kPeriod));
  for (std::int64_t i = 0; i < kPeriod; ++i)
    table[static_cast<std::size_t>(i)] = static_cast<double>(value(rank, i));
  return with_type(dtype, [&]<typename T>(T) {
    const auto* from = static_cast<const T*>(data);
    std::int64_t wrong = 0;
    for (std::int64_t i = 0; i < count; ++i)
      wrong += !(to_number(from[i]) == table[static_cast<std::size_t>((first + i) % kPeriod)]);
    return wrong;
  });
}

}  // namespace shoal::collectives
