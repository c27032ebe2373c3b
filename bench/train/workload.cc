#include "workload.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <numeric>
#include <optional>
#include <sstream>
#include <utility>

#include "shoal/kernels/random.h"
#include "shoal/nn/layers/lora.h"
#include "shoal/nn/models/causal_lm.h"
#include "shoal/nn/models/encoder/model.h"
#include "shoal/nn/models/encoder_decoder/model.h"
#include "shoal/nn/models/gpt2/presets.h"
#include "shoal/runtime/base/error.h"

namespace shoal::bench {
namespace {

constexpr std::string_view kDecoders[] = {"gpt2",    "gpt2-medium",  "gpt2-large",
                                          "gpt2-xl", "llama-3.2-1b", "qwen3-0.6b"};
constexpr std::string_view kEncoderDecoders[] = {"t5-base", "bart-base"};
constexpr std::string_view kEncoders[] = {"bert-base",    "bert-large",      "minilm",
                                          "roberta-base", "distilbert-base", "albert-base"};
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
  nn::EncoderConfig config =
      nn::EncoderConfig::of(name == "minilm" ? "bert" : name.substr(0, name.find('-')));
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
  if (name == "minilm") {
    config.hidden_size = 384;
    config.intermediate_size = 1536;
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

nn::EncoderDecoderConfig encoder_decoder_config(std::string_view name, double dropout) {
  nn::EncoderDecoderConfig config = nn::EncoderDecoderConfig::of(name.substr(0, name.find('-')));
  config.d_model = 768;
  config.encoder_heads = 12;
  config.encoder_inner = 3072;
  config.encoder_layers = name == "bart-base" ? 6 : 12;
  config.head_dim = 64;
  config.dropout = dropout;
  if (name == "bart-base") config.activation_dropout = config.attention_dropout = 0;
  return config;
}

bool is_encoder_decoder(std::string_view name) {
  return std::ranges::find(kEncoderDecoders, name) != std::end(kEncoderDecoders);
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
  nn::ChainInput input;
  input.ids = integers({options.batch, options.length}, memory, token);
  input.targets = integers(input.ids.shape(), memory, token);
  made.targets = static_cast<float>(input.targets.count());
  input.loss.loss_scale = 1 / made.targets;
  made.forward = [decoder = model.get(), input](nn::Context& context) {
    return decoder->forward(context, input.ids, input.targets, input.loss);
  };
  made.model = std::move(model);
  return made;
}

Workload make_encoder_decoder(std::string_view name, const WorkloadOptions& options,
                              MemoryResource& memory) {
  const nn::EncoderDecoderConfig config = encoder_decoder_config(name, options.dropout);
  auto model = std::make_unique<nn::EncoderDecoder>(config);
  model->set_gradient_checkpointing(options.checkpointing);
  Workload made;
  Drawn drawn;
  const auto token = [&] { return 3 + drawn.below(config.vocab_size - 3); };
  nn::ChainInput input;
  input.ids = integers({options.batch, options.length}, memory, token);
  input.targets = integers(input.ids.shape(), memory, token);
  input.decoder_ids = nn::shifted_right(input.targets, config, memory);
  made.targets = static_cast<float>(input.targets.count());
  input.loss.loss_scale = 1 / made.targets;
  made.forward = [both = model.get(), input](nn::Context& context) {
    return both->forward(context, input);
  };
  made.model = std::move(model);
  return made;
}

// One batch, with samples of these lengths.
nn::ChainInput encoder_input(const EncoderWorkload& of, const std::vector<std::int64_t>& lengths,
                             bool padded, Drawn& drawn, float& targets, MemoryResource& memory) {
  const auto batch = std::ssize(lengths);
  const std::int64_t length = std::ranges::max(lengths);
  nn::ChainInput input;
  // Avoid the padding id, from which RoBERTa derives positions.
  input.ids =
      integers({batch, length}, memory, [&] { return 2 + drawn.below(of.config.vocab_size - 2); });
  std::int64_t counted = 0;
  if (of.task == nn::EncoderTask::masked_lm) {
    std::int64_t place = 0;
    input.targets = integers(input.ids.shape(), memory, [&] {
      const std::int64_t row = place / length, position = place++ % length;
      const bool masked = drawn.below(1000) < static_cast<int>(1000 * kMaskedShare) &&
                          position < lengths[static_cast<std::size_t>(row)];
      counted += masked;
      return masked ? drawn.below(of.config.vocab_size) : -100;
    });
  } else if (of.task == nn::EncoderTask::question_answering) {
    counted = 2 * batch;
    input.targets = integers({batch, 2}, memory, [&] { return drawn.below(length); });
  } else {
    counted = batch;
    input.targets = integers({batch}, memory, [&] { return drawn.below(of.config.num_labels); });
  }
  targets = static_cast<float>(std::max<std::int64_t>(counted, 1));
  input.loss.loss_scale = 1 / targets;
  if (std::ranges::min(lengths) == length) return input;
  std::size_t sample = 0;
  input.key_mask = integers({batch}, memory, [&] { return static_cast<int>(lengths[sample++]); });
  // As Trainer's engine does.
  if (!padded) input.visible = nn::visible_rows(input.key_mask, length, 16, memory);
  return input;
}

Workload make_encoder(const EncoderWorkload& of, const WorkloadOptions& options,
                      MemoryResource& memory) {
  auto model = std::make_unique<nn::Encoder>(of.config, of.task);
  model->set_gradient_checkpointing(options.checkpointing);
  Workload made;
  Drawn drawn;
  std::vector<std::vector<std::int64_t>> batches = options.lengths;
  if (batches.empty())
    batches.emplace_back(static_cast<std::size_t>(options.batch), options.length);
  std::vector<nn::ChainInput> inputs;
  for (const std::vector<std::int64_t>& lengths : batches)
    inputs.push_back(encoder_input(of, lengths, options.padded, drawn, made.targets, memory));
  made.forward = [encoder = model.get(), inputs,
                  next = std::size_t{0}](nn::Context& context) mutable {
    return encoder->forward(context, inputs[next++ % inputs.size()]);
  };
  made.model = std::move(model);
  return made;
}

}  // namespace

std::vector<std::string> workload_names() {
  std::vector<std::string> names(std::begin(kDecoders), std::end(kDecoders));
  names.insert(names.end(), std::begin(kEncoderDecoders), std::end(kEncoderDecoders));
  for (const std::string_view encoder : kEncoders)
    for (const NamedTask& named : kTasks)
      names.push_back(std::string(encoder) + std::string(named.suffix));
  return names;
}

double WorkloadOptions::tokens() const {
  if (lengths.empty()) return static_cast<double>(batch * length);
  std::int64_t all = 0;
  for (const auto& samples : lengths) all = std::accumulate(samples.begin(), samples.end(), all);
  return static_cast<double>(all) / static_cast<double>(lengths.size());
}

std::vector<std::vector<std::int64_t>> read_lengths(const std::string& path) {
  std::ifstream file(path);
  SHOAL_CHECK(file.good(), "{} cannot be read", path);
  std::vector<std::vector<std::int64_t>> batches;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    batches.emplace_back(std::istream_iterator<std::int64_t>(words),
                         std::istream_iterator<std::int64_t>());
    SHOAL_CHECK(!batches.back().empty() && std::ranges::min(batches.back()) > 0 && words.eof(),
                "{}: line {} has no lengths", path, batches.size());
  }
  return batches;
}

Workload make_workload(std::string_view name, const WorkloadOptions& options,
                       MemoryResource& memory) {
  const auto encoder = encoder_workload(name, options.dropout);
  if (!is_decoder(name) && !is_encoder_decoder(name) && !encoder) refuse(name);
  SHOAL_CHECK(encoder || options.lengths.empty(), "{} has no samples of several lengths", name);
  Workload made = encoder                    ? make_encoder(*encoder, options, memory)
                  : is_encoder_decoder(name) ? make_encoder_decoder(name, options, memory)
                                             : make_decoder(name, options, memory);
  if (options.lora_r > 0) nn::add_lora(*made.model, {.r = options.lora_r});
  return made;
}

std::vector<ProductShape> product_shapes(std::string_view name, const WorkloadOptions& options) {
  const auto tokens = static_cast<std::int64_t>(options.tokens());
  if (is_encoder_decoder(name)) {
    const nn::EncoderDecoderConfig config = encoder_decoder_config(name, options.dropout);
    const std::int64_t c = config.d_model, f = config.encoder_inner, layers = config.encoder_layers;
    // Of both stacks, then the cross-attention of the decoder.
    return {{tokens, c, 3 * c, 2 * layers, true},   {tokens, c, c, 2 * layers, true},
            {tokens, c, f, 2 * layers, true},       {tokens, f, c, 2 * layers, true},
            {tokens, c, c, 2 * layers, true},       {tokens, c, 2 * c, layers, true},
            {tokens, c, config.vocab_size, 1, true}};
  }
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
  if (is_encoder_decoder(name)) {
    const nn::EncoderDecoderConfig config = encoder_decoder_config(name, options.dropout);
    const std::int64_t product =
        config.encoder_layers * options.batch * options.length * options.length * config.d_model;
    // The encoder's and the cross-attention's, and half of it for the causal one.
    return 15.0 * static_cast<double>(product) / linear;
  }
  if (!options.lengths.empty()) return 0;  // short samples, whose attention is small
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
