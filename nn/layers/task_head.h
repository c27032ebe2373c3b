// What a model ends in, where that is more than a language model's HeadLoss: classifiers, answers'
// places.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "shoal/nn/layers/chain.h"

namespace shoal::nn {

class TaskHead : public Module {
 public:
  // Hidden states [B, T, C] (or the rank's part of the positions); targets as the head says.
  virtual LossOutput forward(Context& context, const Value& hidden, const ChainInput& input) = 0;
  // Its scores of every class, as the head says.
  virtual Value logits(Context& context, const Value& hidden, const ChainInput& input) = 0;
};

// Where a rank has a part of every sequence: gives a head whole ones (parallel/tensor).
class WholeSequences {
 public:
  using Head = std::function<LossOutput(const Value& hidden, const ChainInput& input)>;
  virtual ~WholeSequences() = default;
  // [B, a part, C] -> [B, T, C]
  virtual Value whole(Context& context, const Value& hidden) = 0;
  // The loss of all samples; `head` is called with whole sequences and, on each rank, the targets
  // of other samples.
  virtual LossOutput share(Context& context, const Value& hidden, const ChainInput& input,
                           const Head& head) = 0;
};

// One that must see every position of a sample.
class SampleHead : public TaskHead {
 public:
  std::string_view kind() const final { return "SampleHead"; }
  // Refuses a part of the positions where nobody set_whole_sequences().
  LossOutput forward(Context& context, const Value& hidden, const ChainInput& input) final;
  Value logits(Context& context, const Value& hidden, const ChainInput& input) final {
    return scores(context, sequences_ ? sequences_->whole(context, hidden) : hidden, input);
  }
  void set_whole_sequences(std::unique_ptr<WholeSequences> sequences) {
    sequences_ = std::move(sequences);
  }

 protected:
  // Of whole sequences [B, T, C].
  virtual LossOutput loss(Context& context, const Value& hidden, const ChainInput& input) = 0;
  virtual Value scores(Context& context, const Value& hidden, const ChainInput& input) = 0;

 private:
  std::unique_ptr<WholeSequences> sequences_;
};

}  // namespace shoal::nn
