#include "shoal/nn/models/generate.h"

#include <algorithm>

#include "shoal/nn/layers/functional_internal.h"
#include "shoal/nn/models/generation/loop.h"
#include "shoal/runtime/base/error.h"

namespace shoal::nn {
namespace {

using Prompts = std::vector<std::vector<std::int32_t>>;

void check_prompts(const CausalLm& model, const Prompts& prompts,
                   const GenerationOptions& options) {
  for (const auto& prompt : prompts) {
    const std::int64_t length = std::ssize(prompt);
    SHOAL_CHECK(length > 0, "generation needs a prompt of at least one token");
    SHOAL_CHECK(length + options.max_new_tokens <= model.positions(),
                "a prompt of {} tokens and {} new ones; the model has {} positions", length,
                options.max_new_tokens, model.positions());
    for (std::size_t i = 0; i < prompt.size(); ++i)
      SHOAL_CHECK(prompt[i] >= 0 && prompt[i] < model.vocabulary(),
                  "embedding: id {} at position {} of {} is outside [0, {})", prompt[i], i, length,
                  model.vocabulary());
  }
}

// A batch of prompts, padded on the left.
class CausalLmRows final : public TextRows {
 public:
  CausalLmRows(CausalLm& model, const Prompts& prompts, std::int64_t new_tokens)
      : model_(model), prompts_(prompts) {
    for (const auto& prompt : prompts) length_ = std::max(length_, std::ssize(prompt));
    for (const auto& prompt : prompts) padding_.push_back(length_ - std::ssize(prompt));
    padded_ = std::ranges::any_of(padding_, [](std::int64_t count) { return count > 0; });
    cache_ = model.make_cache(length_ + new_tokens);
  }
  Tensor begin(Context& context) override {
    std::vector<std::int32_t> ids;
    for (std::size_t row = 0; row < prompts_.size(); ++row) {
      ids.insert(ids.end(), static_cast<std::size_t>(padding_[row]), 0);
      ids.insert(ids.end(), prompts_[row].begin(), prompts_[row].end());
    }
    return decode(context, ids, length_);
  }
  Tensor append(Context& context, std::span<const std::int32_t> tokens) override {
    ++length_;
    return decode(context, tokens, 1);
  }
  void select(Context& context, std::span<const std::int64_t> rows,
              std::span<const std::int64_t> /*texts*/) override {
    for (KeyValueCache& layer : cache_) select_rows(context, layer, rows);
    std::vector<std::int64_t> padding;
    for (const std::int64_t row : rows) padding.push_back(padding_[static_cast<std::size_t>(row)]);
    padding_ = std::move(padding);
  }

 private:
  // `ids`: the last `fresh` ones of each row's length_.
  Tensor decode(Context& context, std::span<const std::int32_t> ids, std::int64_t fresh) {
    const std::int64_t rows = std::ssize(padding_);
    Tensor key_mask, positions;
    if (padded_) {
      std::vector<std::uint8_t> shown;
      std::vector<std::int32_t> places;
      for (const std::int64_t padding : padding_)
        for (std::int64_t at = 0; at < length_; ++at) {
          shown.push_back(at >= padding);
          if (at >= length_ - fresh)
            places.push_back(static_cast<std::int32_t>(std::max<std::int64_t>(at - padding, 0)));
        }
      key_mask = context.upload(shown.data(), {rows, length_}, DType::u8);
      positions = context.upload(places.data(), {rows, fresh}, DType::i32);
    }
    return model_.decode(context, context.upload(ids.data(), {rows, fresh}, DType::i32), cache_,
                         key_mask, positions);
  }

  CausalLm& model_;
  const Prompts& prompts_;
  std::int64_t length_ = 0;            // of each row, padding included
  std::vector<std::int64_t> padding_;  // of each row
  bool padded_ = false;
  DecoderCache cache_;
};

}  // namespace

std::vector<std::vector<std::int32_t>> generate_batch(Context& context, CausalLm& model,
                                                      const Prompts& prompts,
                                                      const GenerationOptions& options,
                                                      TextNumbers numbers) {
  options.check(model.vocabulary());
  check_prompts(model, prompts, options);
  if (prompts.empty() || options.max_new_tokens == 0)
    return Prompts(prompts.size() * static_cast<std::size_t>(options.num_return_sequences));
  CausalLmRows rows(model, prompts, options.max_new_tokens);
  return generate_tokens(context, rows, prompts, model.vocabulary(), options, numbers);
}

std::vector<std::int32_t> generate(Context& context, CausalLm& model,
                                   const std::vector<std::int32_t>& prompt,
                                   const GenerationOptions& options, std::uint32_t number,
                                   const std::function<bool(std::int32_t)>& on_token) {
  GenerationOptions how = options;
  if (on_token && !options.searches_beams())
    how.ends = [&](std::span<const std::int32_t> tokens) {
      return !on_token(tokens.back()) || (options.ends && options.ends(tokens));
    };
  return generate_batch(context, model, {prompt}, how, {.first = number}).front();
}

}  // namespace shoal::nn
