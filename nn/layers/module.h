// Modules form a named tree. Children are in typed slots, so that parallelism can replace a layer
// by one of the same kind without changing the model (parallel/apply).
//
//   struct Gate final : Module {
//     std::shared_ptr<Parameter> gain = add_parameter("gain", {64}, {Initializer::Kind::ones});
//     Slot<LinearLike> up{*this, "up", std::make_unique<Linear>(LinearConfig{64, 256})};
//     std::string_view kind() const override { return "Gate"; }
//   };
//   Gate gate;
//   gate.name_tree("gate");  // parameters: gate.gain, gate.up.weight, gate.up.bias
//
// A module owns its children and its parameters, except shared ones. Not thread-safe.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shoal/nn/autograd/context.h"

namespace shoal::nn {

class Module {
 public:
  virtual ~Module() = default;
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  virtual std::string_view kind() const = 0;  // "Linear"
  // "transformer.h.3.attn.c_attn" after the root's name_tree(). Names are Hugging Face's.
  const std::string& path() const { return path_; }
  std::uint32_t path_hash() const { return path_hash_; }
  void name_tree(std::string_view path = {});

  struct Child {  // not owned
    std::string name;
    Module* module;
  };
  // Own children in slot order. A name may contain dots ("h.3"). A child with an empty name has its
  // parent's path.
  std::vector<Child> children() const;
  // Offers each child to `choose` before its own children. A returned module replaces the child,
  // which `choose` may have moved into it, and is not offered further; null keeps the child. Throws
  // invalid_argument if the module does not fit the slot's kind. Call the root's name_tree()
  // afterwards. `choose` must handle parameters that a replaced module shares with others (tied
  // weights).
  void replace_modules(
      const std::function<std::unique_ptr<Module>(std::unique_ptr<Module>& child)>& choose);
  // Own parameters, then the children's, in registration order; a shared parameter appears once.
  std::vector<Parameter*> parameters() const;

  // Materialises all parameters; see nn::materialize().
  void materialize(Context& context, DType dtype);

 protected:
  Module() = default;
  std::shared_ptr<Parameter> add_parameter(std::string name, Shape shape, Initializer initializer,
                                           bool decays = true);
  // Registers a parameter that another module owns (tied weights).
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
  struct Place {
    std::string name;
    std::unique_ptr<Module>* module;
    bool (*fits)(const Module&);  // tests for the slot's kind
  };
  std::vector<Place> slots_;
};

// A typed slot for a child.
template <typename Kind>
class Slot {
 public:
  Slot(Module& parent, std::string name, std::unique_ptr<Kind> module)
      : module_(std::move(module)) {
    parent.slots_.push_back({std::move(name), &module_, [](const Module& candidate) {
                               return dynamic_cast<const Kind*>(&candidate) != nullptr;
                             }});
  }
  Slot(const Slot&) = delete;
  Slot& operator=(const Slot&) = delete;
  Kind* operator->() const { return static_cast<Kind*>(module_.get()); }
  Kind& operator*() const { return static_cast<Kind&>(*module_); }
  // Replaces the layer by one of the same kind and returns the old one. Call the root's name_tree()
  // afterwards.
  std::unique_ptr<Kind> replace(std::unique_ptr<Kind> module) {
    std::unique_ptr<Kind> old(static_cast<Kind*>(module_.release()));
    module_ = std::move(module);
    return old;
  }

 private:
  std::unique_ptr<Module> module_;
};

// Allocates each parameter in `dtype` and draws its initial value from (context.random.seed, name).
// The bits do not depend on call order or other parameters; a 16-bit value is the rounded f32
// value. Call after name_tree(). A rank that holds only some modules passes, and so allocates, only
// their parameters.
void materialize(Context& context, const std::vector<Parameter*>& parameters, DType dtype);

// Gives each trainable parameter its own zeroed gradient tensor. For callers without a Reducer.
void allocate_gradients(Context& context, const std::vector<Parameter*>& parameters);

}  // namespace shoal::nn
