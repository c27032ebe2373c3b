#include "shoal/parallel/plan/smp_keys.h"

#include <cmath>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "shoal/parallel/plan/smp_parameters.h"

namespace shoal::parallel {
namespace {

using enum SmpOrigin;

// The `meaning` of an implemented key describes its effect. For any other key, it is the reason why
// the key is refused or has no effect.
constexpr std::array kKeys = {
    // --- mesh
    SmpKey{"pipeline_parallel_degree", "partitions", version1,
           SmpInteger{&SmpRaw::pipeline_parallel_degree}, "1; required with a key of pipelining",
           "ranks over which the model's stages are laid; not replicas"},
    SmpKey{"tensor_parallel_degree", "", both, SmpInteger{&SmpRaw::tensor_parallel_degree}, "1",
           "ranks over which each layer is split; version 1 wants `ddp` with it"},
    SmpKey{"ddp", "", version1, SmpFlag{&SmpRaw::ddp}, "false",
           "gradients are always summed over replicas: false is refused where there are several"},
    SmpKey{"placement_strategy", "", version1, SmpWord{&SmpRaw::placement_strategy, ""}, "cluster",
           "cluster (DPT), spread (TPD) or another order of D, P, T: the right-most letter varies "
           "fastest over the ranks"},
    // --- pipeline
    SmpKey{"microbatches", "", version1, SmpInteger{&SmpRaw::microbatches}, "1",
           "parts of a rank's batch, which must divide by it"},
    SmpKey{
        "pipeline", "", version1,
        SmpWord{&SmpRaw::pipeline,
                "simple|interleaved|1f1b|virtual_interleaved|zero_bubble|zero_bubble_v|"
                "_only_forward|simple_only_forward|interleaved_only_forward"},
        "interleaved",
        "the schedule. SMP has simple and interleaved, and with `_only_forward` runs that train "
        "nothing; the others are additions",
        "simple, interleaved and 1f1b; `_only_forward` adds nothing to them, since the script "
        "says what a step does. The others are refused: a module has one backward, and a rank one "
        "stage"},
    SmpKey{"virtual_pipeline_parallel_degree", "virtual_pipeline_model_parallel_size", ours,
           SmpInteger{&SmpRaw::virtual_pipeline_parallel_degree}, "1; 2 for zero_bubble_v",
           "stages a rank (Megatron's name) of virtual_interleaved, at least 2",
           "refused: a rank has one stage"},
    SmpKey{"active_microbatches", "", version1, SmpInteger{&SmpRaw::active_microbatches},
           "partitions + 2", "most microbatches in flight; of interleaved only"},
    SmpKey{"optimize", "", version1, SmpWord{&SmpRaw::optimize, "memory|speed"}, "memory",
           "with `prescaled_batch`: memory splits activations between layers over the sequence, "
           "speed duplicates them"},
    SmpKey{"auto_partition", "", version1, SmpFlag{&SmpRaw::auto_partition},
           "true, unless the partition is given",
           "false wants `manual_partition`, or `partition_assignment` with `default_partition`",
           "false wants `default_partition`, and modules assigned by smp.partition() or "
           "smp.set_partition()"},
    SmpKey{"memory_weight", "", version1,
           SmpReal{.field = &SmpRaw::memory_weight, .min = 0, .max = 1},
           "0.8; 0.2 with optimize = speed",
           "what the cut evens out: 0 computation only, 1 memory only"},
    SmpKey{"default_partition", "", version1, SmpInteger{&SmpRaw::default_partition, 0}, "0",
           "where units go that `partition_assignment` does not name; below `partitions`",
           "where modules go that the script does not assign"},
    SmpKey{"partition_assignment", "", ours, SmpObject{&SmpRaw::partition_assignment}, "none",
           "what smp.partition(i) does: {\"h.0\": 0, \"h.1\": 1}, units by name",
           "modules by name, as smp.set_partition()"},
    SmpKey{"manual_partition", "", ours, SmpList{&SmpRaw::manual_partition}, "none",
           "by stage: how many units it has ([4, 3, 2]), or its first one ([\"embeddings\", "
           "\"h.4\"])",
           "refused: assign modules with smp.partition() or smp.set_partition()"},
    SmpKey{
        "skip_tracing", "", version1, SmpFlag{&SmpRaw::skip_tracing}, "false",
        "false: units are run before training, and the cut goes by the time and memory they take; "
        "true: by numbers of parameters",
        "false: the first microbatch is run four times before the first step, to warm up and to "
        "measure; true: by "
        "numbers of parameters"},
    SmpKey{"partition_file", "", version1, SmpWord{&SmpRaw::partition_file, ""}, "none",
           "the cut is written to this file, or read from it with `load_partition`"},
    SmpKey{"load_partition", "", version1, SmpFlag{&SmpRaw::load_partition}, "false",
           "the cut is read from `partition_file`"},
    // --- tensor parallelism
    SmpKey{"prescaled_batch", "", version1, SmpFlag{&SmpRaw::prescaled_batch}, "false",
           "true: ranks of a tensor-parallel group have the same batch; false: each its own"},
    // --- sharding
    SmpKey{"shard_optimizer_state", "", version1, SmpFlag{&SmpRaw::shard_optimizer_state}, "false",
           "optimizer state over all replicas (ZeRO-1)"},
    SmpKey{"sharded_data_parallel_degree", "", version1,
           SmpInteger{&SmpRaw::sharded_data_parallel_degree}, "1",
           "above 1: parameters, gradients and optimizer state over so many replicas (ZeRO-3; "
           "MiCS where there are more)",
           "done, by PyTorch's fully_shard(); not with pipeline_parallel_degree"},
    SmpKey{"hybrid_shard_degree", "", version2, SmpInteger{&SmpRaw::hybrid_shard_degree, 0},
           "1; version 2's 0 leaves it to the script",
           "the same in version 2; 0: over all replicas, as FSDP's FULL_SHARD, which version 2 "
           "then leaves it to",
           "done; not with pipeline_parallel_degree"},
    SmpKey{"sharding_strategy", "", ours,
           SmpWord{&SmpRaw::sharding_strategy,
                   "NO_SHARD|SHARD_GRAD_OP|FULL_SHARD|HYBRID_SHARD|_HYBRID_SHARD_ZERO2"},
           "by the degree",
           "FSDP's names: SHARD_GRAD_OP shards gradients and optimizer state (ZeRO-2), FULL_SHARD "
           "parameters too, both over the degree or all; the HYBRID ones are these two and want a "
           "degree",
           "done; not with pipeline_parallel_degree. SHARD_GRAD_OP keeps parameters whole only "
           "during a step"},
    SmpKey{"sdp_reduce_bucket_size", "", version1,
           SmpInteger{&SmpRaw::sdp_reduce_bucket_size, 1, kAnySize}, "5e8",
           "elements of a bucket of gradients",
           "no effect: gradients are summed in buckets of 25 MiB, or by the module that is "
           "sharded"},
    SmpKey{"sdp_param_persistence_threshold", "", version1,
           SmpInteger{&SmpRaw::sdp_param_persistence_threshold, 0, kAnySize}, "1e6",
           "parameters of at most so many elements stay on every rank",
           "done: gradients and optimizer state of these parameters are whole too"},
    SmpKey{"sdp_max_live_parameters", "", version1,
           SmpInteger{&SmpRaw::sdp_max_live_parameters, 1, kAnySize}, "1e9",
           "elements gathered at a time; prefetching waits above it"},
    SmpKey{"sdp_hierarchical_allgather", "", version1, SmpFlag{&SmpRaw::sdp_hierarchical_allgather},
           "true",
           "false: no all-gather, of any kind, goes by hosts first; true: the selection rules "
           "decide (`collectives`). Who makes the communicator: communicator_options()"},
    SmpKey{"sdp_gradient_clipping", "", version1,
           SmpReal{.field = &SmpRaw::sdp_gradient_clipping, .min = 0}, "1.0",
           "the run's `max_grad_norm`, which must be equal; with sharded parameters only",
           "done by DistributedOptimizer.step(), with sharded parameters only"},
    // --- activations
    SmpKey{"activation_checkpointing", "", ours, SmpWord{&SmpRaw::activation_checkpointing, ""},
           "the run's `gradient_checkpointing`",
           "the strategies of smp.set_activation_checkpointing: each unit, all of a stage "
           "(contiguous), group_N; or none",
           "refused: call smp.set_activation_checkpointing()"},
    SmpKey{"offload_activations", "", version1, SmpFlag{&SmpRaw::offload_activations}, "false",
           "what checkpoints keep waits in a file, a GPU's in pinned host memory; wants activation "
           "checkpointing; the run's activation_offloading says the same",
           "wants smp.set_activation_checkpointing()"},
    SmpKey{"sm_activation_offloading", "", version2, SmpFlag{&SmpRaw::sm_activation_offloading},
           "false",
           "the same in version 2, where it is true and says how scripts offload that ask for it",
           "wants smp.set_activation_checkpointing()"},
    SmpKey{"activation_loading_horizon", "", both, SmpInteger{&SmpRaw::activation_loading_horizon},
           "4; 2 beside keys of version 2",
           "pipeline tasks before its backward at which an offloaded activation is read back, also "
           "beside keys of version 2, which counts tensors",
           "checkpointed calls before its backward at which an offloaded activation is read back"},
    SmpKey{"delayed_parameter_initialization", "", version1, SmpNoEffect{"true"}, "always true",
           "no rank ever holds more than its part of the model",
           "no effect: smp.delay_param_initialization() does it for the models made in it"},
    // --- precision, seed
    SmpKey{"fp16", "", version1, SmpFlag{&SmpRaw::fp16}, "false",
           "the run's `fp16`, which must be equal"},
    SmpKey{"bf16", "", version1, SmpFlag{&SmpRaw::bf16}, "false",
           "the run's `bf16`, which must be equal, or `auto`, which these decide; not with `fp16`"},
    SmpKey{"fp16_params", "", version1, SmpFlag{&SmpRaw::fp16_params}, "false",
           "deprecated in SMP: true only beside `fp16`, which has weights in fp16"},
    SmpKey{"static_loss_scale", "", ours,
           SmpReal{.field = &SmpRaw::static_loss_scale, .min = 0, .open_min = true}, "none",
           "argument of smp.DistributedOptimizer: fp16 with this loss scale"},
    SmpKey{"dynamic_loss_scale", "", ours, SmpFlag{&SmpRaw::dynamic_loss_scale},
           "true, unless static_loss_scale is given", "argument of smp.DistributedOptimizer"},
    SmpKey{"dynamic_loss_args", "", ours, SmpObject{&SmpRaw::dynamic_loss_args}, "none",
           "argument of smp.DistributedOptimizer: init_scale (2^32), scale_factor (2), "
           "scale_window (1000), min_scale (1), delayed_shift (1)"},
    SmpKey{"random_seed", "tensor_parallel_seed", both,
           SmpInteger{&SmpRaw::random_seed, 0, kAnySize}, "the run's `seed`",
           "the run's `seed`, which must be equal: there is one",
           "smp.init() seeds torch's generators with it"},
    // --- communication
    SmpKey{"ddp_dist_backend", "", version1, SmpWord{&SmpRaw::ddp_dist_backend, "auto|nccl"},
           "auto",
           "nccl: the run's `ddp_backend`; auto leaves it to that. Who makes the communicator: "
           "communicator_options()",
           "nccl: torch.distributed starts with it for tensors of GPUs"},
    SmpKey{"ddp_port", "", version1, SmpNoEffect{}, "none",
           "ranks find each other by the launcher's variables"},
    SmpKey{"horovod", "", version1, SmpFlag{&SmpRaw::horovod}, "false",
           "no effect: Shoal sums gradients itself; not with `ddp`"},
    SmpKey{"herring", "", version1, SmpOnlyFlag{false}, "false",
           "SMP never finished it; what Herring does is how collectives here work"},
    SmpKey{"deterministic_server", "", version1, SmpNoEffect{"true"}, "always true",
           "schedules are agreed before the step, so every replica runs the same order",
           "no effect: each rank visits microbatches in the order of the schedule or as they "
           "arrive, and adds "
           "gradients in one order, so that equal runs give equal bits"},
    SmpKey{"fast_mode", "", version1, SmpNoEffect{"true"}, "always true",
           "messages always go from stage to stage",
           "no effect: a module's result goes to the rank that called it"},
    SmpKey{"static_mode", "", version1, SmpNoEffect{"true"}, "always true",
           "receives are always posted ahead",
           "no effect: which rank sends next is not known ahead"},
    SmpKey{"task_level_activation_loading_horizon", "", version1, SmpNoEffect{}, "none",
           "activation_loading_horizon is counted in tasks already"},
    // --- refused, or without effect
    SmpKey{"contiguous", "", version1, SmpOnlyFlag{true}, "true",
           "stages are consecutive units of the model"},
    SmpKey{"checkpoint_attentions", "", version1, SmpOnlyFlag{false}, "false",
           "attention keeps no scores; use activation_checkpointing",
           "others are refused: use smp.set_activation_checkpointing()"},
    SmpKey{"context_parallel_degree", "", version2, SmpOnlyNumber{1}, "1",
           "a sample's positions are not attended across ranks; with prescaled_batch, "
           "optimize=memory splits them between layers over tensor_parallel_degree"},
    SmpKey{"expert_parallel_degree", "", version2, SmpOnlyNumber{1}, "1",
           "there are no models of experts"},
    SmpKey{"fsdp_cache_flush_warnings", "", version2, SmpNoEffect{}, "none",
           "there is no allocator cache to be flushed"},
    SmpKey{"allow_empty_shards", "", version2, SmpNoEffect{"true"}, "always true",
           "a rank may hold nothing of a tensor"},
    SmpKey{"translate_if_full", "", version2, SmpNoEffect{"true"}, "always true",
           "full checkpoints always have Hugging Face's names"},
    SmpKey{"_sharded_data_parallelism_config", "", version1, SmpInternal{}, "none",
           "a DeepSpeed file: use the sdp_ keys"},
    SmpKey{"_shard_offloaded_activations", "", version1, SmpInternal{}, "none",
           "each rank offloads its own"},
    SmpKey{"_match_weights", "", version1, SmpInternal{}, "none",
           "parts are always cut from the same initial weights",
           "refused: replicas always take the first one's weights"},
    SmpKey{"_fp32_grad_accumulation", "", version1, SmpInternal{}, "none",
           "gradients are always added up in f32",
           "refused: gradients are added up in their own type"},
};

template <typename... Cases>
struct Overloaded : Cases... {
  using Cases::operator()...;
};

std::string_view origin_text(SmpOrigin origin) {
  switch (origin) {
    case version1:
      return "SMP 1";
    case version2:
      return "SMP 2";
    case both:
      return "SMP 1, 2";
    case ours:
      return "Shoal";
  }
  return "";
}

std::string values_text(const SmpKey& key) {
  return std::visit(
      Overloaded{
          [](const SmpInteger& k) { return fmt::format("integer, {} or more", k.min); },
          [](const SmpReal& k) {
            return std::isinf(k.max)
                       ? fmt::format("number{} {}", k.open_min ? " above" : ", at least", k.min)
                       : fmt::format("number from {} to {}", k.min, k.max);
          },
          [](const SmpFlag&) { return std::string("true, false"); },
          [](const SmpWord& k) {
            return k.words.empty() ? std::string("text")
                                   : fmt::format("{}", fmt::join(split_words(k.words), ", "));
          },
          [](const SmpList&) { return std::string("list"); },
          [](const SmpObject&) { return std::string("object"); },
          [](const SmpNoEffect&) { return std::string("anything"); },
          [](const SmpOnlyFlag& k) { return std::string(k.value ? "true" : "false"); },
          [](const SmpOnlyNumber& k) { return fmt::format("{}", k.value); },
          [](const SmpInternal&) { return std::string("refused"); },
      },
      key.takes);
}

std::string meaning_text(const SmpKey& key) {
  if (std::holds_alternative<SmpNoEffect>(key.takes))
    return fmt::format("no effect: {}", key.meaning);
  if (std::holds_alternative<SmpOnlyFlag>(key.takes) ||
      std::holds_alternative<SmpOnlyNumber>(key.takes))
    return fmt::format("others are refused: {}", key.meaning);
  return std::string(key.meaning);
}

std::string_view pytorch_text(const SmpKey& key) {
  if (!key.pytorch.empty()) return key.pytorch;
  return std::visit(
      Overloaded{[](const SmpNoEffect&) { return "no effect"; },
                 [](const SmpOnlyFlag&) { return "others are refused"; },
                 [](const SmpOnlyNumber&) { return "others are refused"; },
                 [](const SmpInternal&) { return "refused"; }, [](const auto&) { return "done"; }},
      key.takes);
}

}  // namespace

std::span<const SmpKey> smp_keys() { return kKeys; }

std::vector<std::string> split_words(std::string_view words) {
  std::vector<std::string> parts;
  while (!words.empty()) {
    const std::size_t bar = std::min(words.find('|'), words.size());
    parts.emplace_back(words.substr(0, bar));
    words.remove_prefix(std::min(bar + 1, words.size()));
  }
  return parts;
}

void declare_smp_keys(OptionSet& options, SmpRaw& raw) {
  auto section = options.section("smp", "SMP's parameters");
  for (const SmpKey& key : kKeys) {
    const std::string name(key.name);
    std::vector<std::string> aliases;
    if (!key.alias.empty()) aliases.emplace_back(key.alias);
    std::visit(
        Overloaded{
            [&](const SmpInteger& k) {
              section.integer(name, &(raw.*k.field),
                              {.min = k.min, .max = k.max, .aliases = aliases});
            },
            [&](const SmpReal& k) {
              section.real(
                  name, &(raw.*k.field),
                  {.min = k.min, .max = k.max, .open_min = k.open_min, .aliases = aliases});
            },
            [&](const SmpFlag& k) { section.boolean(name, &(raw.*k.field), {.aliases = aliases}); },
            [&](const SmpWord& k) { section.string(name, &(raw.*k.field), {.aliases = aliases}); },
            [&](const SmpList& k) { section.list(name, &(raw.*k.field), {.aliases = aliases}); },
            [&](const SmpObject& k) {
              section.object(name, &(raw.*k.field), {.aliases = aliases});
            },
            [&](const SmpNoEffect&) { section.ignored(name, std::string(key.meaning)); },
            [&](const SmpOnlyFlag&) { section.boolean(name, &raw.only_flags[name]); },
            [&](const SmpOnlyNumber&) { section.integer(name, &raw.only_numbers[name]); },
            [](const SmpInternal&) {},  // OptionSet treats these names as comments
        },
        key.takes);
  }
}

std::string smp_parameters_table() {
  std::string text =
      "| key | from | values | default | here | PyTorch |\n|---|---|---|---|---|---|\n";
  for (const SmpKey& key : kKeys) {
    std::string names = fmt::format("`{}`", key.name);
    if (!key.alias.empty()) names += fmt::format(" = `{}`", key.alias);
    text += fmt::format("| {} | {} | {} | {} | {} | {} |\n", names, origin_text(key.origin),
                        values_text(key), key.fallback, meaning_text(key), pytorch_text(key));
  }
  return text;
}

}  // namespace shoal::parallel
