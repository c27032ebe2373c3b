#include "shoal/nn/layers/module.h"

#include <algorithm>

#include "shoal/runtime/base/error.h"

namespace shoal::nn {
namespace {

std::string join(std::string_view path, std::string_view name) {
  return path.empty() ? std::string(name) : fmt::format("{}.{}", path, name);
}

void initialize(Context& context, Parameter& parameter) {
  const Initializer& how = parameter.initializer();
  auto& elementwise = context.kernels().elementwise();
  if (how.kind != Initializer::Kind::normal) {
    elementwise.fill(parameter.value.view(), how.kind == Initializer::Kind::ones ? 1.0f : 0.0f,
                     context.stream);
    return;
  }
  kernels::RandomSite site;
  site.seed = context.random.seed;
  site.site = hash_name(parameter.name());
  const bool direct = parameter.value.dtype() == DType::f32;
  const Tensor values =
      direct ? parameter.value : context.empty(parameter.shape(), DType::f32, MemoryTag::workspace);
  elementwise.fill_normal(values.view(), 0, how.std, site, 0, context.stream);
  if (!direct) elementwise.cast(values, parameter.value.view(), context.stream);
}

}  // namespace

std::uint32_t hash_name(std::string_view name) {
  std::uint32_t hash = 0x811c9dc5u;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x01000193u;
  return hash;
}

void Module::name_tree(std::string_view path) {
  path_ = path;
  path_hash_ = hash_name(path);
  for (const NamedParameter& own : own_)
    if (own.owned) own.parameter->set_name(join(path, own.name));
  for (const auto& [name, module] : slots_) (*module)->name_tree(join(path, name));
}

std::vector<Module::Child> Module::children() const {
  std::vector<Child> children;
  for (const auto& [name, module] : slots_) children.push_back({name, module->get()});
  return children;
}

std::vector<Parameter*> Module::parameters() const {
  std::vector<Parameter*> all;
  const auto add = [&](Parameter* parameter) {
    if (std::find(all.begin(), all.end(), parameter) == all.end()) all.push_back(parameter);
  };
  for (const NamedParameter& own : own_) add(own.parameter.get());
  for (const auto& slot : slots_)
    for (Parameter* parameter : (*slot.second)->parameters()) add(parameter);
  return all;
}

void Module::materialize(Context& context, DType dtype) {
  for (Parameter* parameter : parameters()) {
    parameter->value = context.empty(parameter->shape(), dtype, MemoryTag::parameters);
    initialize(context, *parameter);
  }
}

std::shared_ptr<Parameter> Module::add_parameter(std::string name, Shape shape,
                                                 Initializer initializer, bool decays) {
  auto parameter = std::make_shared<Parameter>(name, shape, initializer);
  parameter->set_decays(decays);
  own_.push_back({std::move(name), parameter, true});
  return parameter;
}

void Module::share_parameter(std::string name, std::shared_ptr<Parameter> parameter) {
  own_.push_back({std::move(name), std::move(parameter), false});
}

void allocate_gradients(Context& context, const std::vector<Parameter*>& parameters) {
  for (Parameter* parameter : parameters) {
    if (!parameter->trainable()) continue;
    parameter->gradient = Tensor::zeros(parameter->shape(), DType::f32, context.memory(),
                                        MemoryTag::gradients, context.stream);
    parameter->clear_gradient();
  }
}

}  // namespace shoal::nn
