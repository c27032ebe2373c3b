// Encoder-decoders with a language model's head, numerically equal to transformers'
// T5ForConditionalGeneration and BartForConditionalGeneration. docs/internals/encoder-decoders.md
// lists the pitfalls.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "shoal/nn/models/encoder_decoder/stack.h"
#include "shoal/nn/models/generation_config.h"
#include "shoal/nn/models/huggingface.h"

namespace shoal::nn {

// The state of generation for a batch.
struct EncoderDecoderCache {
  Tensor encoded, key_mask;           // the encoder's hidden states [B, S, C], and their mask
  std::vector<KeyValueCache> selves;  // one per block of the decoder, as `crosses`
  std::vector<EncodedKeys> crosses;
  // Row r becomes the present row rows[r], and text t (a row of the encoder's) the present text
  // texts[t]; each text has as many rows, side by side. After the first decode().
  void select(Context& context, std::span<const std::int64_t> rows,
              std::span<const std::int64_t> texts);
};

// The units are the encoder's embeddings, its blocks, the border (the end of the encoder and the
// decoder's embeddings), the decoder's blocks, and the end of the decoder with the head. Units
// behind the border pass the encoder's hidden states on (ResidualStream::encoded).
class EncoderDecoder final : public Chain {
 public:
  // Names the module tree; call materialize() next.
  explicit EncoderDecoder(const EncoderDecoderConfig& config);
  std::string_view kind() const override { return "EncoderDecoder"; }
  const EncoderDecoderConfig& config() const { return config_; }
  std::string describe() const;  // "t5, 6 and 6 layers of width 512, ..."

  // The loss of a batch: ids and key_mask are the encoder's, decoder_ids the decoder's, targets i32
  // [B, T] what it should predict. Resets the random coordinates with begin_forward().
  LossOutput forward(Context& context, const ChainInput& input);
  // Scores of every position of the decoder, [B, T, V]. Evaluate mode, without a tape.
  Tensor logits(Context& context, const ChainInput& input);

  // Incremental decoding. encode() runs the encoder and makes room for `capacity` ids of the
  // decoder. decode() appends ids [rows, 1] and returns the logits [rows, V] that follow them; rows
  // are the B texts, until select() gives each text several.
  EncoderDecoderCache encode(Context& context, const Tensor& ids, const Tensor& key_mask,
                             std::int64_t capacity);
  Tensor decode(Context& context, const Tensor& ids, EncoderDecoderCache& cache);

  int units() const override { return encoder->blocks() + decoder->blocks() + 3; }
  std::string unit_name(int unit) const override;
  std::vector<Module*> unit_modules(int unit) const override;
  std::int64_t channels() const override { return config_.d_model; }
  std::vector<std::int64_t> lengths(int unit, const ChainInput& input) const override;
  ResidualStream forward_unit(Context& context, int unit, ResidualStream stream,
                              const ChainInput& input) override;
  LossOutput forward_head(Context& context, ResidualStream stream,
                          const ChainInput& input) override;
  Tensor head_logits(Context& context, ResidualStream stream, const ChainInput& input) override;

  // Keeps only each unit's input in forward(); backward recomputes the unit.
  void set_gradient_checkpointing(bool on) { gradient_checkpointing_ = on; }
  bool gradient_checkpointing() const override { return gradient_checkpointing_; }

  // Like load_weights(), with all names that files may use; also keeps generation_config.json.
  LoadReport load(const std::string& directory, const AssignParameter& assign);
  // Makes save_config() write the directory's generation_config.json. load() implies it.
  void keep_generation_config(const std::string& directory) { generation_.keep(directory); }
  // Writes config.json and generation_config.json and returns their names. `dtype` is the dtype of
  // the saved weights.
  std::vector<std::string> save_config(const std::string& directory, DType dtype) const;
  // "forced_bos_token_id" and so on, of generation_config.json or, without one, of config.json.
  std::optional<std::int64_t> generation_id(const std::string& name) const {
    return generation_.id(name, config_.known_fields());
  }
  void set_generation_id(const std::string& name, std::int64_t id) { generation_.set(name, id); }

  Slot<EmbeddingLike> shared;  // read by both stacks and by a tied head
  Slot<Stack> encoder, decoder;
  Slot<HeadLoss> head;

 private:
  int border() const { return encoder->blocks() + 1; }
  Value hidden_states(Context& context, ResidualStream stream, const ChainInput& input);
  // Normed, and scaled for the head.
  Value last_states(Context& context, ResidualStream stream);
  EncoderDecoderConfig config_;
  bool gradient_checkpointing_ = false;
  GenerationConfig generation_;
};

// The decoder's ids for `targets` i32 [B, T] in host memory: the start id (mBART: the last target),
// then the targets, where ids without a target (negative) become padding.
Tensor shifted_right(const Tensor& targets, const EncoderDecoderConfig& config,
                     MemoryResource& memory);

}  // namespace shoal::nn
