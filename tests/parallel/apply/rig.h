// A tiny GPT-2, BERT, Llama, Qwen3, GPT-NeoX, Gemma, Gemma 2, Gemma 3, T5 or BART, trained on any
// layout and on one rank.
#pragma once

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "nn/fixture.h"
#include "support/rank_device.h"
#include "support/ranks.h"
#include <fmt/format.h>
#include <gmock/gmock.h>

#include "shoal/nn/models/causal_lm.h"
#include "shoal/nn/models/encoder/model.h"
#include "shoal/nn/models/encoder_decoder/model.h"
#include "shoal/parallel/apply/distributed_optimizer.h"

namespace shoal::parallel {

constexpr int kRows = 16, kLength = 16, kSteps = 20, kVocabulary = 83, kUnits = 8;

// bert: with a masked language model's head; qwen3, gemma2, gemma3: with sliding windows in every
// second layer; t5: with gated GELU and a tied head
enum class Model : std::uint8_t {
  gpt2,
  bert,
  llama,
  qwen3,
  gpt_neox,
  gemma,
  gemma2,
  gemma3,
  t5,
  bart,
};
constexpr std::array kModelNames = {"gpt2",  "bert",   "llama",  "qwen3", "gpt_neox",
                                    "gemma", "gemma2", "gemma3", "t5",    "bart"};
inline const char* name_of(Model model) { return kModelNames[static_cast<std::size_t>(model)]; }

// A model and its data. Each layout is compared with one rank on the same task.
struct Task {
  int rows = kRows;  // in the global batch
  int length = kLength, heads = 8;
  Model model = Model::gpt2;
  bool packed = false;  // rows hold several texts
  bool lora = false;    // each linear layer has an adapter with dropout, and only these learn
  friend auto operator<=>(const Task&, const Task&) = default;
};

inline nn::DecoderConfig tiny(const Task& task = {}) {
  nn::DecoderConfig config = nn::DecoderConfig::of("gpt2");
  config.vocab_size = kVocabulary;
  config.max_position_embeddings = 24;
  config.hidden_size = 4 * task.heads;
  config.num_hidden_layers = kUnits - 2;  // besides embeddings and head
  config.num_attention_heads = task.heads;
  return config;
}

// Llama or Qwen3. Two heads share a key head if their number is even.
inline nn::DecoderConfig tiny_llama(const Task& task = {.model = Model::llama}) {
  nn::DecoderConfig config = nn::DecoderConfig::of(task.model == Model::qwen3 ? "qwen3" : "llama");
  config.vocab_size = kVocabulary;
  config.max_position_embeddings = 24;
  config.hidden_size = 4 * task.heads;
  config.intermediate_size = 5 * task.heads;
  config.num_hidden_layers = kUnits - 2;
  config.num_attention_heads = task.heads;
  config.num_key_value_heads = task.heads % 2 == 0 ? task.heads / 2 : task.heads;
  config.initializer_range = 0.2;
  config.attention_dropout = 0.1;
  config.tie_word_embeddings = true;
  if (task.model == Model::qwen3) {
    config.head_dim = 6;
    config.use_sliding_window = true;
    config.sliding_window = 5;
    for (std::int64_t layer = 0; layer < config.num_hidden_layers; ++layer)
      config.layer_types.emplace_back(layer % 2 == 0 ? "sliding_attention" : "full_attention");
  }
  return config;
}

inline bool is_gemma(Model model) { return model >= Model::gemma && model <= Model::gemma3; }

// A Gemma with the sizes of tiny_llama().
inline nn::DecoderConfig tiny_gemma(const Task& task) {
  nn::DecoderConfig config =
      nn::DecoderConfig::of(task.model == Model::gemma3 ? "gemma3_text" : name_of(task.model));
  const nn::DecoderConfig sizes = tiny_llama(task);
  config.vocab_size = sizes.vocab_size;
  config.max_position_embeddings = sizes.max_position_embeddings;
  config.hidden_size = sizes.hidden_size;
  config.intermediate_size = sizes.intermediate_size;
  config.num_hidden_layers = sizes.num_hidden_layers;
  config.num_attention_heads = sizes.num_attention_heads;
  config.num_key_value_heads = sizes.num_key_value_heads;
  config.head_dim = 6;
  config.attention_dropout = 0.1;
  config.initializer_range = 0.1;
  if (task.model == Model::gemma) return config;
  config.query_pre_attn_scalar = 5;
  config.sliding_window = 5;
  config.sliding_window_pattern = 2;
  if (task.model == Model::gemma2) config.attention_soft_cap = 1.5, config.logit_soft_cap = 2;
  return config;
}

// Half of each head's channels turn.
inline nn::DecoderConfig tiny_neox(const Task& task) {
  nn::DecoderConfig config = nn::DecoderConfig::of("gpt_neox");
  config.vocab_size = kVocabulary;
  config.max_position_embeddings = 24;
  config.hidden_size = 4 * task.heads;
  config.intermediate_size = 5 * task.heads;
  config.num_hidden_layers = kUnits - 2;
  config.num_attention_heads = task.heads;
  config.rotary_fraction = 0.5;
  config.initializer_range = 0.2;
  config.embedding_dropout = config.hidden_dropout = config.attention_dropout = 0.1;
  return config;
}

inline bool is_encoder_decoder(Model model) { return model >= Model::t5; }

inline nn::EncoderConfig tiny_encoder(const char* model_type, int heads, int layers) {
  nn::EncoderConfig config = nn::EncoderConfig::of(model_type);
  config.vocab_size = kVocabulary;
  config.hidden_size = 4 * heads;
  config.num_hidden_layers = layers;
  config.num_attention_heads = heads;
  config.intermediate_size = 5 * heads;
  config.max_position_embeddings = 24;
  config.initializer_range = 0.2;
  config.hidden_dropout_prob = config.attention_probs_dropout_prob = 0.1;
  if (config.embedding_size > 0) config.embedding_size = 10;
  if (config.local_attention > 0) {  // windows of 3 positions to each side in every second layer
    config.local_attention = 6;
    config.global_every = 2;
    config.mlp_dropout = 0.1;
    config.pad_token_id = 0;
    config.pooling = "mean";
  }
  return config;
}
// T5 or BART, with two layers in the encoder and three in the decoder.
inline nn::EncoderDecoderConfig tiny_encoder_decoder(const Task& task) {
  const bool t5 = task.model == Model::t5;
  nn::EncoderDecoderConfig config = nn::EncoderDecoderConfig::of(t5 ? "t5" : "bart");
  config.vocab_size = kVocabulary;
  config.d_model = 4 * task.heads;
  config.encoder_layers = 2;
  config.decoder_layers = kUnits - 3 - config.encoder_layers;
  config.encoder_heads = task.heads;
  config.encoder_inner = 5 * task.heads;
  config.max_position_embeddings = std::max(24, task.length);
  config.dropout = config.attention_dropout = config.activation_dropout = 0.1;
  if (t5) {
    config.head_dim = 6;
    config.relative_buckets = 8;
    config.relative_distance = 10;
    config.activation = "gated-gelu";
  } else {
    config.initializer = 0.2;
    config.scale_embedding = true;
  }
  return config;
}
// The model is not materialised.
std::unique_ptr<nn::Chain> make_model(const Task& task);

// lamb_of_parts is wrong on purpose: its trust ratios are those of a rank's part of a parameter.
enum class Rule { adamw, lamb, lamb_of_parts, adafactor };

struct Layout {
  Task task = {};
  int rdp = 1, pp = 1, tp = 1;
  ScheduleKind schedule = ScheduleKind::one_f_one_b;
  int chunks = 1;
  int microbatches = 1;
  bool prescaled = false, speed = false;
  int checkpoint_group = 0;
  bool offload = false;
  std::int64_t offload_from = 1;  // minimum size of a tensor, in bytes
  std::string placement = "cluster";
  int sharding = 0, degree = 0;  // degree 0: all of rdp
  DType dtype = DType::f32;
  double first_scale = 0x1p26;  // for f16
  Rule rule = Rule::adamw;
  bool queued = false;     // queue_train() and queue_step(): results are read at the end
  bool frozen = false;     // the positions and one block are not trained
  bool rounded = false;    // bf16 without masters
  bool apart = false;      // masters and moments are in another memory
  bool disturbed = false;  // at first, a third of the weights one ulp up, a third down

  int ranks() const { return rdp * pp * tp; }
  friend void PrintTo(const Layout& layout, std::ostream* out) { *out << layout.text(); }
  std::string text() const {
    std::string all = fmt::format("rdp{}_pp{}_tp{}_{}x{}_m{}_{}", rdp, pp, tp, name(schedule),
                                  chunks, microbatches, placement);
    if (tp > 1) all += prescaled ? (speed ? "_speed" : "_sequence") : "_batch";
    if (checkpoint_group > 0) all += fmt::format("_checkpoints{}", checkpoint_group);
    if (offload) all += "_offload";
    if (sharding > 0) all += fmt::format("_sharded{}", sharding);
    if (degree > 0) all += fmt::format("_over{}", degree);
    if (dtype != DType::f32) all += fmt::format("_{}", to_string(dtype));
    if (task.model != Model::gpt2) all += fmt::format("_{}", name_of(task.model));
    if (task.packed) all += "_packed";
    if (task.lora) all += "_lora";
    if (queued) all += "_queued";
    if (frozen) all += "_frozen";
    if (rounded) all += "_rounded";
    if (apart) all += "_apart";
    if (disturbed) all += "_disturbed";
    if (rule == Rule::lamb) all += "_lamb";
    if (rule == Rule::lamb_of_parts) all += "_lamb_of_parts";
    if (rule == Rule::adafactor) all += "_adafactor";
    std::replace(all.begin(), all.end(), '-', '_');
    return all;
  }
};

// Whole tensors by name, and for each element the number of ranks that write it.
struct Whole {
  std::map<std::string, std::vector<double>> values;
  std::map<std::string, std::vector<int>> writers;
};
// The statistics of a rank's offloading, and its units.
struct Offloaded {
  OffloadStatistics statistics;
  std::vector<UnitRange> units;
};
struct Trained {
  std::vector<double> losses, norms;  // by step
  std::vector<bool> skipped;
  double evaluated = 0;  // loss at the end, without dropout
  Whole first;           // gradients of its first step
  Whole state;           // masters and moments at the end
  // The driver's counts over all ranks for each step, training and update.
  std::vector<DeviceStatistics> asked;
  std::int64_t tp_operations = 0;    // of the host's, in the tp group of rank 0
  std::vector<Offloaded> offloaded;  // by rank
};

struct Rank : nn::Fixture {
  // One thread, because there are many ranks with little work each.
  Rank() : Fixture(false, 1, nn::FixtureMemory::job) { context.random.state = &state; }
  // Row `row` of the global batch of `step`. All ranks get the same.
  Tensor rows(int step, int first, int count, bool targets, int length = kLength) {
    std::vector<std::int32_t> all;
    for (int row = first; row < first + count; ++row) {
      std::int32_t id = (step * 31 + row * 7) % kVocabulary;
      for (int t = 0; t <= length; ++t) {
        id = (id * 3 + 1) % kVocabulary;  // the next token can be learned
        // Rows have different numbers of targets, as with padding.
        if (t < length && !targets) all.push_back(id);
        if (t > 0 && targets) all.push_back(t > 3 + row % 13 ? -1 : id);
      }
    }
    return ids({count, length}, all);
  }
  const testing::Reachable<kernels::StepState> reachable_state;
  kernels::StepState& state = *reachable_state;
};

// Rows [first, first + rows) of a step's batch for an encoder's head, with padding and token types.
nn::ChainInput encoder_input(Rank& rank, const nn::EncoderConfig& config, nn::EncoderTask task,
                             int step, int first, int rows, int length = kLength);

struct Difference {
  double loss = 0, norm = 0, gradient = 0;  // relative; the maximum over all steps
};

// For each element of the parameter, its index in the whole tensor.
std::vector<std::size_t> places_of(const nn::Parameter& parameter);
// The sum over the ranks that have different samples. Blocks.
std::int64_t sum_over_samples(ProcessMesh& mesh, const ParallelModel& model, std::int64_t value);
// Writes `run`, which begins at the parameter's element `first`, into the whole tensor of `into`.
void collect(const nn::Parameter& parameter, std::int64_t first, const Tensor& run, Whole& into);
void collect(const StateRun& run, Whole& into);
ParallelPlan plan_of(const Layout& layout);
ParallelOptions options_of(const Layout& layout);

// Runs steps [from, to). `start`: the state to continue from, or null. f16 starts with a loss scale
// of 2^26, which overflows, and continues with 2^16, which does not.
Trained trained(const Layout& layout, int from = 0, int to = kSteps, const Whole* start = nullptr);
// Each result is computed once. Ranks must not call it.
const Trained& one_rank(DType dtype = DType::f32, const Task& task = {}, int steps = kSteps);

// NaN if either has a NaN. Both must have the same number of losses.
Difference difference(const Trained& got, const Trained& want);
// Checks that exactly one rank writes each element of state that several ranks hold.
void expect_one_writer(const Whole& got, const Whole& want);

}  // namespace shoal::parallel
