#include "train/trainer/headed_training.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "shoal/nn/layers/lora.h"
#include "shoal/nn/models/decoder/family.h"
#include "shoal/nn/models/decoder/trunk.h"
#include "shoal/train/tasks/decoder.h"
#include "shoal/train/tasks/encoder.h"
#include "shoal/train/tasks/headed_encoder_decoder.h"

namespace shoal::test {
namespace {

constexpr std::int32_t kEndOfText = 1;

// Some sequence models have no pad_token_id. The mask then says where rows end.
nn::DecoderConfig tiny_decoder(const HeadCase& test) {
  nn::DecoderConfig config = nn::DecoderConfig::of(test.model_type);
  config.vocab_size = kToyVocabulary;
  config.max_position_embeddings = config.hidden_size = 24;
  config.intermediate_size = 40;
  config.num_hidden_layers = 3;
  config.num_attention_heads = 4;
  config.initializer_range = 0.2;
  config.pad_token_id = std::nullopt;
  if (!test.regression) config.pad_token_id = 0;
  config.labels.num_labels = kLabels;
  if (test.regression) config.labels.problem_type = "regression";
  if (test.model_type == std::string("gpt2")) return config;
  config.num_key_value_heads = 2;
  config.attention_dropout = 0.1;
  if (test.model_type == std::string("llama")) return config;
  config.head_dim = 6;
  config.sliding_window = 5;
  config.use_sliding_window = true;
  config.layer_types = {"sliding_attention", "full_attention", "sliding_attention"};
  if (config.attention_soft_cap) config.attention_soft_cap = 1.5;
  return config;
}

nn::EncoderDecoderConfig tiny_encoder_decoder(const HeadCase& test) {
  nn::EncoderDecoderConfig config = nn::EncoderDecoderConfig::of(test.model_type);
  config.vocab_size = kToyVocabulary;
  config.d_model = 24;
  config.head_dim = 6;
  config.encoder_layers = 1;
  config.decoder_layers = 2;
  config.encoder_heads = 4;
  config.encoder_inner = 40;
  config.max_position_embeddings = 24;
  config.classifier_dropout = 0.1;
  config.pad_token_id = config.decoder_start_token_id = 0;
  config.eos_token_id = kEndOfText;
  config.labels.num_labels = kLabels;
  if (test.regression) config.labels.problem_type = "regression";
  if (!config.family().scales_initializer) config.initializer = 0.2;
  return config;
}

nn::DecoderHead decoder_head(Head head) {
  if (head == Head::question_answering) return nn::DecoderHead::question_answering;
  return head == Head::token_classification ? nn::DecoderHead::token_classification
                                            : nn::DecoderHead::sequence_classification;
}

std::unique_ptr<Task> make_whole_task(const HeadCase& test) {
  const nn::DecoderHead head = decoder_head(test.head);
  if (test.is_encoder_decoder())
    return std::make_unique<EncoderDecoderWithHead>(tiny_encoder_decoder(test), head);
  if (test.is_decoder())
    return std::make_unique<DecoderWithHead>(std::make_unique<nn::HeadedDecoder>(
        std::make_unique<nn::DecoderTrunk>(tiny_decoder(test)), head));
  nn::EncoderConfig config = tiny_encoder(test.model_type, test.head);
  if (test.regression) config.problem_type = "regression";
  return std::make_unique<EncoderWithHead>(config, test.head);
}

std::unique_ptr<Task> make_toy_task(const HeadCase& test) {
  std::unique_ptr<Task> task = make_whole_task(test);
  if (test.lora)
    nn::add_lora(task->module(), {.r = 3,
                                  .lora_alpha = 48,
                                  .lora_dropout = 0.1,
                                  .target_modules = {"all-linear"},
                                  .modules_to_save = {"score", "classifier", "pooler", "head.dense",
                                                      "head.norm", "classification_head"}});
  return task;
}

// The share of labels that equal the best class, by position or by sample.
nlohmann::ordered_json right_answers(const Predictions& predictions) {
  const std::vector<std::int64_t> best = predictions.best_classes();
  std::vector<std::int32_t> labels;
  for (const SamplePrediction& one : predictions.samples)
    labels.insert(labels.end(), one.labels.begin(), one.labels.end());
  double right = 0, all = 0;
  for (std::size_t i = 0; i < labels.size() && labels.size() == best.size(); ++i) {
    if (labels[i] < 0) continue;
    right += best[i] == labels[i] ? 1 : 0;
    all += 1;
  }
  return {{"accuracy", right / std::max(all, 1.0)},
          {"samples", static_cast<std::int64_t>(predictions.samples.size())}};
}

}  // namespace

nn::EncoderConfig tiny_encoder(const char* model_type, Head head) {
  nn::EncoderConfig config = nn::EncoderConfig::of(model_type);
  config.vocab_size = kToyVocabulary;
  config.hidden_size = 24;
  config.num_hidden_layers = 3;
  config.num_attention_heads = 4;
  config.intermediate_size = 40;
  config.max_position_embeddings = 24;
  config.initializer_range = 0.2;
  config.num_labels = head == Head::question_answering ? 2 : kLabels;
  if (config.embedding_size > 0) config.embedding_size = 12;
  if (config.local_attention > 0) {  // windows in every second layer
    config.local_attention = 6;
    config.global_every = 2;
    config.pad_token_id = 0;
    config.pooling = "mean";
  }
  return config;
}

Sample HeadRows::get(std::int64_t index) const {
  Sample sample;
  std::uint32_t x = static_cast<std::uint32_t>(index) * 2654435761U + 17U;
  const int length = head_ == Head::question_answering ? 12 : 5 + static_cast<int>(x >> 8U) % 9;
  for (int t = 0; t < length; ++t) {
    x = x * 1664525U + 1013904223U;
    sample.input_ids.push_back(2 + static_cast<std::int32_t>((x >> 16U) % 59U));
    sample.token_type_ids.push_back(t > 3 ? 1 : 0);
  }
  sample.input_ids.back() = kEndOfText;
  const std::int32_t key = sample.input_ids[1];
  if (regression_) {
    sample.values = {0.01F * static_cast<float>(key), 0.5F, index % 4 == 0 ? NAN : 1.0F};
  } else if (head_ == Head::sequence_classification) {
    sample.labels = {key % kLabels};
  } else if (head_ == Head::question_answering) {
    sample.labels = {key % 5, 5 + key % 7};
  } else {
    for (int t = 0; t < length; ++t) {
      const std::int32_t id = sample.input_ids[static_cast<std::size_t>(t)];
      const bool none = (t + index) % 3 == 0;
      sample.labels.push_back(none                                  ? kIgnoreLabel
                              : head_ == Head::token_classification ? id % kLabels
                                                                    : id);
    }
  }
  return sample;
}

bool HeadCase::is_decoder() const { return nn::find_decoder_family(model_type) != nullptr; }
bool HeadCase::is_encoder_decoder() const { return nn::is_encoder_decoder_type(model_type); }

TrainingArguments head_arguments(const std::string& output, Layout layout) {
  TrainingArguments arguments = arguments_for(output, 4);
  layout.on_mesh = layout.pp * layout.tp > 1 || !layout.more.empty();
  layout.apply(arguments);
  return arguments;
}

RunOptions head_options(const HeadCase& test, const Layout& layout, std::int64_t samples) {
  RunOptions options{.ranks = layout.ranks()};
  options.prepare = [test, samples](CausalLmTask&, TrainerParts& parts) {
    parts.task = nullptr;
    parts.model_init = [test] { return make_toy_task(test); };
    parts.compute_metrics = right_answers;
    const bool of_positions =
        test.head == Head::masked_lm || test.head == Head::token_classification;
    // Two of the layouts split each sequence over two ranks.
    parts.collator =
        std::make_shared<PaddingCollator>(test.model_type == std::string("roberta") ? 1 : 0, 2,
                                          of_positions ? LabelsOf::positions : LabelsOf::sample);
    parts.train_dataset = std::make_shared<HeadRows>(samples, test.head, test.regression);
    parts.eval_dataset = std::make_shared<HeadRows>(11, test.head, test.regression);
  };
  return options;
}

}  // namespace shoal::test
