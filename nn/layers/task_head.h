// Heads other than a language model's HeadLoss: classifiers, answer spans.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "shoal/nn/layers/chain.h"

namespace shoal::nn {

class TaskHead : public Module {
 public:
  // Hidden states [B, T, C] (or the rank's slice of positions). The head defines the targets.
  virtual LossOutput forward(Context& context, const Value& hidden, const ChainInput& input) = 0;
  // Scores of every class, as the head defines them.
  virtual Value logits(Context& context, const Value& hidden, const ChainInput& input) = 0;
};

// For ranks that hold a slice of every sequence: gives a head whole sequences (parallel/tensor).
class WholeSequences {
 public:
  using Head = std::function<LossOutput(const Value& hidden, const ChainInput& input)>;
  virtual ~WholeSequences() = default;
  // [B, slice, C] -> [B, T, C]
  virtual Value whole(Context& context, const Value& hidden) = 0;
  // The loss of all samples. Each rank calls `head` with whole sequences and with the targets of
  // its own share of the samples.
  virtual LossOutput share(Context& context, const Value& hidden, const ChainInput& input,
                           const Head& head) = 0;
};

// A head that must see every position of a sample.
class SampleHead : public TaskHead {
 public:
  std::string_view kind() const final { return "SampleHead"; }
  // Throws if it gets a slice of the positions and set_whole_sequences() was not called.
  LossOutput forward(Context& context, const Value& hidden, const ChainInput& input) final;
  Value logits(Context& context, const Value& hidden, const ChainInput& input) final {
    return scores(context, sequences_ ? sequences_->whole(context, hidden) : hidden, input);
  }
  void set_whole_sequences(std::unique_ptr<WholeSequences> sequences) {
    sequences_ = std::move(sequences);
  }

 protected:
  // Both receive whole sequences [B, T, C].
  virtual LossOutput loss(Context& context, const Value& hidden, const ChainInput& input) = 0;
  virtual Value scores(Context& context, const Value& hidden, const ChainInput& input) = 0;

 private:
  std::unique_ptr<WholeSequences> sequences_;
};

}  // namespace shoal::nn
