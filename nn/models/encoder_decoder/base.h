// What encoder-decoders have in common, whatever their head: the chain of units, and directories.
// docs/internals/encoder-decoders.md lists the pitfalls.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shoal/nn/models/encoder_decoder/stack.h"
#include "shoal/nn/models/generation_config.h"
#include "shoal/nn/models/huggingface.h"

namespace shoal::nn {

// The units are the encoder's embeddings, its blocks, the border (the end of the encoder and the
// decoder's embeddings), the decoder's blocks, and the end of the decoder with the head. Units
// behind the border pass the encoder's hidden states on (ResidualStream::encoded). Some heads
// (StackHead) have no decoder: the units are then the encoder's embeddings, its blocks, and its end
// with the head.
class EncoderDecoderBase : public Chain {
 public:
  const EncoderDecoderConfig& config() const { return config_; }
  virtual DecoderHead head_kind() const = 0;
  std::string describe() const;  // "t5, 6 and 6 layers of width 512, ..."

  // The loss of a batch: ids and key_mask are the encoder's, decoder_ids the decoder's; the head
  // says what the targets are. Resets the random coordinates with begin_forward().
  LossOutput forward(Context& context, const ChainInput& input);
  // The head's scores. Evaluate mode, without a tape. With input.decoding, those of the newest ids.
  Tensor logits(Context& context, const ChainInput& input);

  int units() const override { return border() + (decoder ? (*decoder)->blocks() + 2 : 1); }
  std::string unit_name(int unit) const override;
  std::vector<Module*> unit_modules(int unit) const override;
  std::int64_t channels() const override { return config_.d_model; }
  int first_unit(const ChainInput& input) const override;
  std::vector<std::int64_t> lengths(int unit, const ChainInput& input) const override;
  ResidualStream forward_unit(Context& context, int unit, ResidualStream stream,
                              const ChainInput& input) override;

  // Keeps only each unit's input in forward(); backward recomputes the unit.
  void set_gradient_checkpointing(bool on) { gradient_checkpointing_ = on; }
  bool gradient_checkpointing() const override { return gradient_checkpointing_; }

  // Like load_weights(), with all names that files may use; also keeps a language model's
  // generation_config.json. Other heads may be missing.
  LoadReport load(const std::string& directory, const AssignParameter& assign);
  // Makes save_config() write the directory's generation_config.json. load() implies it. Only for
  // language models.
  void keep_generation_config(const std::string& directory);
  // Writes config.json, and for a language model generation_config.json, and returns their names.
  // `dtype` is the dtype of the saved weights.
  std::vector<std::string> save_config(const std::string& directory, DType dtype) const;

  Slot<EmbeddingLike> shared;  // read by both stacks and by a tied head
  Slot<Stack> encoder;
  std::optional<Slot<Stack>> decoder;

 protected:
  // `place`: the names of the trunk below the head, and whether there is a decoder.
  EncoderDecoderBase(const EncoderDecoderConfig& config, const StackHead& place);
  virtual Module& head_module() const = 0;
  int border() const { return encoder->blocks() + 1; }
  // The last hidden states, [B, T, C] of the decoder or, without one, of the encoder.
  Value hidden_states(Context& context, ResidualStream stream, const ChainInput& input);
  GenerationConfig generation_;

 private:
  EncoderDecoderConfig config_;
  bool gradient_checkpointing_ = false;
};

}  // namespace shoal::nn
