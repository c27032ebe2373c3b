// A model as a chain of units (embeddings, blocks, head): what a pipeline cuts, a partitioner
// weighs, and checkpointing and parameter sharding take one at a time. A chain knows nothing of
// them. Unlike a whole forward, running units does not start new random coordinates: whoever
// begins a microbatch calls context.begin_forward().
#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "shoal/nn/layers/kinds.h"

namespace shoal::nn {

// The residual stream between sub-layers: residual + dropout(branch), not yet added, because the
// next norm adds and normalises in one pass. Without a branch, the residual alone.
struct ResidualStream {
  Value residual;
  std::optional<Value> branch;
  DropoutSite dropout;
  // Adds what is pending, for who sends the stream away (checkpoint, a pipeline's stage).
  Value collapse(Context& context) &&;
  // Adds it and normalises; the stream then is the sum.
  Value norm(Context& context, NormLike& norm);
};

// One microbatch. Every rank of a pipeline has it.
struct ChainInput {
  Tensor ids;  // i32 [B, T]
  // What the head asks for, of each sample: i32 [B, T], shifted by the task (language models), or
  // what its header says. A negative class: none.
  Tensor targets;
  // Optional u8 [B, T], 1 where a key may be seen; or i32 [B]: how many of a sample's keys may be,
  // from the first on, which is quicker (AttentionShape::key_mask).
  Tensor key_mask;
  LossOptions loss;
  Tensor token_types{};  // optional i32 [B, T]: which segment (BERT); without: all 0
  // Optional i32 [B]: the position whose state stands for the sample, where the head asks for one
  // (decoders that classify); without: the last one.
  Tensor ends{};
  // Optional, of rows that hold several texts which do not see each other (decoders): where they
  // begin, i32 [B, n], as AttentionShape::sequences; and each token's position in its own, i32 [B,
  // T], as positions_in(). Both or neither; there is no key_mask then.
  Tensor sequences{}, positions{};
  // Optional i32 [n], for a chain that reads_target_rows(): all positions that have a target, as
  // rows of [B·T], each once; a negative one is none. The head then computes these rows alone.
  Tensor target_rows{};
  // AttentionInput::of_group of all its layers.
  std::shared_ptr<std::optional<GroupAttentionInput>> of_group{};
  // Those that are [B, ..], for who cuts or copies whole inputs.
  std::array<Tensor*, 7> tensors() {
    return {&ids, &targets, &key_mask, &token_types, &ends, &sequences, &positions};
  }
};

// ChainInput::positions of sequences i32 [B, n] in rows of `length` tokens, both in host memory.
// invalid_argument where a row's do not ascend from 0 to at most `length`.
Tensor positions_in(const Tensor& sequences, std::int64_t length, MemoryResource& memory);
// ChainInput::target_rows of targets i32 [B, T], both in host memory. Negative ones make up a
// multiple of `granularity`, so that batches have few different numbers of rows.
Tensor rows_with_targets(const Tensor& targets, std::int64_t granularity, MemoryResource& memory);
// A sixteenth of the positions: the rounding costs an encoder's head (15 % of them) a few percent.
std::int64_t target_rows_granularity(const Tensor& targets);

class Chain : public Module {
 public:
  // Unit 0 makes hidden states [B, T, channels] of ids, the last one makes the loss of them.
  virtual int units() const = 0;
  virtual std::string unit_name(int unit) const = 0;  // "embeddings", "h.3", "head"
  // Whose parameters the unit reads. A tied parameter is read by two units.
  virtual std::vector<Module*> unit_modules(int unit) const = 0;
  virtual std::int64_t channels() const = 0;
  // Whether its head computes each position by itself and may be told which ones have targets.
  virtual bool reads_target_rows() const { return false; }

  // Any unit but the last. `stream` is passed over by unit 0.
  virtual ResidualStream forward_unit(Context& context, int unit, ResidualStream stream,
                                      const ChainInput& input) = 0;
  virtual LossOutput forward_head(Context& context, ResidualStream stream,
                                  const ChainInput& input) = 0;
  // The last unit's scores of every class, [B, ..], as its head says; nothing is recorded.
  virtual Tensor head_logits(Context& context, ResidualStream stream, const ChainInput& input) = 0;

  // Of one unit, in the order of registration.
  std::vector<Parameter*> unit_parameters(int unit) const;
};

// Is told when units are about to compute and when they have: parameter sharding brings the values
// and drops them. Backward's calls come from the tape, a checkpoint's recomputation is a forward.
// Must outlive the tape. The `after` calls also come where an exception ends a unit.
class UnitObserver {
 public:
  virtual ~UnitObserver() = default;
  // `next`: the unit that will probably be asked for after this one; -1 where nothing is known.
  virtual void before_forward(int unit, int next) = 0;
  virtual void after_forward(int unit) noexcept = 0;
  // Input gradients are about to be computed, have been. Deferred weight gradients may come later.
  virtual void before_backward(int unit, int next) = 0;
  virtual void after_backward(int unit) noexcept = 0;
};

// Runs units [first, last), the head not among them. checkpoint_group > 0: that many consecutive
// units at a time keep their input only (checkpoint()); unit 0 keeps everything, its input being
// ids. `chain` and what `input` refers to must outlive the tape.
ResidualStream forward_units(Context& context, Chain& chain, int first, int last,
                             ResidualStream stream, const ChainInput& input,
                             int checkpoint_group = 0, UnitObserver* observer = nullptr);
// Runs the head, after forward_units(first, units() - 1, ...) with the same arguments.
LossOutput forward_head(Context& context, Chain& chain, int first, ResidualStream stream,
                        const ChainInput& input, int checkpoint_group = 0,
                        UnitObserver* observer = nullptr);
// The same in evaluation, with the scores.
struct ScoredOutput {
  LossOutput loss;
  Tensor logits;
};
ScoredOutput score_head(Context& context, Chain& chain, ResidualStream stream,
                        const ChainInput& input, UnitObserver* observer = nullptr);

}  // namespace shoal::nn
