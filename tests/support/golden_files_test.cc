// Checks with Shoal's own reader that the golden files, which other tests rely on, are consistent.
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "support/golden.h"
#include <gmock/gmock.h>

#include "shoal/runtime/io/sharded_safetensors.h"

namespace shoal::testing {
namespace {

double at(const Tensor& tensor, std::int64_t i) {
  const auto index = static_cast<std::size_t>(i);
  if (tensor.dtype() == DType::bf16)
    return static_cast<float>(tensor.const_data<bfloat16>()[index]);
  return tensor.const_data<float>()[index];
}

// Computes the loss by its definition: labels shifted by one, -100 ignored, mean over valid
// targets.
double causal_loss(const Tensor& logits, const Tensor& labels) {
  const std::int64_t batch = logits.shape()[0], length = logits.shape()[1];
  const std::int64_t vocabulary = logits.shape()[2];
  double sum = 0;
  std::int64_t valid = 0;
  for (std::int64_t b = 0; b < batch; ++b) {
    for (std::int64_t t = 0; t + 1 < length; ++t) {
      const std::int64_t target = labels.const_data<std::int64_t>()[b * length + t + 1];
      if (target == -100) continue;
      const std::int64_t row = (b * length + t) * vocabulary;
      double exponentials = 0;
      for (std::int64_t v = 0; v < vocabulary; ++v) exponentials += std::exp(at(logits, row + v));
      sum += std::log(exponentials) - at(logits, row + target);
      ++valid;
    }
  }
  return sum / static_cast<double>(valid);
}

std::vector<std::string> names_with_prefix(const SafetensorsFile& file, std::string_view prefix) {
  std::vector<std::string> out;
  for (const SafetensorsEntry& entry : file.entries())
    if (entry.name.starts_with(prefix)) out.push_back(entry.name);
  return out;
}

double global_gradient_norm(const SafetensorsFile& file) {
  std::vector<ConstView> gradients;
  std::vector<Tensor> owners;
  for (const std::string& name : names_with_prefix(file, "grad.")) {
    owners.push_back(file.tensor(name));
    gradients.push_back(owners.back());
  }
  return global_norm_of(gradients);
}

class GoldenGpt2 : public ::testing::TestWithParam<const char*> {
 protected:
  std::shared_ptr<SafetensorsFile> open(const std::string& file) const {
    return SafetensorsFile::open(golden_path("gpt2/" + std::string(GetParam()) + "/" + file));
  }
};

TEST_P(GoldenGpt2, LossFollowsFromLogitsAndLabels) {
  for (const char* file : {"case_f32.safetensors", "case_bf16.safetensors"}) {
    const auto golden = open(file);
    EXPECT_TRUE(close_relative(file,
                               causal_loss(golden->tensor("logits"), golden->tensor("labels")),
                               at(golden->tensor("loss"), 0), 1e-6));
    EXPECT_EQ(at(golden->tensor("steps.loss"), 0), at(golden->tensor("loss"), 0));
  }
}

TEST_P(GoldenGpt2, GradientsHaveTheLoggedNorm) {
  for (const char* file : {"case_f32.safetensors", "case_bf16.safetensors"}) {
    const auto golden = open(file);
    EXPECT_TRUE(close_relative(file, global_gradient_norm(*golden),
                               at(golden->tensor("steps.grad_norm"), 0), 1e-6));
  }
}

TEST_P(GoldenGpt2, EveryParameterHasGradientAndFinalValueOfItsShape) {
  const auto model = open("model.safetensors");
  for (const char* file : {"case_f32.safetensors", "case_bf16.safetensors"}) {
    const auto golden = open(file);
    EXPECT_EQ(names_with_prefix(*golden, "grad.").size(), model->entries().size());
    for (const SafetensorsEntry& entry : model->entries()) {
      EXPECT_EQ(golden->entry("grad." + entry.name).sizes, entry.sizes);
      EXPECT_EQ(golden->entry("final." + entry.name).sizes, entry.sizes);
    }
  }
}

// So an implementation of bf16 as accurate as PyTorch's meets the tolerance of the other tests.
TEST_P(GoldenGpt2, PyTorchsBf16IsWithinTheToleranceOfFloat64) {
  const auto f32 = open("case_f32.safetensors");
  const auto bf16 = open("case_bf16.safetensors");
  const double floor = 0.05 * global_gradient_norm(*f32);
  for (const std::string& name : names_with_prefix(*f32, "grad."))
    EXPECT_TRUE(close_in_norm(name, bf16->tensor(name), f32->tensor(name), 2e-2, floor));
  EXPECT_TRUE(close_in_norm("logits", bf16->tensor("logits"), f32->tensor("logits"), 2e-2));
}

INSTANTIATE_TEST_SUITE_P(Cases, GoldenGpt2, ::testing::Values("tiny", "odd", "k31"),
                         [](const auto& test) { return std::string(test.param); });

TEST(GoldenInterop, ShardedAndPlainHoldTheSameTensors) {
  const auto plain = ShardedSafetensors::open(golden_path("interop/plain"));
  const auto sharded = ShardedSafetensors::open(golden_path("interop/sharded"));
  EXPECT_GT(sharded.files().size(), 2u);
  EXPECT_EQ(sharded.names(), plain.names());
  for (const std::string& name : plain.names()) {
    const Tensor a = plain.tensor(name), b = sharded.tensor(name);
    ASSERT_EQ(a.shape(), b.shape());
    EXPECT_EQ(0, std::memcmp(a.const_view().data, b.const_view().data, a.bytes())) << name;
  }
}

}  // namespace
}  // namespace shoal::testing
