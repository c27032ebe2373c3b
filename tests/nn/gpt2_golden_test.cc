// GPT-2 against PyTorch and transformers (tools/golden/make_gpt2.py).
#include <nlohmann/json.hpp>

#include "room.h"
#include "shoal/nn/models/gpt2/huggingface.h"
#include "shoal/runtime/io/json.h"
#include "shoal/runtime/io/safetensors.h"
#include "support/golden.h"

namespace shoal::nn {
namespace {

using testing::close_in_norm;
using testing::close_relative;

struct Case {
  const char* name;
  DType dtype;
};

class Gpt2Golden : public ::testing::TestWithParam<Case> {
 protected:
  Gpt2Golden()
      : directory_(testing::golden_path(std::string("gpt2/") + GetParam().name)),
        model_(Gpt2Config::from_file(directory_ + "/config.json")),
        file_(SafetensorsFile::open(directory_ + (bf16() ? "/case_bf16.safetensors"
                                                        : "/case_f32.safetensors"))) {
    model_.materialize(room_.context, GetParam().dtype);
    EXPECT_TRUE(
        load_gpt2_weights(directory_, model_, assign_values(room_.context)).unexpected.empty());
    allocate_gradients(room_.context, model_.parameters());
  }
  bool bf16() const { return GetParam().dtype == DType::bf16; }

  Tensor i32(const std::string& name) {
    return room_.cast(file_->tensor(name), DType::i32);
  }
  // labels [B, T] -> targets: position t predicts labels[t + 1].
  Tensor shifted(const Tensor& labels) {
    const Tensor targets = room_.context.empty(labels.shape(), DType::i32);
    const std::int64_t length = labels.shape()[1];
    for (std::int64_t b = 0; b < labels.shape()[0]; ++b)
      for (std::int64_t t = 0; t < length; ++t)
        targets.data<std::int32_t>()[b * length + t] =
            t + 1 < length ? labels.const_data<std::int32_t>()[b * length + t + 1] : -100;
    return targets;
  }
  double step(const Tensor& ids, const Tensor& labels, bool deferred = false) {
    const Tensor targets = shifted(labels);
    std::int64_t valid = 0;
    for (std::int64_t i = 0; i < targets.count(); ++i)
      valid += targets.const_data<std::int32_t>()[i] >= 0;
    for (Parameter* parameter : model_.parameters()) parameter->clear_gradient();
    Tape tape;
    room_.context.tape = &tape;
    const LossOutput out = model_.forward(room_.context, ids, targets,
                                          {.loss_scale = 1.0f / static_cast<float>(valid)});
    room_.context.tape = nullptr;
    EXPECT_EQ(out.targets, valid);
    tape.backward(room_.context, out.loss, {}, {deferred});
    tape.run_deferred();
    return static_cast<double>(out.loss_sum) / static_cast<double>(valid);
  }

  Room room_;
  std::string directory_;
  Gpt2 model_;
  std::shared_ptr<SafetensorsFile> file_;
};

TEST_P(Gpt2Golden, LossAndGradients) {
  const double loss = step(i32("input_ids"), i32("labels"));
  const double expected = *file_->tensor("loss").const_data<float>();
  EXPECT_TRUE(close_relative("loss", loss, expected, bf16() ? 2e-2 : 1e-5));
  std::vector<ConstView> all;
  for (const Parameter* parameter : model_.parameters())
    all.push_back(file_->tensor("grad." + parameter->name()).const_view());
  const double floor = (bf16() ? 0.1 : 1e-3) * testing::global_norm_of(all);
  for (const Parameter* parameter : model_.parameters())
    EXPECT_TRUE(close_in_norm(parameter->name(), parameter->gradient,
                              file_->tensor("grad." + parameter->name()), bf16() ? 2e-2 : 1e-4,
                              floor));
}

TEST_P(Gpt2Golden, Logits) {
  const Tensor logits = model_.logits(room_.context, i32("input_ids"));
  EXPECT_TRUE(close_in_norm("logits", logits, file_->tensor("logits"), bf16() ? 2e-2 : 1e-5));
}

INSTANTIATE_TEST_SUITE_P(Cases, Gpt2Golden,
                         ::testing::Values(Case{"tiny", DType::f32}, Case{"odd", DType::f32},
                                           Case{"k31", DType::f32}, Case{"tiny", DType::bf16},
                                           Case{"odd", DType::bf16}, Case{"k31", DType::bf16}),
                         [](const auto& test) {
                           return std::string(test.param.name) + "_" +
                                  std::string(to_string(test.param.dtype));
                         });

}  // namespace
}  // namespace shoal::nn
