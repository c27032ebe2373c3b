#include "shoal/nn/models/generate.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "shoal/nn/autograd/device_values.h"
#include "shoal/runtime/base/error.h"

namespace shoal::nn {

std::int32_t pick_token(const float* logits, std::int64_t vocabulary,
                        const GenerationOptions& options, double uniform) {
  SHOAL_CHECK(vocabulary > 0, "a choice among {} tokens", vocabulary);
  options.check(vocabulary);
  SHOAL_CHECK(
      !options.searches_beams() && options.num_return_sequences == 1 &&
          options.repetition_penalty == 1 && options.no_repeat_ngram_size == 0 &&
          options.bad_words_ids.empty() && options.min_length == 0 && options.min_new_tokens == 0 &&
          options.min_p == 0 && !options.forced_bos_token_id && !options.forced_eos_token_id &&
          options.suppress_tokens.empty() && options.begin_suppress_tokens.empty() && !options.ends,
      "beams, score processors, min_p, forced tokens and ends() are not generated with yet");
  // NaN compares false with everything, so a broken model would always choose token 0. Infinite
  // weights below would do the same.
  for (std::int64_t i = 0; i < vocabulary; ++i)
    SHOAL_CHECK(!std::isnan(logits[i]), "the logit of token {} is NaN", i);
  const float* const best = std::max_element(logits, logits + vocabulary);
  SHOAL_CHECK(std::isfinite(*best), "the largest logit is {}: the model's numbers have overflowed",
              *best);
  if (!options.do_sample) return static_cast<std::int32_t>(best - logits);
  std::vector<std::int32_t> order(static_cast<std::size_t>(vocabulary));
  std::iota(order.begin(), order.end(), 0);
  const auto keep = static_cast<std::size_t>(options.top_k > 0 ? std::min(options.top_k, vocabulary)
                                                               : vocabulary);
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(keep), order.end(),
                    [&](std::int32_t a, std::int32_t b) {
                      return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
                    });
  order.resize(keep);
  std::vector<double> weight(keep);
  double total = 0;
  for (std::size_t i = 0; i < keep; ++i)
    total += weight[i] =
        std::exp((static_cast<double>(logits[order[i]]) - logits[order[0]]) / options.temperature);
  if (options.top_p < 1) {
    // The shortest prefix whose probability reaches top_p; never empty.
    double cumulative = 0;
    std::size_t kept = 0;
    while (kept < keep && cumulative < options.top_p * total) cumulative += weight[kept++];
    weight.resize(kept);
    total = cumulative;
  }
  double target = uniform * total;
  for (std::size_t i = 0; i < weight.size(); ++i) {
    target -= weight[i];
    if (target < 0) return order[i];
  }
  return order[weight.size() - 1];
}

std::vector<std::int32_t> generate(Context& context, CausalLm& model,
                                   const std::vector<std::int32_t>& prompt,
                                   const GenerationOptions& options, std::uint32_t sample,
                                   const std::function<bool(std::int32_t)>& on_token) {
  const auto length = static_cast<std::int64_t>(prompt.size());
  SHOAL_CHECK(length > 0, "generation needs a prompt of at least one token");
  SHOAL_CHECK(options.max_new_tokens >= 0 && length + options.max_new_tokens <= model.positions(),
              "a prompt of {} tokens and {} new ones; the model has {} positions", length,
              options.max_new_tokens, model.positions());
  std::vector<std::int32_t> tokens;
  if (options.max_new_tokens == 0) return tokens;
  DecoderCache cache = model.make_cache(context, 1, length + options.max_new_tokens);
  kernels::RandomSite site;
  site.seed = options.seed;
  site.site = hash_name("generate");
  for (std::size_t i = 0; i < prompt.size(); ++i)
    SHOAL_CHECK(prompt[i] >= 0 && prompt[i] < model.vocabulary(),
                "embedding: id {} at position {} of {} is outside [0, {})", prompt[i], i,
                prompt.size(), model.vocabulary());
  Tensor ids = context.upload(prompt.data(), {1, length}, DType::i32);
  std::vector<float> values(static_cast<std::size_t>(model.vocabulary()));
  const Tensor wide = context.empty({1, model.vocabulary()}, DType::f32);
  while (static_cast<std::int64_t>(tokens.size()) < options.max_new_tokens) {
    const Tensor logits = model.decode(context, ids, cache);
    context.kernels().elementwise().cast(logits, wide.view(), context.stream);
    copy_to_host(values.data(), wide, context.stream);
    const double uniform = kernels::uniform(kernels::random_bits(site, sample, tokens.size()));
    const std::int32_t token = pick_token(values.data(), model.vocabulary(), options, uniform);
    tokens.push_back(token);
    if (on_token && !on_token(token)) break;
    if (std::find(options.stop_tokens.begin(), options.stop_tokens.end(), token) !=
        options.stop_tokens.end())
      break;
    ids = context.upload(&token, {1, 1}, DType::i32);
  }
  return tokens;
}

}  // namespace shoal::nn
