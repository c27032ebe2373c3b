#include "shoal/train/checkpoint/model_record.h"

#include <algorithm>
#include <array>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/shortened.h"
#include "shoal/runtime/io/file_system.h"
#include "shoal/runtime/io/json.h"
#include "shoal/runtime/io/json_fields.h"

namespace shoal {
namespace {

// Fields that need no comparison. Most do not affect computation. The value of n_inner, which may
// default to n_embd's, shows in the shapes of tensors.
constexpr std::array<std::string_view, 24> kOfNoNumber = {"architectures",
                                                          "bos_token_id",
                                                          "cls_token_id",
                                                          "dtype",
                                                          "eos_token_id",
                                                          "finetuning_task",
                                                          "gradient_checkpointing",
                                                          "id2label",
                                                          "initializer_range",
                                                          "keys_to_ignore_at_inference",
                                                          "label2id",
                                                          "mask_token_id",
                                                          "n_inner",
                                                          "output_attentions",
                                                          "output_hidden_states",
                                                          "return_dict",
                                                          "sep_token_id",
                                                          "task_specific_params",
                                                          "tokenizer_class",
                                                          "torch_dtype",
                                                          "torchscript",
                                                          "transformers_version",
                                                          "unk_token_id",
                                                          "use_cache"};

bool is_dropout(std::string_view field) { return field.find("drop") != field.npos; }

// Returns the known fields of `file`. If it describes another kind of model or has a value that
// this build refuses, returns `file` itself, whose fields show the difference.
nlohmann::json as_known(const nlohmann::json& file, const nlohmann::json& configuration,
                        const KnownFields& known, const std::string& path) {
  const nlohmann::json *there = find_field(file, "model_type"),
                       *here = find_field(configuration, "model_type");
  if (there != nullptr && here != nullptr && *there != *here) return file;
  try {
    return known(file, path);
  } catch (const Error&) {
    return file;
  }
}

}  // namespace

std::vector<std::string> check_same_model(const std::string& directory,
                                          const nlohmann::json& configuration,
                                          const KnownFields& known,
                                          const std::string& config_name) {
  const std::string path = fmt::format("{}/{}", directory, config_name);
  if (!configuration.is_object() || !path_exists(path)) return {};
  const nlohmann::json file = read_json_file(path);
  if (!file.is_object())
    throw_error(ErrorCode::corrupt_data, "{} is no object with a model's configuration", path);
  const nlohmann::json saved = as_known(file, configuration, known, path);
  std::vector<std::string> others, dropouts;
  for (const auto& [field, here] : configuration.items()) {
    const auto there = saved.find(field);
    if (there == saved.end() || *there == here || field.starts_with("_") ||
        std::ranges::find(kOfNoNumber, field) != kOfNoNumber.end())
      continue;
    (is_dropout(field) ? dropouts : others)
        .push_back(fmt::format("{} is {} in {} and {} here", shortened(field),
                               shortened(there->dump()), path, shortened(here.dump())));
  }
  if (others.empty()) return dropouts;
  throw Error(
      ErrorCode::invalid_argument,
      fmt::format("cannot go on from a checkpoint of another model: {}", fmt::join(others, "; ")),
      "train the model that its config.json describes (--config_name), or begin a new run");
}

}  // namespace shoal
