#include "shoal/train/trainer/resolved_run.h"

#include <algorithm>
#include <array>

#include "shoal/parallel/plan/smp_keys.h"
#include "shoal/runtime/base/env.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/shortened.h"
#include "shoal/runtime/io/json_fields.h"

namespace shoal {
namespace {

// Keys that the command line also takes as options of their own. Keys that the run's options
// already cover (seed, fp16, max_grad_norm ...) are not among them.
constexpr auto kFlat = std::to_array<std::string_view>({"pipeline_parallel_degree",
                                                        "tensor_parallel_degree",
                                                        "ddp",
                                                        "placement_strategy",
                                                        "microbatches",
                                                        "pipeline",
                                                        "virtual_pipeline_parallel_degree",
                                                        "active_microbatches",
                                                        "optimize",
                                                        "memory_weight",
                                                        "manual_partition",
                                                        "partition_file",
                                                        "load_partition",
                                                        "skip_tracing",
                                                        "prescaled_batch",
                                                        "shard_optimizer_state",
                                                        "sharded_data_parallel_degree",
                                                        "sharding_strategy",
                                                        "sdp_reduce_bucket_size",
                                                        "sdp_param_persistence_threshold",
                                                        "sdp_max_live_parameters",
                                                        "sdp_hierarchical_allgather",

                                                        "activation_loading_horizon"});

// Values of the run's own options. nullopt: not given, so the value in mp_parameters applies.
parallel::RunValues run_values(const TrainingArguments& a) {
  static const TrainingArguments defaults;
  const auto said = [&a](const char* name, const auto& value, const auto& unset) {
    const bool is_given = value != unset || a.given.contains(name);
    return is_given ? std::optional(value) : std::nullopt;
  };
  return {
      .training = a.do_train,
      .fp16 = said("fp16", a.fp16, defaults.fp16),
      .bf16 = a.bf16_auto ? std::nullopt : said("bf16", a.bf16, defaults.bf16),
      .gradient_checkpointing =
          said("gradient_checkpointing", a.gradient_checkpointing, defaults.gradient_checkpointing),
      .activation_offloading =
          said("activation_offloading", a.activation_offloading, defaults.activation_offloading),
      .max_grad_norm = said("max_grad_norm", a.max_grad_norm, defaults.max_grad_norm),
      .seed = said("seed", a.seed, defaults.seed),
      .backend = a.ddp_backend.empty() || a.ddp_backend == "auto" ? std::nullopt
                                                                  : std::optional(a.ddp_backend)};
}

void take(const parallel::SmpParameters& smp, TrainingArguments& a) {
  a.fp16 = smp.fp16.value_or(a.fp16);
  a.bf16 = smp.bf16.value_or(a.bf16);
  if (smp.bf16 || a.fp16) a.bf16_auto = false;
  a.gradient_checkpointing = smp.plan.activations.checkpoint_group > 0;
  a.activation_offloading = smp.plan.activations.offload;
  a.max_grad_norm = smp.max_grad_norm.value_or(a.max_grad_norm);
  a.seed = smp.seed.value_or(a.seed);
  collectives::CommunicatorOptions how;
  how.backend = a.ddp_backend;
  how.collectives = a.collectives;
  how = parallel::communicator_options(smp, how);
  a.ddp_backend = how.backend;
  a.collectives = how.collectives;
}

// Evaluation computes in the precision of training. A run that does not train evaluates in the
// precision that bf16_full_eval or fp16_full_eval asks for.
void take_full_eval(TrainingArguments& a) {
  const auto take = [&a](bool asked, const char* name, bool& here, bool other) {
    if (!asked || here || (a.bf16_auto && &here == &a.bf16)) return;
    if (a.do_train || other || a.bf16_auto)
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("{}_full_eval is true, but the run computes in {}", name,
                              other ? "the other half precision" : "f32"),
                  fmt::format("evaluation has the precision of training: give {} true, or leave "
                              "{}_full_eval out",
                              name, name));
    here = true;
  };
  take(a.bf16_full_eval, "bf16", a.bf16, a.fp16);
  take(a.fp16_full_eval, "fp16", a.fp16, a.bf16);
}

// If "enabled" is false, the run continues as if mp_parameters were not given.
void drop_if_disabled(nlohmann::json& smp) {
  if (!smp.empty() && !parallel::given_smp_keys(smp)) smp = nlohmann::json::object();
}

}  // namespace

void declare_plan_options(OptionSet& options, TrainingArguments& a) {
  auto section = options.section("parallelism", "Layout over ranks (mp_parameters, flat)");
  for (const parallel::SmpKey& key : parallel::smp_keys()) {
    if (std::ranges::find(kFlat, key.name) == kFlat.end()) continue;
    const std::string name(key.name);
    OptionRules rules{.help = std::string(key.meaning)};
    if (!key.alias.empty()) rules.aliases.emplace_back(key.alias);
    section.string(name, &a.plan_options[name], rules);
  }
}

void take_given(const OptionSet& options, TrainingArguments& arguments) {
  nlohmann::json& smp = arguments.mp_parameters;
  drop_if_disabled(smp);
  const bool flat_only = smp.empty();
  nlohmann::json* const inner = smp.contains("parameters") ? &smp["parameters"] : &smp;
  SHOAL_CHECK(inner->is_object() || inner->is_null(),
              "mp_parameters has parameters: {}, where an object is expected",
              shortened(inner->dump()));
  std::string problems;
  for (auto& [name, value] : arguments.plan_options) {
    if (!value) continue;
    const nlohmann::json* const there = find_field(*inner, name);
    const std::string text = there == nullptr     ? *value
                             : there->is_string() ? there->get<std::string>()
                                                  : there->dump();
    if (text != *value)
      problems += fmt::format(
          "{}{} is {} in mp_parameters and {} by itself: they are one option and "
          "must be equal",
          problems.empty() ? "" : "\n", name, text, *value);
    if (there == nullptr) (*inner)[name] = std::move(*value);
    value.reset();
  }
  if (!problems.empty()) throw Error(ErrorCode::invalid_argument, problems);
  // SMP's version 1 requires ddp to be set. With flat options, starting several ranks implies it.
  if (flat_only && !smp.empty() && !smp.contains("ddp")) smp["ddp"] = true;
  for (const char* name :
       {"fp16", "bf16", "gradient_checkpointing", "activation_offloading", "max_grad_norm", "seed"})
    if (options.is_set(name)) arguments.given.insert(name);
}

ResolvedRun resolve_arguments(TrainingArguments arguments) {
  ResolvedRun a{std::move(arguments), nullptr};
  drop_if_disabled(a.mp_parameters);
  std::string problems;
  const auto collect = [&problems](const auto& check) {
    try {
      check();
    } catch (const Error& problem) {
      problems += (problems.empty() ? "" : "\n") + std::string(problem.what());
    }
  };
  collect([&] { check_arguments(a); });
  if (!a.mp_parameters.empty())
    collect([&] {
      auto smp = parallel::parse_smp_parameters(a.mp_parameters, run_values(a));
      if (smp.plan.precision.loss_scaling && changes_loss_scale(a))
        throw Error(ErrorCode::invalid_argument,
                    "mp_parameters speak of the loss scale, and so does a grad_scaler option",
                    "give one of them");
      take(smp, a);
      if (!a.fp16 && changes_loss_scale(a))
        throw Error(ErrorCode::invalid_argument,
                    "a grad_scaler option is given, but the loss is scaled only with fp16",
                    "set fp16");
      a.model_parallel = std::make_shared<const parallel::SmpParameters>(std::move(smp));
    });
  collect([&] { take_full_eval(a); });
  collect([&] {
    if (a.stochastic_rounding && !a.bf16 && !a.bf16_auto)
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("stochastic_rounding is true, but parameters are {}; it is of bf16 "
                              "parameters, which then have no f32 masters",
                              a.fp16 ? "f16, whose masters are f32" : "f32"),
                  "set bf16, or leave stochastic_rounding out");
  });
  if (!problems.empty()) throw Error(ErrorCode::invalid_argument, problems);
  return a;
}

void settle_bf16(ResolvedRun& a, bool bf16) {
  a.bf16 = bf16;
  a.bf16_auto = false;
  if (!a.model_parallel) return;
  parallel::SmpParameters smp = *a.model_parallel;
  smp.bf16 = bf16;
  smp.plan.precision.dtype = bf16 ? DType::bf16 : DType::f32;
  a.model_parallel = std::make_shared<const parallel::SmpParameters>(std::move(smp));
}

collectives::CommunicatorOptions communicator_options(const ResolvedRun& a) {
  collectives::CommunicatorOptions how;
  how.backend = a.ddp_backend.empty() ? env::get_string(env::kBackend) : a.ddp_backend;
  how.collectives = a.collectives;
  how.fixed_order = a.fixed_order;
  if (!a.model_parallel || a.model_parallel->plan.mesh.pipeline == 1) return how;
  // Stages post their receives one computation ahead. NCCL runs the calls of a communicator one
  // after the other, so two neighbours that wait for each other's message would wait forever.
  if (how.backend == "nccl")
    throw Error(ErrorCode::invalid_argument,
                fmt::format("the backend is nccl, which cannot carry the messages between the {} "
                            "stages of a pipeline",
                            a.model_parallel->plan.mesh.pipeline),
                "use native or auto (ddp_backend, SHOAL_BACKEND), and auto for ddp_dist_backend");
  if (how.backend == "auto") how.backend = "native";
  return how;
}

nlohmann::json run_plan(const ResolvedRun& a) {
  if (!a.model_parallel) return nlohmann::json::object();
  return parallel::plan_json(a.model_parallel->plan);
}

parallel::RunShape run_shape(const TrainingArguments& a, int ranks, std::int64_t length) {
  return {.ranks = ranks,
          .batch = a.per_device_train_batch_size,
          .accumulated = static_cast<int>(a.gradient_accumulation_steps),
          .length = length};
}

}  // namespace shoal
