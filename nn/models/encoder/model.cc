#include "shoal/nn/models/encoder/model.h"

#include <algorithm>
#include <utility>

#include "shoal/nn/layers/functional_internal.h"
#include "shoal/nn/models/inference.h"
#include "shoal/runtime/base/error.h"

namespace shoal::nn {
namespace {

std::int64_t groups_of(const EncoderConfig& config) {
  return config.num_hidden_groups > 0 ? config.num_hidden_groups : config.num_hidden_layers;
}

// While one is alive, the context's activations are the visible positions.
class VisibleCoordinates {
 public:
  VisibleCoordinates(Context& context, const VisibleRows& visible)
      : context_(context), before_(context.activation) {
    if (!visible.defined()) return;
    context.activation.rows = visible.rows;
    context.activation.length = visible.places.shape()[1];
  }
  ~VisibleCoordinates() { context_.activation = before_; }
  VisibleCoordinates(const VisibleCoordinates&) = delete;
  VisibleCoordinates& operator=(const VisibleCoordinates&) = delete;

 private:
  Context& context_;
  ActivationCoordinates before_;
};

}  // namespace

Encoder::Encoder(const EncoderConfig& config, EncoderTask task)
    : embeddings(*this, encoder_family(config.model_type).base,
                 [&] {
                   config.check();
                   return std::make_unique<EncoderEmbeddings>(config);
                 }()),
      blocks([&] {
        const EncoderFamily& family = encoder_family(config.model_type);
        const EncoderRotary rotary = EncoderRotary::of(config);
        std::deque<Slot<EncoderBlock>> made;
        for (std::int64_t group = 0; group < groups_of(config); ++group)
          for (std::int64_t inner = 0; inner < config.inner_group_num; ++inner)
            made.emplace_back(*this, family.base + "." + family.layer(group, inner),
                              std::make_unique<EncoderBlock>(config, group, rotary));
        return made;
      }()),
      final_norm([&]() -> std::optional<Slot<NormLike>> {
        const EncoderFamily& family = encoder_family(config.model_type);
        if (family.final_norm.empty()) return std::nullopt;
        return std::optional<Slot<NormLike>>(std::in_place, *this,
                                             family.base + "." + family.final_norm,
                                             norm_of(config.hidden_size, config));
      }()),
      head(*this, "", make_encoder_head(config, task, embeddings->word_embeddings->weight())),
      config_(config),
      task_(task) {
  name_tree();
}

Encoder::Layer Encoder::layer(int unit) const {
  const std::int64_t number = unit - 1;
  const auto inner = static_cast<std::size_t>(config_.inner_group_num);
  if (config_.num_hidden_groups == 0) return {static_cast<std::size_t>(number) * inner, inner, 0};
  // As in transformers, the group of layer i is floor(i / (layers / groups)).
  const auto group_of = [&](std::int64_t i) {
    return i * config_.num_hidden_groups / config_.num_hidden_layers;
  };
  const std::int64_t group = group_of(number);
  std::uint32_t use = 0;
  for (std::int64_t i = number - 1; i >= 0 && group_of(i) == group; --i) ++use;
  return {static_cast<std::size_t>(group) * inner, inner, use};
}

LossOutput Encoder::forward(Context& context, const ChainInput& input) {
  context.begin_forward();
  return forward_head(
      context,
      forward_units(context, *this, 0, units() - 1, {}, input, gradient_checkpointing_ ? 1 : 0),
      input);
}

Tensor Encoder::logits(Context& context, const ChainInput& input) {
  const Inference inference(context);
  context.begin_forward();
  return head_logits(context, forward_units(context, *this, 0, units() - 1, {}, input), input);
}

std::string Encoder::unit_name(int unit) const {
  if (unit == 0) return "embeddings";
  return unit == units() - 1 ? "head" : fmt::format("layer.{}", unit - 1);
}

std::vector<Module*> Encoder::unit_modules(int unit) const {
  if (unit == 0) return {&*embeddings};
  if (unit == units() - 1)
    return final_norm ? std::vector<Module*>{&**final_norm, &*head} : std::vector<Module*>{&*head};
  const Layer own = layer(unit);
  std::vector<Module*> modules;
  for (std::size_t i = 0; i < own.blocks; ++i) modules.push_back(&*blocks[own.first_block + i]);
  return modules;
}

ResidualStream Encoder::forward_unit(Context& context, int unit, ResidualStream stream,
                                     const ChainInput& input) {
  if (unit == 0) {
    const Value all = embeddings->forward(context, input.ids, input.token_types);
    return {without_padding(context, all, input.visible), std::nullopt, {}};
  }
  const VisibleCoordinates coordinates(context, input.visible);
  const Layer own = layer(unit);
  for (std::size_t i = 0; i < own.blocks; ++i) {
    EncoderBlock& block = *blocks[own.first_block + i];
    if (config_.num_hidden_groups > 0) block.begin_use(context, own.use);
    stream = block.forward(context, std::move(stream),
                           {.key_mask = input.key_mask,
                            .sequences = input.sequences,
                            .positions = input.positions,
                            .visible = input.visible});
  }
  // checkpoint() adds a pending branch where these coordinates have ended.
  SHOAL_ASSERT(!input.visible.defined() || stream.dropout.probability == 0);
  return stream;
}

// The last states of all positions [B, T, C].
Value Encoder::last_states(Context& context, ResidualStream stream, const ChainInput& input) {
  const VisibleCoordinates coordinates(context, input.visible);
  const Value states =
      final_norm ? stream.norm(context, **final_norm) : std::move(stream).collapse(context);
  return spread(context, states, input.visible);
}

LossOutput Encoder::forward_head(Context& context, ResidualStream stream, const ChainInput& input) {
  return head->forward(context, last_states(context, std::move(stream), input), input);
}

Tensor Encoder::head_logits(Context& context, ResidualStream stream, const ChainInput& input) {
  return head->logits(context, last_states(context, std::move(stream), input), input).tensor;
}

}  // namespace shoal::nn
