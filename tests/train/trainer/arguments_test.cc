#include "shoal/train/trainer/arguments.h"

#include <sstream>

#include "support/error_text.h"
#include <gmock/gmock.h>

#include "shoal/runtime/base/error.h"
#include "shoal/train/trainer/mp_parameters.h"

namespace shoal {
namespace {

using test::error_text;
using ::testing::AllOf;
using ::testing::HasSubstr;

struct Parsed {
  TrainingArguments training;
  ModelArguments model;
  DataArguments data;
  std::vector<std::string> notices;
};

Parsed parse(const nlohmann::json& file, const std::vector<std::string>& line = {}) {
  Parsed parsed;
  RefusedOptions refused;
  OptionSet options;
  declare_options(options, parsed.training);
  declare_options(options, parsed.model);
  declare_options(options, parsed.data);
  refused.declare(options);
  options.add_json(file, "run.json");
  options.add_arguments(line);
  options.finish();
  refused.check(options);
  note_given(options, parsed.training);
  parsed.training = resolve_arguments(parsed.training);
  parsed.notices = options.notices();
  return parsed;
}

std::string refusal(const nlohmann::json& file, const std::vector<std::string>& line = {}) {
  try {
    parse(file, line);
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Arguments, DefaultsAreHuggingFaces) {
  const TrainingArguments a = parse(nlohmann::json::object()).training;
  EXPECT_EQ(a.per_device_train_batch_size, 8);
  EXPECT_EQ(a.num_train_epochs, 3.0);
  EXPECT_EQ(a.max_steps, -1);
  EXPECT_EQ(a.learning_rate, 5e-5);
  EXPECT_EQ(a.adam_beta2, 0.999);
  EXPECT_EQ(a.adam_epsilon, 1e-8);
  EXPECT_EQ(a.max_grad_norm, 1.0);
  EXPECT_EQ(a.lr_scheduler_type, "linear");
  EXPECT_EQ(a.logging_steps, 500);
  EXPECT_EQ(a.save_steps, 500);
  EXPECT_EQ(a.eval_strategy, Interval::no);
  EXPECT_EQ(a.seed, 42);
  EXPECT_EQ(a.order_seed(), 42);
}

TEST(Arguments, ALanguageModellingJobRunsAsItIs) {
  // Values arrive as strings in a SageMaker job.
  const Parsed p = parse({{"model_type", "gpt2"},
                          {"tokenizer_name", "gpt2"},
                          {"do_train", "True"},
                          {"do_eval", "false"},
                          {"num_train_epochs", "3"},
                          {"block_size", "512"},
                          {"overwrite_output_dir", "true"},
                          {"save_strategy", "no"},
                          {"evaluation_strategy", "no"},
                          {"logging_strategy", "epoch"},
                          {"output_dir", "/opt/ml/model"},
                          {"dataloader_drop_last", "true"},
                          {"preprocessing_num_workers", "12"},
                          {"per_device_train_batch_size", "13"},
                          {"learning_rate", "2.03e-5"},
                          {"optim", "adamw_torch"}});
  EXPECT_EQ(p.training.per_device_train_batch_size, 13);
  EXPECT_EQ(p.training.learning_rate, 2.03e-5);
  EXPECT_FALSE(p.training.do_eval);
  EXPECT_EQ(p.training.logging_strategy, Interval::epoch);
  EXPECT_EQ(p.data.block_size, 512);
}

TEST(Arguments, CommandLineWinsOverTheFile) {
  const Parsed p = parse({{"learning_rate", 1e-3}, {"seed", 1}},
                         {"--learning-rate", "3e-4", "--bf16", "--resume_from_checkpoint", "true"});
  EXPECT_EQ(p.training.learning_rate, 3e-4);
  EXPECT_EQ(p.training.seed, 1);
  EXPECT_TRUE(p.training.bf16);
  EXPECT_EQ(p.training.resume_from_checkpoint, "true");
}

TEST(Arguments, AMisspeltNameNamesTheNearest) {
  EXPECT_THAT(refusal({{"learning_rat", 1}}), HasSubstr("learning_rate"));
  EXPECT_THAT(refusal(nlohmann::json::object(), {"--max_step", "5"}), HasSubstr("max_steps"));
}

TEST(Arguments, KnownNamesThatAreNotBuiltAreRefusedByName) {
  EXPECT_THAT(refusal({{"torch_compile", "true"}}), HasSubstr("torch_compile"));
  EXPECT_THAT(refusal(nlohmann::json::object(), {"--deepspeed", "zero3.json"}),
              HasSubstr("use mp_parameters: shard_optimizer_state"));
  EXPECT_THAT(refusal({{"report_to", "wandb"}}), HasSubstr("report_to wandb is not supported"));
  EXPECT_EQ(refusal({{"report_to", "tensorboard"}, {"logging_dir", nullptr}}), "accepted");
  EXPECT_THAT(refusal(nlohmann::json::object(), {"--use_lora", "--bf16"}),
              HasSubstr("use_lora (command line --use_lora) is not supported"));
  EXPECT_EQ(refusal(nlohmann::json::object(), {"--use_lora", "false", "--no_tf32"}), "accepted");
  EXPECT_EQ(refusal({{"report_to", "none"}, {"torch_compile", "false"}, {"fsdp", ""}}), "accepted");
}

// Every TrainingArguments field of transformers 5.23 is an option, or is told or refused by name.
TEST(Arguments, EveryNameOfTransformersIsKnown) {
  OptionSet options;
  Parsed parsed;
  RefusedOptions refused;
  declare_options(options, parsed.training);
  declare_options(options, parsed.model);
  declare_options(options, parsed.data);
  refused.declare(options);
  const std::string names =
      "output_dir per_device_train_batch_size num_train_epochs max_steps learning_rate "
      "lr_scheduler_type lr_scheduler_kwargs warmup_steps optim optim_args weight_decay adam_beta1 "
      "adam_beta2 adam_epsilon optim_target_modules gradient_accumulation_steps "
      "average_tokens_across_devices max_grad_norm label_smoothing_factor bf16 fp16 bf16_full_eval "
      "fp16_full_eval tf32 activation_checkpointing activation_checkpointing_kwargs "
      "gradient_checkpointing gradient_checkpointing_kwargs torch_compile torch_compile_backend "
      "torch_compile_mode use_liger_kernel liger_kernel_config use_cache neftune_noise_alpha "
      "torch_empty_cache_steps auto_find_batch_size logging_strategy logging_steps "
      "logging_first_step log_on_each_node logging_nan_inf_filter include_num_input_tokens_seen "
      "log_level log_level_replica disable_tqdm report_to run_name project trackio_space_id "
      "trackio_bucket_id trackio_static_space_id eval_strategy eval_steps eval_delay "
      "per_device_eval_batch_size prediction_loss_only eval_on_start eval_do_concat_batches "
      "eval_use_gather_object eval_accumulation_steps include_for_metrics batch_eval_metrics "
      "save_only_model save_strategy save_steps save_on_each_node save_total_limit "
      "enable_jit_checkpoint push_to_hub hub_token hub_private_repo hub_model_id hub_strategy "
      "hub_always_push hub_revision load_best_model_at_end metric_for_best_model greater_is_better "
      "ignore_data_skip restore_callback_states_from_checkpoint full_determinism seed data_seed "
      "use_cpu accelerator_config parallelism_config dataloader_drop_last dataloader_num_workers "
      "dataloader_pin_memory dataloader_persistent_workers dataloader_prefetch_factor "
      "dataloader_multiprocessing_context dataloader_in_order remove_unused_columns label_names "
      "train_sampling_strategy length_column_name ddp_find_unused_parameters ddp_bucket_cap_mb "
      "ddp_broadcast_buffers ddp_static_graph ddp_backend ddp_timeout fsdp fsdp_config deepspeed "
      "debug skip_memory_metrics do_train do_eval do_predict resume_from_checkpoint local_rank "
      // Of transformers 4 besides.
      "warmup_ratio group_by_length evaluation_strategy overwrite_output_dir logging_dir no_cuda "
      "save_safetensors half_precision_backend include_inputs_for_metrics "
      "per_gpu_train_batch_size include_tokens_per_second";
  std::istringstream all(names);
  for (std::string name; all >> name;) EXPECT_NO_THROW((void)options.source_of(name)) << name;
}

TEST(Arguments, SamplingAndPatienceThatCannotBe) {
  EXPECT_EQ(parse({{"group_by_length", true}}).training.sampling(), Sampling::group_by_length);
  EXPECT_EQ(parse({{"train_sampling_strategy", "sequential"}}).training.sampling(),
            Sampling::sequential);
  EXPECT_THAT(refusal({{"group_by_length", true}, {"train_sampling_strategy", "sequential"}}),
              HasSubstr("give one"));
  EXPECT_THAT(refusal({{"early_stopping_patience", 2}}),
              HasSubstr("early_stopping_patience needs eval_strategy"));
  EXPECT_THAT(refusal({{"auto_find_batch_size", true}}), HasSubstr("ends the process"));
}

TEST(Arguments, MpParametersAndTheRunsOptionsAgreeOrAreRefused) {
  TrainingArguments arguments;
  arguments.bf16 = true;
  arguments.mp_parameters = {{"pipeline_parallel_degree", 2}, {"bf16", true}, {"random_seed", 7}};
  EXPECT_EQ(resolve_arguments(arguments).seed, 7);
  arguments.mp_parameters["bf16"] = false;
  arguments.max_steps = 0;
  EXPECT_THAT(error_text([&] { resolve_arguments(arguments); }),
              AllOf(HasSubstr("max_steps is 0"),
                    HasSubstr("bf16 is false in mp_parameters and bf16 is true")));
}

TEST(Arguments, TwoPrecisionsAreRefusedOnce) {
  TrainingArguments arguments;
  arguments.bf16 = arguments.fp16 = true;
  const auto times = [&] {
    const std::string text = error_text([&] { resolve_arguments(arguments); });
    const std::string both = "bf16 and fp16 are both set";
    const auto first = text.find(both);
    return first == std::string::npos ? 0 : text.find(both, first + 1) == std::string::npos ? 1 : 2;
  };
  EXPECT_EQ(times(), 1);
  arguments.mp_parameters = {{"pipeline_parallel_degree", 2}};
  EXPECT_EQ(times(), 1);
  arguments.mp_parameters = {{"pipeline_parallel_degree", 2}, {"fp16", true}};
  EXPECT_EQ(times(), 1);
}

// What was given holds, even where it is the default.
TEST(Arguments, WhatIsGivenHoldsAgainstMpParameters) {
  const nlohmann::json parameters = {{"sharded_data_parallel_degree", 2},
                                     {"sdp_gradient_clipping", 0.5},
                                     {"random_seed", 7},
                                     {"bf16", true},
                                     {"activation_checkpointing", "each"}};
  const TrainingArguments taken = parse({{"mp_parameters", parameters}}).training;
  EXPECT_EQ(taken.max_grad_norm, 0.5);
  EXPECT_EQ(taken.seed, 7);
  EXPECT_TRUE(taken.bf16 && taken.gradient_checkpointing);
  const auto refused = [&](const char* name, const char* value) {
    return refusal({{"mp_parameters", parameters}}, {std::string("--") + name, value});
  };
  EXPECT_THAT(refused("max_grad_norm", "1.0"),
              HasSubstr("sdp_gradient_clipping is 0.5 in mp_parameters and max_grad_norm is 1 in"));
  EXPECT_THAT(refused("seed", "42"), HasSubstr("seed is 42"));
  EXPECT_THAT(refused("bf16", "false"), HasSubstr("bf16 is false"));
  EXPECT_THAT(refused("gradient_checkpointing", "false"), HasSubstr("must agree"));
  EXPECT_EQ(refused("max_grad_norm", "0.5"), "accepted");
  EXPECT_EQ(refused("fp16", "false"), "accepted");
}

TEST(Arguments, MpParametersAreReadOnce) {
  TrainingArguments arguments;
  arguments.mp_parameters = {{"pipeline_parallel_degree", 2}};
  arguments = resolve_arguments(arguments);
  ASSERT_TRUE(arguments.model_parallel);
  arguments.mp_parameters = {{"no such key", 2}};
  EXPECT_EQ(resolve_arguments(arguments).model_parallel, arguments.model_parallel);
  EXPECT_EQ(mesh_layout(arguments, 4, 16).pipeline, 2);
}

TEST(Arguments, SayHowTheCommunicatorIsMade) {
  TrainingArguments arguments;
  arguments.fixed_order = true;
  arguments.mp_parameters = {{"ddp", true},
                             {"ddp_dist_backend", "nccl"},
                             {"sharded_data_parallel_degree", 2},
                             {"sdp_hierarchical_allgather", false}};
  const auto how = communicator_options(resolve_arguments(arguments));
  EXPECT_EQ(how.backend, "nccl");
  EXPECT_EQ(how.collectives, "all_gather:^hierarchical");
  EXPECT_TRUE(how.fixed_order);
}

TEST(Arguments, ContradictionsShowBothValues) {
  EXPECT_THAT(refusal({{"bf16", true}, {"fp16", true}}), HasSubstr("bf16 and fp16"));
  EXPECT_THAT(refusal({{"warmup_steps", 10}, {"warmup_ratio", 0.1}}), HasSubstr("warmup_ratio"));
  EXPECT_THAT(refusal({{"load_best_model_at_end", true}}), HasSubstr("eval_strategy"));
  EXPECT_THAT(refusal({{"load_best_model_at_end", true},
                       {"eval_strategy", "steps"},
                       {"eval_steps", 100},
                       {"save_steps", 150}}),
              HasSubstr("multiple"));
  EXPECT_THAT(refusal({{"per_device_train_batch_size", 8}, {"per_gpu_train_batch_size", 4}}),
              HasSubstr("4"));
  EXPECT_THAT(refusal({{"max_steps", 0}}), HasSubstr("max_steps is 0"));
  EXPECT_THAT(refusal({{"logging_steps", 2.5}}), HasSubstr("logging_steps is 2.5; give a whole"));
  EXPECT_THAT(refusal({{"save_steps", 1.5}}), HasSubstr("save_steps is 1.5"));
  EXPECT_THAT(refusal({{"eval_strategy", "steps"}, {"eval_steps", 1.5}}), HasSubstr("eval_steps"));
  // Of no effect, as for transformers; and shares whose quotient is not quite 3.
  parse({{"eval_steps", 1.5}});
  parse({{"load_best_model_at_end", true},
         {"eval_strategy", "steps"},
         {"eval_steps", 0.1},
         {"save_steps", 0.3}});
  EXPECT_THAT(refusal({{"load_best_model_at_end", true},
                       {"eval_strategy", "steps"},
                       {"eval_steps", 0.5},
                       {"save_steps", 0.1}}),
              HasSubstr("multiple"));
}

TEST(Arguments, WrongTypesAndRangesAreAllReported) {
  const std::string text = refusal({{"learning_rate", "fast"},
                                    {"per_device_train_batch_size", 0},
                                    {"max_steps", 3.5},
                                    {"lr_scheduler_type", "sawtooth"}});
  EXPECT_THAT(text, HasSubstr("learning_rate"));
  EXPECT_THAT(text, HasSubstr("per_device_train_batch_size"));
  EXPECT_THAT(text, HasSubstr("max_steps"));
  EXPECT_THAT(text, HasSubstr("cosine_with_restarts"));
}

TEST(Arguments, HarmlessNamesAreToldButPass) {
  const Parsed p = parse({{"ddp_find_unused_parameters", false}});
  ASSERT_EQ(p.notices.size(), 1U);
  EXPECT_THAT(p.notices[0], HasSubstr("ddp_find_unused_parameters"));
}

}  // namespace
}  // namespace shoal
