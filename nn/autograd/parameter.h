// A parameter, its gradient and what the rest of the house may attach to them.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shoal/runtime/tensor/tensor.h"

namespace shoal::nn {

// How a parameter starts. Normal values are drawn by (seed, hash of the name, element), so any
// shard of the tensor can be initialised by itself (decision 10).
struct Initializer {
  enum class Kind : std::uint8_t { zeros, ones, normal } kind = Kind::zeros;
  float std = 0;
};

// A box of a parameter, and where the same box lies in the whole tensor, which a checkpoint knows
// (decision 13). A quarter of a fused qkv projection has three.
struct ParameterPiece {
  Shape sizes;  // of the box
  Shape local;  // its corner in the parameter
  Shape whole;  // and in the whole tensor
  bool operator==(const ParameterPiece&) const = default;
};

// FNV-1a, 32 bits: how paths and names become random coordinates.
std::uint32_t hash_name(std::string_view name);

class Parameter {
 public:
  // A whole tensor: one piece.
  Parameter(std::string name, Shape shape, Initializer initializer);
  Parameter(const Parameter&) = delete;
  Parameter& operator=(const Parameter&) = delete;

  const std::string& name() const { return name_; }  // full path once the tree is named
  void set_name(std::string name) { name_ = std::move(name); }
  const Shape& shape() const { return shape_; }

  // --- what of the whole tensor it is: parallelism gives a rank parts only ---------------------
  const Shape& whole_shape() const { return whole_shape_; }
  std::span<const ParameterPiece> pieces() const { return pieces_; }
  bool is_part() const { return is_part_; }
  // Before it is materialised. The pieces must cover the parameter, each element once, and lie
  // within `whole`, of the same rank; else throws.
  void set_part(const Shape& whole, std::vector<ParameterPiece> pieces);

  const Initializer& initializer() const { return initializer_; }
  // Weight decay applies (not to biases and LayerNorms, as Hugging Face's trainer has it).
  bool decays() const { return decays_; }
  void set_decays(bool decays) { decays_ = decays; }
  bool trainable() const { return trainable_; }
  void set_trainable(bool trainable) { trainable_ = trainable; }

  // What forward reads: `shape` in the compute dtype. Undefined until materialised.
  Tensor value;
  // f32, `shape`, contiguous; often a view into a gradient bucket. Allocated by whoever owns the
  // step (Reducer or Trainer) before the first backward.
  Tensor gradient;

  // --- gradient accumulation, for Function::backward's weight work -----------------------------
  // True when `gradient` already holds a sum this step: add to it. False: overwrite it (and this
  // call makes it true). Spares a pass of zeroing.
  bool accumulate();
  // Called by accumulate() when it will return false, before the memory is looked at: for whoever
  // gives `gradient` its bytes only while they are needed.
  void set_prepare_hook(std::function<void(Parameter&)> hook) { prepare_ = std::move(hook); }
  bool has_gradient() const { return has_gradient_; }
  // Start of a step: the next write overwrites. What no backward reaches keeps the last step's
  // numbers; the Reducer zeroes it, who steps without one must.
  void clear_gradient() { has_gradient_ = false; }

  // --- readiness (decision 7) ---------------------------------------------------------------
  // Forward notes each use on any tape; a use ends when its weight gradient has been added or its
  // tape is dropped. When the last use ends while the parameter is armed, the hook runs, once, and
  // disarms. Tied weights and shared layers therefore fire once.
  void begin_use() { ++uses_; }
  void end_use();
  int uses() const { return uses_; }
  void set_ready_hook(std::function<void(Parameter&)> hook) { hook_ = std::move(hook); }
  void arm() { armed_ = true; }  // by the Reducer, before the last microbatch's backward
  bool armed() const { return armed_; }

 private:
  std::string name_;
  Shape shape_, whole_shape_;
  std::vector<ParameterPiece> pieces_;
  Initializer initializer_;
  std::function<void(Parameter&)> hook_, prepare_;
  int uses_ = 0;
  bool decays_ = true, trainable_ = true, armed_ = false, has_gradient_ = false, is_part_ = false;
};

}  // namespace shoal::nn
