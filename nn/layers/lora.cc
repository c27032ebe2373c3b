#include "shoal/nn/layers/lora.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>

#include "shoal/nn/layers/conv1d.h"
#include "shoal/nn/layers/decoder_layers.h"
#include "shoal/nn/layers/functional_internal.h"
#include "shoal/runtime/base/error.h"

namespace shoal::nn {
namespace {

// Kaiming uniform with a = √5: in [-1/√in, 1/√in).
Initializer kaiming(std::int64_t in) {
  return {Initializer::Kind::uniform, 1.0f / std::sqrt(3.0f * static_cast<float>(in))};
}

// Divides dimension `dim` of a factor as dimension `weight_dim` of the weight is divided. True if
// that is divided.
bool divide(Parameter& factor, int dim, const Parameter& weight, int weight_dim) {
  const std::int64_t whole = weight.whole_shape()[weight_dim];
  if (whole == weight.shape()[weight_dim]) return false;
  std::vector<ParameterPiece> pieces;
  for (const ParameterPiece& piece : weight.pieces())
    pieces.push_back({factor.shape().with(dim, piece.sizes[weight_dim]),
                      Shape{0, 0}.with(dim, piece.local[weight_dim]),
                      Shape{0, 0}.with(dim, piece.whole[weight_dim])});
  factor.set_part(factor.shape().with(dim, whole), std::move(pieces));
  return true;
}

bool ends_with_name(std::string_view path, std::string_view name) {
  return path == name || (path.size() > name.size() && path.ends_with(name) &&
                          path[path.size() - name.size() - 1] == '.');
}

// True if one of the names is the path's or that of a module above it. A module of Hugging Face may
// be none here: "classifier" of "classifier.dense".
bool is_within(std::string_view path, const std::vector<std::string>& names) {
  const std::string whole = fmt::format(".{}.", path);
  return std::ranges::any_of(names, [&](const std::string& name) {
    return !name.empty() && whole.find(fmt::format(".{}.", name)) != whole.npos;
  });
}

// The layers that make an attention's queries and values.
std::vector<const Module*> queries_and_values(const Module& module) {
  if (const auto* fused = dynamic_cast<const CausalSelfAttention*>(&module))
    return {&*fused->c_attn};
  if (const auto* apart = dynamic_cast<const SelfAttention*>(&module))
    return {&*apart->query, &*apart->value};
  if (const auto* grouped = dynamic_cast<const GroupedSelfAttention*>(&module))
    return {&*grouped->projections.linears.front(), &*grouped->projections.linears.back()};
  return {};
}

// Walks a model and adapts what `options` target.
class Adapting {
 public:
  explicit Adapting(const LoraOptions& options)
      : options_(options),
        all_(options.target_modules == std::vector<std::string>{"all-linear"}),
        config_{.r = options.r,
                .scale = lora_scale(options),
                .dropout = static_cast<float>(options.lora_dropout),
                .given = std::make_shared<LoraOptions>(options)} {}

  void walk(Module& module, bool saved) {
    for (const Module* const layer : queries_and_values(module)) default_.insert(layer);
    for (const Module::Child& child : module.children()) {
      const bool keeps = saved || is_within(child.module->path(), options_.modules_to_save);
      auto* const layer = dynamic_cast<LinearLike*>(child.module);
      if (layer && layer->adaptable().weight) take(*layer, keeps);
      walk(*child.module, keeps);
      if (keeps)
        for (Parameter* parameter : child.module->parameters()) whole_.insert(parameter);
    }
  }

  std::vector<std::string> finish(Module& root) {
    for (const std::string& name : options_.target_modules)
      if (!all_ && !used_.contains(name)) refuse(name);
    if (targets_.empty()) refuse("queries and values of attentions");
    for (Parameter* parameter : root.parameters())
      if (!whole_.contains(parameter)) parameter->set_trainable(false);
    std::vector<std::string> paths;
    for (LinearLike* layer : targets_) {
      layer->adapt(config_);
      paths.push_back(layer->path());
    }
    root.name_tree(root.path());
    return paths;
  }

 private:
  void take(LinearLike& layer, bool saved) {
    const std::string& path = layer.path();
    names_.insert(path.substr(path.rfind('.') + 1));
    bool wanted = options_.target_modules.empty() ? default_.contains(&layer) : all_;
    for (const std::string& name : options_.target_modules)
      if (!all_ && ends_with_name(path, name)) {
        used_.insert(name);
        wanted = true;
      }
    if (wanted && !saved) targets_.push_back(&layer);
  }
  [[noreturn]] void refuse(const std::string& name) const {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("lora_target_modules: no linear layer is named {}", name),
                fmt::format("the last parts of the names there are: {}; or all-linear",
                            fmt::join(names_, ", ")));
  }

  const LoraOptions& options_;
  bool all_;
  LoraConfig config_;
  std::set<const Module*> default_;
  std::set<std::string> names_, used_;
  std::vector<LinearLike*> targets_;
  std::set<Parameter*> whole_;  // of modules_to_save
};

}  // namespace

Lora::Lora(const LoraConfig& config, std::int64_t in, std::int64_t out, std::int64_t whole_in)
    : dropout(*this, "lora_dropout", std::make_unique<Dropout>(config.dropout)), config_(config) {
  a_ = add_parameter("lora_A.weight", {config.r, in}, kaiming(whole_in));
  b_ = add_parameter("lora_B.weight", {out, config.r}, {});
}

Value Lora::down(Context& context, const Value& x, std::int64_t first, std::int64_t channels) {
  DropoutSite site = dropout->site();
  site.column_offset = first;
  site.columns = channels;
  const Value inner = linear(context, nn::dropout(context, x, site), *a_, nullptr, {true});
  return scaled(context, inner, config_.scale);
}

Value Lora::up(Context& context, Value sum, const Value& inner) {
  return add_linear(context, std::move(sum), inner, *b_);
}

Value adapted_linear(Context& context, const Value& x, Parameter& weight, Parameter* bias,
                     const LinearOptions& options, Lora* lora) {
  if (!lora) return linear(context, x, weight, bias, options);
  // The base comes first, so that its backward comes last and adds to the adapter's dx.
  Value base = linear(context, x, weight, bias, {options.transposed});
  const Value inner = lora->down(context, x);
  return activate(context, lora->up(context, std::move(base), inner), options.activation);
}

Lora* LinearLike::lora() const { return lora_ ? &**lora_ : nullptr; }

void LinearLike::adapt(const LoraConfig& config) {
  const Adaptable layer = adaptable();
  SHOAL_CHECK(layer.weight, "{}: LoRA cannot adapt a {}", path(), kind());
  SHOAL_CHECK(!lora_, "{} has an adapter already", path());
  SHOAL_CHECK(!layer.weight->value.defined(), "{} is adapted after it was materialised", path());
  const int in = layer.transposed ? 1 : 0, out = 1 - in;
  const Parameter& weight = *layer.weight;
  lora_.emplace(*this, "",
                std::make_unique<Lora>(config, weight.shape()[in], weight.shape()[out],
                                       weight.whole_shape()[in]));
  Lora& made = **lora_;
  if (divide(made.b(), 0, weight, out) && !layer.completes_inner) made.a().set_applies_to_part();
  if (divide(made.a(), 1, weight, in)) made.b().set_applies_to_part();
}

float lora_scale(const LoraOptions& options) {
  const auto r = static_cast<double>(options.r);
  return static_cast<float>(options.lora_alpha / (options.use_rslora ? std::sqrt(r) : r));
}

std::vector<std::string> add_lora(Module& root, const LoraOptions& options) {
  SHOAL_CHECK(options.r > 0, "lora_r is {}; it is 1 or more", options.r);
  SHOAL_CHECK(options.lora_dropout >= 0 && options.lora_dropout < 1,
              "lora_dropout is {}; it is at least 0 and below 1", options.lora_dropout);
  SHOAL_CHECK(adapted_layers(root).empty(), "the model has adapters already");
  Adapting adapting(options);
  adapting.walk(root, false);
  return adapting.finish(root);
}

std::vector<LinearLike*> adapted_layers(const Module& module) {
  std::vector<LinearLike*> layers;
  for (const Module::Child& child : module.children()) {
    if (auto* const layer = dynamic_cast<LinearLike*>(child.module); layer && layer->lora())
      layers.push_back(layer);
    const std::vector<LinearLike*> below = adapted_layers(*child.module);
    layers.insert(layers.end(), below.begin(), below.end());
  }
  return layers;
}

}  // namespace shoal::nn
