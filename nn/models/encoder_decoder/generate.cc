#include "shoal/nn/models/encoder_decoder/generate.h"

#include <string>
#include <utility>

#include "shoal/nn/layers/decoding.h"
#include "shoal/nn/layers/functional_internal.h"
#include "shoal/nn/models/encoder_decoder/family.h"
#include "shoal/nn/models/generation/loop.h"
#include "shoal/runtime/base/error.h"

namespace shoal::nn {
namespace {

class EncodedRows final : public TextRows {
 public:
  EncodedRows(Context& context, EncoderDecoder& model, const Tensor& ids, const Tensor& key_mask,
              std::int64_t capacity)
      : model_(model), decoding_{.capacity = capacity} {
    input_.ids = ids;
    input_.key_mask = context.to_device(key_mask);
    input_.decoding = &decoding_;
  }
  Tensor begin(Context& context) override {
    const std::vector<std::int32_t> starts(static_cast<std::size_t>(input_.ids.shape()[0]),
                                           start_id(model_));
    return scores(context, starts);
  }
  Tensor append(Context& context, std::span<const std::int32_t> tokens) override {
    ++decoding_.position;
    return scores(context, tokens);
  }
  void select(Context& context, std::span<const std::int64_t> rows,
              std::span<const std::int64_t> texts) override {
    decoding_.select(context, rows, texts);
    Tensor& mask = input_.key_mask;
    if (mask.defined() && mask.shape()[0] != std::ssize(texts))
      mask = selected_rows(context, mask, texts);
  }

 private:
  Tensor scores(Context& context, std::span<const std::int32_t> tokens) {
    const std::int64_t rows = std::ssize(tokens);
    input_.decoder_ids = context.upload(tokens.data(), {rows, 1}, DType::i32);
    if (decoding_.encoded) input_.ids = input_.decoder_ids;
    const Tensor logits = model_.logits(context, input_);
    decoding_.encoded = true;
    return logits.reshaped({rows, model_.config().vocab_size});
  }

  EncoderDecoder& model_;
  Decoding decoding_;
  ChainInput input_;
};

void take(const EncoderDecoder& model, const char* name, std::optional<std::int32_t>& id) {
  if (const auto given = model.generation_id(name); given && !id)
    id = static_cast<std::int32_t>(*given);
}

}  // namespace

GenerationOptions search_options(const EncoderDecoder& model, const GenerationOptions& options) {
  const EncoderDecoderConfig& config = model.config();
  GenerationOptions how = options;
  take(model, "forced_bos_token_id", how.forced_bos_token_id);
  take(model, "forced_eos_token_id", how.forced_eos_token_id);
  how.check(config.vocab_size);
  SHOAL_CHECK(
      config.family().relative_positions || how.max_new_tokens <= config.max_position_embeddings,
      "max_new_tokens {}: the decoder has {} positions", how.max_new_tokens,
      config.max_position_embeddings);
  return how;
}

std::int32_t start_id(const EncoderDecoder& model) {
  return static_cast<std::int32_t>(
      model.generation_id("decoder_start_token_id").value_or(model.config().start_id()));
}

std::vector<std::vector<std::int32_t>> generate(Context& context, EncoderDecoder& model,
                                                const Tensor& ids, const Tensor& key_mask,
                                                const GenerationOptions& options,
                                                TextNumbers numbers) {
  const GenerationOptions how = search_options(model, options);
  SHOAL_CHECK(ids.shape().rank() == 2, "an encoder-decoder takes ids [B, S], not {}",
              to_string(ids.shape()));
  const auto samples = static_cast<std::size_t>(ids.shape()[0]);
  if (samples == 0 || how.max_new_tokens == 0)
    return std::vector<std::vector<std::int32_t>>(
        samples * static_cast<std::size_t>(how.num_return_sequences));
  EncodedRows rows(context, model, ids, key_mask, how.max_new_tokens);
  return generate_tokens(context, rows,
                         std::vector<std::vector<std::int32_t>>(samples, {start_id(model)}),
                         model.config().vocab_size, how, numbers);
}

}  // namespace shoal::nn
