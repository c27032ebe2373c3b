#include "shoal/collectives/verifiable/verifiable.h"

#include <cstring>
#include <vector>

#include <gtest/gtest.h>

namespace shoal::collectives {
namespace {

double number(DType dtype, const void* data, std::size_t i) {
  if (dtype == DType::bf16)
    return static_cast<double>(static_cast<float>(static_cast<const bfloat16*>(data)[i]));
  if (dtype == DType::f16)
    return static_cast<double>(static_cast<float>(static_cast<const float16*>(data)[i]));
  if (dtype == DType::u8) return static_cast<const std::uint8_t*>(data)[i];
  return static_cast<const std::int8_t*>(data)[i];
}

void put(DType dtype, void* data, std::size_t i, double value) {
  if (dtype == DType::bf16)
    static_cast<bfloat16*>(data)[i] = bfloat16(static_cast<float>(value));
  else if (dtype == DType::f16)
    static_cast<float16*>(data)[i] = float16(static_cast<float>(value));
  else if (dtype == DType::u8)
    static_cast<std::uint8_t*>(data)[i] = static_cast<std::uint8_t>(value);
  else
    static_cast<std::int8_t*>(data)[i] = static_cast<std::int8_t>(value);
}

template <typename T>
std::vector<T> contribution(const Verifiable& inputs, int rank, std::int64_t count) {
  std::vector<T> values(static_cast<std::size_t>(count));
  inputs.fill(rank, 0, count, values.data());
  return values;
}

TEST(Verifiable, PredictsTheSumOfAPlainLoop) {
  for (const int ranks : {1, 2, 3, 9, 17}) {
    const Verifiable inputs{DType::f32, ReduceOp::sum, ranks};
    constexpr std::int64_t kCount = 2500;  // longer than the period
    std::vector<float> sum(kCount);
    for (int rank = 0; rank < ranks; ++rank) {
      const auto values = contribution<float>(inputs, rank, kCount);
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += values[i];
    }
    EXPECT_EQ(inputs.wrong_reduced(0, kCount, sum.data()), 0);
    sum[1234] += 1;
    sum[2000] = std::numeric_limits<float>::quiet_NaN();
    EXPECT_EQ(inputs.wrong_reduced(0, kCount, sum.data()), 2);
  }
}

TEST(Verifiable, ValuesDifferBetweenRanksAndPositions) {
  const Verifiable inputs{DType::i32, ReduceOp::sum, 4};
  const auto zero = contribution<std::int32_t>(inputs, 0, 1000);
  const auto one = contribution<std::int32_t>(inputs, 1, 1000);
  EXPECT_EQ(inputs.wrong_copied(0, 0, 1000, zero.data()), 0);
  // Data of another rank, or shifted data, is mostly wrong.
  EXPECT_GT(inputs.wrong_copied(0, 0, 1000, one.data()), 500);
  EXPECT_GT(inputs.wrong_copied(0, 0, 999, zero.data() + 1), 500);
}

// The sum or product over many ranks must survive a conversion to the dtype.
TEST(Verifiable, StaysExactInNarrowTypesForManyRanks) {
  for (const DType dtype : {DType::bf16, DType::f16, DType::u8, DType::i8})
    for (const ReduceOp op : {ReduceOp::sum, ReduceOp::prod, ReduceOp::premultiplied_sum})
      for (const int ranks : {2, 9, 60, 127, 1024}) {
        const Verifiable inputs{dtype, op, ranks};
        std::vector<double> reduced(1021, op == ReduceOp::prod ? 1.0 : 0.0);
        for (int rank = 0; rank < ranks; ++rank) {
          std::vector<std::uint16_t> raw(1021);
          inputs.fill(rank, 0, 1021, raw.data());
          ASSERT_EQ(inputs.wrong_copied(rank, 0, 1021, raw.data()), 0);
          for (std::size_t i = 0; i < reduced.size(); ++i) {
            const double value = number(dtype, raw.data(), i);
            if (op == ReduceOp::prod)
              reduced[i] *= value;
            else
              reduced[i] += value * (op == ReduceOp::sum ? 1 : inputs.factor(rank));
          }
        }
        std::vector<std::uint16_t> narrow(1021);
        for (std::size_t i = 0; i < reduced.size(); ++i) put(dtype, narrow.data(), i, reduced[i]);
        EXPECT_EQ(inputs.wrong_reduced(0, 1021, narrow.data()), 0)
            << to_string(dtype) << " " << to_string(op) << " " << ranks;
      }
}

}  // namespace
}  // namespace shoal::collectives
