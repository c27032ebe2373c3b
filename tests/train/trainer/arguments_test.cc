#include "shoal/train/trainer/arguments.h"

#include <map>
#include <set>
#include <sstream>

#include "support/error_text.h"
#include "support/golden.h"
#include <gmock/gmock.h>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/io/byte_source.h"
#include "shoal/train/trainer/resolved_run.h"

namespace shoal {
namespace {

using test::error_text;
using ::testing::AllOf;
using ::testing::HasSubstr;

struct Parsed {
  ResolvedRun training;
  ModelArguments model;
  DataArguments data;
  std::vector<std::string> notices;
};

Parsed parse(const nlohmann::json& file, const std::vector<std::string>& line = {}) {
  Parsed parsed;
  TrainingArguments said;
  RefusedOptions refused;
  OptionSet options;
  declare_options(options, said);
  declare_options(options, parsed.model);
  declare_options(options, parsed.data);
  refused.declare(options);
  options.add_json(file, "run.json");
  options.add_arguments(line);
  options.finish();
  refused.check(options);
  take_given(options, said);
  parsed.training = resolve_arguments(said);
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
              HasSubstr("use shard_optimizer_state"));
  EXPECT_THAT(refusal({{"report_to", "wandb"}}), HasSubstr("report_to wandb is not supported"));
  EXPECT_EQ(refusal({{"report_to", "tensorboard"}, {"logging_dir", nullptr}}), "accepted");
  EXPECT_THAT(refusal(nlohmann::json::object(), {"--use_lora", "--bf16"}),
              HasSubstr("use_lora (command line --use_lora) is not supported"));
  EXPECT_EQ(refusal(nlohmann::json::object(), {"--use_lora", "false", "--no_tf32"}), "accepted");
  EXPECT_EQ(refusal({{"report_to", "none"}, {"torch_compile", "false"}, {"fsdp", ""}}), "accepted");
}

struct Declared {
  TrainingArguments training;
  ModelArguments model;
  DataArguments data;
  RefusedOptions refused;
  OptionSet options;
  Declared() {
    declare_options(options, training);
    declare_options(options, model);
    declare_options(options, data);
    refused.declare(options);
  }
};

nlohmann::json transformers(const char* part) {
  return nlohmann::json::parse(read_text_file(testing::golden_path("training_arguments.json")))
      .at(part);
}

// Every TrainingArguments field is an option, or is ignored with a note or refused by name.
TEST(Arguments, EveryNameOfTransformersIsKnown) {
  const Declared declared;
  const nlohmann::json defaults = transformers("defaults");
  for (const auto& [name, value] : defaults.items())
    EXPECT_NO_THROW((void)declared.options.source_of(name)) << name;
  std::istringstream of_version_4(
      "warmup_ratio group_by_length evaluation_strategy overwrite_output_dir logging_dir no_cuda "
      "save_safetensors half_precision_backend include_inputs_for_metrics "
      "per_gpu_train_batch_size include_tokens_per_second");
  for (std::string name; of_version_4 >> name;)
    EXPECT_NO_THROW((void)declared.options.source_of(name)) << name;
}

// An option that is not set has the same default in both, with these exceptions.
TEST(Arguments, DefaultsAreTransformers) {
  const std::map<std::string, nlohmann::json> other = {
      {"output_dir", "trainer_output"},  // transformers' value for null
      {"optim", "adamw"},                // any adamw is ours
      {"do_train", true},                // no script asks for the value
      {"do_eval", true},
      // transformers, PyTorch's loader and DDP replace null with these values.
      {"metric_for_best_model", "loss"},
      {"dataloader_prefetch_factor", 2},
      {"ddp_bucket_cap_mb", 25},
  };
  const auto unset = [](const nlohmann::json& value) {
    return value.is_null() || value == nlohmann::json("") || value == false || value == "none" ||
           (value.is_structured() && value.empty()) || value == nlohmann::json{"none"};
  };
  const nlohmann::json theirs = transformers("defaults");
  const Declared declared;
  int compared = 0;
  const nlohmann::ordered_json sections = declared.options.dump();
  for (const auto& [section, values] : sections.items()) {
    if (section == "later" || section.starts_with("_") || !values.is_object()) continue;
    for (const auto& [name, value] : values.items()) {
      const auto found = theirs.find(name);
      if (found == theirs.end()) continue;
      ++compared;
      const nlohmann::json ours = value;
      const auto exception = other.find(name);
      const nlohmann::json& wanted = exception != other.end() ? exception->second : *found;
      EXPECT_TRUE(ours == wanted || (unset(ours) && unset(wanted)))
          << name << " is " << ours << " here, and " << wanted << " there";
    }
  }
  EXPECT_GT(compared, 50);
}

// The accepted values of options with named values. All others are refused with a list of these.
TEST(Arguments, ChoicesOfTransformersAreTakenOrRefusedWithThoseThatAre) {
  const std::map<std::string, std::set<std::string>> taken = {
      {"optim",
       {"adafactor", "adamw_torch", "adamw_torch_fused", "adamw_apex_fused", "lion_32bit", "sgd"}},
      {"lr_scheduler_type",
       {"linear", "cosine", "cosine_with_restarts", "cosine_with_min_lr", "polynomial", "constant",
        "constant_with_warmup", "inverse_sqrt", "warmup_stable_decay"}},
      {"eval_strategy", {"no", "steps", "epoch"}},
      {"save_strategy", {"no", "steps", "epoch", "best"}}};
  const nlohmann::json all = transformers("choices");
  for (const auto& [name, choices] : all.items())
    for (const auto& one : choices) {
      const auto choice = one.get<std::string>();
      nlohmann::json file = {{name, choice}};
      if (choice == "best") file["eval_strategy"] = "steps";
      const std::string said = refusal(file);
      if (taken.at(name).contains(choice))
        EXPECT_EQ(said, "accepted") << name << " " << choice;
      else
        EXPECT_THAT(said, AllOf(HasSubstr(name), HasSubstr(choice), HasSubstr("it takes one of ")))
            << choice;
    }
}

TEST(Arguments, SamplingAndPatienceThatCannotBe) {
  EXPECT_EQ(parse({{"group_by_length", true}}).training.sampling(), Sampling::group_by_length);
  EXPECT_EQ(parse({{"train_sampling_strategy", "sequential"}}).training.sampling(),
            Sampling::sequential);
  EXPECT_THAT(refusal({{"group_by_length", true}, {"train_sampling_strategy", "sequential"}}),
              HasSubstr("give one"));
  EXPECT_THAT(refusal({{"early_stopping_patience", 2}}),
              HasSubstr("early_stopping_patience needs eval_strategy"));
  EXPECT_EQ(refusal({{"auto_find_batch_size", true}}), "accepted");
  EXPECT_THAT(refusal({{"auto_find_batch_size", true}, {"mp_parameters", {{"ddp", true}}}}),
              HasSubstr("not for mp_parameters"));
}

TEST(Arguments, EvaluationHasThePrecisionOfTraining) {
  EXPECT_EQ(refusal({{"bf16", true}, {"bf16_full_eval", true}}), "accepted");
  EXPECT_THAT(refusal({{"bf16_full_eval", true}}),
              HasSubstr("bf16_full_eval is true, but the run computes in f32; evaluation has the "
                        "precision of training: give bf16 true"));
  EXPECT_THAT(refusal({{"bf16", true}, {"fp16_full_eval", true}}), HasSubstr("half precision"));
  EXPECT_TRUE(parse({{"do_train", false}, {"fp16_full_eval", true}}).training.fp16);
  EXPECT_THAT(refusal({{"do_train", false}, {"fp16_full_eval", true}, {"bf16_full_eval", true}}),
              HasSubstr("fp16_full_eval is true, but"));
}

TEST(Arguments, TheLossScaleIsForF16AndSetOnce) {
  EXPECT_EQ(refusal({{"fp16", true},
                     {"grad_scaler_init_scale", 1024},
                     {"grad_scaler_growth_factor", 4},
                     {"grad_scaler_backoff_factor", 0.25},
                     {"grad_scaler_growth_interval", 100}}),
            "accepted");
  EXPECT_THAT(refusal({{"grad_scaler_init_scale", 1024}}), HasSubstr("set fp16"));
  EXPECT_THAT(refusal({{"grad_scaler_init_scale", 1024}, {"mp_parameters", {{"bf16", true}}}}),
              HasSubstr("set fp16"));
  EXPECT_THAT(refusal({{"bf16", true}, {"grad_scaler_growth_interval", 5}}), HasSubstr("set fp16"));
  EXPECT_EQ(refusal({{"grad_scaler_init_scale", 65536}}), "accepted");
  EXPECT_THAT(refusal({{"fp16", true}, {"grad_scaler_backoff_factor", 1}}),
              HasSubstr("grad_scaler_backoff_factor is 1; it is below 1"));
  EXPECT_THAT(refusal({{"fp16", true}, {"grad_scaler_growth_factor", 1}}),
              HasSubstr("grad_scaler_growth_factor"));
  const nlohmann::json mesh = {{"pipeline_parallel_degree", 2},
                               {"dynamic_loss_args", {{"init_scale", 1024}}}};
  EXPECT_EQ(refusal({{"fp16", true}, {"mp_parameters", mesh}}), "accepted");
  EXPECT_THAT(
      refusal({{"fp16", true}, {"mp_parameters", mesh}, {"grad_scaler_growth_interval", 5}}),
      HasSubstr("give one of them"));
}

TEST(Arguments, SavingTheBestNeedsAnEvaluation) {
  EXPECT_THAT(refusal({{"save_strategy", "best"}}), HasSubstr("needs eval_strategy"));
  EXPECT_EQ(refusal({{"save_strategy", "best"},
                     {"eval_strategy", "epoch"},
                     {"load_best_model_at_end", true}}),
            "accepted");
  EXPECT_THAT(refusal({{"eval_strategy", "best"}}), HasSubstr("eval_strategy"));
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

TEST(Arguments, MpParametersThatAreNotEnabledHaveNoEffect) {
  TrainingArguments arguments;
  arguments.mp_parameters = {{"enabled", false},
                             {"parameters", {{"partitions", 2}, {"bf16", true}}}};
  const ResolvedRun resolved = resolve_arguments(arguments);
  EXPECT_TRUE(resolved.mp_parameters.empty());
  EXPECT_FALSE(resolved.model_parallel);
  EXPECT_FALSE(resolved.bf16);
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

// Each key of a layout is also an option by itself.
TEST(Arguments, FlatOptionsMakeAPlan) {
  const ResolvedRun flat = parse({{"pipeline_parallel_degree", 2}},
                                 {"--partitions", "2", "--tensor_parallel_degree", "2",
                                  "--pipeline", "1f1b", "--microbatches", "4", "--manual_partition",
                                  "3,4", "--sharding_strategy", "shard_grad_op", "--bf16"})
                               .training;
  const ResolvedRun nested = parse({{"mp_parameters",
                                     {{"pipeline_parallel_degree", 2},
                                      {"tensor_parallel_degree", 2},
                                      {"pipeline", "1f1b"},
                                      {"microbatches", 4},
                                      {"manual_partition", {3, 4}},
                                      {"sharding_strategy", "SHARD_GRAD_OP"},
                                      {"ddp", true},
                                      {"bf16", true}}}})
                                 .training;
  ASSERT_TRUE(flat.model_parallel && nested.model_parallel);
  EXPECT_EQ(flat.model_parallel->plan, nested.model_parallel->plan);
  EXPECT_THAT(refusal({{"mp_parameters", {{"microbatches", 4}}}}, {"--microbatches", "2"}),
              HasSubstr("microbatches is 4 in mp_parameters and 2 by itself"));
  EXPECT_THAT(refusal({{"mp_parameters", {{"microbatches", 4}}}}, {"--microbatches", "4"}),
              "accepted");
  EXPECT_THAT(refusal(nlohmann::json::object(), {"--pipeline_parallel_degree", "two"}),
              HasSubstr("pipeline_parallel_degree"));
  EXPECT_FALSE(parse(nlohmann::json::object()).training.model_parallel);
}

// An option that is given wins, even if it equals the default.
TEST(Arguments, GivenOptionsWinOverMpParameters) {
  const nlohmann::json parameters = {{"sharded_data_parallel_degree", 2},
                                     {"sdp_gradient_clipping", 0.5},
                                     {"random_seed", 7},
                                     {"bf16", true},
                                     {"activation_checkpointing", "each"},
                                     {"sm_activation_offloading", true}};
  const TrainingArguments taken = parse({{"mp_parameters", parameters}}).training;
  EXPECT_EQ(taken.max_grad_norm, 0.5);
  EXPECT_EQ(taken.seed, 7);
  EXPECT_TRUE(taken.bf16 && taken.gradient_checkpointing && taken.activation_offloading);
  const auto refused = [&](const char* name, const char* value) {
    return refusal({{"mp_parameters", parameters}}, {std::string("--") + name, value});
  };
  EXPECT_THAT(refused("max_grad_norm", "1.0"),
              HasSubstr("sdp_gradient_clipping is 0.5 in mp_parameters and max_grad_norm is 1 in"));
  EXPECT_THAT(refused("seed", "42"), HasSubstr("seed is 42"));
  EXPECT_THAT(refused("bf16", "false"), HasSubstr("bf16 is false"));
  EXPECT_THAT(refused("gradient_checkpointing", "false"), HasSubstr("must agree"));
  EXPECT_THAT(refused("activation_offloading", "false"), HasSubstr("must agree"));
  EXPECT_THAT(refusal({{"activation_offloading", true}}, {}),
              HasSubstr("set gradient_checkpointing true"));
  EXPECT_EQ(refused("max_grad_norm", "0.5"), "accepted");
  EXPECT_EQ(refused("fp16", "false"), "accepted");
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

// NCCL runs the calls of a group in turn, but stages post receives ahead of time.
TEST(Arguments, APipelineIsNotForNccl) {
  const auto backend = [](const std::string& asked, int stages) {
    TrainingArguments arguments;
    arguments.ddp_backend = asked;
    arguments.mp_parameters = {{"pipeline_parallel_degree", stages}, {"ddp", true}};
    return communicator_options(resolve_arguments(arguments)).backend;
  };
  EXPECT_EQ(backend("auto", 1), "auto");
  EXPECT_EQ(backend("auto", 2), "native");
  EXPECT_EQ(backend("mpi", 2), "mpi");
  EXPECT_EQ(backend("nccl", 1), "nccl");
  EXPECT_THAT(error_text([&] { backend("nccl", 2); }),
              AllOf(HasSubstr("between the 2 stages"), HasSubstr("use native or auto")));
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
  // The first option has no effect, as in transformers. In the second case the quotient of the
  // shares is not exactly 3 in binary.
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

TEST(Arguments, HarmlessNamesAreNotedButAccepted) {
  const Parsed p = parse({{"ddp_find_unused_parameters", false}});
  ASSERT_EQ(p.notices.size(), 1U);
  EXPECT_THAT(p.notices[0], HasSubstr("ddp_find_unused_parameters"));
}

}  // namespace
}  // namespace shoal
