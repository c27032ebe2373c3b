#include "support/golden.h"

#include <cmath>
#include <filesystem>

#include "support/source_tree.h"
#include <fmt/format.h>

#include "shoal/runtime/base/error.h"

namespace shoal::testing {
namespace {

std::filesystem::path source() { return source_path(""); }

template <typename T>
std::vector<double> widen(const ConstView& tensor) {
  const T* data = tensor.as<T>();
  std::vector<double> out(static_cast<std::size_t>(tensor.shape.count()));
  for (std::size_t i = 0; i < out.size(); ++i) {
    if constexpr (sizeof(T) == 2)
      out[i] = static_cast<float>(data[i]);
    else
      out[i] = data[i];
  }
  return out;
}

std::vector<double> as_double(const ConstView& tensor) {
  if (!tensor.device.is_cpu())
    throw_error(ErrorCode::invalid_argument, "golden comparisons read host tensors; copy it first");
  switch (tensor.dtype) {
    case DType::f32:
      return widen<float>(tensor);
    case DType::f64:
      return widen<double>(tensor);
    case DType::bf16:
      return widen<bfloat16>(tensor);
    case DType::f16:
      return widen<float16>(tensor);
    default:
      throw_error(ErrorCode::invalid_argument, "golden comparisons read floating tensors, not {}",
                  to_string(tensor.dtype));
  }
}

double norm_of(const std::vector<double>& values) {
  double squares = 0;
  for (double value : values) squares += value * value;
  return std::sqrt(squares);
}

}  // namespace

std::string golden_path(std::string_view relative) {
  const auto path = source() / "tests" / "golden" / relative;
  if (!std::filesystem::exists(path))
    throw_error(ErrorCode::not_found, "no golden file {}; tools/golden makes them", path.string());
  return path.string();
}

std::optional<std::string> shared_data(std::string_view name) {
  const auto path = source().parent_path() / "shared" / "data" / name;
  if (!std::filesystem::exists(path)) return std::nullopt;
  return path.string();
}

double norm_of(const ConstView& tensor) { return norm_of(as_double(tensor)); }

double global_norm_of(const std::vector<ConstView>& tensors) {
  std::vector<double> norms;
  norms.reserve(tensors.size());
  for (const ConstView& tensor : tensors) norms.push_back(norm_of(tensor));
  return norm_of(norms);
}

::testing::AssertionResult close_in_norm(std::string_view name, const ConstView& actual,
                                         const ConstView& expected, double tolerance,
                                         double floor) {
  if (!(actual.shape == expected.shape))
    return ::testing::AssertionFailure() << name << ": shape " << to_string(actual.shape)
                                         << ", expected " << to_string(expected.shape);
  const auto a = as_double(actual);
  const auto e = as_double(expected);
  double squares = 0, expected_squares = 0, worst = -1;
  std::size_t worst_at = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (std::isfinite(e[i])) expected_squares += e[i] * e[i];
    if (a[i] == e[i]) continue;  // also true for equal infinities
    const double difference = std::abs(a[i] - e[i]);
    if (!std::isfinite(difference))
      return ::testing::AssertionFailure()
             << name << ": element " << i << " is " << a[i] << ", expected " << e[i];
    squares += difference * difference;
    if (difference > worst) worst = difference, worst_at = i;
  }
  const double difference = std::sqrt(squares);
  const double expected_norm = std::sqrt(expected_squares);
  const double allowed = tolerance * std::max(expected_norm, floor);
  if (difference <= allowed) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << fmt::format(
             "{}: |difference| = {:.4g} > {:.4g} = {:g} * max(|expected| = {:.4g}, floor "
             "{:.4g}); worst element {} of {}: {:.8g}, expected {:.8g}",
             name, difference, allowed, tolerance, expected_norm, floor, worst_at, a.size(),
             a[worst_at], e[worst_at]);
}

::testing::AssertionResult close_relative(std::string_view name, double actual, double expected,
                                          double tolerance) {
  if (std::abs(actual - expected) <= tolerance * std::abs(expected))
    return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << fmt::format(
             "{}: {:.9g}, expected {:.9g}: relative difference {:.3g} > {:g}", name, actual,
             expected, std::abs(actual - expected) / std::abs(expected), tolerance);
}

}  // namespace shoal::testing
