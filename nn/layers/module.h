// Modules form a named tree. Children sit in typed slots, so that parallelism can replace a layer
// by another of the same kind without the model knowing (parallel/apply).
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
  // "transformer.h.3.attn.c_attn" once the root called name_tree(); names are Hugging Face's.
  const std::string& path() const { return path_; }
  std::uint32_t path_hash() const { return path_hash_; }
  void name_tree(std::string_view path = {});

  struct Child {
    std::string name;
    Module* module;
  };
  // Own children in the order of their slots. A name may have dots: "h.3". A child without a name
  // has its parent's path.
  std::vector<Child> children() const;
  // Offers each child to `choose`, before its own children: what is returned takes its place (and
  // is not offered further), null leaves it. Another kind than the slot holds: throws. The root's
  // name_tree() comes afterwards. What other modules share of a replaced one (tied weights) is for
  // `choose` to see to.
  void replace_modules(const std::function<std::unique_ptr<Module>(Module& child)>& choose);
  // Own parameters, then the children's, in registration order; a shared parameter appears once.
  std::vector<Parameter*> parameters() const;

  // Of every parameter; see below.
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
  struct Place {
    std::string name;
    std::unique_ptr<Module>* module;
    bool (*fits)(const Module&);  // of the slot's kind
  };
  std::vector<Place> slots_;
};

// A typed place for a child.
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
  // Puts another layer of the same kind in place; returns what was there. Call the root's
  // name_tree() afterwards.
  std::unique_ptr<Kind> replace(std::unique_ptr<Kind> module) {
    std::unique_ptr<Kind> old(static_cast<Kind*>(module_.release()));
    module_ = std::move(module);
    return old;
  }

 private:
  std::unique_ptr<Module> module_;
};

// Gives each parameter memory and its initial value, drawn by (context.random.seed, name), in
// `dtype`: the same bits whatever the order of calls and the other parameters; a 16-bit value is
// the f32 one, rounded. name_tree() must have run. A rank that computes some modules only calls it
// for their parameters: nothing else ever takes memory.
void materialize(Context& context, const std::vector<Parameter*>& parameters, DType dtype);

// Gives each trainable parameter a zeroed gradient tensor of its own, for who has no Reducer.
void allocate_gradients(Context& context, const std::vector<Parameter*>& parameters);

}  // namespace shoal::nn
