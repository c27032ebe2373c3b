// LoRA: a frozen linear layer learns a narrow correction (Hu et al., "LoRA: Low-Rank
// Adaptation of Large Language Models", 2021), as PEFT defines it:
//
//   y = activation(x·W + b + scale · drop(x)·Aᵀ·Bᵀ),  A [r, in], B [out, r]
//
// A starts with PEFT's values (Kaiming uniform, a = √5) and B with zeros, so an adapted layer first
// computes what it computed before. The factors are the layer's parameters lora_A.weight and
// lora_B.weight; weight and bias keep their names and files.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "shoal/nn/layers/layers.h"

namespace shoal::nn {

struct LoraOptions;

struct LoraConfig {  // one layer's adapter
  std::int64_t r = 8;
  float scale = 1;    // lora_alpha / r, or with rsLoRA lora_alpha / √r
  float dropout = 0;  // of the adapter's input
  // What add_lora() was given, for adapter_config.json; null: not made by it.
  std::shared_ptr<const LoraOptions> given{};
};

// The factors, as a child of the layer that they adapt (LinearLike::adapt()).
class Lora final : public Module {
 public:
  // `whole_in`: of the whole layer, which A's initial values depend on.
  Lora(const LoraConfig& config, std::int64_t in, std::int64_t out, std::int64_t whole_in);
  std::string_view kind() const override { return "Lora"; }
  const LoraConfig& config() const { return config_; }
  Parameter& a() { return *a_; }
  Parameter& b() { return *b_; }
  // scale · drop(x)·Aᵀ; x [.., in] -> [.., r]. `first`: place of x's channels in the whole
  // layer's input of `channels`.
  Value down(Context& context, const Value& x, std::int64_t first = 0, std::int64_t channels = 0);
  // sum + inner·Bᵀ; in place if sum has no other reference.
  Value up(Context& context, Value sum, const Value& inner);

  Slot<Dropout> dropout;

 private:
  LoraConfig config_;
  std::shared_ptr<Parameter> a_, b_;
};

// linear() with the layer's adapter; `lora` may be null.
Value adapted_linear(Context& context, const Value& x, Parameter& weight, Parameter* bias,
                     const LinearOptions& options, Lora* lora);

// Which layers of a model learn. The fields have PEFT's names and defaults.
struct LoraOptions {
  std::int64_t r = 8;
  double lora_alpha = 8, lora_dropout = 0;
  bool use_rslora = false;
  // Ends of the layers' names ("q_proj", "mlp.c_fc"), or only "all-linear": each linear layer
  // outside modules_to_save. Empty: the queries and values of each attention.
  std::vector<std::string> target_modules{};
  // Names of modules that are trained whole, such as a new head. Absent ones are ignored.
  std::vector<std::string> modules_to_save{};
  // For files (nn/models/adapter.h): the adapted model as adapter_config.json names it, and where
  // it is; PEFT's name of the task ("CAUSAL_LM").
  std::string base_model_name_or_path{}, base_directory{}, task_type{};
};

// lora_alpha / r, or with use_rslora lora_alpha / √r.
float lora_scale(const LoraOptions& options);

// Adapts the layers of `root` and freezes every other parameter outside modules_to_save. Call after
// name_tree(), before tensor parallelism and materialize(). Throws invalid_argument if a target
// names no linear layer, with the names there are. Returns the paths of the adapted layers.
std::vector<std::string> add_lora(Module& root, const LoraOptions& options);

// The adapted layers below `module`, in the order of the model.
std::vector<LinearLike*> adapted_layers(const Module& module);

}  // namespace shoal::nn
