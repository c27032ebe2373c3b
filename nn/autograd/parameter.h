// A parameter, its gradient and their hooks.
//
//   for (Parameter* parameter : unit.parameters()) parameter->set_trainable(false);  // freezes it
//
// Not thread-safe. No call blocks.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shoal/runtime/tensor/tensor.h"

namespace shoal::nn {

// Initial values of a parameter. Random values depend on (seed, hash of the name, element), so that
// any shard can be initialised independently (decision 10). uniform: in [-√3·std, √3·std).
struct Initializer {
  enum class Kind : std::uint8_t { zeros, ones, normal, uniform } kind = Kind::zeros;
  float std = 0;
};

// A box of a parameter and its position in the whole tensor, as stored in a checkpoint (decision
// 13). One rank's quarter of a fused qkv projection consists of three pieces.
struct ParameterPiece {
  Shape sizes;  // size of the box
  Shape local;  // corner within the parameter
  Shape whole;  // corner within the whole tensor
  bool operator==(const ParameterPiece&) const = default;
};

// 32-bit FNV-1a. Maps paths and names to random coordinates.
std::uint32_t hash_name(std::string_view name);

class Parameter {  // owned by the modules that use it
 public:
  // A whole tensor, with one piece.
  Parameter(std::string name, Shape shape, Initializer initializer);
  Parameter(const Parameter&) = delete;
  Parameter& operator=(const Parameter&) = delete;

  const std::string& name() const { return name_; }  // the full path once the module tree is named
  void set_name(std::string name) { name_ = std::move(name); }
  const Shape& shape() const { return shape_; }

  // --- part of the whole tensor: under parallelism a rank may hold only some pieces -------------
  const Shape& whole_shape() const { return whole_shape_; }
  std::span<const ParameterPiece> pieces() const { return pieces_; }
  bool is_part() const { return is_part_; }
  // Call before materialisation. The pieces must cover each element of the parameter exactly once,
  // lie within `whole`, and have its rank; otherwise throws invalid_argument.
  void set_part(const Shape& whole, std::vector<ParameterPiece> pieces);
  // True if this rank applies the whole parameter only to its part of the channels (a norm of its
  // own heads): its gradient is a partial sum, although every rank sees the same samples.
  bool applies_to_part() const { return applies_to_part_; }
  void set_applies_to_part() { applies_to_part_ = true; }

  const Initializer& initializer() const { return initializer_; }
  // True if weight decay applies: not to biases and LayerNorms, as in Hugging Face's Trainer.
  bool decays() const { return decays_; }
  void set_decays(bool decays) { decays_ = decays; }
  bool trainable() const { return trainable_; }
  void set_trainable(bool trainable) { trainable_ = trainable; }

  // Read by forward: `shape` in the compute dtype. Undefined until materialised.
  Tensor value;
  // f32, `shape`, contiguous; often a view into a gradient bucket. The owner of the step (Reducer
  // or Trainer) allocates it before the first backward.
  Tensor gradient;

  // --- gradient accumulation, for the weight work of Function::backward -------------------------
  // True if `gradient` already holds a sum of this step: add to it. False: overwrite it; later
  // calls return true. This saves a zeroing pass.
  bool accumulate();
  // accumulate() calls the hook before it returns false and before it checks `gradient`. An owner
  // can use it to allocate the gradient's memory on first use.
  void set_prepare_hook(std::function<void(Parameter&)> hook) { prepare_ = std::move(hook); }
  bool has_gradient() const { return has_gradient_; }
  // Starts a step: the next write overwrites. A gradient that no backward reaches keeps old values.
  // The Reducer zeroes those; a caller without a Reducer must zero them itself.
  void clear_gradient() { has_gradient_ = false; }

  // --- readiness (decision 7) ---------------------------------------------------------------
  // Forward begins a use for each recorded operation. A use ends when its weight gradient has been
  // added or its tape is dropped. The hook runs when the last use of an armed parameter ends, and
  // disarms it. Tied weights and shared layers therefore fire once.
  void begin_use() { ++uses_; }
  void end_use();
  int uses() const { return uses_; }
  void set_ready_hook(std::function<void(Parameter&)> hook) { hook_ = std::move(hook); }
  void arm() { armed_ = true; }  // called by the Reducer before the last microbatch's backward
  bool armed() const { return armed_; }

 private:
  std::string name_;
  Shape shape_, whole_shape_;
  std::vector<ParameterPiece> pieces_;
  Initializer initializer_;
  std::function<void(Parameter&)> hook_, prepare_;
  int uses_ = 0;
  bool decays_ = true, trainable_ = true, armed_ = false, has_gradient_ = false, is_part_ = false,
       applies_to_part_ = false;
};

}  // namespace shoal::nn
