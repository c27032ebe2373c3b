// Modules form a named tree. Children sit in typed slots, so that parallelism can replace a layer by
// another of the same kind without the model knowing (parallel/apply).
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "shoal/nn/autograd/context.h"

namespace shoal::nn {

class Module {
 public:
  virtual ~Module() = default;
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  virtual std::string_view kind() const = 0;  // "Linear"
  // "transformer.h.3.attn.c_attn" once the root called name_tree(); names are Hugging Face's.
  const std::string& path() const { return path_; }
  std::uint32_t path_hash() const { return path_hash_; }
  void name_tree(std::string_view path = {});

  struct Child {
    std::string name;
    Module* module;
  };
  std::vector<Child> children() const;
  // Own parameters, then the children's, in registration order; a shared parameter appears once.
  std::vector<Parameter*> parameters() const;

  // Gives every parameter memory and its initial value (seed, name). Values in `dtype`;
  // the same bits whatever the dtype of other parameters or the order of calls.
  void materialize(Context& context, DType dtype);

 protected:
  Module() = default;
  std::shared_ptr<Parameter> add_parameter(std::string name, Shape shape, Initializer initializer,
                                           bool decays = true);
  // A parameter that another module owns too (tied weights).
  void share_parameter(std::string name, std::shared_ptr<Parameter> parameter);

 private:
  template <typename>
  friend class Slot;
  struct NamedParameter {
    std::string name;
    std::shared_ptr<Parameter> parameter;
    bool owned;
  };
  std::string path_;
  std::uint32_t path_hash_ = 0;
  std::vector<NamedParameter> own_;
  std::vector<std::pair<std::string, std::unique_ptr<Module>*>> slots_;
};

// The kinds of layers that parallelism knows how to replace.
class LinearLike : public Module {
 public:
  // y = activation(x·Wᵀ or x·W + b); x [.., in] -> [.., out]
  virtual Value forward(Context& context, const Value& x) = 0;
};
class NormLike : public Module {
 public:
  virtual Value forward(Context& context, const Value& x) = 0;  // [.., C] -> [.., C]
};
class EmbeddingLike : public Module {
 public:
  virtual Value forward(Context& context, const Tensor& ids) = 0;  // i32 [B, T] -> [B, T, C]
};
struct AttentionInput {
  Tensor key_mask;  // optional u8 [B, T]
};
class AttentionLike : public Module {
 public:
  virtual Value forward(Context& context, const Value& x, const AttentionInput& input) = 0;
};
struct LossOutput {
  Value loss;             // [1] f32: sum over valid targets × loss_scale
  float loss_sum = 0;     // unscaled, host
  std::int64_t targets = 0;
};
class HeadLoss : public Module {
 public:
  // Hidden states [B, T, C] and targets i32 [B, T] (negative: none), already shifted by the task.
  virtual LossOutput forward(Context& context, const Value& hidden, const Tensor& targets,
                             float loss_scale) = 0;
  virtual Tensor logits(Context& context, const Tensor& hidden) = 0;  // [.., C] -> [.., V]
};

// A typed place for a child.
template <typename Kind>
class Slot {
 public:
  Slot(Module& parent, std::string name, std::unique_ptr<Kind> module);
  Kind* operator->() const;
  Kind& operator*() const;
  // Puts another layer of the same kind in place; returns what was there. Call the root's
  // name_tree() afterwards.
  std::unique_ptr<Kind> replace(std::unique_ptr<Kind> module);

 private:
  std::unique_ptr<Module> module_;
};

}  // namespace shoal::nn
