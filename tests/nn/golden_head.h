// A model with a head, its golden weights and its golden batch (tools/golden/make_decoder_heads.py
// and make_encoder_decoder_heads.py).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "golden_model.h"

#include "shoal/nn/autograd/tape.h"
#include "shoal/nn/layers/chain.h"
#include "shoal/nn/models/decoder/labels.h"
#include "shoal/nn/models/huggingface.h"
#include "shoal/runtime/io/safetensors.h"

namespace shoal::nn {

inline constexpr std::int64_t kGoldenTexts = 3;

// The head that the last word of a case's name says.
inline DecoderHead golden_head(const std::string& name) {
  if (name.ends_with("tokens")) return DecoderHead::token_classification;
  if (name.ends_with("answers")) return DecoderHead::question_answering;
  return DecoderHead::sequence_classification;
}

// The batch's texts have 11, 8 and 3 tokens. `directory` has the case `name`: the weights, and
// case.safetensors.
template <typename Model>
struct GoldenHead {
  GoldenHead(const std::string& name, std::string from, std::unique_ptr<Model> of, DType dtype,
             FixtureMemory where)
      : room(false, 2, where),
        directory(std::move(from)),
        made(std::move(of)),
        model(*made),
        file(SafetensorsFile::open(directory + "/case.safetensors")),
        numbers(name.ends_with("numbers")) {
    model.materialize(room.context, dtype);
    EXPECT_EQ(describe(model.load(directory, assign_values(room.context))), "");
    allocate_gradients(room.context, model.parameters());
    input.ids = get("input_ids", DType::i32);
    input.key_mask = get("attention_mask", DType::u8);
    input.ends = room.ids({kGoldenTexts}, {10, 7, 2});
    if (golden_head(name) == DecoderHead::question_answering) {
      const Tensor starts = testing::on_host(get("start_positions", DType::i32)),
                   ends = testing::on_host(get("end_positions", DType::i32));
      std::vector<std::int32_t> both;
      for (std::int64_t b = 0; b < kGoldenTexts; ++b) {
        both.push_back(starts.const_data<std::int32_t>()[b]);
        both.push_back(ends.const_data<std::int32_t>()[b]);
      }
      input.targets = room.ids({kGoldenTexts, 2}, both);
    } else {
      input.targets = get("labels", numbers ? DType::f32 : DType::i32);
      if (numbers) input.targets = input.targets.reshaped({kGoldenTexts, 1});
    }
    const Tensor targets = testing::on_host(input.targets);
    for (std::int64_t i = 0; i < targets.count(); ++i)
      valid += numbers || targets.const_data<std::int32_t>()[i] >= 0;
    input.loss.loss_scale = 1.0f / static_cast<float>(valid);
  }
  Tensor get(const std::string& tensor, DType dtype) {
    return room.cast(file->tensor(tensor), dtype);
  }
  Tensor logits() { return model.logits(room.context, input); }
  // Computes the mean loss and its gradients.
  double step() {
    for (Parameter* parameter : model.parameters()) parameter->clear_gradient();
    // transformers' model was in evaluation mode: no dropout before its classifiers.
    room.context.mode = Mode::evaluate;
    Tape tape;
    room.context.tape = &tape;
    const LossOutput out = model.forward(room.context, input);
    room.context.tape = nullptr;
    EXPECT_EQ(out.targets, input.targets.device().is_cpu() ? valid : -1);
    tape.backward(room.context, out.loss);
    return room.context.read(out.loss_sum) / static_cast<double>(valid);
  }

  std::unique_ptr<MemoryResource> host = make_host_memory();
  Fixture room;
  std::string directory;
  std::unique_ptr<Model> made;
  Model& model;
  std::shared_ptr<SafetensorsFile> file;
  ChainInput input;
  bool numbers = false;
  std::int64_t valid = 0;
};

}  // namespace shoal::nn
