// Chooses the tokens of one text: greedily, by sampling, or by beam search. Pure bookkeeping on the
// host: the caller brings the scores (generate_tokens(), and the Trainer where ranks share a
// model).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "shoal/nn/models/generation/options.h"

namespace shoal::nn {

class TokenSearch {
 public:
  // Row `row` of the next step continues row `row` of this one with `token`.
  struct Continuation {
    std::int64_t row = 0;
    std::int32_t token = 0;
  };
  virtual ~TokenSearch() = default;
  // Number of rows that continue the text at once, after the first step.
  virtual std::int64_t rows() const = 0;
  // Takes the logits [V] that follow `row`; before the first advance() the only row is 0.
  virtual void score(std::int64_t row, std::span<const float> logits) = 0;
  // Chooses the next tokens after all rows have scores. Returns rows() continuations, or none if
  // the text has ended.
  virtual std::vector<Continuation> advance() = 0;
  // The new tokens of num_return_sequences sequences, the best first.
  virtual std::vector<std::vector<std::int32_t>> results() const = 0;
};

// `context`: the ids before the first new token. `number`: TextNumbers. `options` must outlive the
// search.
std::unique_ptr<TokenSearch> make_search(const GenerationOptions& options,
                                         std::vector<std::int32_t> context, std::uint32_t number);

}  // namespace shoal::nn
