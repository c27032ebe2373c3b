#include "shoal/nn/models/generation/options.h"

#include <cmath>
#include <string_view>

#include "shoal/runtime/base/error.h"

namespace shoal::nn {

void GenerationOptions::check(std::int64_t vocabulary) const {
  SHOAL_CHECK(max_new_tokens >= 0, "max_new_tokens {} is negative", max_new_tokens);
  SHOAL_CHECK(!do_sample || (temperature > 0 && std::isfinite(temperature)),
              "temperature {} is not above 0; greedy is do_sample false", temperature);
  SHOAL_CHECK(top_k >= 0, "top_k {} is negative", top_k);
  SHOAL_CHECK(top_p > 0 && top_p <= 1, "top_p {} is not in (0, 1]", top_p);
  SHOAL_CHECK(min_p >= 0 && min_p <= 1, "min_p {} is not in [0, 1]", min_p);
  SHOAL_CHECK(num_beams >= 1, "num_beams {} is not at least 1", num_beams);
  SHOAL_CHECK(!do_sample || !searches_beams(),
              "num_beams {} with do_sample: beams are searched, not sampled; set one of them "
              "(num_beams 1, or do_sample false)",
              num_beams);
  SHOAL_CHECK(num_return_sequences >= 1 && (do_sample || num_return_sequences <= num_beams),
              "num_return_sequences {} with num_beams {}: without sampling there are as many "
              "sequences as beams",
              num_return_sequences, num_beams);
  SHOAL_CHECK(std::isfinite(length_penalty), "length_penalty {} is not a number", length_penalty);
  SHOAL_CHECK(repetition_penalty > 0 && std::isfinite(repetition_penalty),
              "repetition_penalty {} is not above 0; 1 is none", repetition_penalty);
  SHOAL_CHECK(no_repeat_ngram_size >= 0, "no_repeat_ngram_size {} is negative",
              no_repeat_ngram_size);
  SHOAL_CHECK(min_length >= 0 && min_new_tokens >= 0,
              "min_length {} or min_new_tokens {} is negative", min_length, min_new_tokens);
  const auto check_id = [&](std::string_view name, std::int32_t id) {
    SHOAL_CHECK(id >= 0 && id < vocabulary, "{}: {} is outside the model's vocabulary of {}", name,
                id, vocabulary);
  };
  const auto check_ids = [&](std::string_view name, const std::vector<std::int32_t>& ids) {
    for (const std::int32_t id : ids) check_id(name, id);
  };
  if (forced_bos_token_id) check_id("forced_bos_token_id", *forced_bos_token_id);
  if (forced_eos_token_id) check_id("forced_eos_token_id", *forced_eos_token_id);
  check_ids("suppress_tokens", suppress_tokens);
  check_ids("begin_suppress_tokens", begin_suppress_tokens);
  for (const auto& word : bad_words_ids) {
    SHOAL_CHECK(!word.empty(), "bad_words_ids has an empty list; give each word's ids");
    check_ids("bad_words_ids", word);
  }
}

}  // namespace shoal::nn
