#include "shoal/nn/models/encoder_decoder/generate.h"

#include <string>
#include <utility>

#include "shoal/nn/models/encoder_decoder/family.h"
#include "shoal/nn/models/generation/loop.h"
#include "shoal/runtime/base/error.h"

namespace shoal::nn {
namespace {

class EncodedRows final : public TextRows {
 public:
  EncodedRows(EncoderDecoder& model, EncoderDecoderCache cache, std::vector<std::int32_t> starts)
      : model_(model), cache_(std::move(cache)), starts_(std::move(starts)) {}
  Tensor begin(Context& context) override { return append(context, starts_); }
  Tensor append(Context& context, std::span<const std::int32_t> tokens) override {
    return model_.decode(
        context, context.upload(tokens.data(), {std::ssize(tokens), 1}, DType::i32), cache_);
  }
  void select(Context& context, std::span<const std::int64_t> rows,
              std::span<const std::int64_t> texts) override {
    cache_.select(context, rows, texts);
  }

 private:
  EncoderDecoder& model_;
  EncoderDecoderCache cache_;
  std::vector<std::int32_t> starts_;
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
  const std::int32_t start = start_id(model);
  EncodedRows rows(model, model.encode(context, ids, key_mask, how.max_new_tokens),
                   std::vector<std::int32_t>(samples, start));
  return generate_tokens(context, rows, std::vector<std::vector<std::int32_t>>(samples, {start}),
                         model.config().vocab_size, how, numbers);
}

}  // namespace shoal::nn
