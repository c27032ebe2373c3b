// Compares a model with golden weights with transformers' results. `Golden` provides the model, its
// fixture, the golden file (the loss, and "grad." with each parameter's name), and step(), which
// computes the mean loss and its gradients.
#pragma once

#include <cmath>
#include <vector>

#include "fixture.h"
#include "support/golden.h"
#include <gtest/gtest.h>

#include "shoal/nn/autograd/parameter.h"

namespace shoal::nn {

template <typename Golden>
double golden_loss(const Golden& golden) {
  return *golden.file->tensor("loss").template const_data<float>();
}

// With kept activations and with checkpointing: the loss, and each gradient within 1e-4 of its
// norm.
template <typename Golden>
void expect_golden_step(Golden& golden) {
  std::vector<Tensor> expected;
  std::vector<ConstView> views;
  std::vector<const Parameter*> trained;
  for (const Parameter* parameter : golden.model.parameters()) {
    if (!parameter->trainable()) continue;
    trained.push_back(parameter);
    expected.push_back(golden.file->tensor("grad." + parameter->name()));
    views.push_back(expected.back().const_view());
  }
  const double floor = 1e-3 * testing::global_norm_of(views);
  for (const bool checkpointing : {false, true}) {
    golden.model.set_gradient_checkpointing(checkpointing);
    EXPECT_TRUE(testing::close_relative("loss", golden.step(), golden_loss(golden), 5e-6));
    for (std::size_t i = 0; i < views.size(); ++i)
      EXPECT_TRUE(
          close_in_norm(trained[i]->name(), trained[i]->gradient, expected[i], 1e-4, floor));
  }
}

// A model in bf16: the loss, and all gradients together, relative to their norm.
template <typename Golden>
void expect_golden_step_in_bf16(Golden& golden, double loss_tolerance,
                                double gradient_tolerance = 5e-2) {
  EXPECT_TRUE(testing::close_relative("loss", golden.step(), golden_loss(golden), loss_tolerance));
  double difference = 0, whole = 0;
  for (const Parameter* parameter : golden.model.parameters()) {
    if (!parameter->trainable()) continue;
    const Tensor want = golden.file->tensor("grad." + parameter->name()),
                 have = testing::on_host(parameter->gradient);
    for (std::int64_t i = 0; i < want.count(); ++i) {
      const double value = want.const_data<float>()[i];
      difference += std::pow(have.const_data<float>()[i] - value, 2);
      whole += value * value;
    }
  }
  EXPECT_LT(std::sqrt(difference / whole), gradient_tolerance);
}

}  // namespace shoal::nn
