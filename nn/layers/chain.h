// A model as a chain of units (embeddings, blocks, head). Pipelines, the partitioner, checkpointing
// and parameter sharding work on units; the chain knows nothing of them.
//
//   const ChainInput input{.ids = ids, .targets = targets};  // i32 [B, T] each
//   context.begin_forward();                                 // once per microbatch
//   ResidualStream stream = forward_units(context, chain, 0, chain.units() - 1, {}, input);
//   const LossOutput output = forward_head(context, chain, 0, std::move(stream), input);
//   const double loss = context.read(output.loss_sum);  // waits for the stream
//
// Running units does not reset the random coordinates: begin_forward() does. Work is queued on
// context.stream. Wrong unit numbers and shapes throw invalid_argument.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "shoal/nn/layers/kinds.h"

namespace shoal::nn {

// The residual stream between sub-layers: residual + dropout(branch). The sum is pending so that
// the next norm can add and normalise in one pass. Without a branch, the stream is only the
// residual.
struct ResidualStream {
  Value residual;
  std::optional<Value> branch;
  DropoutSite dropout;
  // In the decoder of an encoder-decoder: the encoder's hidden states [B, S, C], for
  // cross-attention. Each decoder unit passes them on.
  std::optional<Value> encoded{};
  // Adds the pending branch.
  Value collapse(Context& context) &&;
  // What leaves a unit at a checkpoint or the end of a pipeline stage: the collapsed stream and, if
  // there are any, the encoder's hidden states.
  std::vector<Value> carried(Context& context) &&;
  static ResidualStream of(std::vector<Value> carried);  // from what carried() returned
  // Adds the pending branch and normalises; the sum becomes the new residual.
  Value norm(Context& context, NormLike& norm);
};

// One microbatch.
struct ChainInput {
  Tensor ids;  // i32 [B, T]
  // Targets of the head. Language models: i32 [B, T], shifted by the task. Other heads document
  // theirs. Negative: no target.
  Tensor targets;
  // Optional u8 [B, T], 1 for visible keys; or i32 [B], the number of leading visible keys of each
  // sample, which is faster (AttentionShape::key_mask).
  Tensor key_mask;
  LossOptions loss;
  Tensor token_types{};  // optional i32 [B, T]: segments (BERT); default 0
  // Optional i32 [B]: where a decoder that classifies reads a sample's state; or at the last one.
  Tensor ends{};
  // Optional, for decoders with packed rows: the starts of the sequences, i32 [B, n]
  // (AttentionShape::sequences), and each token's position in its sequence, i32 [B, T]
  // (positions_in()). Set both or neither; they exclude key_mask.
  Tensor sequences{}, positions{};
  // Optional i32 [n], for chains with reads_target_rows(): the positions with a target, as rows of
  // [B·T], each once. Negative entries are padding. The head then computes only these rows.
  Tensor target_rows{};
  // Optional, for chains with computes_visible_rows() and lengths as key_mask: visible_rows() on
  // the kernels' device. Only visible positions are computed. Keep it until backward has ended.
  VisibleRows visible{};
  // For encoder-decoders, where ids and key_mask are the encoder's: the decoder's ids i32 [B, T]
  // (shifted_right()), and optionally which of them are visible, as key_mask.
  Tensor decoder_ids{}, decoder_mask{};
  Decoding* decoding = nullptr;  // evaluation that generates texts token by token (decoding.h)
  // The tensors with a leading dimension B, for callers that slice or copy inputs.
  std::array<Tensor*, 9> tensors() {
    return {&ids,       &targets,   &key_mask,    &token_types, &ends,
            &sequences, &positions, &decoder_ids, &decoder_mask};
  }
};

// Computes ChainInput::positions from sequences i32 [B, n] in rows of `length` tokens, both in host
// memory. Throws invalid_argument if the starts of a row do not ascend from 0 to at most `length`.
Tensor positions_in(const Tensor& sequences, std::int64_t length, MemoryResource& memory);
// Computes ChainInput::target_rows from targets i32 [B, T], both in host memory. Negative entries
// pad to a multiple of `granularity`, which limits the number of different shapes.
Tensor rows_with_targets(const Tensor& targets, std::int64_t granularity, MemoryResource& memory);
// Returns about a sixteenth of the positions. An encoder's head computes 15 % of the positions; the
// padding costs it a few percent.
std::int64_t target_rows_granularity(const Tensor& targets);

class Chain : public Module {  // for a custom model, see Sequential
 public:
  // Unit 0 turns ids into hidden states [B, T, channels]; the last unit computes the loss.
  virtual int units() const = 0;
  virtual std::string unit_name(int unit) const = 0;  // "embeddings", "h.3", "head"
  // Modules whose parameters the unit reads. A tied parameter is read by two units.
  virtual std::vector<Module*> unit_modules(int unit) const = 0;
  virtual std::int64_t channels() const = 0;
  virtual int first_unit(const ChainInput&) const { return 0; }  // that has work, when decoding
  // Lengths of the hidden states that enter `unit` > 0 (ResidualStream::carried()).
  virtual std::vector<std::int64_t> lengths(int unit, const ChainInput& input) const;
  // True if the head computes positions independently, so that it can use target_rows.
  virtual bool reads_target_rows() const { return false; }
  // True if the units between the first and the last can compute only ChainInput::visible.
  virtual bool computes_visible_rows() const { return false; }
  // True if a caller that runs all units should keep only each unit's input (checkpoint_group 1).
  virtual bool gradient_checkpointing() const { return false; }

  // Runs any unit but the last. Unit 0 ignores `stream`.
  virtual ResidualStream forward_unit(Context& context, int unit, ResidualStream stream,
                                      const ChainInput& input) = 0;
  virtual LossOutput forward_head(Context& context, ResidualStream stream,
                                  const ChainInput& input) = 0;
  // The head's scores, [B, ..]; the head defines the shape. Not recorded on the tape.
  virtual Tensor head_logits(Context& context, ResidualStream stream, const ChainInput& input) = 0;

  // Parameters of one unit, in registration order.
  std::vector<Parameter*> unit_parameters(int unit) const;
};

// Notified before and after units compute, so that parameter sharding can gather and free values.
// The tape makes the backward calls; a checkpoint's recomputation counts as forward. An observer
// must outlive the tape. The `after` calls also happen when an exception ends a unit.
class UnitObserver {
 public:
  virtual ~UnitObserver() = default;
  // `next`: the unit expected next; -1 if unknown.
  virtual void before_forward(int unit, int next) = 0;
  virtual void after_forward(int unit) noexcept = 0;
  // Called around the computation of the unit's input gradients. Deferred weight gradients may
  // follow later.
  virtual void before_backward(int unit, int next) = 0;
  virtual void after_backward(int unit) noexcept = 0;
};

// Runs units [first, last), from Chain::first_unit() on, without the head. With checkpoint_group,
// each group of that many units keeps only its input (checkpoint()); unit 0 is not checkpointed,
// since its input is ids. `chain` and everything `input` refers to must outlive the tape.
ResidualStream forward_units(Context& context, Chain& chain, int first, int last,
                             ResidualStream stream, const ChainInput& input,
                             int checkpoint_group = 0, UnitObserver* observer = nullptr);
// Runs the head after forward_units(first, units() - 1, ...), with the same arguments.
LossOutput forward_head(Context& context, Chain& chain, int first, ResidualStream stream,
                        const ChainInput& input, int checkpoint_group = 0,
                        UnitObserver* observer = nullptr);
// Like forward_head(), in evaluation, and also returns the scores. No loss with input.decoding.
struct ScoredOutput {
  LossOutput loss;
  Tensor logits;
};
ScoredOutput score_head(Context& context, Chain& chain, ResidualStream stream,
                        const ChainInput& input, UnitObserver* observer = nullptr);

}  // namespace shoal::nn
