#include "shoal/parallel/predict/model_shape.h"

#include "shoal/nn/layers/conv1d.h"
#include "shoal/nn/layers/decoder_layers.h"
#include "shoal/nn/layers/feed_forward.h"
#include "shoal/nn/layers/lora.h"
#include "shoal/nn/layers/self_attention.h"
#include "shoal/parallel/pipeline/measure_units.h"

namespace shoal::parallel {
namespace {

ProductShape product_of(const nn::LinearLike& layer, std::int64_t in, std::int64_t out) {
  const nn::Parameter* const weight = layer.adaptable().weight;
  const bool frozen = weight != nullptr && !weight->trainable();
  return {in, out, frozen, !frozen || layer.lora() != nullptr};
}

void collect(const nn::Module& module, UnitShape& unit) {
  if (const auto* const linear = dynamic_cast<const nn::Linear*>(&module))
    unit.products.push_back(product_of(*linear, linear->config().in, linear->config().out));
  if (const auto* const conv = dynamic_cast<const nn::Conv1D*>(&module))
    unit.products.push_back(product_of(*conv, conv->config().in, conv->config().out));
  if (const auto* const layer = dynamic_cast<const nn::LinearLike*>(&module))
    if (nn::Lora* const lora = layer->lora())
      for (const nn::Parameter* const factor : {&lora->a(), &lora->b()})
        unit.products.push_back({factor->shape()[1], factor->shape()[0]});
  if (const auto* const head = dynamic_cast<const nn::HeadLoss*>(&module)) {
    const Shape& weight = head->weight()->shape();
    unit.products.push_back({weight[1], weight[0], !head->weight()->trainable()});
    unit.vocabulary = weight[0];
  }
  const auto attention = [&unit](std::int64_t heads, std::int64_t key_heads, std::int64_t width) {
    unit.heads += heads;
    unit.key_heads += key_heads;
    unit.head_width = width;
  };
  if (const auto* const a = dynamic_cast<const nn::CausalSelfAttention*>(&module))
    attention(a->config().heads, a->config().heads, a->config().channels / a->config().heads);
  if (const auto* const a = dynamic_cast<const nn::SelfAttention*>(&module)) {
    const nn::SelfAttentionConfig& config = a->config();
    attention(config.heads, config.heads,
              config.head_dim > 0 ? config.head_dim : config.channels / config.heads);
    unit.causal = config.causal;
  }
  if (const auto* const a = dynamic_cast<const nn::GroupedSelfAttention*>(&module)) {
    attention(a->config().heads, a->config().key_heads, a->config().head_dim);
    unit.causal = a->config().causal;
  }
  if (const auto* const mlp = dynamic_cast<const nn::GatedMlp*>(&module)) {
    unit.inner += mlp->config().inner;
    unit.branches = 2;
  }
  if (const auto* const mlp = dynamic_cast<const nn::FeedForward*>(&module)) {
    unit.inner += mlp->config().inner;
    if (mlp->config().fused || !mlp->config().gate.empty()) unit.branches = 2;
  }
  if (const auto* const mlp = dynamic_cast<const nn::Mlp*>(&module)) {
    if (const auto* const linear = dynamic_cast<const nn::Linear*>(&*mlp->c_fc))
      unit.inner += linear->config().out;
    if (const auto* const conv = dynamic_cast<const nn::Conv1D*>(&*mlp->c_fc))
      unit.inner += conv->config().out;
  }
  if (dynamic_cast<const nn::NormLike*>(&module) != nullptr) ++unit.norms;
  for (const nn::Module::Child& child : module.children()) collect(*child.module, unit);
}

StateNumbers numbers_of(const nn::UpdateRule& rule, const Shape& parameter) {
  StateNumbers numbers;
  for (const nn::RuleState& state : rule.states(parameter))
    (state.mean_over == 0 ? numbers.states : numbers.means) +=
        nn::state_shape(state, parameter).count();
  return numbers;
}

}  // namespace

Elements elements_of(std::span<const UnitShape> units) {
  std::set<int> seen;
  Elements sum;
  for (const UnitShape& unit : units)
    for (const auto& [id, count] : unit.parameters)
      if (seen.insert(id).second) {
        (unit.frozen.contains(id) ? sum.frozen : sum.trained) += count;
        const auto state = unit.states.find(id);
        if (state == unit.states.end()) continue;
        sum.rule.states += state->second.states;
        sum.rule.means += state->second.means;
      }
  return sum;
}

std::int64_t ModelShape::elements() const {
  const Elements all = elements_of(units);
  return all.trained + all.frozen;
}

ModelShape model_shape(const nn::Chain& chain, const nn::UpdateRule* rule) {
  const std::unique_ptr<nn::UpdateRule> usual = rule == nullptr ? nn::adamw() : nullptr;
  const nn::UpdateRule& updates = rule == nullptr ? *usual : *rule;
  ModelShape model{
      .channels = chain.channels(), .units = {}, .gradient_reads = updates.gradient_reads()};
  const std::vector<UnitCost> costs = count_units(chain);
  std::map<const nn::Parameter*, int> ids;
  for (int index = 0; index < chain.units(); ++index) {
    UnitShape unit;
    unit.name = chain.unit_name(index);
    const UnitCost& cost = costs[static_cast<std::size_t>(index)];
    unit.parameters = cost.parameters;
    unit.frozen = cost.frozen;
    // The ids of a unit are those of its parameters, in order of their first use in the model.
    for (const nn::Parameter* parameter : chain.unit_parameters(index)) {
      const int id = ids.emplace(parameter, static_cast<int>(ids.size())).first->second;
      if (parameter->trainable()) unit.states[id] = numbers_of(updates, parameter->whole_shape());
    }
    // Unit 0 looks rows up and multiplies nothing.
    if (index > 0)
      for (const nn::Module* module : chain.unit_modules(index)) collect(*module, unit);
    // Masked language models have targets at 15 % of the positions, which are padded to sixteenths.
    if (chain.reads_target_rows() && index == chain.units() - 1) unit.share = 3.0 / 16;
    model.units.push_back(std::move(unit));
  }
  return model;
}

double unit_flops(const UnitShape& unit, std::int64_t rows, std::int64_t length) {
  const double tokens = unit.share * static_cast<double>(rows) * static_cast<double>(length);
  double flops =
      4 * tokens * static_cast<double>(length) * static_cast<double>(unit.heads * unit.head_width);
  for (const ProductShape& product : unit.products)
    flops += 2 * tokens * static_cast<double>(product.in) * static_cast<double>(product.out);
  return flops;
}

double training_flops(const ModelShape& model, std::int64_t rows, std::int64_t length) {
  double flops = 3 * forward_flops(model, rows, length);
  for (const UnitShape& unit : model.units)
    for (const ProductShape& product : unit.products)
      if (product.frozen)
        flops -= 2 * unit.share * static_cast<double>(rows * length) *
                 static_cast<double>(product.in * product.out);
  return flops;
}

double forward_flops(const ModelShape& model, std::int64_t rows, std::int64_t length) {
  double flops = 0;
  for (const UnitShape& unit : model.units) flops += unit_flops(unit, rows, length);
  return flops;
}

}  // namespace shoal::parallel
