#include "shoal/nn/layers/decoder_layers.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "shoal/kernels/kernels.h"
#include "shoal/nn/layers/functional_internal.h"
#include "shoal/runtime/base/error.h"

namespace shoal::nn {

RmsNorm::RmsNorm(std::int64_t channels, float epsilon)
    : epsilon_(epsilon),
      weight_(add_parameter("weight", {channels}, {Initializer::Kind::ones, 0}, false)) {}
Value RmsNorm::forward(Context& context, const Value& x) {
  return rms_norm(context, x, *weight_, epsilon_);
}
ResidualNorm RmsNorm::fork(Context& context, const Value& x) {
  return fork_rms_norm(context, x, *weight_, epsilon_);
}
ResidualNorm RmsNorm::forward(Context& context, const Value& residual, const Value& branch,
                              const DropoutSite& site) {
  return residual_rms_norm(context, residual, branch, site, *weight_, epsilon_);
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

GroupedSelfAttention::GroupedSelfAttention(const GroupedSelfAttentionConfig& config)
    : q_proj(*this, "q_proj",
             std::make_unique<Linear>(LinearConfig{.in = config.channels,
                                                   .out = config.heads * config.head_dim,
                                                   .bias = config.bias,
                                                   .std = config.std})),
      k_proj(*this, "k_proj",
             std::make_unique<Linear>(LinearConfig{.in = config.channels,
                                                   .out = config.key_heads * config.head_dim,
                                                   .bias = config.bias,
                                                   .std = config.std})),
      v_proj(*this, "v_proj",
             std::make_unique<Linear>(LinearConfig{.in = config.channels,
                                                   .out = config.key_heads * config.head_dim,
                                                   .bias = config.bias,
                                                   .std = config.std})),
      o_proj(*this, "o_proj",
             std::make_unique<Linear>(LinearConfig{.in = config.heads * config.head_dim,
                                                   .out = config.channels,
                                                   .bias = config.output_bias,
                                                   .std = config.std})),
      dropout(*this, "attention_dropout", std::make_unique<Dropout>(config.attention_dropout)),
      config_(config) {
  SHOAL_CHECK(config.key_heads > 0 && config.heads % config.key_heads == 0 && config.rotary &&
                  config.rotary->head_dim() == config.head_dim,
              "{} heads of {} channels on {} key heads, with rotary positions of {} channels",
              config.heads, config.head_dim, config.key_heads,
              config.rotary ? config.rotary->head_dim() : 0);
  if (config.norm_epsilon == 0) return;
  q_norm.emplace(*this, "q_norm", std::make_unique<RmsNorm>(config.head_dim, config.norm_epsilon));
  k_norm.emplace(*this, "k_norm", std::make_unique<RmsNorm>(config.head_dim, config.norm_epsilon));
}

Value GroupedSelfAttention::forward(Context& context, const Value& x, const AttentionInput& input) {
  SHOAL_CHECK(x.tensor.shape().rank() == 3, "{}: an input {}, not [B, T, C]", path(),
              to_string(x.tensor.shape()));
  AttentionOptions options = attention_options(config_, *dropout, input);
  options.heads = config_.heads;
  options.key_heads = config_.key_heads;
  const std::int64_t first =
      context.activation.first_position + (input.cache ? input.cache->length : 0);
  const Tensor table =
      config_.rotary->of(context, first + x.tensor.shape()[1], input.positions.defined());
  const Value q = rotated_heads(context, *q_proj, q_norm, x, table, first, input.positions),
              k = rotated_heads(context, *k_proj, k_norm, x, table, first, input.positions),
              v = v_proj->forward(context, x);
  return o_proj->forward(context, attend_to(context, q, {k, v}, input, options));
}

AttentionOptions attention_options(const GroupedSelfAttentionConfig& config, const Dropout& dropout,
                                   const AttentionInput& input) {
  AttentionOptions options;
  options.window = config.window;
  options.dropout = dropout.site();
  options.max_positions = config.max_positions;
  options.key_mask = input.key_mask;
  options.sequences = input.sequences;
  return options;
}

Value rotated_heads(Context& context, LinearLike& projection,
                    const std::optional<Slot<NormLike>>& norm, const Value& x, const Tensor& table,
                    std::int64_t first, const Tensor& positions) {
  Value heads = projection.forward(context, x);
  if (norm) heads = (*norm)->forward(context, heads);
  return rotary(context, std::move(heads), table, first, positions);
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
