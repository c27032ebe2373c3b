// Parses SMP's `parameters` into a plan, following library versions 1 and 2 (names, aliases,
// defaults, checks). Every key is implemented, refused with a reason, or accepted with a notice if
// it has no meaning here; docs/reference/smp_parameters.md lists them. Pure, except for the
// partition's file.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "shoal/collectives/communicator.h"
#include "shoal/collectives/communicator_options.h"
#include "shoal/parallel/plan/parallel_plan.h"

namespace shoal::parallel {

// Values of the run's options that overlap with SMP's keys (decision 18: one option, one meaning).
// nullopt: not given, so SMP's value holds.
struct RunValues {
  bool training = true;
  // The model is PyTorch's, so SmpKey::pytorch applies, and the script assigns modules and
  // checkpoints.
  bool pytorch = false;
  std::optional<bool> fp16 = {}, bf16 = {};
  std::optional<bool> gradient_checkpointing = {}, activation_offloading = {};
  std::optional<double> max_grad_norm = {};
  std::optional<std::int64_t> seed = {};
  std::optional<std::string> backend = {};  // ddp_backend
};

// The plan, and the resulting values of the run's other options.
struct SmpParameters {
  ParallelPlan plan = {};
  // Merged with the run's own options; nullopt if neither gives a value.
  std::optional<bool> fp16 = {}, bf16 = {};
  std::optional<double> max_grad_norm = {};
  std::optional<std::int64_t> seed = {};
  std::optional<std::string> backend = {};
  std::string collectives = {};           // rules to add to the run's (collectives/select)
  std::vector<std::string> notices = {};  // each names a key without effect and the reason
};

// Returns the object of SMP's keys. `json` is that object, or the wrapper {"enabled": ...,
// "parameters": {...}}. nullopt: `enabled` is false, which means no model parallelism. Throws
// invalid_argument if the wrapper has other keys.
std::optional<nlohmann::json> given_smp_keys(const nlohmann::json& json,
                                             const std::string& source = "mp_parameters");

// `json`: as above; parameters that are not enabled have no effect. Throws invalid_argument with
// every problem, one per line. Each line names its key, and the nearest key if that one is unknown.
// `source` says in messages where the object was found.
SmpParameters parse_smp_parameters(const nlohmann::json& json, const RunValues& run = {},
                                   const std::string& source = "mp_parameters");

// `run` with the backend and rules that the parameters ask for. Throws if `run` has other values
// that conflict with them.
collectives::CommunicatorOptions communicator_options(const SmpParameters& parameters,
                                                      collectives::CommunicatorOptions run = {});
// Markdown for docs/reference/smp_parameters.md: one row per key, from the parser's table.
std::string smp_parameters_table();

}  // namespace shoal::parallel
