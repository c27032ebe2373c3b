#include "shoal/parallel/plan/smp_parameters.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "shoal/collectives/communicator_options.h"
#include "shoal/parallel/plan/smp_keys.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/nearest.h"
#include "shoal/runtime/base/shortened.h"
#include "shoal/runtime/io/json_fields.h"

namespace shoal::parallel {
namespace {

using Json = nlohmann::json;

// Group size of the strategy "contiguous": no stage has more units.
constexpr int kWholeStage = 1 << 20;

std::string lower(std::string text) {
  std::ranges::transform(text, text.begin(),
                         [](char c) { return c >= 'A' && c <= 'Z' ? char(c - 'A' + 'a') : c; });
  return text;
}

// "true" for both true and "True": SageMaker passes hyperparameters as text.
std::string plain(const Json& value) {
  return lower(value.is_string() ? value.get<std::string>() : value.dump());
}

std::string text_of(bool value) { return value ? "true" : "false"; }
std::string text_of(std::int64_t value) { return fmt::format("{}", value); }
std::string text_of(double value) { return fmt::format("{}", value); }
std::string text_of(const std::string& value) { return value; }

// Translates the keys as given. Each method handles one subject; problems are collected.
class Reader {
 public:
  Reader(const SmpRaw& raw, const RunValues& run, bool version2, const std::string& source)
      : raw_(raw), run_(run), version2_(version2), source_(source) {}

  SmpParameters read() {
    mesh();
    pipeline();
    partition();
    tensor();
    sharding();
    sharding_sizes();
    activations();
    precision();
    loss_scaling();
    data_parallel();
    return std::move(out_);
  }
  std::vector<std::string> problems() && { return std::move(problems_); }

 private:
  template <typename... Args>
  void refuse(fmt::format_string<Args...> format, Args&&... args) {
    problems_.push_back(shortened(fmt::format(format, std::forward<Args>(args)...), 1000));
  }
  template <typename... Args>
  void note(fmt::format_string<Args...> format, Args&&... args) {
    out_.notices.push_back(fmt::format(format, std::forward<Args>(args)...));
  }
  // One of the key's words, in any case. Returns its canonical spelling, or `fallback`.
  std::string word(const char* name, const SmpRaw::Word& given, std::string_view fallback) {
    if (!given) return std::string(fallback);
    std::string_view words;
    for (const SmpKey& key : smp_keys())
      if (key.name == name) words = std::get<SmpWord>(key.takes).words;
    const std::vector<std::string> known = split_words(words);
    for (const std::string& one : known)
      if (lower(one) == lower(*given)) return one;
    const std::string guess = did_you_mean(*given, known);
    refuse("{} is {}; it takes one of {}{}{}", name, *given, fmt::join(known, ", "),
           guess.empty() ? "" : "; ", guess);
    return std::string(fallback);
  }
  // One option under two names: returns the given value; if both are given, they must be equal.
  template <typename T>
  std::optional<T> agree(const char* name, const std::optional<T>& here, const char* other,
                         const std::optional<T>& there) {
    if (here && there && *here != *there)
      refuse(
          "{} is {} in {} and {} is {} in the run's options: they are one option and must be "
          "equal",
          name, text_of(*here), source_, other, text_of(*there));
    return here ? here : there;
  }

  void mesh() {
    plan_.mesh.pipeline = static_cast<int>(raw_.pipeline_parallel_degree.value_or(1));
    plan_.mesh.tensor = static_cast<int>(raw_.tensor_parallel_degree.value_or(1));
    std::vector<std::string> keys;
    const auto wants = [&keys](const char* name, bool given) {
      if (given) keys.emplace_back(name);
    };
    wants("pipeline", raw_.pipeline.has_value());
    wants("virtual_pipeline_parallel_degree", raw_.virtual_pipeline_parallel_degree.has_value());
    wants("active_microbatches", raw_.active_microbatches.has_value());
    wants("auto_partition=false", raw_.auto_partition && !*raw_.auto_partition);
    wants("memory_weight", raw_.memory_weight.has_value());
    wants("manual_partition", !raw_.manual_partition.empty());
    wants("partition_assignment", !raw_.partition_assignment.empty());
    wants("load_partition", raw_.load_partition.value_or(false));
    if (!raw_.pipeline_parallel_degree && !keys.empty())
      refuse(
          "{} {} of a pipeline, but partitions (= pipeline_parallel_degree) is not given; give "
          "the number of stages' ranks, 1 for no pipeline",
          fmt::join(keys, ", "), keys.size() == 1 ? "speaks" : "speak");
    if (!raw_.placement_strategy) return;
    try {
      plan_.mesh.placement = Placement(*raw_.placement_strategy);
    } catch (const Error& problem) {
      problems_.emplace_back(problem.what());
    }
  }

  void pipeline() {
    plan_.pipeline.microbatches = static_cast<int>(raw_.microbatches.value_or(1));
    std::string kind = word("pipeline", raw_.pipeline, "interleaved");
    if (const auto at = kind.find("_only_forward"); at != kind.npos) {
      if (run_.training)
        refuse(
            "pipeline is {}, which trains nothing, but the run is to train; choose another, or "
            "set do_train to false (evaluation runs forward only whatever the pipeline)",
            kind);
      kind = at == 0 ? "interleaved" : kind.substr(0, at);
    }
    plan_.pipeline.schedule = parse_schedule_kind(kind);
    if (run_.pytorch && plan_.pipeline.schedule > ScheduleKind::one_f_one_b)
      refuse(
          "pipeline is {}, which PyTorch models do not have: a module has one backward, and a rank "
          "one stage; use simple, interleaved or 1f1b",
          kind);
    chunks();
    active_microbatches(kind);
  }

  void chunks() {
    const auto& given = raw_.virtual_pipeline_parallel_degree;
    const bool is_v = plan_.pipeline.schedule == ScheduleKind::zero_bubble_v;
    plan_.pipeline.chunks = static_cast<int>(given.value_or(is_v ? 2 : 1));
    if (plan_.pipeline.schedule == ScheduleKind::virtual_interleaved) {
      if (plan_.pipeline.chunks < 2)
        refuse(
            "pipeline is virtual_interleaved with {} stage a rank; set "
            "virtual_pipeline_parallel_degree to 2 or more, or use 1f1b",
            plan_.pipeline.chunks);
    } else if (is_v) {
      if (plan_.pipeline.chunks != 2)
        refuse(
            "virtual_pipeline_parallel_degree is {}, but zero_bubble_v has 2 stages a rank; leave "
            "it out",
            plan_.pipeline.chunks);
    } else if (plan_.pipeline.chunks != 1) {
      refuse(
          "virtual_pipeline_parallel_degree is {}, but {} has one stage a rank; use "
          "virtual_interleaved",
          plan_.pipeline.chunks, name(plan_.pipeline.schedule));
    }
  }

  void active_microbatches(const std::string& kind) {
    const bool has_it = plan_.pipeline.schedule == ScheduleKind::interleaved;
    const std::int64_t given = raw_.active_microbatches.value_or(
        has_it ? plan_.mesh.pipeline + 2 : plan_.pipeline.microbatches);
    if (has_it) plan_.pipeline.active_microbatches = static_cast<int>(given);
    if (!raw_.active_microbatches || given == plan_.pipeline.microbatches) return;
    if (given > plan_.pipeline.microbatches)
      refuse("active_microbatches is {}, but there are {} microbatches; give at most as many",
             given, plan_.pipeline.microbatches);
    else if (!has_it)
      refuse(
          "active_microbatches is {} of {} microbatches, but {} decides itself how many are in "
          "flight; leave it out, or use pipeline=interleaved",
          given, plan_.pipeline.microbatches, kind);
  }

  std::int64_t all_stages() const {
    return std::int64_t{plan_.mesh.pipeline} * plan_.pipeline.chunks;
  }

  void partition() {
    PartitionChoice& choice = plan_.pipeline.partition;
    const bool speed = word("optimize", raw_.optimize, "memory") == "speed";
    choice.memory_weight = raw_.memory_weight.value_or(speed ? 0.2 : 0.8);
    choice.measured = !raw_.skip_tracing.value_or(false);
    choice.default_partition = static_cast<int>(raw_.default_partition.value_or(0));
    choice.file = raw_.partition_file.value_or("");
    choice.load = raw_.load_partition.value_or(false);
    manual_partition();
    assignment();
    const std::int64_t stages = all_stages();
    if (choice.default_partition >= stages)
      refuse("default_partition is {}, but the partitions are 0 to {}", choice.default_partition,
             stages - 1);
    if (choice.load && choice.file.empty())
      refuse("load_partition is true, but partition_file names no file");
    const bool counted = !choice.counts.empty() || !choice.first_units.empty();
    if (counted + choice.by_hand + choice.load > 1)
      refuse(
          "manual_partition, partition_assignment and load_partition each give the partition; "
          "give one");
    const bool given = counted || choice.by_hand || choice.load;
    if (raw_.auto_partition.value_or(!given) && given)
      refuse(
          "auto_partition is true, but the partition is given as well; set it to false, or "
          "leave it out");
    if (raw_.auto_partition.value_or(true)) {
      if (raw_.default_partition && !given)
        note("default_partition has no effect: the partition is made automatically");
      return;
    }
    if (run_.pytorch && !raw_.default_partition)
      refuse(
          "auto_partition is false, but default_partition is not given: the partition of modules "
          "that smp.partition() and smp.set_partition() do not assign");
    else if (!given && !run_.pytorch && !(raw_.default_partition && stages == 1))
      refuse(
          "auto_partition is false, but nothing says which units are where; give "
          "manual_partition ([units of each stage]), or partition_assignment ({{unit: "
          "partition}}, what smp.partition() does) with default_partition");
    else if (choice.by_hand && !raw_.default_partition)
      refuse(
          "auto_partition is false, but default_partition is not given: the partition of units "
          "that partition_assignment does not name");
  }

  // Numbers are counts, words are first units.
  void manual_partition() {
    const auto& given = raw_.manual_partition;
    if (given.empty()) return;
    const auto is_number = [](const std::string& text) {
      return !text.empty() &&
             std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
    };
    const auto numbers = static_cast<std::size_t>(std::ranges::count_if(given, is_number));
    if (numbers == given.size())
      plan_.pipeline.partition.counts = fmt::format("{}", fmt::join(given, ","));
    else if (numbers == 0)
      plan_.pipeline.partition.first_units = given;
    else
      refuse("manual_partition has numbers of units and names of units, [{}]; give one kind",
             fmt::join(given, ", "));
    const std::int64_t stages = all_stages();
    if (std::ssize(given) != stages)
      refuse(
          "manual_partition is of {} stages ([{}]), but there are {} (partitions {} x {} a rank)",
          given.size(), fmt::join(given, ", "), stages, plan_.mesh.pipeline, plan_.pipeline.chunks);
  }

  void assignment() {
    for (const auto& [unit, stage] : raw_.partition_assignment.items()) {
      plan_.pipeline.partition.by_hand = true;
      const std::int64_t stages = all_stages();
      if (!stage.is_number_integer() || stage.get<std::int64_t>() < 0 ||
          stage.get<std::int64_t>() >= stages) {
        refuse("partition_assignment puts {} on {}; partitions are 0 to {}", unit, stage.dump(),
               stages - 1);
        continue;
      }
      plan_.pipeline.partition.stage_of[unit] = stage.get<int>();
    }
  }

  void tensor() {
    plan_.tensor.speed = lower(raw_.optimize.value_or("memory")) == "speed";
    plan_.tensor.prescaled_batch = raw_.prescaled_batch.value_or(false);
    if (plan_.mesh.tensor > 1 && !version2_ && !raw_.ddp.value_or(false))
      refuse(
          "tensor_parallel_degree is {} and ddp is {}; tensor parallelism runs across "
          "data-parallel ranks: set ddp to true",
          plan_.mesh.tensor, raw_.ddp ? "false" : "not given (false)");
  }

  void sharding() {
    const auto &one = raw_.sharded_data_parallel_degree, &two = raw_.hybrid_shard_degree;
    if (one && two && *one != *two)
      refuse(
          "sharded_data_parallel_degree is {} and hybrid_shard_degree is {}: they are one option "
          "and must be equal",
          *one, *two);
    const std::int64_t degree = one ? *one : two.value_or(1);  // 0: all
    const bool optimizer_only = raw_.shard_optimizer_state.value_or(false);
    const std::string strategy = word("sharding_strategy", raw_.sharding_strategy, "");
    int& level = plan_.sharding.level;
    level = strategy.empty()         ? (degree == 1 ? 0 : 3)
            : strategy == "NO_SHARD" ? 0
            : strategy.starts_with("SHARD_GRAD") || strategy.ends_with("ZERO2") ? 2
                                                                                : 3;
    plan_.sharding.degree = static_cast<int>(degree);
    if (strategy == "NO_SHARD" && degree != 1)
      refuse("sharding_strategy is NO_SHARD, but the degree of sharding is {}",
             degree == 0 ? "0 (all replicas)" : fmt::format("{}", degree));
    const bool is_hybrid = strategy.find("HYBRID") != strategy.npos;
    if (is_hybrid && degree < 2)
      refuse(
          "sharding_strategy is {}, but the degree of sharding is {}; set "
          "sharded_data_parallel_degree above 1",
          strategy, one || two ? fmt::format("{}", degree) : "not given");
    else if (level >= 2 && degree == 1) {
      if (one || two)
        refuse(
            "sharding_strategy is {}, but the degree of sharding is 1; leave the degree out for "
            "all replicas",
            strategy);
      plan_.sharding.degree = 0;
    }
    if (optimizer_only) {
      if (level > 0)
        refuse(
            "shard_optimizer_state is true beside {}, which shards the optimizer state too; "
            "leave one out",
            strategy.empty() ? "sharded_data_parallel_degree" : "sharding_strategy");
      level = std::max(level, 1);
    }
    if (level <= 1) plan_.sharding.degree = 0;
    if (run_.pytorch && level >= 2 && plan_.mesh.pipeline > 1)
      refuse(
          "{} shards parameters, and pipeline_parallel_degree is {}, which PyTorch models do not "
          "have together: PyTorch's fully_shard() gathers parameters for one thread, and each "
          "microbatch of a pipeline has its own; use shard_optimizer_state",
          strategy.empty() ? "sharded_data_parallel_degree" : "sharding_strategy",
          plan_.mesh.pipeline);
  }

  void sharding_sizes() {
    ShardingOptions& sharding = plan_.sharding;
    const auto size = [&](const char* name, const SmpRaw::Number& given, std::int64_t& into,
                          int from_level) {
      if (!given) return;
      into = *given;
      if (sharding.level < from_level)
        note("{} has no effect: {} sharded", name,
             from_level == 1 ? "nothing is" : "parameters are not");
    };
    const int of_parameters = run_.pytorch ? 2 : 3;  // fully_shard() shards parameters at level 2
    size("sdp_reduce_bucket_size", raw_.sdp_reduce_bucket_size, sharding.bucket_elements, 1);
    size("sdp_param_persistence_threshold", raw_.sdp_param_persistence_threshold,
         sharding.persistence_threshold, of_parameters);
    size("sdp_max_live_parameters", raw_.sdp_max_live_parameters, sharding.max_live_parameters,
         of_parameters);
    if (!raw_.sdp_hierarchical_allgather.value_or(true))
      out_.collectives = "all_gather:^hierarchical";

    out_.max_grad_norm = run_.max_grad_norm;
    if (sharding.level >= 2) {
      out_.max_grad_norm = agree("sdp_gradient_clipping", raw_.sdp_gradient_clipping,
                                 "max_grad_norm", run_.max_grad_norm);
      // SMP's sharded data parallelism clips by default.
      if (!out_.max_grad_norm) out_.max_grad_norm = 1.0;
    } else if (raw_.sdp_gradient_clipping) {
      note("sdp_gradient_clipping has no effect: parameters are not sharded; max_grad_norm clips");
    }
  }

  void activations() {
    const auto& run = run_.gradient_checkpointing;
    int& group = plan_.activations.checkpoint_group;
    group = run.value_or(false) ? 1 : 0;
    if (raw_.activation_checkpointing) {
      const std::string strategy = lower(*raw_.activation_checkpointing);
      if (strategy == "none" || strategy == "false") {
        group = 0;
      } else if (strategy == "each" || strategy == "true") {
        group = 1;
      } else if (strategy == "contiguous") {
        group = kWholeStage;
      } else {
        int number = 0;
        const char* end = strategy.data() + strategy.size();
        const bool is_group = strategy.starts_with("group_");
        const auto read = std::from_chars(strategy.data() + (is_group ? 6 : 0), end, number);
        if (!is_group || read.ec != std::errc() || read.ptr != end || number < 1 ||
            number > kWholeStage)
          refuse("activation_checkpointing is {}; it takes none, each, contiguous or group_N",
                 *raw_.activation_checkpointing);
        group = number;
      }
      if (run && *run != (group > 0))
        refuse(
            "activation_checkpointing is {} in {} and gradient_checkpointing is {} in the run's "
            "options: they are one option and must agree",
            *raw_.activation_checkpointing, source_, text_of(*run));
    }
    const auto &one = raw_.offload_activations, &two = raw_.sm_activation_offloading;
    if (one && two && *one != *two)
      refuse(
          "offload_activations is {} and sm_activation_offloading is {}: they are one option and "
          "must be equal",
          text_of(*one), text_of(*two));
    const char* const name = one   ? "offload_activations"
                             : two ? "sm_activation_offloading"
                                   : "activation_offloading";
    const auto& offloads = run_.activation_offloading;
    plan_.activations.offload = one ? *one : two ? *two : offloads.value_or(false);
    if (offloads && *offloads != plan_.activations.offload)
      refuse(
          "{} is {} in {} and activation_offloading is {} in the run's options: they are one "
          "option and must agree",
          name, text_of(plan_.activations.offload), source_, text_of(*offloads));
    if (plan_.activations.offload && group == 0 && !run_.pytorch)
      refuse(
          "{} is true, but activations are not checkpointed; what is offloaded are checkpoints: "
          "set activation_checkpointing to each, or gradient_checkpointing",
          name);
    plan_.activations.loading_horizon =
        static_cast<int>(raw_.activation_loading_horizon.value_or(version2_ ? 2 : 4));
    if (raw_.activation_loading_horizon && !plan_.activations.offload)
      note("activation_loading_horizon has no effect: activations are not offloaded");
    else if (raw_.activation_loading_horizon && version2_)
      note("activation_loading_horizon counts pipeline tasks here, not loaded tensors");
  }

  void precision() {
    out_.fp16 = agree("fp16", raw_.fp16, "fp16", run_.fp16);
    out_.bf16 = agree("bf16", raw_.bf16, "bf16", run_.bf16);
    if (out_.fp16.value_or(false) && out_.bf16.value_or(false))
      refuse("bf16 and fp16 are both set; choose one");
    if (raw_.fp16_params.value_or(false) && !out_.fp16.value_or(false))
      refuse("fp16_params is true, but fp16 is not; weights are fp16 where training is: set fp16");
    plan_.precision.dtype = out_.fp16.value_or(false)   ? DType::f16
                            : out_.bf16.value_or(false) ? DType::bf16
                                                        : DType::f32;
    out_.seed = agree("random_seed", raw_.random_seed, "seed", run_.seed);
    const std::optional<std::string> backend =
        word("ddp_dist_backend", raw_.ddp_dist_backend, "auto") == "auto"
            ? std::nullopt
            : std::optional(lower(*raw_.ddp_dist_backend));
    out_.backend = agree("ddp_dist_backend", backend, "ddp_backend", run_.backend);
  }

  void loss_scaling() {
    const bool dynamic = raw_.dynamic_loss_scale.value_or(!raw_.static_loss_scale);
    if (!raw_.static_loss_scale && !raw_.dynamic_loss_scale && raw_.dynamic_loss_args.empty())
      return;
    if (dynamic && raw_.static_loss_scale)
      refuse("dynamic_loss_scale is true and static_loss_scale is {}; give one",
             *raw_.static_loss_scale);
    nn::LossScalerOptions scaling{.dynamic = dynamic};
    if (!dynamic) scaling.init_scale = raw_.static_loss_scale.value_or(1.0);
    if (!dynamic && !raw_.dynamic_loss_args.empty())
      refuse("dynamic_loss_args is given, but the loss scale is static");
    try {
      OptionSet options;
      options.section("dynamic_loss_args")
          .real("init_scale", &scaling.init_scale, {.min = 0, .open_min = true})
          .real("scale_factor", &scaling.factor, {.min = 1, .open_min = true})
          .integer("scale_window", &scaling.window, {.min = 1})
          .real("min_scale", &scaling.min_scale, {.min = 0, .open_min = true})
          .integer("delayed_shift", &scaling.delayed_shift, {.min = 1});
      options.add_json(raw_.dynamic_loss_args, "dynamic_loss_args");
      options.finish();
    } catch (const Error& problem) {
      problems_.emplace_back(problem.what());
    }
    plan_.precision.loss_scaling = scaling;
    if (!out_.fp16.value_or(false))
      note("the loss is not scaled: only fp16 needs it, and it is not set");
  }

  // Gradients are always summed, so ddp = false must not be ignored silently.
  void data_parallel() {
    const bool horovod = raw_.horovod.value_or(false);
    if (horovod && raw_.ddp.value_or(false)) refuse("ddp and horovod are both true; choose ddp");
    if (horovod) note("horovod has no effect: Shoal sums gradients itself");
    if (raw_.ddp_dist_backend && !raw_.ddp.value_or(false))
      refuse("ddp_dist_backend is given, but ddp is not true");
    // Version 2 has no `ddp` key.
    if (horovod || version2_)
      plan_.mesh.ddp = true;
    else
      plan_.mesh.ddp = raw_.ddp;
  }

  const SmpRaw& raw_;
  const RunValues& run_;
  bool version2_;
  const std::string& source_;
  SmpParameters out_;
  ParallelPlan& plan_ = out_.plan;
  std::vector<std::string> problems_;
};

bool has_version2_keys(const Json& json) {
  return std::ranges::any_of(smp_keys(), [&](const SmpKey& key) {
    // random_seed is a version 2 key, although its alias is one of version 1.
    return (key.origin == SmpOrigin::version2 || key.name == "random_seed") &&
           find_field(json, key.name) != nullptr;
  });
}

// Why a key is refused or has no effect.
std::string_view reason(const SmpKey& key, bool pytorch) {
  if (!pytorch || key.pytorch.empty()) return key.meaning;
  return key.pytorch.substr(key.pytorch.find(": ") + 2);
}

// Checks keys that support only one value, and notes keys without effect.
void check_fixed(const Json& json, const SmpRaw& raw, bool pytorch,
                 std::vector<std::string>& problems, std::vector<std::string>& notices) {
  const auto refuse = [&](const SmpKey& key, const std::string& value) {
    problems.push_back(fmt::format("{} is {}, which there is not here: {}", key.name, value,
                                   reason(key, pytorch)));
  };
  for (const SmpKey& key : smp_keys()) {
    const std::string name(key.name);
    const Json* field = find_field(json, name);
    if (field == nullptr && !key.alias.empty()) field = find_field(json, key.alias);
    if (field == nullptr) continue;
    const std::string value = plain(*field);
    if (const auto* none = std::get_if<SmpNoEffect>(&key.takes);
        (none && value != none->quiet) || (pytorch && key.pytorch.starts_with("no effect: ")))
      notices.push_back(
          fmt::format("{} ({}) has no effect: {}", name, value, reason(key, pytorch)));
    if (const auto* flag = std::get_if<SmpOnlyFlag>(&key.takes);
        flag && raw.only_flags.at(name).value_or(flag->value) != flag->value)
      refuse(key, value);
    if (const auto* number = std::get_if<SmpOnlyNumber>(&key.takes);
        number && raw.only_numbers.at(name).value_or(number->value) != number->value)
      refuse(key, value);
    const bool unset = value == "false" || value == "1" || value == "none" || value == "no_shard";
    if (std::holds_alternative<SmpInternal>(key.takes) ||
        (pytorch && key.pytorch.starts_with("refused: ") && !unset))
      refuse(key, value);
  }
}

bool is_wrapped(const Json& json) {
  return json.is_object() && (json.contains("parameters") || json.contains("enabled"));
}

}  // namespace

std::optional<Json> given_smp_keys(const Json& json, const std::string& source) {
  if (!is_wrapped(json)) return json;
  Json inner = Json::object();
  bool enabled = true;
  OptionSet around;
  around.section(source).boolean("enabled", &enabled).object("parameters", &inner);
  for (const auto& [key, value] : json.items())
    SHOAL_CHECK(key == "parameters" || key == "enabled",
                "{} has {} beside parameters; there only enabled belongs", source, key);
  around.add_json(json, source);
  around.finish();
  if (!enabled) return std::nullopt;
  return inner;
}

SmpParameters parse_smp_parameters(const Json& json, const RunValues& run,
                                   const std::string& source) {
  if (is_wrapped(json)) {
    if (const auto inner = given_smp_keys(json, source))
      return parse_smp_parameters(*inner, run, source + "/parameters");
    SmpParameters none = parse_smp_parameters(Json::object(), run, source);
    none.notices.push_back(fmt::format("{} is not enabled: no model parallelism", source));
    return none;
  }
  SmpRaw raw;
  OptionSet options;
  declare_smp_keys(options, raw);
  options.add_json(json, source);
  options.finish();
  Reader reader(raw, run, has_version2_keys(json), source);
  SmpParameters parameters = reader.read();
  std::vector<std::string> problems = std::move(reader).problems();
  check_fixed(json, raw, run.pytorch, problems, parameters.notices);
  if (!problems.empty())
    throw Error(ErrorCode::invalid_argument, fmt::format("{}", fmt::join(problems, "\n")));
  return parameters;
}

collectives::CommunicatorOptions communicator_options(const SmpParameters& p,
                                                      collectives::CommunicatorOptions run) {
  if (p.backend) run.backend = *p.backend;
  if (p.collectives.empty() || run.collectives.find(p.collectives) != std::string::npos) return run;
  if (run.collectives.starts_with('@'))
    throw Error(ErrorCode::invalid_argument,
                fmt::format("mp_parameters ask for the rule {}, and collectives is the file {}",
                            p.collectives, run.collectives),
                "put the rule into the file, or leave the parameter out");
  run.collectives += (run.collectives.empty() ? "" : "#") + p.collectives;
  return run;
}

}  // namespace shoal::parallel
