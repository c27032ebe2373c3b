// Several texts in a row that do not attend to each other, compared with transformers with a
// block-diagonal mask and positions that restart (tools/golden/make_packed.py).
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "fixture.h"
#include "golden_model.h"
#include "support/golden.h"
#include <nlohmann/json.hpp>

#include "shoal/nn/autograd/tape.h"
#include "shoal/nn/models/causal_lm.h"
#include "shoal/runtime/io/json.h"
#include "shoal/runtime/io/safetensors.h"

namespace shoal::nn {
namespace {

struct Case {
  const char* name;   // in golden/packed
  const char* model;  // in golden
};

// A model with the golden weights and the packed rows.
struct Golden {
  Golden(const Case& of, DType dtype)
      : room(false, 2, FixtureMemory::device),
        made(make_causal_lm(
            read_json_file(testing::golden_path(std::string(of.model) + "/config.json")),
            "config.json")),
        model(*made),
        file(SafetensorsFile::open(
            testing::golden_path(std::string("packed/") + of.name + "/case.safetensors"))) {
    model.materialize(room.context, dtype);
    EXPECT_EQ(describe(model.load(testing::golden_path(of.model), assign_values(room.context))),
              "");
    allocate_gradients(room.context, model.parameters());
    const Tensor labels = file->tensor("labels"), begins = file->tensor("sequences");
    const std::int64_t length = labels.shape()[1];
    std::vector<std::int32_t> shifted;
    for (std::int64_t i = 0; i < labels.count(); ++i) {
      shifted.push_back(i % length + 1 < length ? labels.const_data<std::int32_t>()[i + 1] : -100);
      valid += shifted.back() >= 0;
    }
    const auto host = make_host_memory();
    positions = testing::values_of<std::int32_t>(positions_in(begins, length, *host));
    const auto ids_of = [&](const Tensor& tensor) {
      return room.ids(tensor.shape(), testing::values_of<std::int32_t>(tensor));
    };
    input.ids = ids_of(file->tensor("input_ids"));
    input.targets = room.ids(labels.shape(), shifted);
    input.sequences = ids_of(begins);
    input.positions = room.ids(labels.shape(), positions);
    input.loss.loss_scale = 1.0F / static_cast<float>(valid);
  }
  // Computes the mean loss and its gradients.
  double step() {
    for (Parameter* parameter : model.parameters()) parameter->clear_gradient();
    Tape tape;
    room.context.tape = &tape;
    const LossOutput out = model.forward(room.context, input);
    room.context.tape = nullptr;
    tape.backward(room.context, out.loss);
    return room.context.read(out.loss_sum) / static_cast<double>(valid);
  }
  Tensor logits() {
    Context& context = room.context;
    context.mode = Mode::evaluate;
    Tensor scores =
        score_head(context, model, forward_units(context, model, 0, model.units() - 1, {}, input),
                   input)
            .logits;
    context.mode = Mode::train;
    return scores;
  }

  Fixture room;
  std::unique_ptr<CausalLm> made;
  CausalLm& model;
  std::shared_ptr<SafetensorsFile> file;
  ChainInput input;
  std::vector<std::int32_t> positions;
  std::int64_t valid = 0;
};

class PackedGolden : public ::testing::TestWithParam<Case> {};

TEST_P(PackedGolden, LossLogitsAndGradients) {
  Golden golden(GetParam(), DType::f32);
  EXPECT_EQ(golden.positions,
            testing::values_of<std::int32_t>(golden.file->tensor("position_ids")));
  const Tensor expected = golden.file->tensor("logits");
  EXPECT_TRUE(close_in_norm("logits", golden.logits().reshaped(expected.shape()), expected, 5e-6));
  expect_golden_step(golden);
}

TEST_P(PackedGolden, InBf16) {
  Golden golden(GetParam(), DType::bf16);
  expect_golden_step_in_bf16(golden, 2e-2);
}

// The golden loss is meaningful: texts that attend to each other, or that continue the
// positions, give another loss.
TEST_P(PackedGolden, TheGoldenLossIsOfPackedTexts) {
  Golden golden(GetParam(), DType::f32);
  golden.input.sequences = golden.input.positions = {};
  EXPECT_GT(std::abs(golden.step() / golden_loss(golden) - 1), 1e-3);
}

INSTANTIATE_TEST_SUITE_P(Cases, PackedGolden,
                         ::testing::Values(Case{"gpt2", "packed/gpt2"},
                                           Case{"llama_tied", "llama/tied"},
                                           Case{"llama_untied", "llama/untied"}),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace shoal::nn
