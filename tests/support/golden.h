// Golden files and real data for tests, and the comparison that house rule 11 requires.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "shoal/runtime/tensor/tensor.h"

namespace shoal::testing {

// Returns the path of tests/golden/RELATIVE. Golden files are committed, so a missing file or
// folder throws not_found.
std::string golden_path(std::string_view relative);

// Returns the path of ../shared/data/NAME beside the source tree, or nothing, because that data is
// optional.
std::optional<std::string> shared_data(std::string_view name);

// Skips the test if the data is missing. `SHOAL_SHARED_DATA_OR_SKIP(path, "gpt2-merges.txt");` at
// the top of a test declares `path`.
#define SHOAL_SHARED_DATA_OR_SKIP(path, name)                      \
  const auto path##_found = ::shoal::testing::shared_data(name);   \
  if (!path##_found) GTEST_SKIP() << "no ../shared/data/" << name; \
  const std::string& path = *path##_found

// Euclidean norms, in double, of host tensors of any floating dtype.
double norm_of(const ConstView& tensor);
double global_norm_of(const std::vector<ConstView>& tensors);

// Succeeds if |actual - expected| <= tolerance * max(|expected|, floor), with norms over the whole
// tensor. The absolute `floor` is for a tensor that should be nearly zero (an attention key bias's
// gradient is exactly zero), where a relative limit would test only rounding errors. Pass a
// fraction of the global norm. For gradients of the golden GPT-2 files use tolerance 1e-4 and
// fraction 1e-3 in f32, or 2e-2 and 0.05 in bf16, the smallest that PyTorch's own bf16 passes.
// Shapes must agree, and dtypes may differ. A NaN or an infinity in only one of the tensors fails.
// The message contains `name`, the norms and the worst element.
::testing::AssertionResult close_in_norm(std::string_view name, const ConstView& actual,
                                         const ConstView& expected, double tolerance,
                                         double floor = 0.0);

// Succeeds if |actual - expected| <= tolerance * |expected|. For losses and norms.
::testing::AssertionResult close_relative(std::string_view name, double actual, double expected,
                                          double tolerance);

}  // namespace shoal::testing
