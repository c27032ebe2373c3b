// The reader of config.json.
#include <algorithm>
#include <string>

#include "fuzz/frame.h"
#include <nlohmann/json.hpp>

#include "shoal/nn/models/causal_lm.h"
#include "shoal/nn/models/decoder/config.h"
#include "shoal/nn/models/encoder/config.h"
#include "shoal/nn/models/huggingface.h"
#include "shoal/nn/models/model_type.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/io/json.h"

namespace shoal::fuzz {
namespace {

using nlohmann::json;

void check_decoder(const json& config) {
  const auto read = nn::DecoderConfig::from_json(config, "config.json");
  (void)nn::complete_causal_lm_config(config, "config.json");
  for (const nn::DecoderHead head :
       {nn::DecoderHead::causal_lm, nn::DecoderHead::sequence_classification,
        nn::DecoderHead::question_answering, nn::DecoderHead::token_classification}) {
    const std::string written = read.to_json("float32", head).dump();
    const auto again = nn::DecoderConfig::from_json(parse_json(written, "written"), "written");
    expect(again.known_fields(head).dump() == read.known_fields(head).dump(),
           "a written config.json reads as the same model");
  }
  expect(read.trunk_parameters() >= 0, "a model has parameters");
  expect(read.head_channels() > 0 && read.key_heads() > 0, "a head has channels");
  (void)read.rotary_angles();
  for (std::int64_t layer = 0; layer < std::min<std::int64_t>(read.num_hidden_layers, 4); ++layer) {
    (void)read.window(layer);
    (void)read.attention_scale(layer);
  }
}

void check_encoder(const json& config) {
  const auto read = nn::EncoderConfig::from_json(config, "config.json");
  for (const nn::EncoderTask task :
       {nn::EncoderTask::masked_lm, nn::EncoderTask::sequence_classification,
        nn::EncoderTask::question_answering, nn::EncoderTask::token_classification}) {
    const std::string written = read.to_json(task, "float32").dump();
    const auto again = nn::EncoderConfig::from_json(parse_json(written, "written"), "written");
    expect(again.known_fields().dump() == read.known_fields().dump(),
           "a written config.json reads as the same model");
  }
  expect(read.trunk_parameters() >= 0, "a model has parameters");
  for (std::int64_t layer = 0; layer < std::min<std::int64_t>(read.num_hidden_layers, 4); ++layer)
    (void)read.window(layer);
}

FUZZ(model_config,
     "nn/models/decoder/config.cc nn/models/decoder/labels.cc nn/models/decoder/rotary.cc "
     "nn/models/encoder/config.cc nn/models/written_config.cc nn/models/model_type.cc "
     "nn/models/gpt2/family.cc nn/models/llama/family.cc nn/models/mistral/family.cc "
     "nn/models/qwen/family.cc nn/models/bert/family.cc nn/models/roberta/family.cc "
     "nn/models/distilbert/family.cc nn/models/albert/family.cc") {
  const json config = nn::with_model_type(parse_json(input.rest(), "config.json"), "config.json");
  nn::check_sizes(config, "config.json", Input::folder());
  const std::string type = nn::model_type_of(config, "config.json");
  if (std::ranges::count(nn::causal_lm_types(), type) > 0)
    check_decoder(config);
  else
    check_encoder(config);
}

}  // namespace
}  // namespace shoal::fuzz
