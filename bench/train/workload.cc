#include "workload.h"

#include <algorithm>
#include <optional>

#include "shoal/kernels/random.h"
#include "shoal/nn/layers/lora.h"
#include "shoal/nn/models/causal_lm.h"
#include "shoal/nn/models/encoder/model.h"
#include "shoal/nn/models/gpt2/presets.h"
#include "shoal/runtime/base/error.h"

namespace shoal::bench {
namespace {

constexpr std::string_view kDecoders[] = {"gpt2",    "gpt2-medium",  "gpt2-large",
                                          "gpt2-xl", "llama-3.2-1b", "qwen3-0.6b"};
constexpr std::string_view kEncoders[] = {"bert-base", "bert-large", "roberta-base",
                                          "distilbert-base", "albert-base"};
struct NamedTask {
  std::string_view suffix;
  nn::EncoderTask task;
};
constexpr NamedTask kTasks[] = {{"-classification", nn::EncoderTask::sequence_classification},
                                {"-answers", nn::EncoderTask::question_answering},
                                {"-masked", nn::EncoderTask::masked_lm}};
// For masked language modelling.
constexpr double kMaskedShare = 0.15;

nn::DecoderConfig decoder_config(std::string_view name, double dropout) {
  nn::DecoderConfig config;
  if (name == "qwen3-0.6b") {
    config = nn::DecoderConfig::of("qwen3");
    config.hidden_size = 1024;
    config.intermediate_size = 3072;
    config.num_hidden_layers = 28;
    config.num_attention_heads = 16;
    config.num_key_value_heads = 8;
  } else if (name == "llama-3.2-1b") {
    config = nn::DecoderConfig::of("llama");
    config.vocab_size = 128256;
    config.hidden_size = 2048;
    config.intermediate_size = 8192;
    config.num_hidden_layers = 16;
    config.num_key_value_heads = 8;
  } else {
    config = nn::gpt2_preset(name);
    config.hidden_dropout = config.embedding_dropout = dropout;
  }
  config.tie_word_embeddings = true;
  config.attention_dropout = dropout;
  return config;
}

struct EncoderWorkload {
  nn::EncoderConfig config;
  nn::EncoderTask task;
};

nn::EncoderConfig encoder_config(std::string_view name, double dropout) {
  nn::EncoderConfig config = nn::EncoderConfig::of(name.substr(0, name.find('-')));
  config.hidden_size = 768;
  config.num_hidden_layers = 12;
  config.num_attention_heads = 12;
  config.intermediate_size = 3072;
  if (name == "bert-large") {
    config.hidden_size = 1024;
    config.num_hidden_layers = 24;
    config.num_attention_heads = 16;
    config.intermediate_size = 4096;
  }
  if (name == "distilbert-base") config.num_hidden_layers = 6;
  if (name == "roberta-base") {
    config.vocab_size = 50265;
    config.max_position_embeddings = 514;
    config.type_vocab_size = 1;
  }
  config.hidden_dropout_prob = config.attention_probs_dropout_prob = dropout;
  config.sequence_dropout = config.token_dropout = config.question_dropout = dropout;
  return config;
}

bool is_decoder(std::string_view name) {
  return std::ranges::find(kDecoders, name) != std::end(kDecoders);
}

std::optional<EncoderWorkload> encoder_workload(std::string_view name, double dropout) {
  for (const std::string_view encoder : kEncoders)
    for (const NamedTask& named : kTasks)
      if (name.starts_with(encoder) && name.substr(encoder.size()) == named.suffix)
        return EncoderWorkload{encoder_config(encoder, dropout), named.task};
  return std::nullopt;
}

[[noreturn]] void refuse(std::string_view name) {
  std::string known;
  for (const std::string& other : workload_names()) known += " " + other;
  throw_error(ErrorCode::invalid_argument, "there is no model '{}'; there are{}", name, known);
}

class Drawn {
 public:
  std::int32_t below(std::int64_t bound) {
    const kernels::RandomSite site{.seed = 1, .site = 7};
    return static_cast<std::int32_t>(kernels::random_bits(site, 0, next_++) %
                                     static_cast<std::uint64_t>(bound));
  }

 private:
  std::uint64_t next_ = 0;
};

Tensor integers(const Shape& shape, MemoryResource& memory, const std::function<int()>& draw) {
  Tensor out = Tensor::empty(shape, DType::i32, memory, MemoryTag::data);
  for (std::int64_t i = 0; i < out.count(); ++i) out.data<std::int32_t>()[i] = draw();
  return out;
}

Workload make_decoder(std::string_view name, const WorkloadOptions& options,
                      MemoryResource& memory) {
  const nn::DecoderConfig config = decoder_config(name, options.dropout);
  auto model = std::make_unique<nn::CausalLm>(config);
  model->set_gradient_checkpointing(options.checkpointing);
  Workload made;
  Drawn drawn;
  const auto token = [&] { return drawn.below(config.vocab_size); };
  made.input.ids = integers({options.batch, options.length}, memory, token);
  made.input.targets = integers(made.input.ids.shape(), memory, token);
  made.targets = static_cast<float>(made.input.targets.count());
  made.input.loss.loss_scale = 1 / made.targets;
  made.forward = [decoder = model.get(), input = made.input](nn::Context& context) {
    return decoder->forward(context, input.ids, input.targets, input.loss);
  };
  made.model = std::move(model);
  return made;
}

Workload make_encoder(const EncoderWorkload& of, const WorkloadOptions& options,
                      MemoryResource& memory) {
  auto model = std::make_unique<nn::Encoder>(of.config, of.task);
  model->set_gradient_checkpointing(options.checkpointing);
  Workload made;
  Drawn drawn;
  const std::int64_t batch = options.batch, length = options.length;
  // Avoid the padding id, from which RoBERTa derives positions.
  made.input.ids =
      integers({batch, length}, memory, [&] { return 2 + drawn.below(of.config.vocab_size - 2); });
  std::int64_t targets = 0;
  if (of.task == nn::EncoderTask::masked_lm) {
    made.input.targets = integers(made.input.ids.shape(), memory, [&] {
      const bool masked = drawn.below(1000) < static_cast<int>(1000 * kMaskedShare);
      targets += masked;
      return masked ? drawn.below(of.config.vocab_size) : -100;
    });
  } else if (of.task == nn::EncoderTask::question_answering) {
    targets = 2 * batch;
    made.input.targets = integers({batch, 2}, memory, [&] { return drawn.below(length); });
  } else {
    targets = batch;
    made.input.targets =
        integers({batch}, memory, [&] { return drawn.below(of.config.num_labels); });
  }
  made.targets = static_cast<float>(std::max<std::int64_t>(targets, 1));
  made.input.loss.loss_scale = 1 / made.targets;
  made.forward = [encoder = model.get(), input = made.input](nn::Context& context) {
    return encoder->forward(context, input);
  };
  made.model = std::move(model);
  return made;
}

}  // namespace

std::vector<std::string> workload_names() {
  std::vector<std::string> names(std::begin(kDecoders), std::end(kDecoders));
  for (const std::string_view encoder : kEncoders)
    for (const NamedTask& named : kTasks)
      names.push_back(std::string(encoder) + std::string(named.suffix));
  return names;
}

Workload make_workload(std::string_view name, const WorkloadOptions& options,
                       MemoryResource& memory) {
  const auto encoder = encoder_workload(name, options.dropout);
  if (!is_decoder(name) && !encoder) refuse(name);
  Workload made =
      encoder ? make_encoder(*encoder, options, memory) : make_decoder(name, options, memory);
  if (options.lora_r > 0) nn::add_lora(*made.model, {.r = options.lora_r});
  return made;
}

std::vector<ProductShape> product_shapes(std::string_view name, const WorkloadOptions& options) {
  const std::int64_t tokens = options.batch * options.length;
  if (is_decoder(name)) {
    const nn::DecoderConfig config = decoder_config(name, options.dropout);
    const bool gpt2 = config.model_type == "gpt2";
    const std::int64_t c = config.hidden_size, f = config.inner(), d = config.head_channels(),
                       heads = config.num_attention_heads, layers = config.num_hidden_layers;
    return {{tokens, c, d * (heads + 2 * config.key_heads()), layers, !gpt2},
            {tokens, d * heads, c, layers, !gpt2},
            {tokens, c, gpt2 ? f : 2 * f, layers, !gpt2},
            {tokens, f, c, layers, !gpt2},
            {tokens, c, config.vocab_size, 1, true}};
  }
  const auto encoder = encoder_workload(name, options.dropout);
  if (!encoder) refuse(name);
  const nn::EncoderConfig& config = encoder->config;
  const std::int64_t c = config.hidden_size, layers = config.num_hidden_layers;
  // Queries, keys and values as one product, which an implementation could use.
  std::vector<ProductShape> shapes{{tokens, c, 3 * c, layers, true},
                                   {tokens, c, c, layers, true},
                                   {tokens, c, config.intermediate_size, layers, true},
                                   {tokens, config.intermediate_size, c, layers, true}};
  if (config.embedding() != c) shapes.push_back({tokens, config.embedding(), c, 1, true});
  if (encoder->task == nn::EncoderTask::masked_lm) {
    // Only masked positions have a loss.
    const auto masked = static_cast<std::int64_t>(kMaskedShare * static_cast<double>(tokens));
    shapes.push_back({masked, c, config.embedding(), 1, true});
    shapes.push_back({masked, config.embedding(), config.vocab_size, 1, true});
  }
  return shapes;
}

double attention_share(std::string_view name, const WorkloadOptions& options) {
  double linear = 0;
  for (const ProductShape& shape : product_shapes(name, options))
    linear += 3.0 * static_cast<double>(shape.rows * shape.k * shape.n * shape.count);
  const auto encoder = encoder_workload(name, options.dropout);
  std::int64_t layers = 0, width = 0;
  if (encoder) {
    layers = encoder->config.num_hidden_layers;
    width = encoder->config.hidden_size;
  } else {
    const nn::DecoderConfig config = decoder_config(name, options.dropout);
    layers = config.num_hidden_layers;
    width = config.num_attention_heads * config.head_channels();
  }
  const std::int64_t product = layers * options.batch * options.length * options.length * width;
  return (encoder ? 6.0 : 3.0) * static_cast<double>(product) / linear;
}

}  // namespace shoal::bench
