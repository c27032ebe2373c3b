// Names of Hugging Face's TrainingArguments and example scripts that Shoal knows but does not
// implement. Some are accepted without effect; those that would have an effect are refused.
#include <algorithm>
#include <array>

#include "shoal/runtime/base/error.h"
#include "shoal/train/trainer/arguments.h"

namespace shoal {
namespace {

struct Named {
  const char* name;
  const char* reason;
};
constexpr std::array kIgnored = {
    Named{"dataloader_pin_memory", "there is no pinned memory to copy from on a CPU"},
    Named{"dataloader_persistent_workers", "workers always live from epoch to epoch"},
    Named{"dataloader_in_order", "batches always come in order"},
    Named{"dataloader_multiprocessing_context", "workers are threads"},
    Named{"remove_unused_columns", "datasets here have no unused columns"},
    Named{"label_names", "a task knows which of its columns are labels"},
    Named{"length_column_name", "lengths are counted, not read from a column"},
    Named{"include_for_metrics",
          "predictions are in the order of the set, which has the inputs; losses are logged"},
    Named{"include_inputs_for_metrics",
          "predictions are in the order of the set, which has the inputs"},
    Named{"batch_eval_metrics", "metrics are computed once, of all predictions"},
    Named{"prediction_loss_only", "evaluation computes what the task's metrics need"},
    Named{"eval_accumulation_steps", "predictions are kept in host memory as they come"},
    Named{"eval_do_concat_batches", "predictions are always in the set's order, each sample once"},
    Named{"eval_use_gather_object", "predictions of any shape are gathered"},
    Named{"ddp_find_unused_parameters", "every parameter is reduced, used or not"},
    Named{"ddp_broadcast_buffers", "no model has buffers that training changes"},
    Named{"ddp_static_graph", "buckets are ready whatever the order of gradients"},
    Named{"ddp_timeout", "set SHOAL_DEADLINE_S, seconds that ranks wait for each other"},
    Named{"average_tokens_across_devices", "the loss is always a sum over all ranks' targets"},
    Named{"include_num_input_tokens_seen", "metrics.jsonl always has tokens_seen"},
    Named{"skip_memory_metrics", "memory by purpose is always printed at the end"},
    Named{"local_rank", "ranks are found from the launcher's variables"},
    Named{"full_determinism", "runs are always deterministic"},
    Named{"log_level", "set SHOAL_LOG"},
    Named{"log_level_replica", "set SHOAL_LOG"},
    Named{"log_on_each_node", "rank 0 alone writes the log; failures are said where they happen"},
    Named{"save_on_each_node", "output_dir is one directory that every rank sees"},
    Named{"save_safetensors", "weights are always written as safetensors"},
    Named{"restore_callback_states_from_checkpoint",
          "checkpoints always hold what early stopping "
          "counts"},
    Named{"gradient_checkpointing_kwargs", "what is recomputed has the same bits either way"},
    Named{"activation_checkpointing_kwargs", "what is recomputed has the same bits either way"},
    Named{"torch_empty_cache_steps", "memory is pooled by size, and the pool does not grow"},
    Named{"half_precision_backend", "bf16 and fp16 say the precision"},
    Named{"use_fast_tokenizer", "there is one tokenizer of each kind"},
    Named{"low_cpu_mem_usage", "weights are read a tensor at a time"},
    Named{"cache_dir", "HF_HUB_CACHE names the cache"},
    Named{"model_revision", "refs/main of the cache is read, and main is downloaded"},
    Named{"token", "HF_TOKEN is that of allow_download"},
    Named{"use_auth_token", "HF_TOKEN is that of allow_download"},
    Named{"push_to_hub", "nothing is uploaded"},
    Named{"hub_token", "nothing is uploaded"},
    Named{"hub_strategy", "nothing is uploaded"},
    Named{"hub_private_repo", "nothing is uploaded"},
    Named{"hub_always_push", "nothing is uploaded"},
    Named{"hub_revision", "nothing is uploaded"},
    Named{"sortish_sampler", "transformers ignores it too (since 4.3); see group_by_length"},
    Named{"use_cache", "training keeps no key-value cache"}};

struct Refusal {
  const char* name;
  const char* reason;
  bool is_flag = false;
};
constexpr std::array kRefused = {
    Refusal{"tf32", "f32 is computed in f32; use bf16", true},
    Refusal{"torch_compile", "there is no just-in-time compiler; see step_capture", true},
    Refusal{"torch_compile_backend", "there is no just-in-time compiler; see step_capture"},
    Refusal{"torch_compile_mode", "there is no just-in-time compiler; see step_capture"},
    Refusal{"optim_args", "set adam_beta1, adam_beta2, adam_epsilon"},
    Refusal{"optim_target_modules", "every parameter is trained"},
    Refusal{"fsdp", "use sharding_strategy"},
    Refusal{"fsdp_config", "use sharding_strategy and the sdp_ options"},
    Refusal{"deepspeed", "use shard_optimizer_state or sharding_strategy"},
    Refusal{"accelerator_config", "Accelerate is not used; each of its options has a name here"},
    Refusal{"parallelism_config",
            "use pipeline_parallel_degree, tensor_parallel_degree and sharding_strategy"},
    Refusal{"hub_model_id", "nothing is uploaded"},
    Refusal{"use_liger_kernel", "kernels are already fused", true},
    Refusal{"enable_jit_checkpoint", "SIGTERM and SIGUSR1 always save a checkpoint", true},
    Refusal{"debug", "set SHOAL_LOG=debug"},
    Refusal{"project", "report_to knows tensorboard; run_name is shown in the log"},
    Refusal{"trackio_space_id", "report_to knows tensorboard"},
    Refusal{"trackio_bucket_id", "report_to knows tensorboard"},
    Refusal{"trackio_static_space_id", "report_to knows tensorboard"},
    Refusal{"liger_kernel_config", "kernels are already fused"},
    Refusal{"ignore_mismatched_sizes",
            "a head of other sizes is refused; begin from the model without it", true},
    Refusal{"trust_remote_code", "no code of a model's directory is run", true},
    Refusal{"generation_config", "the model directory's generation_config.json is read"},
    Refusal{"torch_dtype", "use bf16 or fp16"},
    Refusal{"padding_free", "packing keeps the documents of a block apart; else batches are padded",
            true},
    Refusal{"use_lora", "set lora_r", true},
    Refusal{"use_peft", "set lora_r", true},
    Refusal{"use_dora", "LoRA and rsLoRA are built", true},
};

using Synonym = std::pair<const char*, const char*>;
constexpr std::array kSynonyms = {Synonym{"lr", "learning_rate"},
                                  Synonym{"bs", "per_device_train_batch_size"},
                                  Synonym{"batch", "per_device_train_batch_size"},
                                  Synonym{"batch_size", "per_device_train_batch_size"},
                                  Synonym{"micro_batch_size", "per_device_train_batch_size"},
                                  Synonym{"eval_bs", "per_device_eval_batch_size"},
                                  Synonym{"num_epochs", "num_train_epochs"},
                                  Synonym{"n_epochs", "num_train_epochs"},
                                  Synonym{"max_epochs", "num_train_epochs"},
                                  Synonym{"iterations", "max_steps"},
                                  Synonym{"train_iters", "max_steps"},
                                  Synonym{"num_steps", "max_steps"},
                                  Synonym{"wd", "weight_decay"},
                                  Synonym{"optimizer", "optim"},
                                  Synonym{"scheduler", "lr_scheduler_type"},
                                  Synonym{"warmup", "warmup_steps"},
                                  Synonym{"beta1", "adam_beta1"},
                                  Synonym{"beta2", "adam_beta2"},
                                  Synonym{"eps", "adam_epsilon"},
                                  Synonym{"momentum", "sgd_momentum"},
                                  Synonym{"clip", "max_grad_norm"},
                                  Synonym{"clip_grad", "max_grad_norm"},
                                  Synonym{"grad_clip", "max_grad_norm"},
                                  Synonym{"grad_accum", "gradient_accumulation_steps"},
                                  Synonym{"accumulate", "gradient_accumulation_steps"},
                                  Synonym{"grad_checkpointing", "gradient_checkpointing"},
                                  Synonym{"half", "fp16"},
                                  Synonym{"bfloat16", "bf16"},
                                  Synonym{"cpu", "use_cpu"},
                                  Synonym{"resume", "resume_from_checkpoint"},
                                  Synonym{"out", "output_dir"},
                                  Synonym{"save_dir", "output_dir"},
                                  Synonym{"workers", "dataloader_num_workers"},
                                  Synonym{"num_workers", "dataloader_num_workers"},
                                  Synonym{"log_interval", "logging_steps"},
                                  Synonym{"eval_interval", "eval_steps"},
                                  Synonym{"save_interval", "save_steps"},
                                  Synonym{"random_seed", "seed"},
                                  Synonym{"lora_rank", "lora_r"},
                                  Synonym{"prompts", "sample_prompts"},
                                  Synonym{"log_completions", "sample_texts"},
                                  Synonym{"eval_table_size", "sample_texts"},
                                  Synonym{"eval_max_new_tokens", "sample_max_new_tokens"}};

bool asks_for_nothing(const std::string& value) {
  static constexpr std::array words = {"",      "none", "null", "no",     "false",
                                       "False", "None", "0",    "random", "[]"};
  return std::any_of(words.begin(), words.end(), [&](const char* word) { return value == word; });
}

}  // namespace

void declare_ignored(OptionSet& options) {
  auto section = options.section("system");
  for (const Named& one : kIgnored) section.ignored(one.name, one.reason);
}

void declare_synonyms(OptionSet& options) { options.add_synonyms(kSynonyms); }

RefusedOptions::RefusedOptions() {
  for (const Refusal& refusal : kRefused)
    entries_.push_back({refusal.name, refusal.reason, refusal.is_flag});
}

void RefusedOptions::declare(OptionSet& options) {
  auto section = options.section("later", "Known, but refused");
  for (Entry& entry : entries_)
    if (entry.is_flag)
      section.boolean(entry.name, &entry.flag, {.help = entry.reason});
    else
      section.string(entry.name, &entry.value, {.help = entry.reason});
  section.refused();
}

void RefusedOptions::check(const OptionSet& options) const {
  std::string problems;
  for (const Entry& entry : entries_) {
    if (!entry.flag.value_or(false) && (!entry.value || asks_for_nothing(*entry.value))) continue;
    problems += fmt::format("{}{} ({}) is not supported: {}", problems.empty() ? "" : "\n",
                            entry.name, options.source_of(entry.name), entry.reason);
  }
  if (!problems.empty()) throw Error(ErrorCode::unavailable, problems);
}

}  // namespace shoal
