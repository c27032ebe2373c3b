// Table of the keys of SMP's parameters, used by the parser, the run's flat options and the
// documents.
#pragma once

#include <array>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <nlohmann/json.hpp>

#include "shoal/runtime/config/options.h"

namespace shoal::parallel {

// Values as given; nullopt: not given.
struct SmpRaw {
  using Number = std::optional<std::int64_t>;
  using Flag = std::optional<bool>;
  using Word = std::optional<std::string>;

  Number pipeline_parallel_degree, tensor_parallel_degree, microbatches, active_microbatches;
  Number default_partition, virtual_pipeline_parallel_degree, activation_loading_horizon;
  Number sharded_data_parallel_degree, hybrid_shard_degree, random_seed;
  Number sdp_reduce_bucket_size, sdp_param_persistence_threshold, sdp_max_live_parameters;
  std::optional<double> memory_weight, sdp_gradient_clipping, static_loss_scale;
  Flag ddp, horovod, auto_partition, shard_optimizer_state, prescaled_batch, offload_activations;
  Flag sm_activation_offloading, fp16, bf16, fp16_params, sdp_hierarchical_allgather, skip_tracing;
  Flag load_partition, dynamic_loss_scale;
  Word pipeline, optimize, placement_strategy, ddp_dist_backend, partition_file;
  Word sharding_strategy, activation_checkpointing;
  std::vector<std::string> manual_partition;
  nlohmann::json partition_assignment, dynamic_loss_args;

  // Values of keys for which only one value is supported.
  std::map<std::string, Number> only_numbers;
  std::map<std::string, Flag> only_flags;
};

// The kinds of values that keys take.
inline constexpr std::int64_t kAnySize = std::numeric_limits<std::int64_t>::max();
struct SmpInteger {
  SmpRaw::Number SmpRaw::* field;
  std::int64_t min = 1, max = 1'000'000;
};
struct SmpReal {
  std::optional<double> SmpRaw::* field;
  double min = 0, max = std::numeric_limits<double>::infinity();
  bool open_min = false;
};
struct SmpFlag {
  SmpRaw::Flag SmpRaw::* field;
};
struct SmpWord {
  SmpRaw::Word SmpRaw::* field;
  std::string_view words;  // "a|b"; empty: any text
};
struct SmpList {
  std::vector<std::string> SmpRaw::* field;
};
struct SmpObject {
  nlohmann::json SmpRaw::* field;
};
// Accepts any value. Gives a notice unless the value is `quiet`.
struct SmpNoEffect {
  std::string_view quiet = {};
};
// Accepts only this value; the key's meaning gives the reason for refusing others.
struct SmpOnlyFlag {
  bool value;
};
struct SmpOnlyNumber {
  std::int64_t value;
};
// A key that begins with "_". OptionSet would ignore it as a comment; the parser refuses it.
struct SmpInternal {};

enum class SmpOrigin { version1, version2, both, ours };

struct SmpKey {
  std::string_view name, alias;
  SmpOrigin origin;
  std::variant<SmpInteger, SmpReal, SmpFlag, SmpWord, SmpList, SmpObject, SmpNoEffect, SmpOnlyFlag,
               SmpOnlyNumber, SmpInternal>
      takes;
  std::string_view fallback;  // the default, in words
  std::string_view meaning;
  // For PyTorch models (shoal.torch.parallel): "refused: WHY", "no effect: WHY", or what differs
  // from Shoal's own models. Empty: nothing differs.
  std::string_view pytorch = {};
};

std::span<const SmpKey> smp_keys();
void declare_smp_keys(OptionSet& options, SmpRaw& raw);
std::vector<std::string> split_words(std::string_view words);  // splits at "|"

}  // namespace shoal::parallel
