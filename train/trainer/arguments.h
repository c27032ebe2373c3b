// Arguments of a run: Hugging Face's TrainingArguments, and the model and data arguments of its
// run_clm, with the same names and defaults (transformers 5, with aliases of 4).
//
// declare_options binds every field to a name. Names that Hugging Face has and Shoal lacks are
// declared too, so that using one is refused with a reason and not ignored.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "shoal/runtime/config/options.h"
#include "shoal/train/data/packing_strategy.h"

namespace shoal {

namespace parallel {
struct SmpParameters;
}

enum class Interval { no, steps, epoch, best };  // `best` is valid only for save_strategy
enum class Sampling { random, sequential, group_by_length };
std::string_view to_string(Sampling sampling);  // as the option spells it
// Capture of a step as one graph with planned memory (nn/capture). automatic: on if kernels run on
// a GPU.
enum class StepCaptureMode { automatic, on, off };

// Largest number of updates in one run. A double represents every integer up to this value exactly.
inline constexpr std::int64_t kMostSteps = std::int64_t{1} << 53;

struct TrainingArguments {
  std::string output_dir = "trainer_output";
  bool overwrite_output_dir = false;
  bool do_train = true, do_eval = true, do_predict = false;

  // --- batches: per device, per microbatch. Global batch = per device × ranks × accumulation.
  std::int64_t per_device_train_batch_size = 8, per_device_eval_batch_size = 8;
  std::int64_t gradient_accumulation_steps = 1;
  bool auto_find_batch_size = false;  // per_device_train_batch_size is then a limit
  double num_train_epochs = 3.0;
  std::int64_t max_steps = -1;              // above 0: overrides num_train_epochs
  std::optional<double> max_train_minutes;  // the first step that begins later is the last

  // --- optimizer
  std::string optim = "adamw";  // the first name in a row of train/trainer/optimizers.cc
  double learning_rate = 5e-5, weight_decay = 0.0;
  double adam_beta1 = 0.9, adam_beta2 = 0.999, adam_epsilon = 1e-8;
  double sgd_momentum = 0.0;
  // bf16 without f32 masters: updates are rounded stochastically (kernels/rounding.h).
  bool stochastic_rounding = false;
  double max_grad_norm = 1.0;  // 0: no clipping; the norm is logged anyway
  double label_smoothing_factor = 0.0;
  std::optional<double> neftune_noise_alpha;  // noise on embeddings in training

  // --- schedule. A step count below 1 is a share of all steps.
  std::string lr_scheduler_type = "linear";
  nlohmann::json lr_scheduler_kwargs = nlohmann::json::object();
  double warmup_steps = 0.0;
  double warmup_ratio = 0.0;

  // --- precision and memory
  bool bf16 = false, fp16 = false;
  // bf16 if every rank's processor or GPU has instructions for it, else f32. A resumed run computes
  // in the checkpoint's dtype. The Trainer decides and sets bf16.
  bool bf16_auto = false;
  // Loss scaling for fp16, with the names and defaults of accelerate's GradScalerKwargs.
  double grad_scaler_init_scale = 65536, grad_scaler_growth_factor = 2;
  double grad_scaler_backoff_factor = 0.5;
  std::int64_t grad_scaler_growth_interval = 2000;
  // Evaluation computes in the training dtype. A request for another dtype is refused.
  bool bf16_full_eval = false, fp16_full_eval = false;
  bool gradient_checkpointing = false;
  bool activation_offloading = false;     // offloads the tensors that checkpointing keeps
  bool optimizer_offloading = false;      // masters and moments in pinned host memory
  bool use_cpu = false;                   // even if there is a GPU
  std::optional<double> memory_limit_mb;  // MiB of tensors; nullopt: see train/run/compute.h
  StepCaptureMode step_capture = StepCaptureMode::automatic;

  // --- logging
  Interval logging_strategy = Interval::steps;
  double logging_steps = 500;
  bool logging_first_step = false;
  bool logging_nan_inf_filter = true;
  std::vector<std::string> report_to = {"none"};
  // For report_to tensorboard; nullopt: output_dir/runs/...
  std::optional<std::string> logging_dir;
  std::optional<std::string> run_name;
  bool disable_tqdm = false;
  bool include_tokens_per_second = false;
  std::string trace;  // file of rank 0's Chrome trace; rank N > 0 adds .rankN

  // --- evaluation
  Interval eval_strategy = Interval::no;
  std::optional<double> eval_steps;  // nullopt: logging_steps
  double eval_delay = 0;             // in the unit of eval_strategy
  bool eval_on_start = false;
  // Evaluation and prediction of sequence-to-sequence tasks generate texts. nullopt: if do_predict,
  // or if nothing is trained.
  std::optional<bool> predict_with_generate;
  std::optional<std::int64_t> generation_max_length;  // nullopt: val_max_target_length
  std::optional<std::int64_t> generation_num_beams;   // nullopt: generation_config.json
  // Texts generated during training (sample_texts.h): of these prompts, and of so many first texts
  // of the validation set. sample_texts nullopt: 4 if evaluation generates, else 0.
  std::vector<std::string> sample_prompts;
  std::optional<std::int64_t> sample_texts;
  std::int64_t sample_max_new_tokens = 32;

  // --- checkpoints
  Interval save_strategy = Interval::steps;
  double save_steps = 500;
  std::optional<std::int64_t> save_total_limit;
  bool save_only_model = false;
  bool load_best_model_at_end = false;
  std::string metric_for_best_model = "loss";
  std::optional<bool> greater_is_better;
  // Ends the run after this many consecutive evaluations that did not improve on the best one by
  // more than the threshold.
  std::optional<std::int64_t> early_stopping_patience;
  double early_stopping_threshold = 0;
  std::string resume_from_checkpoint;  // "", "true" (the newest complete one), "false" or a path
  bool ignore_data_skip = false;

  // --- data order
  std::int64_t seed = 42;
  std::optional<std::int64_t> data_seed;  // nullopt: seed
  Sampling train_sampling_strategy = Sampling::random;
  bool group_by_length = false;  // transformers 4's name for Sampling::group_by_length
  bool dataloader_drop_last = false;
  std::int64_t dataloader_num_workers = 0;
  std::int64_t dataloader_prefetch_factor = 2;

  // --- collectives
  std::string ddp_backend;  // empty: SHOAL_BACKEND
  std::string collectives;  // selection rules, appended to those of SHOAL_COLLECTIVES
  bool fixed_order = false;
  // Fusion buffers (parallel/data/reducer.h): sizes in MiB, and how many are reduced at a time.
  double ddp_bucket_cap_mb = 25, ddp_first_bucket_cap_mb = 1;
  std::int64_t ddp_buckets_in_flight = 0;  // 0: all that are ready
  // Runs updates during the next forward, which waits for each parameter just before it is used.
  // The results are the same. Applies only if several ranks train and nothing needs all gradients
  // first: see overlaps_forward().
  bool ddp_overlap_forward = true;

  // Model parallelism, in the format of SMP's `parameters`. Empty: every rank has the whole model.
  nlohmann::json mp_parameters = nlohmann::json::object();
  // The same settings given as separate options (--pipeline_parallel_degree 2). take_given() moves
  // them to mp_parameters.
  std::map<std::string, std::optional<std::string>> plan_options = {};
  // Names of options that overlap with mp_parameters and were set explicitly, even to their default
  // (take_given()). An option whose value differs from its default counts as given in any case.
  std::set<std::string> given;

  bool overlaps_forward(int ranks) const {
    return ddp_overlap_forward && ranks > 1 && max_grad_norm == 0 && !fp16;
  }
  std::int64_t order_seed() const { return data_seed.value_or(seed); }
  Sampling sampling() const {
    return group_by_length ? Sampling::group_by_length : train_sampling_strategy;
  }
};

struct ModelArguments {
  std::string task;                // causal-lm, ...; empty: the task of the model's config.json
  std::string model_name_or_path;  // a Hugging Face directory, including weights
  std::string asked_model;         // its name on the Hub, if it was found on this machine by that
  std::string config_name;         // a directory, a config.json, or a preset: gpt2-medium
  std::string model_type;          // gpt2, bert, ...: creates a new model
  std::string config_overrides;    // "n_layer=6,n_embd=384"
  std::string tokenizer_name;      // a directory or tokenizer.json
  bool allow_download = false;     // of models that are not on this machine

  // --- adapters (nn/layers/lora.h), with the names of TRL's ModelConfig and PEFT's defaults
  std::int64_t lora_r = 0;  // 0: the whole model is trained
  double lora_alpha = 8, lora_dropout = 0;
  bool use_rslora = false;
  std::vector<std::string> lora_target_modules, lora_modules_to_save;
};

struct DataArguments {
  std::string train_file, validation_file;  // .txt, .jsonl, or prepared tokens (.shoaltok)
  double validation_split_percentage = 0;   // of train_file, if there is no validation_file
  std::optional<std::int64_t> block_size;   // nullopt: min(1024, the model's positions)
  std::optional<std::int64_t> max_train_samples, max_eval_samples, max_predict_samples;
  // Causal language models: adds the tokenizer's special tokens to each document, as run_clm does
  // to each line.
  bool add_special_tokens = true;
  // Causal language models: documents share blocks without attending to each other. Otherwise they
  // are concatenated and attend to each other. eval_packing nullopt: same as packing.
  bool packing = false;
  std::optional<bool> eval_packing;
  PackingStrategy packing_strategy = PackingStrategy::bfd;
  bool streaming = false;  // train_file names shards, which are read one after another
  std::int64_t shuffle_buffer_size = 10000;    // samples; 0: no shuffling
  bool shard_by_rank = false;                  // each rank streams its own shards
  std::int64_t preprocessing_num_workers = 0;  // 0: all cores of this rank
  bool overwrite_cache = false;
  std::string data_cache_dir;  // directory of prepared tokens; empty: output_dir/tokens

  std::string test_file;  // for do_predict
  // MNLI's mismatched genres: evaluated and predicted too, under names that end with _mm.
  std::string validation_mismatched_file, test_mismatched_file;

  // --- rows of text with a class or a score
  std::string task_name;                       // a GLUE task; determines the columns of the files
  std::vector<std::string> column_names;       // for a TSV or CSV without a header line
  std::vector<std::string> text_column_names;  // one or two; empty: the usual names
  std::string label_column_name = "label";
  std::vector<std::string> label_list;  // in the order of ids; empty: the labels of train_file
  bool skip_bad_rows = false;           // false: the first bad row ends the run

  // --- questions about a text (SQuAD)
  std::int64_t doc_stride = 128, max_query_length = 64;  // tokens
  std::int64_t n_best_size = 20, max_answer_length = 30;
  bool version_2_with_negative = false;  // some questions have no answer
  double null_score_diff_threshold = 0;

  // --- words with a tag each
  bool label_all_tokens = false;             // false: only the first piece of a word is labelled
  bool return_entity_level_metrics = false;  // adds metrics per type of entity

  // --- hidden text: masked language modelling, span corruption, denoising
  std::optional<double> mlm_probability;                         // nullopt: 0.15, of denoising 0.3
  std::optional<double> mean_noise_span_length, poisson_lambda;  // nullopt: 3
  std::optional<double> permute_sentence_ratio;                  // nullopt: 1
  bool whole_word_mask = false, line_by_line = false;

  // --- texts with a summary or a translation
  std::string text_column, summary_column;  // empty: the usual names, or the first two
  std::string source_lang, target_lang;     // of translations; mBART's with the region: en_XX
  std::string lang;                         // of mBART's summaries
  std::string source_prefix;
  std::optional<std::int64_t> max_source_length;  // tokens; nullopt: min(1024, the positions)
  std::int64_t max_target_length = 128;
  std::optional<std::int64_t> val_max_target_length;  // nullopt: max_target_length
  std::string forced_bos_token;
  bool ignore_pad_token_for_loss = true;

  // --- padding of samples whose lengths differ
  std::int64_t pad_to_multiple_of = 0;  // 0: 8 on a GPU, 32 on a CPU
  bool pad_to_max_length = false;
};

void declare_options(OptionSet& options, TrainingArguments& arguments);
void declare_options(OptionSet& options, ModelArguments& arguments);
void declare_options(OptionSet& options, DataArguments& arguments);
void declare_pairs(OptionSet& options, DataArguments& arguments);  // of declare_options()
// Declares as options the keys of mp_parameters that no other run option covers.
void declare_plan_options(OptionSet& options, TrainingArguments& arguments);
// Other programs' words for options, which messages about wrong names explain.
void declare_synonyms(OptionSet& options);
// Declares names that are accepted without effect; using one is reported with the reason.
void declare_ignored(OptionSet& options);

// Known names that are refused. Must outlive the OptionSet.
class RefusedOptions {
 public:
  RefusedOptions();
  void declare(OptionSet& options);
  // Call after finish(). Throws unavailable with one line per given name whose value would have an
  // effect.
  void check(const OptionSet& options) const;

 private:
  struct Entry {
    std::string name, reason;
    bool is_flag = false;  // needs no value, as Hugging Face's --do_predict
    std::optional<std::string> value = {};
    std::optional<bool> flag = {};
  };
  std::vector<Entry> entries_;
};

// Checks combinations of options, except those with mp_parameters (resolve_arguments() checks all).
// Call it after finish(). Throws invalid_argument with every problem, one per line.
void check_arguments(const TrainingArguments& arguments);
// True if a grad_scaler option differs from GradScaler's default.
bool changes_loss_scale(const TrainingArguments& arguments);

}  // namespace shoal
