#include "shoal/nn/models/decoder/decoder.h"

#include <optional>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "shoal/nn/models/adapter.h"
#include "shoal/nn/models/decoder/family.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/io/files.h"

namespace shoal::nn {
namespace {

// The part of a name after `base` and a dot; nullopt if the name has no such prefix.
std::optional<std::string_view> below(std::string_view name, std::string_view base) {
  if (!name.starts_with(base) || name.size() <= base.size() || name[base.size()] != '.')
    return std::nullopt;
  return name.substr(base.size() + 1);
}

}  // namespace

std::string Decoder::describe() const {
  const DecoderTrunk& model = trunk();
  const DecoderHead head = head_kind();
  if (head == DecoderHead::causal_lm)
    return fmt::format("{}, {}", model.config().model_type, model.describe());
  return fmt::format("{} for {}, {}{}", model.config().model_type, to_string(head),
                     model.describe(), model.config().labels.describe(head));
}

LoadReport Decoder::load(const std::string& directory, const AssignParameter& assign) {
  const DecoderTrunk& model = trunk();
  const DecoderHead head = head_kind();
  const std::string_view base = model.base_name(head);
  keep_generation_config(directory);
  const Parameter* const table = model.embedding().weight().get();
  const std::string head_weight = fmt::format("{}.weight", model.family().language_head);
  const auto candidates = [&model, base, table, &head_weight](const std::string& parameter) {
    std::vector<std::string> names{parameter};
    const auto bare = below(parameter, base);
    if (!bare) return names;
    for (const std::string_view other : model.base_names())
      if (other != base) names.push_back(fmt::format("{}.{}", other, *bare));
    names.emplace_back(*bare);
    // Some files store a tied table only as the head's weight.
    if (model.config().tie_word_embeddings && parameter == table->name())
      names.push_back(head_weight);
    return names;
  };
  const auto ignored = [&model, head, &head_weight](std::string_view tensor) {
    if (head == DecoderHead::causal_lm && model.config().tie_word_embeddings &&
        tensor == head_weight)
      return true;
    std::string_view bare = tensor;
    for (const std::string_view name : model.base_names())
      if (const auto part = below(tensor, name)) bare = *part;
    return model.is_buffer(bare);
  };
  const auto is_head = [base](const std::string& parameter) { return !below(parameter, base); };
  return load_weights(directory, *this,
                      {.candidates = candidates, .ignored = ignored, .may_be_new = is_head},
                      assign);
}

void Decoder::keep_generation_config(const std::string& directory) {
  if (head_kind() == DecoderHead::causal_lm) generation_config_.keep(directory);
}

std::vector<std::string> Decoder::save_config(const std::string& directory, DType dtype) const {
  const auto write = [&](const std::string& name, const std::string& text) {
    write_file_atomically(fmt::format("{}/{}", directory, name), text);
  };
  const nlohmann::ordered_json config = trunk().config().to_json(torch_name(dtype), head_kind());
  const std::string name = config_name(*this);
  write(name, config.dump(2) + "\n");
  if (head_kind() != DecoderHead::causal_lm) return {name};
  write("generation_config.json", generation_config_.text(config));
  return {name, "generation_config.json"};
}

std::string Decoder::unit_name(int unit) const {
  if (unit == 0) return "embeddings";
  return unit == units() - 1 ? "head" : trunk().block_name(unit - 1);
}

std::vector<Module*> Decoder::unit_modules(int unit) const {
  if (unit == 0) return trunk().embeddings();
  if (unit == units() - 1) return {&trunk().last_norm(), &head_module()};
  return {&trunk().block(unit - 1)};
}

ResidualStream Decoder::forward_unit(Context& context, int unit, ResidualStream stream,
                                     const ChainInput& input) {
  SHOAL_CHECK(
      input.sequences.defined() == input.positions.defined(),
      "of rows with several texts there are {}: give both (positions_in())",
      input.sequences.defined() ? "sequences without positions" : "positions without sequences");
  if (unit == 0) return {trunk().embed(context, input.ids, 0, input.positions), std::nullopt, {}};
  return trunk().forward_block(context, unit - 1, std::move(stream),
                               {input.key_mask, nullptr, input.sequences, input.positions});
}

LossOutput Decoder::run(Context& context, const ChainInput& input) {
  context.begin_forward();
  return forward_head(
      context,
      forward_units(context, *this, 0, units() - 1, {}, input, gradient_checkpointing_ ? 1 : 0),
      input);
}

}  // namespace shoal::nn
