// How text is generated: transformers' GenerationConfig, with its names and definitions.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

namespace shoal::nn {

// When beam search stops once a text has `num_beams` ended sequences.
enum class EarlyStopping {
  never,        // "never": when no running beam can still become better
  heuristic,    // false: when the best running beam, at its present length, is not better
  immediately,  // true: at once
};

// A sequence's context is the prompt and the new tokens; for an encoder-decoder it is the start id
// and the new tokens. Scores are processed in the order of the fields from repetition_penalty on,
// then temperature, top_k, top_p, min_p. Beam search processes log-probabilities, not logits.
struct GenerationOptions {
  std::int64_t max_new_tokens = 20;
  bool do_sample = false;  // false: greedy, or beam search; the lowest id wins a tie
  double temperature = 1.0;
  std::int64_t top_k = 50;  // 0: all; tokens that tie with the last one stay
  double top_p = 1.0;       // 1: all
  std::uint64_t seed = 42;
  // End a sequence, and are kept in the output; usually end-of-text.
  std::vector<std::int32_t> stop_tokens = {};
  double min_p = 0;  // the least probability, relative to the likeliest token's; 0: all

  std::int64_t num_beams = 1;  // 1: no beam search
  std::int64_t num_return_sequences =
      1;                      // of each prompt; at most num_beams, if beams are searched
  double length_penalty = 1;  // beams compare log-probability / length^length_penalty
  EarlyStopping early_stopping = EarlyStopping::heuristic;

  // Divides positive scores of tokens in the context and multiplies negative ones (CTRL, Keskar et
  // al., 2019); 1: none.
  double repetition_penalty = 1;
  std::int64_t no_repeat_ngram_size = 0;  // no n-gram occurs twice in a context; 0: they may
  std::vector<std::vector<std::int32_t>> bad_words_ids = {};  // never generated
  std::int64_t min_length = 0;      // no stop token before the context has this length
  std::int64_t min_new_tokens = 0;  // no stop token before this many new tokens
  // The token after a context of one token, and the last of max_new_tokens. An encoder-decoder
  // takes its model's (generation_config.json) where these are absent.
  std::optional<std::int32_t> forced_bos_token_id{}, forced_eos_token_id{};
  std::vector<std::int32_t> suppress_tokens = {};        // never generated
  std::vector<std::int32_t> begin_suppress_tokens = {};  // not generated first

  // Ends the sequence with these new tokens if it returns true; for stop strings. Null: none.
  std::function<bool(std::span<const std::int32_t>)> ends{};

  // Throws invalid_argument on impossible values and token ids outside the vocabulary.
  void check(std::int64_t vocabulary) const;
  bool searches_beams() const { return num_beams > 1; }
};

// Text i of a batch has the number first + i * stride. The number decides which random numbers
// sample the text.
struct TextNumbers {
  std::uint32_t first = 0, stride = 1;
  std::uint32_t of(std::int64_t text) const {
    return first + static_cast<std::uint32_t>(text) * stride;
  }
};

}  // namespace shoal::nn
