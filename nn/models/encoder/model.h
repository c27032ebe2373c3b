// BERT and its relatives with a head, numerically equal to transformers'
// BertForMaskedLM, RobertaForSequenceClassification and so on. docs/internals/encoder-numerics.md
// lists the pitfalls.
#pragma once

#include <deque>
#include <optional>
#include <vector>

#include "shoal/nn/models/encoder/heads.h"
#include "shoal/nn/models/encoder/layers.h"

namespace shoal::nn {

// The units are the embeddings, each layer, and the head. Layers that share weights (ALBERT) are
// units with the same modules.
class Encoder final : public Chain {
 public:
  // Names the module tree; call materialize() next.
  Encoder(const EncoderConfig& config, EncoderTask task);
  std::string_view kind() const override { return "Encoder"; }
  const EncoderConfig& config() const { return config_; }
  EncoderTask task() const { return task_; }

  // The loss of a batch. Resets the random coordinates with begin_forward().
  LossOutput forward(Context& context, const ChainInput& input);
  // See TaskHead::logits(). Evaluate mode, without a tape. Ignores targets.
  Tensor logits(Context& context, const ChainInput& input);

  int units() const override { return static_cast<int>(config_.num_hidden_layers) + 2; }
  std::string unit_name(int unit) const override;
  std::vector<Module*> unit_modules(int unit) const override;
  std::int64_t channels() const override { return config_.hidden_size; }
  bool reads_target_rows() const override { return task_ == EncoderTask::masked_lm; }
  // The softmaxes of question answering, as those of transformers, run over padding too.
  bool computes_visible_rows() const override { return task_ != EncoderTask::question_answering; }
  ResidualStream forward_unit(Context& context, int unit, ResidualStream stream,
                              const ChainInput& input) override;
  LossOutput forward_head(Context& context, ResidualStream stream,
                          const ChainInput& input) override;
  Tensor head_logits(Context& context, ResidualStream stream, const ChainInput& input) override;

  // Keeps only each layer's input in forward(); backward recomputes the layer.
  void set_gradient_checkpointing(bool on) { gradient_checkpointing_ = on; }
  bool gradient_checkpointing() const override { return gradient_checkpointing_; }

  Slot<EncoderEmbeddings> embeddings;
  std::deque<Slot<EncoderBlock>> blocks;  // inner_group_num per group, or per layer without groups
  std::optional<Slot<NormLike>> final_norm;
  Slot<TaskHead> head;

 private:
  // Blocks of a layer; `use` counts earlier layers with the same blocks.
  struct Layer {
    std::size_t first_block = 0, blocks = 1;
    std::uint32_t use = 0;
  };
  Layer layer(int unit) const;
  Value last_states(Context& context, ResidualStream stream, const ChainInput& input);
  EncoderConfig config_;
  EncoderTask task_;
  bool gradient_checkpointing_ = false;
};

}  // namespace shoal::nn
