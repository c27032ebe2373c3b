#include "shoal/nn/layers/decoder_layers.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "shoal/kernels/kernels.h"
#include "shoal/nn/layers/functional_internal.h"
#include "shoal/runtime/base/error.h"

namespace shoal::nn {

RmsNorm::RmsNorm(std::int64_t channels, float epsilon, float offset)
    : epsilon_(epsilon),
      offset_(offset),
      weight_(add_parameter("weight", {channels},
                            {offset == 0 ? Initializer::Kind::ones : Initializer::Kind::zeros, 0},
                            false)) {
  SHOAL_CHECK(offset == 0 || offset == 1, "an RMSNorm whose weight begins as {}", 1 - offset);
}
Value RmsNorm::forward(Context& context, const Value& x) {
  return rms_norm(context, x, *weight_, epsilon_, offset_);
}
ResidualNorm RmsNorm::fork(Context& context, const Value& x) {
  return fork_rms_norm(context, x, *weight_, epsilon_, offset_);
}
ResidualNorm RmsNorm::forward(Context& context, const Value& residual, const Value& branch,
                              const DropoutSite& site) {
  return residual_rms_norm(context, residual, branch, site, *weight_, epsilon_, offset_);
}

const Tensor& RotaryTable::of(const Context& context, std::int64_t positions, bool packed) {
  const bool varies = !angles_.long_frequencies.empty();
  SHOAL_CHECK(!packed || !varies,
              "longrope's angles depend on the longest text, which packed or padded rows hide: do "
              "not pack, and generate from prompts of one length");
  const bool is_long = varies && positions > angles_.short_positions;
  const std::vector<float>& frequencies = is_long ? angles_.long_frequencies : angles_.frequencies;
  std::vector<Tensor>& tables = tables_[is_long ? 1 : 0];
  const Device device = context.kernels().device();
  if (!tables.empty() && tables.back().device() == device && tables.back().shape()[0] >= positions)
    return tables.back();
  // Twice the rows, so that growing sequences seldom need a new table.
  const std::int64_t rows = std::max<std::int64_t>(2 * positions, 64),
                     half = static_cast<std::int64_t>(frequencies.size());
  std::vector<float> values;
  values.reserve(static_cast<std::size_t>(rows * 2 * half));
  for (std::int64_t position = 0; position < rows; ++position)
    for (const bool sine : {false, true})
      for (const float frequency : frequencies) {
        const float angle = static_cast<float>(position) * frequency;
        values.push_back((sine ? std::sin(angle) : std::cos(angle)) * angles_.scale);
      }
  const Shape shape = {rows, 2 * half};
  if (!memory_ || memory_->device() != device) {
    for (std::vector<Tensor>& all : tables_) all.clear();
    memory_ = make_device_memory(device);
  }
  Tensor table = Tensor::empty(shape, DType::f32, *memory_, MemoryTag::parameters, context.stream);
  device_backend(context.stream.device.type)
      .copy(table.view().data, values.data(), table.bytes(), context.stream);
  tables.push_back(std::move(table));
  return tables.back();
}

HeadProjections::HeadProjections(Module& attention, const GroupedSelfAttentionConfig& config,
                                 const Make& make)
    : by_part(config.by_part) {
  const auto add = [&](const std::string& name, std::int64_t heads, int blocks = 1) {
    linears.emplace_back(attention, name,
                         make({.in = config.channels,
                               .out = heads * config.head_dim,
                               .bias = config.bias,
                               .std = config.std},
                              blocks));
  };
  if (!config.fused.empty()) {
    add(config.fused, 3 * config.heads, config.by_part ? 3 : 1);
    return;
  }
  add("q_proj", config.heads);
  add("k_proj", config.key_heads);
  add("v_proj", config.key_heads);
}

void HeadProjections::add_norms(Module& attention, const GroupedSelfAttentionConfig& config) {
  if (config.norm_epsilon == 0) return;
  const auto norm = [&] {
    return std::make_unique<RmsNorm>(config.head_dim, config.norm_epsilon, config.norm_offset);
  };
  query_norm.emplace(attention, "q_norm", norm());
  key_norm.emplace(attention, "k_norm", norm());
}

GroupedSelfAttention::GroupedSelfAttention(const GroupedSelfAttentionConfig& config)
    : projections(*this, config,
                  [](const LinearConfig& linear, int) { return std::make_unique<Linear>(linear); }),
      output(*this, config.output, std::make_unique<Linear>(config.output_config())),
      dropout(*this, "attention_dropout", std::make_unique<Dropout>(config.attention_dropout)),
      config_(config) {
  SHOAL_CHECK(config.key_heads > 0 && config.heads % config.key_heads == 0 && config.rotary &&
                  config.rotary->turning() <= config.head_dim &&
                  (config.fused.empty() || config.key_heads == config.heads),
              "{} heads of {} channels on {} key heads{}, with rotary positions of {} channels",
              config.heads, config.head_dim, config.key_heads,
              config.fused.empty() ? "" : " in one Linear",
              config.rotary ? config.rotary->turning() : 0);
  projections.add_norms(*this, config);
}

Value GroupedSelfAttention::forward(Context& context, const Value& x, const AttentionInput& input) {
  SHOAL_CHECK(x.tensor.shape().rank() == (input.visible.defined() ? 2 : 3),
              "{}: an input {}, not {}", path(), to_string(x.tensor.shape()),
              input.visible.defined() ? "[n, C]" : "[B, T, C]");
  AttentionOptions options = attention_options(config_, *dropout, input);
  options.heads = config_.heads;
  options.key_heads = config_.key_heads;
  const Value heads = rotated_attention(context, projections, *config_.rotary, x, input, options);
  return output->forward(context, without_padding(context, heads, input.visible));
}

AttentionOptions attention_options(const GroupedSelfAttentionConfig& config, const Dropout& dropout,
                                   const AttentionInput& input) {
  AttentionOptions options;
  options.causal = config.causal;
  options.window = config.window;
  options.scale = config.scale;
  options.soft_cap = config.soft_cap;
  options.dropout = dropout.site();
  options.max_positions = config.max_positions;
  options.key_mask = input.key_mask;
  options.sequences = input.sequences;
  return options;
}

Value rotated_attention(Context& context, const HeadProjections& projections, RotaryTable& rotary,
                        const Value& x, const AttentionInput& input,
                        const AttentionOptions& options) {
  std::vector<Value> parts;  // queries, keys, values
  if (const auto& linears = projections.linears; linears.size() == 1)
    parts = split_channels(context, linears[0]->forward(context, x), 3,
                           projections.by_part ? 1 : options.heads);
  else
    for (const auto& linear : linears) parts.push_back(linear->forward(context, x));
  for (Value& part : parts) part = spread(context, part, input.visible);
  const std::int64_t first =
      context.activation.first_position + (input.cache ? input.cache->length : 0);
  const Tensor table =
      rotary.of(context, first + parts[0].tensor.shape()[1], input.positions.defined());
  const auto rotated = [&](Value of, const std::optional<Slot<NormLike>>& norm,
                           std::int64_t heads) {
    if (norm) of = (*norm)->forward(context, of);
    const std::int64_t channels = of.tensor.shape()[2] / heads;
    return nn::rotary(context, std::move(of), table, first, input.positions, channels);
  };
  const Value q = rotated(std::move(parts[0]), projections.query_norm, options.heads),
              k = rotated(std::move(parts[1]), projections.key_norm, options.key_heads);
  return attend_to(context, q, {k, std::move(parts[2])}, input, options);
}

GatedMlp::GatedMlp(const GatedMlpConfig& config)
    : gate_proj(
          *this, "gate_proj",
          std::make_unique<Linear>(LinearConfig{
              .in = config.channels, .out = config.inner, .bias = config.bias, .std = config.std})),
      up_proj(
          *this, "up_proj",
          std::make_unique<Linear>(LinearConfig{
              .in = config.channels, .out = config.inner, .bias = config.bias, .std = config.std})),
      down_proj(
          *this, "down_proj",
          std::make_unique<Linear>(LinearConfig{
              .in = config.inner, .out = config.channels, .bias = config.bias, .std = config.std})),
      config_(config) {}

Value GatedMlp::forward(Context& context, const Value& x) {
  const Value gate = gate_proj->forward(context, x);
  return down_proj->forward(context, swiglu(context, gate, up_proj->forward(context, x)));
}

}  // namespace shoal::nn
