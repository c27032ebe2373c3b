// DebugHookConfig, ProfilerConfig, TensorBoardOutputConfig: Amazon's features. Shoal's own traces
// and TensorBoard files do not need them.
#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "shoal/runtime/io/ordered_fields.h"
#include "shoal/sagemaker/job/parts.h"

namespace shoal::sagemaker {
namespace {

// Regions without Debugger and profiler, from the SDK's fw_utils.
bool region_lacks_debugger(const std::string& region) {
  constexpr std::array<std::string_view, 9> kRegions = {
      "us-iso-east-1", "us-isob-east-1", "ap-southeast-3", "ap-southeast-4", "eu-south-2",
      "me-central-1",  "ap-south-2",     "eu-central-2",   "us-gov-east-1"};
  return std::ranges::find(kRegions, region) != kRegions.end();
}

const TextRules kKey = {.min = 1, .max = 256}, kValue = {.max = 256};

Json dictionary(Fields& fields, const std::string& name) {
  OrderedFields out;
  if (const auto pairs = fields.dictionary(name, 20, kKey, kValue))
    for (const auto& [key, value] : *pairs) out[key] = value;
  return std::move(out).json();
}

Json collections(Fields& hook) {
  Json out = Json::array();
  const Json* list = hook.value("collection_configs");
  if (list == nullptr) return out;
  if (!list->is_array() || list->size() > 20) {
    hook.problem("collection_configs", "is not a list of at most 20 collections");
    return out;
  }
  for (std::size_t i = 0; i < list->size(); ++i) {
    Fields fields((*list)[i], fmt::format("{}/{}", hook.path("collection_configs"), i),
                  hook.problems());
    Json one = {{"CollectionName", fields.text("name", kKey).value_or("")}};
    if (!fields.has("name")) fields.problem("name", "is needed");
    if (fields.has("parameters")) one["CollectionParameters"] = dictionary(fields, "parameters");
    fields.finish();
    out.push_back(one);
  }
  return out;
}

void add_hook(Draft& draft) {
  const Json* given = draft.job.value("debugger_hook_config");
  if (given != nullptr && given->is_boolean() && !given->get<bool>()) return;
  Json hook = {{"S3OutputPath", draft.output_path}, {"CollectionConfigurations", Json::array()}};
  if (region_lacks_debugger(draft.region)) {
    if (given != nullptr)
      draft.job.problem("debugger_hook_config",
                        fmt::format("{} has no Debugger; set it to false", draft.region));
    return;
  }
  if (given != nullptr && !given->is_boolean()) {
    Fields fields(*given, "/debugger_hook_config", draft.problems());
    if (const auto path = fields.text("s3_output_path", s3_rules())) hook["S3OutputPath"] = *path;
    if (const auto path = fields.text("container_local_output_path", {.min = 1, .max = 4096}))
      hook["LocalPath"] = *path;
    if (fields.has("hook_parameters"))
      hook["HookParameters"] = dictionary(fields, "hook_parameters");
    hook["CollectionConfigurations"] = collections(fields);
    fields.finish();
  }
  draft.request["DebugHookConfig"] = hook;
}

void add_profiler(Draft& draft) {
  const auto type = find_instance_type(draft.machines.instance_type);
  const bool is_off = draft.job.flag("disable_profiler", false) ||
                      region_lacks_debugger(draft.region) ||
                      (type && type->accelerator == Accelerator::trainium);
  Json profiler = {{"DisableProfiler", is_off}};
  if (!is_off) profiler["S3OutputPath"] = draft.output_path;
  if (auto fields = draft.job.object("profiler_config")) {
    const bool disabled = fields->flag("disable_profiler", false);
    if (is_off && !disabled)
      fields->problem("",
                      "is given, but the profiler is disabled (disable_profiler, or a region or "
                      "instance without it)");
    profiler = {{"DisableProfiler", disabled}};
    const auto path = fields->text("s3_output_path", s3_rules());
    if (!disabled) profiler["S3OutputPath"] = path.value_or(draft.output_path);
    if (const auto interval = fields->integer("system_monitor_interval_millis", 100, 60000)) {
      constexpr std::array<std::int64_t, 6> kIntervals = {100, 200, 500, 1000, 5000, 60000};
      if (std::ranges::find(kIntervals, *interval) == kIntervals.end())
        fields->problem(
            "system_monitor_interval_millis",
            fmt::format("is {}; 100, 200, 500, 1000, 5000 and 60000 are allowed", *interval));
      profiler["ProfilingIntervalInMilliseconds"] = *interval;
    }
    fields->refuse("framework_profile_params", "is of Python frameworks; Shoal has --trace");
    fields->refuse("profile_params", "is of Python frameworks; Shoal has --trace");
    fields->finish();
  }
  draft.request["ProfilerConfig"] = profiler;
}

}  // namespace

void add_debugger(Draft& draft) {
  add_hook(draft);
  add_profiler(draft);
  draft.job.refuse("rules", "Debugger's and profiler's rules are not Shoal's; leave them out");
  if (auto board = draft.job.object("tensorboard_output_config")) {
    Json out = {{"S3OutputPath", board->text("s3_output_path", s3_rules()).value_or("")}};
    if (!board->has("s3_output_path")) board->problem("s3_output_path", "is needed");
    if (const auto path = board->text("container_local_output_path", {.min = 1, .max = 4096}))
      out["LocalPath"] = *path;
    board->finish();
    draft.request["TensorBoardOutputConfig"] = out;
  }
}

}  // namespace shoal::sagemaker
