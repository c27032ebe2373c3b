#include "shoal/nn/models/gpt2/huggingface.h"

#include <algorithm>
#include <map>
#include <set>

#include <nlohmann/json.hpp>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/io/files.h"
#include "shoal/runtime/io/sharded_safetensors.h"

namespace shoal::nn {
namespace {

constexpr std::string_view kPrefix = "transformer.";

std::string without_prefix(std::string_view name) {
  return std::string(name.starts_with(kPrefix) ? name.substr(kPrefix.size()) : name);
}

// Causal-mask buffers of older versions: h.N.attn.bias, h.N.attn.masked_bias.
bool is_mask_buffer(std::string_view bare) {
  if (!bare.starts_with("h.")) return false;
  const std::string_view rest = bare.substr(2);
  const std::size_t digits = std::min(rest.find_first_not_of("0123456789"), rest.size());
  const std::string_view tail = rest.substr(digits);
  return digits > 0 && (tail == ".attn.bias" || tail == ".attn.masked_bias");
}

// "a, b and 5 more"
std::string some(const std::vector<std::string>& names) {
  constexpr std::size_t kShown = 8;
  std::string text;
  for (std::size_t i = 0; i < std::min(names.size(), kShown); ++i)
    text += (i ? ", " : "") + names[i];
  if (names.size() > kShown) text += fmt::format(" and {} more", names.size() - kShown);
  return text;
}

std::string file_name(const ShardedSafetensors& files, std::string_view bare) {
  std::string prefixed = std::string(kPrefix) + std::string(bare);
  return files.contains(prefixed) ? prefixed : std::string(bare);
}

std::string_view torch_name(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return "float32";
    case DType::bf16:
      return "bfloat16";
    case DType::f16:
      return "float16";
    default:
      throw_error(ErrorCode::invalid_argument, "weights of {} are not saved; use f32, bf16 or f16",
                  to_string(dtype));
  }
}

void write_json(const std::string& path, const nlohmann::ordered_json& json) {
  write_file_atomically(path, json.dump(2) + "\n");
}

nlohmann::ordered_json generation_config(const Gpt2Config& config) {
  nlohmann::ordered_json json;
  json["_from_model_config"] = true;
  if (config.bos_token_id) json["bos_token_id"] = *config.bos_token_id;
  if (config.eos_token_id) json["eos_token_id"] = *config.eos_token_id;
  if (config.pad_token_id) json["pad_token_id"] = *config.pad_token_id;
  return json;
}

}  // namespace

LoadReport load_gpt2_weights(const std::string& directory, Gpt2& model,
                             const AssignParameter& assign) {
  const ShardedSafetensors files = ShardedSafetensors::open(directory);
  std::vector<std::string> missing, mismatched;
  std::set<std::string> used;
  std::vector<std::pair<Parameter*, std::string>> found;
  for (Parameter* parameter : model.parameters()) {
    const std::string name = file_name(files, without_prefix(parameter->name()));
    if (!files.contains(name)) {
      missing.push_back(parameter->name());
      continue;
    }
    const SafetensorsEntry& entry = files.entry(name);
    if (const auto want = parameter->whole_shape().sizes();
        !std::equal(want.begin(), want.end(), entry.sizes.begin(), entry.sizes.end()))
      mismatched.push_back(fmt::format("{} is [{}], the model wants {}", name,
                                       fmt::join(entry.sizes, ", "),
                                       to_string(parameter->whole_shape())));
    else if (!is_floating(dtype_from_safetensors(entry.dtype, name)))
      mismatched.push_back(fmt::format("{} is of {}", name, entry.dtype));
    used.insert(name);
    found.emplace_back(parameter, name);
  }
  if (!missing.empty())
    throw Error(ErrorCode::not_found, fmt::format("{} lacks {}", directory, some(missing)),
                mismatched.empty() ? "" : "besides, " + some(mismatched));
  if (!mismatched.empty())
    throw Error(ErrorCode::invalid_argument, fmt::format("{}: {}", directory, some(mismatched)),
                "config.json and the weights do not belong together");
  LoadReport report;
  for (const std::string& name : files.names()) {
    const std::string bare = without_prefix(name);
    const bool tied_copy = bare == "lm_head.weight" && model.config().tie_word_embeddings;
    if (!used.contains(name) && !is_mask_buffer(bare) && !tied_copy)
      report.unexpected.push_back(name);
  }
  for (const auto& [parameter, name] : found) assign(*parameter, files.tensor(name).const_view());
  return report;
}

AssignParameter assign_values(Context& context) {
  return [&context](Parameter& parameter, const ConstView& values) {
    SHOAL_CHECK(parameter.value.defined(), "{} has no memory; materialize the model first",
                parameter.name());
    const Device device = context.kernels().device();
    if (device.is_cpu() || values.device == device || values.shape.count() == 0)
      return context.kernels().elementwise().cast(values, parameter.value.view(), context.stream);
    // Files lie in host memory that kernels of a device do not read.
    const Tensor there = context.empty(values.shape, values.dtype, MemoryTag::workspace);
    device_backend(device.type).copy(there.view().data, values.data, there.bytes(), context.stream);
    context.kernels().elementwise().cast(there.const_view(), parameter.value.view(),
                                         context.stream);
  };
}

std::vector<std::string> save_gpt2_config(const std::string& directory, const Gpt2Config& config,
                                          DType dtype) {
  write_json(directory + "/config.json", config.to_json(torch_name(dtype)));
  write_json(directory + "/generation_config.json", generation_config(config));
  return {"config.json", "generation_config.json"};
}

std::vector<std::string> save_gpt2(const std::string& directory, const Gpt2& model,
                                   const ParameterValue& value, std::int64_t max_shard_bytes) {
  const std::vector<Parameter*> parameters = model.parameters();
  const DType dtype = value(*parameters.front()).dtype;
  std::vector<SafetensorsEntry> entries;
  std::map<std::string, const Parameter*> by_name;
  for (const Parameter* parameter : parameters) {
    entries.push_back(make_entry(parameter->name(), dtype, parameter->whole_shape()));
    by_name.emplace(parameter->name(), parameter);
  }
  const auto checked = [&](const std::string& name) {
    const Parameter& parameter = *by_name.at(name);
    const ConstView view = value(parameter);
    SHOAL_CHECK(view.shape == parameter.whole_shape(), "{}: values {} to save, the parameter is {}",
                name, to_string(view.shape), to_string(parameter.whole_shape()));
    SHOAL_CHECK(view.dtype == dtype, "{} is {}, the first parameter {}; a checkpoint has one dtype",
                name, to_string(view.dtype), to_string(dtype));
    return view;
  };
  std::vector<std::string> names = save_gpt2_config(directory, model.config(), dtype);
  for (std::string& name :
       write_sharded_safetensors(directory, std::move(entries), checked, max_shard_bytes))
    names.push_back(std::move(name));
  return names;
}

ParameterValue parameter_values() {
  return [](const Parameter& parameter) { return parameter.value.const_view(); };
}

}  // namespace shoal::nn
