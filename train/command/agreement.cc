#include "shoal/train/command/agreement.h"

#include <algorithm>
#include <array>
#include <string_view>

#include <nlohmann/json.hpp>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/io/json.h"
#include "shoal/runtime/io/json_fields.h"
#include "shoal/runtime/rendezvous/cards.h"

namespace shoal::command {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::string_view, 21> kOwn = {"config_name",
                                                   "data",
                                                   "data_cache_dir",
                                                   "dataloader_num_workers",
                                                   "dataloader_prefetch_factor",
                                                   "disable_tqdm",
                                                   "logging_dir",
                                                   "memory_limit_mb",
                                                   "model_name_or_path",
                                                   "output_dir",
                                                   "overwrite_cache",
                                                   "preprocessing_num_workers",
                                                   "report_to",
                                                   "resume_from_checkpoint",
                                                   "run_name",
                                                   "test_file",
                                                   "tokenizer_name",
                                                   "trace",
                                                   "train_file",
                                                   "use_cpu",
                                                   "validation_file"};

// Option values by name, and the model.
Json shared_values(const Json& options, const std::string& model) {
  Json values = Json::object();
  for (const auto& [section, all] : options.items()) {
    if (section.starts_with("_") || !all.is_object()) continue;
    for (const auto& [name, value] : all.items())
      if (std::ranges::find(kOwn, name) == kOwn.end()) values[name] = value;
  }
  values["the model"] = model;
  return values;
}

std::string shown_value(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace

void check_agreement(const World& world, Store& store, const Json& options,
                     const std::string& model, Deadline deadline) {
  if (world.size == 1) return;
  const std::string key = "options-of-rank-0";
  const Json own = shared_values(options, model);
  if (world.rank == 0) return store.set(key, shown_value(own));
  const Json first = read_card(0, "options", store.get(key, deadline), [](std::string_view card) {
    Json read = parse_ordered_json(card, "it");
    if (!read.is_object())
      throw_error(ErrorCode::corrupt_data, "it is {}, not an object", read.type_name());
    return read;
  });
  for (const auto& [name, value] : own.items()) {
    const Json there = field_or(first, name, Json(), "what rank 0 says of its options");
    if (shown_value(there) == shown_value(value)) continue;
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{} is {} here, and {} on rank 0", name, shown_value(value),
                            shown_value(there)),
                "start all ranks with the same options");
  }
}

}  // namespace shoal::command
