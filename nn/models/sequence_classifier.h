// Decoders that give a class, or numbers, to a whole text: what tasks need of them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "shoal/nn/layers/chain.h"
#include "shoal/nn/models/huggingface.h"

namespace shoal::nn {

// The state of the sample's last token (ChainInput::ends) through a matrix without bias. Targets
// i32 [B], or where it gives numbers f32 [B, labels], NaN: none. Scores [B, labels].
class SequenceClassifier : public Chain {
 public:
  virtual std::string describe() const = 0;  // "llama, 2 layers of width 12, ..."
  virtual std::int64_t vocabulary() const = 0;
  virtual std::int64_t positions() const = 0;
  virtual std::int64_t labels() const = 0;
  virtual bool regression() const = 0;  // numbers, not classes
  // The id that fills samples up: a sample ends with the last other one, as transformers has it.
  virtual std::optional<std::int64_t> padding() const = 0;
  // As load_weights(); the head may be missing. Writes config.json and returns its name.
  virtual LoadReport load(const std::string& directory, const AssignParameter& assign) = 0;
  virtual std::vector<std::string> save_config(const std::string& directory, DType dtype) const = 0;
  virtual nlohmann::json configuration() const = 0;  // what save_config() writes

  // The loss of a batch. Starts a new forward for random coordinates.
  LossOutput forward(Context& context, const ChainInput& input);
  // Evaluate mode, nothing recorded. Targets are not looked at.
  Tensor logits(Context& context, const ChainInput& input);
  // forward() keeps only each block's input, and backward runs the block again.
  void set_gradient_checkpointing(bool on) { gradient_checkpointing_ = on; }

 private:
  bool gradient_checkpointing_ = false;
};

// Of a config.json by its model_type; `source` names it in messages.
std::unique_ptr<SequenceClassifier> make_sequence_classifier(const nlohmann::json& config,
                                                             std::string_view source);
bool has_sequence_classifier(std::string_view model_type);

}  // namespace shoal::nn
