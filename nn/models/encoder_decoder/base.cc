#include "shoal/nn/models/encoder_decoder/base.h"

#include <utility>

#include <fmt/format.h>

#include "shoal/nn/layers/decoding.h"
#include "shoal/nn/layers/functional_internal.h"
#include "shoal/nn/models/inference.h"
#include "shoal/runtime/base/error.h"

namespace shoal::nn {
namespace {

std::string below_base(std::string_view base, const char* name) {
  return base.empty() ? name : fmt::format("{}.{}", base, name);
}

std::unique_ptr<EmbeddingLike> make_embedding(const EncoderDecoderConfig& config) {
  config.check();
  const bool cold = config.family().padding_is_cold;
  return std::make_unique<Embedding>(config.vocab_size, config.d_model,
                                     static_cast<float>(config.initializer),
                                     cold ? config.pad_token_id.value_or(-1) : -1);
}

// Only the decoder's units still have work to do.
bool has_encoded(const ChainInput& input) { return input.decoding && input.decoding->encoded; }

// The decoder's activations hold the same share of its positions as the encoder's do of the ids'.
class DecoderPositions {
 public:
  DecoderPositions(Context& context, const ChainInput& input)
      : context_(context), before_(context.activation) {
    const Shape &ids = input.ids.shape(), &decoder = input.decoder_ids.shape();
    SHOAL_CHECK(ids.rank() == 2 && decoder.rank() == 2 && decoder[0] == ids[0] && ids[1] > 0,
                "an encoder-decoder takes ids [B, S] and decoder_ids [B, T], not {} and {}",
                to_string(ids), to_string(decoder));
    context.activation.first_position = before_.first_position * decoder[1] / ids[1];
  }
  ~DecoderPositions() { context_.activation = before_; }
  bool differ() const { return context_.activation.first_position != before_.first_position; }
  DecoderPositions(const DecoderPositions&) = delete;
  DecoderPositions& operator=(const DecoderPositions&) = delete;

 private:
  Context& context_;
  ActivationCoordinates before_;
};

}  // namespace

EncoderDecoderBase::EncoderDecoderBase(const EncoderDecoderConfig& config, const StackHead& place)
    : shared(*this, below_base(place.base, "shared"), make_embedding(config)),
      encoder(*this, below_base(place.base, "encoder"), std::make_unique<Stack>(config, false)),
      config_(config) {
  if (place.decodes)
    decoder.emplace(*this, below_base(place.base, "decoder"),
                    std::make_unique<Stack>(config, true));
}

std::string EncoderDecoderBase::describe() const {
  const DecoderHead head = head_kind();
  std::string text = config_.model_type;
  if (head != DecoderHead::causal_lm) text += fmt::format(" for {}", to_string(head));
  text += decoder ? fmt::format(", {} and {} layers", encoder->blocks(), (*decoder)->blocks())
                  : fmt::format(", {} layers", encoder->blocks());
  text += fmt::format(" of width {}, {} heads, vocabulary {}", config_.d_model,
                      config_.encoder_heads, config_.vocab_size);
  return text + config_.labels.describe(head);
}

LossOutput EncoderDecoderBase::forward(Context& context, const ChainInput& input) {
  context.begin_forward();
  return forward_head(
      context,
      forward_units(context, *this, 0, units() - 1, {}, input, gradient_checkpointing_ ? 1 : 0),
      input);
}

Tensor EncoderDecoderBase::logits(Context& context, const ChainInput& input) {
  const Inference inference(context);
  context.begin_forward();
  return head_logits(context, forward_units(context, *this, 0, units() - 1, {}, input), input);
}

std::string EncoderDecoderBase::unit_name(int unit) const {
  if (unit == 0) return "embeddings";
  if (unit < border()) return fmt::format("encoder.{}", unit - 1);
  if (unit == units() - 1) return "head";
  return unit == border() ? "decoder.embeddings" : fmt::format("decoder.{}", unit - border() - 1);
}

std::vector<Module*> EncoderDecoderBase::unit_modules(int unit) const {
  std::vector<Module*> modules;
  const auto add = [&](Module* module) {
    if (module) modules.push_back(module);
  };
  if (unit == 0) {
    add(&*shared);
    add(&encoder->embeddings());
  } else if (unit < border()) {
    add(&encoder->block(unit - 1));
  } else if (unit == units() - 1) {
    add(decoder ? (*decoder)->last_norm() : encoder->last_norm());
    add(&head_module());
  } else if (unit == border()) {
    add(encoder->last_norm());
    add(&*shared);
    add(&(*decoder)->embeddings());
  } else {
    add(&(*decoder)->block(unit - border() - 1));
  }
  return modules;
}

std::vector<std::int64_t> EncoderDecoderBase::lengths(int unit, const ChainInput& input) const {
  const std::int64_t ids = input.ids.shape()[1];
  if (unit <= border() || has_encoded(input)) return {ids};
  return {input.decoder_ids.shape()[1], ids};
}

int EncoderDecoderBase::first_unit(const ChainInput& input) const {
  return has_encoded(input) ? border() : 0;
}

ResidualStream EncoderDecoderBase::forward_unit(Context& context, int unit, ResidualStream stream,
                                                const ChainInput& input) {
  if (unit == 0)
    return {encoder->embeddings().forward(context, *shared, input.ids, 0), std::nullopt, {}};
  if (unit < border())
    return encoder->block(unit - 1).forward(context, std::move(stream),
                                            {.key_mask = input.key_mask}, {});
  if (unit == border()) {
    std::optional<Value> encoded;
    if (!has_encoded(input)) encoded = encoder->finish(context, std::move(stream));
    const DecoderPositions positions(context, input);
    return {(*decoder)->embeddings().forward(context, *shared, input.decoder_ids,
                                             input.decoding ? input.decoding->position : 0),
            std::nullopt,
            {},
            std::move(encoded)};
  }
  const DecoderPositions positions(context, input);
  const int number = unit - border() - 1;
  AttentionInput self{.key_mask = input.decoder_mask}, cross{.key_mask = input.key_mask};
  if (input.decoding) input.decoding->serve(number, self, cross);
  ResidualStream out =
      (*decoder)->block(number).forward(context, std::move(stream), self, std::move(cross));
  // A later sum would draw dropout with the encoder's positions.
  if (positions.differ()) return ResidualStream::of(std::move(out).carried(context));
  return out;
}

Value EncoderDecoderBase::hidden_states(Context& context, ResidualStream stream,
                                        const ChainInput& input) {
  if (!decoder) return encoder->finish(context, std::move(stream));
  const DecoderPositions positions(context, input);
  return (*decoder)->finish(context, std::move(stream));
}

}  // namespace shoal::nn
