#include "shoal/nn/layers/module.h"

#include <algorithm>
#include <numbers>
#include <unordered_set>

#include "shoal/kernels/kernels.h"
#include "shoal/runtime/base/error.h"

namespace shoal::nn {
namespace {

std::string join(std::string_view path, std::string_view name) {
  if (name.empty()) return std::string(path);
  return path.empty() ? std::string(name) : fmt::format("{}.{}", path, name);
}

// Draws the values of one piece, one run of elements contiguous in the whole tensor at a time.
void fill_piece(Context& context, const Tensor& values, const Shape& whole,
                const ParameterPiece& piece, const Initializer& how,
                const kernels::RandomSite& site) {
  const int rank = whole.rank();
  int last = rank;  // dimensions from here on are complete in both tensors
  while (last > 0 && piece.sizes[last - 1] == whole[last - 1] &&
         piece.sizes[last - 1] == values.shape()[last - 1])
    --last;
  const int run_dim = std::max(last - 1, 0);
  std::int64_t run = 1;
  for (int dim = run_dim; dim < rank; ++dim) run *= piece.sizes[dim];
  if (run == 0 || piece.sizes.count() == 0) return;
  const Shape local_strides = contiguous_strides(values.shape());
  const Shape whole_strides = contiguous_strides(whole);
  const Tensor flat = values.reshaped({values.count()});
  for (std::int64_t i = 0; i < piece.sizes.count() / run; ++i) {
    std::int64_t rest = i, local = 0, global = 0;
    for (int dim = rank; dim-- > 0;) {
      std::int64_t at = 0;
      if (dim < run_dim) {
        at = rest % piece.sizes[dim];
        rest /= piece.sizes[dim];
      }
      local += (piece.local[dim] + at) * local_strides[dim];
      global += (piece.whole[dim] + at) * whole_strides[dim];
    }
    auto& elementwise = context.kernels().elementwise();
    const View out = flat.narrowed(0, local, run).view();
    const auto first = static_cast<std::uint64_t>(global);
    const float bound = std::numbers::sqrt3_v<float> * how.std;
    if (how.kind == Initializer::Kind::uniform)
      elementwise.fill_uniform(out, -bound, bound, site, first, context.stream);
    else
      elementwise.fill_normal(out, 0, how.std, site, first, context.stream);
  }
}

void initialize(Context& context, Parameter& parameter) {
  const Initializer& how = parameter.initializer();
  auto& elementwise = context.kernels().elementwise();
  if (how.kind == Initializer::Kind::zeros || how.kind == Initializer::Kind::ones) {
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
  for (const ParameterPiece& piece : parameter.pieces())
    fill_piece(context, values, parameter.whole_shape(), piece, how, site);
  if (!direct) elementwise.cast(values, parameter.value.view(), context.stream);
}

}  // namespace

void Module::name_tree(std::string_view path) {
  path_ = path;
  path_hash_ = hash_name(path);
  for (const NamedParameter& own : own_)
    if (own.owned) own.parameter->set_name(join(path, own.name));
  for (const Place& slot : slots_) (*slot.module)->name_tree(join(path, slot.name));
}

std::vector<Module::Child> Module::children() const {
  std::vector<Child> children;
  for (const Place& slot : slots_) children.push_back({slot.name, slot.module->get()});
  return children;
}

void Module::replace_modules(
    const std::function<std::unique_ptr<Module>(std::unique_ptr<Module>& child)>& choose) {
  for (const Place& slot : slots_) {
    const std::string replaced =
        fmt::format("{} {}", (*slot.module)->kind(), (*slot.module)->path());
    std::unique_ptr<Module> chosen = choose(*slot.module);
    if (!chosen) {
      (*slot.module)->replace_modules(choose);
      continue;
    }
    SHOAL_CHECK(slot.fits(*chosen), "a {} cannot take the place of the {}", chosen->kind(),
                replaced);
    *slot.module = std::move(chosen);
  }
}

std::vector<Parameter*> Module::parameters() const {
  std::vector<Parameter*> all;
  std::unordered_set<const Parameter*> seen;
  const auto add = [&](const auto& self, const Module& module) -> void {
    for (const NamedParameter& own : module.own_)
      if (seen.insert(own.parameter.get()).second) all.push_back(own.parameter.get());
    for (const Place& slot : module.slots_) self(self, **slot.module);
  };
  add(add, *this);
  return all;
}

void Module::materialize(Context& context, DType dtype) {
  nn::materialize(context, parameters(), dtype);
}

void materialize(Context& context, const std::vector<Parameter*>& parameters, DType dtype) {
  for (Parameter* parameter : parameters) {
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
