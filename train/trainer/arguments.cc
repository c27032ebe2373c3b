#include "shoal/train/trainer/arguments.h"

#include <cmath>
#include <tuple>
#include <utility>

#include "shoal/runtime/base/error.h"
#include "shoal/train/trainer/optimizers.h"

namespace shoal {
namespace {

constexpr std::int64_t kMaxBatch = std::int64_t{1} << 24;
constexpr double kMostMebibytes = 1e9;
constexpr std::int64_t kMostSampleTexts = 100;
constexpr std::int64_t kMaxLoraRank = std::int64_t{1} << 16;

void declare_batches(OptionSet& options, TrainingArguments& a) {
  options.section("training", "Steps and batches")
      .string("output_dir", &a.output_dir, {.help = "where checkpoints, metrics and the model go"})
      .boolean("overwrite_output_dir", &a.overwrite_output_dir,
               {.help = "train anew although output_dir holds checkpoints"})
      .boolean("do_train", &a.do_train, {.help = "train"})
      .boolean("do_eval", &a.do_eval, {.help = "evaluate at the end, if there is a validation set"})
      .boolean("do_predict", &a.do_predict,
               {.help = "write what the model says of test_file into output_dir"})
      .integer("per_device_train_batch_size", &a.per_device_train_batch_size,
               {.min = 1,
                .max = kMaxBatch,
                .help = "samples of a rank in one forward and backward",
                .aliases = {"per_gpu_train_batch_size", "train_batch_size"}})
      .integer("per_device_eval_batch_size", &a.per_device_eval_batch_size,
               {.min = 1,
                .max = kMaxBatch,
                .help = "samples of a rank in one forward of evaluation",
                .aliases = {"per_gpu_eval_batch_size", "eval_batch_size"}})
      .boolean("auto_find_batch_size", &a.auto_find_batch_size,
               {.help = "where per_device_train_batch_size takes more memory than there is, try "
                        "nine tenths of it, and so on: one step of the longest sample, before "
                        "training begins"})
      .integer("gradient_accumulation_steps", &a.gradient_accumulation_steps,
               {.min = 1, .max = kMaxBatch, .help = "microbatches a rank adds up before an update"})
      .real("num_train_epochs", &a.num_train_epochs,
            {.min = 0, .help = "passes over the training set", .aliases = {"epochs"}})
      .integer("max_steps", &a.max_steps,
               {.min = -1,
                .max = kMostSteps,
                .help = "updates, instead of num_train_epochs; -1: go by epochs"})
      .real("max_train_minutes", &a.max_train_minutes,
            {.min = 0,
             .open_min = true,
             .help = "stop after the first step that ends later; null: no limit"})
      .integer("seed", &a.seed, {.min = 0, .help = "of initial weights and dropout"})
      .integer("data_seed", &a.data_seed,
               {.min = 0, .help = "of the order of samples; null: seed"});
}

void declare_precision_and_memory(OptionSet& options, TrainingArguments& a) {
  options.section("training")
      .boolean_or_auto("bf16", &a.bf16, &a.bf16_auto,
                       {.help = "bfloat16 weights and activations, f32 masters; auto: where the "
                                "processor or GPU has instructions for it, else f32"})
      .boolean("fp16", &a.fp16, {.help = "float16 weights and activations, f32 masters"})
      .real("grad_scaler_init_scale", &a.grad_scaler_init_scale,
            {.min = 0,
             .max = 1e38,
             .open_min = true,
             .help = "fp16: what the loss is multiplied with at first"})
      .real("grad_scaler_growth_factor", &a.grad_scaler_growth_factor,
            {.min = 1, .open_min = true, .help = "fp16: how that scale grows"})
      .real("grad_scaler_backoff_factor", &a.grad_scaler_backoff_factor,
            {.min = 0,
             .max = 1,
             .open_min = true,
             .help = "fp16: how it shrinks when gradients overflow; below 1"})
      .integer("grad_scaler_growth_interval", &a.grad_scaler_growth_interval,
               {.min = 1, .max = 1 << 30, .help = "fp16: updates without overflow until it grows"})
      .boolean("bf16_full_eval", &a.bf16_full_eval,
               {.help = "evaluate in bfloat16, as with bf16; alone where nothing is trained"})
      .boolean("fp16_full_eval", &a.fp16_full_eval,
               {.help = "evaluate in float16, as with fp16; alone where nothing is trained"})
      .boolean("gradient_checkpointing", &a.gradient_checkpointing,
               {.help = "recompute activations in backward instead of keeping them",
                .aliases = {"activation_checkpointing"}})
      .boolean("activation_offloading", &a.activation_offloading,
               {.help = "what gradient_checkpointing keeps waits elsewhere for its backward: a "
                        "GPU's in pinned host memory, a CPU's in a file (TMPDIR)",
                .aliases = {"sm_activation_offloading"}})
      .boolean(
          "optimizer_offloading", &a.optimizer_offloading,
          {.help = "a GPU's optimizer state, f32 masters among it, lies in pinned host memory "
                   "and is read and written there; same results. Of sharded state a rank's shard"})
      .boolean("use_cpu", &a.use_cpu,
               {.help = "train on the CPU although there is a GPU", .aliases = {"no_cuda"}})
      .real(
          "memory_limit_mb", &a.memory_limit_mb,
          {.min = 0,
           .max = kMostMebibytes,
           .open_min = true,
           .help = "MiB that the tensors of a rank may take; null: on a CPU its share of what the "
                   "machine or the container has free, on a GPU what it has"})
      .choice(
          "step_capture", &a.step_capture,
          {{"auto", StepCaptureMode::automatic},
           {"on", StepCaptureMode::on},
           {"off", StepCaptureMode::off}},
          {.help = "after some steps, replay the whole step as one graph with its memory "
                   "planned (on a CPU the plan alone); auto: on a GPU, one rank; on: of several "
                   "ranks too, and of meshes (mp_parameters); same losses"});
}

void declare_optimizer(OptionSet& options, TrainingArguments& a) {
  options.section("optimizer", "Optimizer and schedule")
      .choice("optim", &a.optim, optimizer_words(),
              {.help = "update rule; all that begin with adamw are one"})
      .real("learning_rate", &a.learning_rate, {.min = 0, .help = "peak"})
      .real("weight_decay", &a.weight_decay,
            {.min = 0, .help = "not applied to biases and LayerNorms"})
      .real("adam_beta1", &a.adam_beta1,
            {.min = 0, .max = 1, .open_max = true, .help = "AdamW, Lion"})
      .real("adam_beta2", &a.adam_beta2,
            {.min = 0, .max = 1, .open_max = true, .help = "AdamW, Lion"})
      .real("adam_epsilon", &a.adam_epsilon, {.min = 0, .help = "AdamW"})
      .real("sgd_momentum", &a.sgd_momentum, {.min = 0, .help = "SGD"})
      .boolean("stochastic_rounding", &a.stochastic_rounding,
               {.help = "with bf16, except SGD: no f32 masters, 4 bytes a parameter less; "
                        "updates are rounded at random, right in the mean"})
      .real("max_grad_norm", &a.max_grad_norm,
            {.min = 0, .help = "gradients are scaled down to this global norm; 0: never"})
      .real("label_smoothing_factor", &a.label_smoothing_factor,
            {.min = 0, .max = 1, .open_max = true, .help = "share of each target's weight spread"})
      .real("neftune_noise_alpha", &a.neftune_noise_alpha,
            {.min = 0, .help = "noise on embeddings in training, as NEFTune's alpha"})
      .choice<std::string>("lr_scheduler_type", &a.lr_scheduler_type,
                           {{"linear", "linear"},
                            {"cosine", "cosine"},
                            {"cosine_with_restarts", "cosine_with_restarts"},
                            {"cosine_with_min_lr", "cosine_with_min_lr"},
                            {"polynomial", "polynomial"},
                            {"constant", "constant"},
                            {"constant_with_warmup", "constant_with_warmup"},
                            {"inverse_sqrt", "inverse_sqrt"},
                            {"warmup_stable_decay", "warmup_stable_decay"}},
                           {.help = "learning rate over the steps"})
      .object("lr_scheduler_kwargs", &a.lr_scheduler_kwargs,
              {.help = "the schedule's own numbers, such as {\"num_cycles\": 2}"})
      .real("warmup_steps", &a.warmup_steps,
            {.min = 0, .help = "steps of linear warmup; below 1: share of all steps"})
      .real("warmup_ratio", &a.warmup_ratio,
            {.min = 0, .max = 1, .help = "warmup as a share of all steps"});
}

void declare_logging(OptionSet& options, TrainingArguments& a) {
  const auto interval = {std::pair<const char*, Interval>{"no", Interval::no},
                         {"steps", Interval::steps},
                         {"epoch", Interval::epoch}};
  options.section("logging", "Logging and evaluation")
      .choice("logging_strategy", &a.logging_strategy, interval, {.help = "when to log"})
      .real("logging_steps", &a.logging_steps,
            {.min = 0, .open_min = true, .help = "log every so many; below 1: share of all steps"})
      .boolean("logging_first_step", &a.logging_first_step, {.help = "log step 1 too"})
      .boolean("logging_nan_inf_filter", &a.logging_nan_inf_filter,
               {.help = "leave losses that are not finite out of the logged mean"})
      .list("report_to", &a.report_to,
            {.help = "tensorboard: event files in logging_dir; metrics.jsonl is always written"})
      .string("logging_dir", &a.logging_dir,
              {.help = "for report_to; default output_dir/runs/ and the date and host"})
      .string("run_name", &a.run_name, {.help = "shown in the run header"})
      .boolean("disable_tqdm", &a.disable_tqdm, {.help = "no progress bar, even on a terminal"})
      .boolean("include_tokens_per_second", &a.include_tokens_per_second,
               {.help = "tokens/s in each logged line"})
      .string(
          "trace", &a.trace,
          {.help = "write a Chrome trace (ui.perfetto.dev); rank N > 0 adds .rankN to the name"})
      .choice("eval_strategy", &a.eval_strategy, interval,
              {.help = "when to evaluate", .aliases = {"evaluation_strategy"}})
      .real("eval_steps", &a.eval_steps,
            {.min = 0,
             .open_min = true,
             .help = "evaluate every so many; below 1: share; null: logging_steps"})
      .real("eval_delay", &a.eval_delay,
            {.min = 0, .help = "no evaluation before so many steps, or epochs (eval_strategy)"})
      .boolean("eval_on_start", &a.eval_on_start, {.help = "evaluate before the first step"})
      .boolean("predict_with_generate", &a.predict_with_generate,
               {.help = "summarization, translation: evaluation generates texts and scores them; "
                        "null: with do_predict, or without do_train"})
      .integer("generation_max_length", &a.generation_max_length,
               {.min = 2, .help = "tokens, with the start; null: val_max_target_length"})
      .integer("generation_num_beams", &a.generation_num_beams,
               {.min = 1, .help = "1: greedy; null: the model's", .aliases = {"num_beams"}})
      .texts("sample_prompts", &a.sample_prompts,
             {.help = "causal-lm: each evaluation continues these texts, for samples.jsonl and the "
                      "report; a run without evaluations does so before each checkpoint"})
      .integer("sample_texts", &a.sample_texts,
               {.min = 0,
                .max = kMostSampleTexts,
                .help = "so many texts of the validation set too: causal-lm continues their "
                        "beginnings; null: 4 with predict_with_generate, else 0"})
      .integer("sample_max_new_tokens", &a.sample_max_new_tokens,
               {.min = 1, .help = "causal-lm: tokens of such a continuation"});
}

void declare_checkpoints(OptionSet& options, TrainingArguments& a) {
  options.section("checkpoints", "Checkpoints")
      .choice("save_strategy", &a.save_strategy,
              {{"no", Interval::no},
               {"steps", Interval::steps},
               {"epoch", Interval::epoch},
               {"best", Interval::best}},
              {.help = "when to save; best: after an evaluation with a new best "
                       "metric_for_best_model"})
      .real("save_steps", &a.save_steps,
            {.min = 0, .open_min = true, .help = "save every so many; below 1: share of all steps"})
      .integer("save_total_limit", &a.save_total_limit,
               {.min = 1, .help = "checkpoints kept, the best one apart; null: all"})
      .boolean("save_only_model", &a.save_only_model,
               {.help = "leave out what only resuming needs"})
      .boolean("load_best_model_at_end", &a.load_best_model_at_end,
               {.help = "end with the weights of the best evaluation"})
      .string("metric_for_best_model", &a.metric_for_best_model,
              {.help = "a metric of evaluation: loss, perplexity, accuracy, ..."})
      .boolean("greater_is_better", &a.greater_is_better,
               {.help = "null: false for loss and perplexity, else true"})
      .integer("early_stopping_patience", &a.early_stopping_patience,
               {.min = 1,
                .help = "end after so many evaluations in a row without a better "
                        "metric_for_best_model; null: never"})
      .real("early_stopping_threshold", &a.early_stopping_threshold,
            {.min = 0, .help = "better by no more than this does not count"})
      .string(
          "resume_from_checkpoint", &a.resume_from_checkpoint,
          {.help =
               "true: the newest whole one in output_dir, if it holds any checkpoint; or a path"})
      .boolean("ignore_data_skip", &a.ignore_data_skip,
               {.help = "resume at the start of the epoch instead of the sample"});
}

void declare_loading_and_ranks(OptionSet& options, TrainingArguments& a) {
  options.section("system", "Loading and ranks")
      .integer("dataloader_num_workers", &a.dataloader_num_workers,
               {.min = 0, .max = 1024, .help = "threads that make batches ahead of time"})
      .integer("dataloader_prefetch_factor", &a.dataloader_prefetch_factor,
               {.min = 1, .max = 1024, .help = "batches a worker may be ahead"})
      .boolean("dataloader_drop_last", &a.dataloader_drop_last,
               {.help = "leave out a shorter last batch"})
      .choice("train_sampling_strategy", &a.train_sampling_strategy,
              {{"random", Sampling::random},
               {"sequential", Sampling::sequential},
               {"group_by_length", Sampling::group_by_length}},
              {.help = "order of an epoch: shuffled, as in the set, or shuffled with samples of "
                       "like length together, which pads less"})
      .boolean("group_by_length", &a.group_by_length,
               {.help = "as train_sampling_strategy group_by_length"})
      .string("ddp_backend", &a.ddp_backend,
              {.help = "auto, native, mpi or nccl; empty: SHOAL_BACKEND"})
      .string("collectives", &a.collectives,
              {.help = "rules that choose algorithms, after SHOAL_COLLECTIVES', such as "
                       "all_reduce:0-64k:@ring#^tree, or @FILE of shoal-collective-tune"})
      .boolean("fixed_order", &a.fixed_order,
               {.help = "sums over ranks have the same bits whatever the ranks per host"})
      .real("ddp_bucket_cap_mb", &a.ddp_bucket_cap_mb,
            {.min = 0,
             .max = kMostMebibytes,
             .open_min = true,
             .help = "MiB of gradients reduced at once"})
      .real("ddp_first_bucket_cap_mb", &a.ddp_first_bucket_cap_mb,
            {.min = 0,
             .max = kMostMebibytes,
             .open_min = true,
             .help = "MiB of the first bucket: small, so that reduction starts early"})
      .integer("ddp_buckets_in_flight", &a.ddp_buckets_in_flight,
               {.min = 0,
                .max = 1024,
                .help = "buckets being reduced at a time, at most; 0: as many as are ready"})
      .boolean("ddp_overlap_forward", &a.ddp_overlap_forward,
               {.help = "with max_grad_norm 0, several ranks and not fp16: update each parameter "
                        "when its gradient arrives, behind the next forward; same results"})
      .object("mp_parameters", &a.mp_parameters,
              {.help = "model parallelism, as SageMaker's library has it: "
                       "{\"pipeline_parallel_degree\": 2, \"tensor_parallel_degree\": 2, "
                       "\"microbatches\": 4, \"ddp\": true}; {}: every rank has the whole model"});
}

void declare_data(OptionSet& options, DataArguments& arguments) {
  options.section("data", "Data")
      .string(
          "train_file", &arguments.train_file,
          {.help = ".txt, .jsonl, .json (a record a line, or an array), or tokens from `shoal data "
                   "prepare` (.shoaltok); for text-classification .tsv, .csv, .jsonl, .json; for "
                   "question-answering SQuAD's .json; for token-classification columns of words "
                   "and tags, .jsonl, .json, .csv"})
      .string("validation_file", &arguments.validation_file,
              {.help = "the same kinds", .aliases = {"eval_file"}})
      .string("test_file", &arguments.test_file, {.help = "what to predict (do_predict)"})
      .string("validation_mismatched_file", &arguments.validation_mismatched_file,
              {.help = "of task_name mnli: evaluated after validation_file at the end, its metrics "
                       "end with _mm (eval_accuracy_mm)"})
      .string("test_mismatched_file", &arguments.test_mismatched_file,
              {.help = "of task_name mnli: predicted too, into predict_results_mm.txt"})
      .real(
          "validation_split_percentage", &arguments.validation_split_percentage,
          {.min = 0,
           .max = 100,
           .open_max = true,
           .help = "the share of train_file that validates where there is no validation_file: the "
                   "front of a text; rows of text- and token-classification drawn at random, "
                   "the same in every run"})
      .integer("block_size", &arguments.block_size,
               {.min = 2,
                .help = "tokens of a sample; null: the smaller of 1024 (text- and "
                        "token-classification: 128, question-answering: 384) and the model's "
                        "positions",
                .aliases = {"max_seq_length"}})
      .boolean("add_special_tokens", &arguments.add_special_tokens,
               {.help = "causal-lm: around each document what the tokenizer puts around a text "
                        "(Llama's <s>; GPT-2's puts nothing), as run_clm does. Prepared tokens "
                        "stay as they are"})
      .boolean("packing", &arguments.packing,
               {.help = "causal-lm: documents (of text its lines or records) share blocks without "
                        "seeing each other, positions begin anew with each; else they are end to "
                        "end, and each sees those before it in its block"})
      .choice(
          "packing_strategy", &arguments.packing_strategy,
          {{"bfd", PackingStrategy::bfd},
           {"bfd_split", PackingStrategy::bfd_split},
           {"wrapped", PackingStrategy::wrapped}},
          {.help = "of packing: best-fit decreasing, where what is longer than a block loses its "
                   "rest (bfd) or is cut into several (bfd_split); or end to end, cut where "
                   "blocks end (wrapped)"})
      .boolean("eval_packing", &arguments.eval_packing,
               {.help = "packing of validation_file; null: as packing"})
      .integer("max_train_samples", &arguments.max_train_samples,
               {.min = 1, .help = "the first so many"})
      .integer("max_eval_samples", &arguments.max_eval_samples,
               {.min = 1, .help = "the first so many"})
      .integer("max_predict_samples", &arguments.max_predict_samples,
               {.min = 1, .help = "the first so many"})
      .boolean("streaming", &arguments.streaming,
               {.help = "read train_file shard by shard: a directory, a pattern (data/*.jsonl), "
                        "@FILE with a name a line, or several with commas; needs max_steps"})
      .boolean("shard_by_rank", &arguments.shard_by_rank,
               {.help = "each rank streams every N-th shard only, as ShardedByS3Key divides a "
                        "channel; without, all ranks share one order, which ranks do not change"})
      .integer("shuffle_buffer_size", &arguments.shuffle_buffer_size,
               {.min = 0,
                .max = std::int64_t{1} << 32,
                .help = "samples that a stream is shuffled among; 0: not at all",
                .aliases = {"buffer_size"}})
      .integer("preprocessing_num_workers", &arguments.preprocessing_num_workers,
               {.min = 0, .max = 1024, .help = "threads that tokenize; 0: all of this rank"})
      .boolean("overwrite_cache", &arguments.overwrite_cache, {.help = "tokenize again"})
      .string("data_cache_dir", &arguments.data_cache_dir,
              {.help = "where tokens are kept; empty: output_dir/tokens"})
      .integer("pad_to_multiple_of", &arguments.pad_to_multiple_of,
               {.min = 0, .help = "positions of a batch; 0: 8 on a GPU, 32 on a CPU"})
      .boolean("pad_to_max_length", &arguments.pad_to_max_length,
               {.help = "every batch has block_size positions"});
}

void declare_rows(OptionSet& options, DataArguments& arguments) {
  options.section("rows", "Rows of text with a class or a score (text-classification)")
      .string("task_name", &arguments.task_name,
              {.help = "a task of GLUE, whose columns, classes and metrics are known: cola, mnli, "
                       "mrpc, qnli, qqp, rte, sst2, stsb, wnli"})
      .list("column_names", &arguments.column_names,
            {.help = "of a .tsv or .csv without a header line: sentence label"})
      .list("text_column_names", &arguments.text_column_names,
            {.help = "the text, or two; empty: sentence1 and sentence2, else the first others",
             .aliases = {"text_column_name"}})
      .string("label_column_name", &arguments.label_column_name,
              {.help = "numbers that are not all whole are scores; all else are classes"})
      .list("label_list", &arguments.label_list,
            {.help = "classes or tags in the order of their ids; empty: those that train_file has"})
      .boolean("skip_bad_rows", &arguments.skip_bad_rows,
               {.help = "leave out what cannot be read, and say so; else it ends the run"});
}

void declare_tasks(OptionSet& options, DataArguments& arguments) {
  options.section("questions", "Questions about a text (question-answering)")
      .integer("doc_stride", &arguments.doc_stride,
               {.min = 0, .help = "tokens that two windows over a long text share"})
      .integer("max_query_length", &arguments.max_query_length,
               {.min = 1, .help = "tokens of a question; longer ones are cut"})
      .integer("n_best_size", &arguments.n_best_size,
               {.min = 1, .max = 1 << 20, .help = "candidates for a question's answer"})
      .integer("max_answer_length", &arguments.max_answer_length,
               {.min = 1, .help = "tokens of an answer"})
      .boolean("version_2_with_negative", &arguments.version_2_with_negative,
               {.help = "SQuAD 2.0: there are questions without an answer"})
      .real("null_score_diff_threshold", &arguments.null_score_diff_threshold,
            {.help = "version 2: no answer where its score is better by more than this"});
  options.section("tags", "Words with a tag each (token-classification)")
      .boolean("label_all_tokens", &arguments.label_all_tokens,
               {.help = "all pieces of a word have its tag; else the first alone"})
      .boolean("return_entity_level_metrics", &arguments.return_entity_level_metrics,
               {.help = "precision, recall and f1 of each type of entity too"});
  options.section("masking", "Hidden text (masked-lm, span-corruption, denoising)")
      .real("mlm_probability", &arguments.mlm_probability,
            {.min = 0,
             .max = 1,
             .open_min = true,
             .help = "share of the tokens that are guessed; null: 0.15, denoising 0.3"})
      .real("mean_noise_span_length", &arguments.mean_noise_span_length,
            {.min = 1, .help = "span-corruption: tokens of a hidden span; null: 3"})
      .real("poisson_lambda", &arguments.poisson_lambda,
            {.min = 0.1, .max = 100, .help = "denoising: the same; null: 3"})
      .real("permute_sentence_ratio", &arguments.permute_sentence_ratio,
            {.min = 0, .max = 1, .help = "denoising: share of sentences that move; null: 1"})
      .boolean("whole_word_mask", &arguments.whole_word_mask,
               {.help = "hide all pieces of a word, or none"})
      .boolean("line_by_line", &arguments.line_by_line,
               {.help = "a sample is a line; else lines end to end fill block_size"});
}

void declare_lora(OptionSet& options, ModelArguments& arguments) {
  options.section("lora", "Adapters (LoRA)")
      .integer("lora_r", &arguments.lora_r,
               {.min = 0,
                .max = kMaxLoraRank,
                .help = "train only adapters of this rank; 0: the whole model"})
      .real("lora_alpha", &arguments.lora_alpha,
            {.min = 0, .open_min = true, .help = "scales adapters by lora_alpha / lora_r"})
      .real("lora_dropout", &arguments.lora_dropout,
            {.min = 0, .max = 1, .open_max = true, .help = "dropout of adapters' inputs"})
      .list("lora_target_modules", &arguments.lora_target_modules,
            {.help = "linear layers to adapt, by the ends of their names (q_proj,v_proj), or "
                     "all-linear; empty: the queries and values of attention"})
      .list("lora_modules_to_save", &arguments.lora_modules_to_save,
            {.help = "modules to train whole; a task's head always is"})
      .boolean("use_rslora", &arguments.use_rslora, {.help = "scale by lora_alpha / sqrt(lora_r)"});
}

}  // namespace

void declare_options(OptionSet& options, TrainingArguments& arguments) {
  declare_batches(options, arguments);
  declare_precision_and_memory(options, arguments);
  declare_plan_options(options, arguments);
  declare_optimizer(options, arguments);
  declare_logging(options, arguments);
  declare_checkpoints(options, arguments);
  declare_loading_and_ranks(options, arguments);
  declare_ignored(options);
}

void declare_options(OptionSet& options, ModelArguments& arguments) {
  options.section("model", "Model and tokenizer")
      .choice<std::string>("task", &arguments.task,
                           {{"", ""},
                            {"causal-lm", "causal-lm"},
                            {"masked-lm", "masked-lm"},
                            {"text-classification", "text-classification"},
                            {"question-answering", "question-answering"},
                            {"token-classification", "token-classification"},
                            {"summarization", "summarization"},
                            {"translation", "translation"},
                            {"span-corruption", "span-corruption"},
                            {"denoising", "denoising"}},
                           {.help = "what is learned; empty: what the model's config.json is for"})
      .string(
          "model_name_or_path", &arguments.model_name_or_path,
          {.help = "a Hugging Face directory whose weights training starts from, or its name in "
                   "Hugging Face's cache or SageMaker's channels",
           .aliases = {"model", "model_name"}})
      .string("config_name", &arguments.config_name,
              {.help = "a new model as this directory, config.json or preset (gpt2, gpt2-medium, "
                       "gpt2-large, gpt2-xl) says"})
      .string("model_type", &arguments.model_type,
              {.help = "type of a new model: gpt2, llama, mistral, qwen2, qwen3, gpt_neox, gemma, "
                       "gemma2, gemma3_text, bert, roberta, distilbert, albert, xlm-roberta, "
                       "electra, modernbert, t5, bart, mbart"})
      .string("config_overrides", &arguments.config_overrides,
              {.help = "changes to a new model's configuration: n_layer=6,n_embd=384,n_head=6 "
                       "(hidden_size=128, ... of a bert)"})
      .string("tokenizer_name", &arguments.tokenizer_name,
              {.help = "a directory or tokenizer.json; empty: model_name_or_path"})
      .boolean("allow_download", &arguments.allow_download,
               {.help = "download model and tokenizer from Hugging Face's Hub, or the mirror in "
                        "HF_ENDPOINT, into Hugging Face's cache, if they are not on this machine"});
  declare_lora(options, arguments);
}

void declare_options(OptionSet& options, DataArguments& arguments) {
  declare_data(options, arguments);
  declare_rows(options, arguments);
  declare_tasks(options, arguments);
  declare_pairs(options, arguments);
}

std::string_view to_string(Sampling sampling) {
  switch (sampling) {
    case Sampling::random:
      return "random";
    case Sampling::sequential:
      return "sequential";
    case Sampling::group_by_length:
      return "group_by_length";
  }
  return "";
}

bool changes_loss_scale(const TrainingArguments& a) {
  const TrainingArguments defaults;
  return a.grad_scaler_init_scale != defaults.grad_scaler_init_scale ||
         a.grad_scaler_growth_factor != defaults.grad_scaler_growth_factor ||
         a.grad_scaler_backoff_factor != defaults.grad_scaler_backoff_factor ||
         a.grad_scaler_growth_interval != defaults.grad_scaler_growth_interval;
}

void check_arguments(const TrainingArguments& a) {
  std::string problems;
  const auto refuse = [&problems](const std::string& text) {
    problems += (problems.empty() ? "" : "\n") + text;
  };
  // If mp_parameters are given, resolve_arguments() checks this together with their own bf16 and
  // fp16.
  if (a.bf16 && a.fp16 && a.mp_parameters.empty()) refuse("bf16 and fp16 are both set; choose one");
  if (a.bf16_auto && a.fp16) refuse("bf16 is auto and fp16 is set; choose one");
  if (a.bf16_auto && a.stochastic_rounding)
    refuse(
        "stochastic_rounding is of bf16 parameters, and with bf16 auto they may be f32; set bf16 "
        "true");
  if (a.stochastic_rounding && !make_rule(a)->rounds())
    refuse(fmt::format(
        "stochastic_rounding is true, but optim is {}; adamw, lamb, lion and adafactor have it",
        a.optim));
  if (a.grad_scaler_backoff_factor >= 1)
    refuse(fmt::format("grad_scaler_backoff_factor is {}; it is below 1",
                       a.grad_scaler_backoff_factor));
  if (!a.fp16 && a.mp_parameters.empty() && changes_loss_scale(a))
    refuse("a grad_scaler option is given, but the loss is scaled only with fp16; set fp16");
  if (a.warmup_steps > 0 && a.warmup_ratio > 0)
    refuse(fmt::format("warmup_steps is {} and warmup_ratio {}; give one", a.warmup_steps,
                       a.warmup_ratio));
  for (const auto& [name, strategy, steps] :
       {std::tuple{"logging_steps", a.logging_strategy, a.logging_steps},
        {"eval_steps", a.eval_strategy, a.eval_steps.value_or(1)},
        {"save_steps", a.save_strategy, a.save_steps}})
    if (strategy == Interval::steps && steps > 1 && steps != std::floor(steps))
      refuse(fmt::format("{} is {}; give a whole number, or a share of all steps below 1", name,
                         steps));
  if (a.max_steps == 0) refuse("max_steps is 0; give a number of steps, or -1 to go by epochs");
  for (const std::string& target : a.report_to)
    if (target != "none" && target != "all" && target != "tensorboard")
      refuse(
          fmt::format("report_to {} is not supported; tensorboard is, and metrics.jsonl in "
                      "output_dir has every logged number",
                      target));
  if (a.save_strategy == Interval::best && a.eval_strategy == Interval::no)
    refuse("save_strategy best needs eval_strategy steps or epoch");
  if (a.load_best_model_at_end && a.save_strategy != Interval::best) {
    if (a.eval_strategy == Interval::no)
      refuse("load_best_model_at_end needs eval_strategy steps or epoch");
    else if (a.eval_strategy != a.save_strategy)
      refuse("load_best_model_at_end needs save_strategy and eval_strategy to be the same");
    else if (a.eval_strategy == Interval::steps) {
      const double eval_steps = a.eval_steps.value_or(a.logging_steps);
      const double times = a.save_steps / eval_steps;
      // Allows rounding errors: in floating point, 0.3 / 0.1 is not exactly 3.
      if (std::abs(times - std::round(times)) > 1e-6 * times || times < 0.5)
        refuse(
            fmt::format("load_best_model_at_end needs save_steps ({}) to be a multiple of "
                        "eval_steps ({})",
                        a.save_steps, eval_steps));
    }
  }
  if (a.activation_offloading && !a.gradient_checkpointing && a.mp_parameters.empty())
    refuse(
        "activation_offloading is true, but activations are not checkpointed; what is offloaded "
        "are checkpoints: set gradient_checkpointing true");
  if (a.auto_find_batch_size && !a.mp_parameters.empty())
    refuse(
        "auto_find_batch_size is for ranks that each have the whole model, not for mp_parameters: "
        "there a rank without memory leaves others waiting for it in the middle of a step; set "
        "per_device_train_batch_size, or memory_limit_mb to see what does not fit");
  if (a.early_stopping_patience && a.eval_strategy == Interval::no)
    refuse("early_stopping_patience needs eval_strategy steps or epoch");
  if (a.group_by_length && a.train_sampling_strategy == Sampling::sequential)
    refuse("group_by_length is true and train_sampling_strategy sequential; give one");
  if (a.output_dir.empty()) refuse("output_dir is empty");
  if (!problems.empty()) throw Error(ErrorCode::invalid_argument, problems);
}

}  // namespace shoal
