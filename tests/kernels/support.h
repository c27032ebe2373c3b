// Support for kernel tests: tensors that are unaligned, poisoned and guarded, and a comparison of
// the kernels under test with the reference. The kernels under test are the CPU's on every
// instruction set of this machine, or CUDA's.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "support/device.h"
#include <gtest/gtest.h>

#include "shoal/kernels/kernels.h"

namespace shoal::kernels::testing {

using shoal::testing::At;
using shoal::testing::has_little_time;
using shoal::testing::make_test_kernels;
using shoal::testing::Mirrored;
using shoal::testing::on_cuda;
using shoal::testing::Placed;

// A tensor whose first element is one element past an aligned address, with guard bytes on both
// sides. Views of it are on the device of the next call (support/device.h).
class Host {
 public:
  // Fills every byte with 0xff, which is NaN in each floating dtype.
  Host(const Shape& shape, DType dtype);
  static Host random(const Shape& shape, DType dtype, unsigned seed, double low = -2,
                     double high = 2);
  static Host filled(const Shape& shape, DType dtype, double value);

  operator View() { return {data(), shape_, dtype_, shoal::testing::here()}; }             // NOLINT
  operator ConstView() const { return {data(), shape_, dtype_, shoal::testing::here()}; }  // NOLINT
  void* data() const { return bytes_.here() + offset_; }
  void* host_data() const { return bytes_.host() + offset_; }
  const Shape& shape() const { return shape_; }
  DType dtype() const { return dtype_; }
  std::int64_t count() const { return shape_.count(); }
  double at(std::int64_t i) const;
  void set(std::int64_t i, double value);
  bool guards_intact() const;

 private:
  Shape shape_;
  DType dtype_;
  std::size_t offset_ = 0;
  Mirrored bytes_;
};

// Passes if |actual - expected| <= (a unit of the dtype + relative) * |expected| + absolute.
// Infinities and NaN must agree. kExact: equal, except that NaNs may differ.
struct Tolerance {
  double relative = 1e-6, absolute = 1e-6;
};
inline constexpr Tolerance kExact{-1, 0};
::testing::AssertionResult close(const Host& actual, const Host& expected, Tolerance tolerance);

using Hosts = std::vector<Host>;
// Runs `run` on fresh outputs from `make`, with the reference and with the kernels under test. CPU
// kernels run with two threads (twice), one and three; CUDA's run twice. The first result must be
// close to the reference, and the others must have the first one's bits.
void verify(const std::string& what, const std::function<Hosts()>& make,
            const std::function<void(Kernels&, Hosts&)>& run, Tolerance tolerance = {});

// The parameter is a Highway target that this machine can run, and the fixture restricts dispatch
// to it. With CUDA it is 0 or 1. With 1, tensors begin at an aligned address, so that vectors are
// used.
class OnEachTarget : public ::testing::TestWithParam<std::int64_t> {
 protected:
  void SetUp() override;
  void TearDown() override;
};
std::vector<std::int64_t> runnable_targets();
std::string target_name(const ::testing::TestParamInfo<std::int64_t>& info);

#define SHOAL_ON_EACH_TARGET(Fixture)                                                          \
  class Fixture : public ::shoal::kernels::testing::OnEachTarget {};                           \
  INSTANTIATE_TEST_SUITE_P(Targets, Fixture,                                                   \
                           ::testing::ValuesIn(::shoal::kernels::testing::runnable_targets()), \
                           ::shoal::kernels::testing::target_name)

inline constexpr DType kTrainingDTypes[] = {DType::f32, DType::bf16, DType::f16};
inline constexpr DType kAllDTypes[] = {DType::f32, DType::bf16, DType::f16, DType::f64,
                                       DType::i64, DType::i32,  DType::u8,  DType::i8};

// Returns the text of the Error that `run` throws, or "" if it throws none.
std::string error_of(const std::function<void()>& run);

}  // namespace shoal::kernels::testing
