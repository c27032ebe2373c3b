// SMP's `parameters`, taken as SMP takes them (library versions 1 and 2: names, aliases, defaults,
// checks), and what they come to here. Every key is carried out, refused with a reason, or accepted
// with a notice where it has no meaning here; docs/smp_parameters.md lists them. Pure, but for the
// partition's file.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "shoal/collectives/communicator.h"
#include "shoal/parallel/plan/parallel_plan.h"

namespace shoal::parallel {

// What the run's other options say of the same things (decision 18: one option, one meaning).
// Nothing: not given, so that SMP's word holds.
struct RunValues {
  bool training = true;
  std::optional<bool> fp16 = {}, bf16 = {};
  std::optional<bool> gradient_checkpointing = {}, activation_offloading = {};
  std::optional<double> max_grad_norm = {};
  std::optional<std::int64_t> seed = {};
  std::optional<std::string> backend = {};  // ddp_backend
};

// The plan that the parameters yield, and what they say of the run's other options.
struct SmpParameters {
  ParallelPlan plan = {};
  // Agreed with the run's own options; nothing where neither says anything.
  std::optional<bool> fp16 = {}, bf16 = {};
  std::optional<double> max_grad_norm = {};
  std::optional<std::int64_t> seed = {};
  std::optional<std::string> backend = {};
  std::string collectives = {};           // rules to add to the run's (collectives/select)
  std::vector<std::string> notices = {};  // each names a key without effect, and says why
};

// `json`: the object of parameters, or {"enabled": ..., "parameters": {...}} around it. Throws
// invalid_argument with every problem, one a line, each naming its key; an unknown key with the
// nearest. `source` is where the object was found, for messages.
SmpParameters parse_smp_parameters(const nlohmann::json& json, const RunValues& run = {},
                                   const std::string& source = "mp_parameters");

// `run` with the backend and the rules that the parameters ask for. Throws where `run` has others
// that these cannot stand beside.
collectives::CommunicatorOptions communicator_options(const SmpParameters& parameters,
                                                      collectives::CommunicatorOptions run = {});
// Markdown: a row for each key, from the table that the parser reads. docs/smp_parameters.md has
// it.
std::string smp_parameters_table();

}  // namespace shoal::parallel
