#include "shoal/nn/models/huggingface.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "shoal/kernels/kernels.h"
#include "shoal/nn/models/adapter.h"
#include "shoal/nn/models/causal_lm.h"
#include "shoal/nn/models/encoder/config.h"
#include "shoal/nn/models/encoder_decoder/family.h"
#include "shoal/nn/models/model_type.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/shortened.h"
#include "shoal/runtime/io/file_system.h"
#include "shoal/runtime/io/sharded_safetensors.h"

namespace shoal::nn {
namespace {

// "a, b and 5 more"
std::string some(const std::vector<std::string>& names) {
  constexpr std::size_t kShown = 8;
  std::string text;
  for (std::size_t i = 0; i < std::min(names.size(), kShown); ++i)
    text += (i ? ", " : "") + shortened(names[i]);
  if (names.size() > kShown) text += fmt::format(" and {} more", names.size() - kShown);
  return text;
}

// The first candidate that the files have; empty: none.
std::string found_name(const ShardedSafetensors& files, const WeightNames& names,
                       const std::string& parameter) {
  if (!names.candidates) return files.contains(parameter) ? parameter : std::string();
  for (std::string& candidate : names.candidates(parameter))
    if (files.contains(candidate)) return std::move(candidate);
  return {};
}

// Describes a mismatch between an entry and a parameter; empty: none.
std::string mismatch(const std::string& name, const SafetensorsEntry& entry,
                     const Parameter& parameter) {
  const auto want = parameter.whole_shape().sizes();
  if (!std::equal(want.begin(), want.end(), entry.sizes.begin(), entry.sizes.end()))
    return fmt::format("{} is [{}], the model wants {}", name,
                       shortened(fmt::format("{}", fmt::join(entry.sizes, ", "))),
                       to_string(parameter.whole_shape()));
  if (!is_floating(dtype_from_safetensors(entry.dtype, name)))
    return fmt::format("{} is of {}", name, entry.dtype);
  return {};
}

}  // namespace

std::string describe(const LoadReport& report) {
  std::string text;
  if (!report.missing.empty()) text = "newly initialised: " + some(report.missing);
  if (!report.unexpected.empty())
    text += (text.empty() ? "" : "; ") + ("not used: " + some(report.unexpected));
  return text;
}

void check_sizes(const nlohmann::json& config, const std::string& source,
                 const std::string& directory) {
  const std::string type = model_type_of(config, source);
  const double parameters = std::ranges::count(causal_lm_types(), type) > 0
                                ? decoder_trunk_parameters(config, source)
                            : is_encoder_decoder_type(type)
                                ? EncoderDecoderConfig::from_json(config, source).trunk_parameters()
                                : EncoderConfig::from_json(config, source).trunk_parameters();
  if (!path_exists(directory + "/model.safetensors") &&
      !path_exists(directory + "/model.safetensors.index.json"))
    return;
  double bytes = 0;  // a parameter takes at least one byte
  const ShardedSafetensors weights = ShardedSafetensors::open(directory);
  for (const auto& file : weights.files())
    for (const SafetensorsEntry& entry : file->entries()) bytes += static_cast<double>(entry.bytes);
  if (parameters > bytes)
    throw Error(
        ErrorCode::corrupt_data,
        fmt::format("{} says a model of {:.3g} parameters or more, but the weights beside it "
                    "have {} bytes",
                    source, parameters, bytes),
        "config.json and the weights do not belong together");
}

LoadReport load_weights(const std::string& directory, const Module& model, const WeightNames& names,
                        const AssignParameter& assign) {
  if (is_adapter(directory)) return load_adapter(directory, model, names, assign);
  const ShardedSafetensors files = ShardedSafetensors::open(directory);
  LoadReport report;
  std::set<const Parameter*> adapters;  // keep their values
  for (const LinearLike* layer : adapted_layers(model))
    adapters.insert({&layer->lora()->a(), &layer->lora()->b()});
  std::vector<std::string> missing, mismatched;
  std::set<std::string> used;
  std::vector<std::pair<Parameter*, std::string>> found;
  for (Parameter* parameter : model.parameters()) {
    if (adapters.contains(parameter)) continue;
    const std::string name = found_name(files, names, parameter->name());
    if (name.empty()) {
      const bool is_new = names.may_be_new && names.may_be_new(parameter->name());
      (is_new ? report.missing : missing).push_back(parameter->name());
      continue;
    }
    if (std::string wrong = mismatch(name, files.entry(name), *parameter); !wrong.empty())
      mismatched.push_back(std::move(wrong));
    used.insert(name);
    found.emplace_back(parameter, name);
  }
  if (!missing.empty())
    throw Error(ErrorCode::not_found, fmt::format("{} lacks {}", directory, some(missing)),
                mismatched.empty() ? "" : "besides, " + some(mismatched));
  if (!mismatched.empty())
    throw Error(ErrorCode::invalid_argument, fmt::format("{}: {}", directory, some(mismatched)),
                "config.json and the weights do not belong together");
  for (const std::string& name : files.names())
    if (!used.contains(name) && !(names.ignored && names.ignored(name)))
      report.unexpected.push_back(name);
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
    // Files are in host memory, which device kernels do not read.
    const Tensor there = context.empty(values.shape, values.dtype, MemoryTag::workspace);
    device_backend(device.type).copy(there.view().data, values.data, there.bytes(), context.stream);
    context.kernels().elementwise().cast(there.const_view(), parameter.value.view(),
                                         context.stream);
  };
}

DType saved_dtype(const Module& model, const ParameterValue& value) {
  const std::vector<LinearLike*> layers = adapted_layers(model);
  return value(layers.empty() ? *model.parameters().front() : layers.front()->lora()->a()).dtype;
}

std::vector<std::string> save_weights(const std::string& directory, const Module& model,
                                      const ParameterValue& value, std::int64_t max_shard_bytes,
                                      const WeightCopies& copies) {
  if (!adapted_layers(model).empty()) return save_adapter(directory, model, value);
  const std::vector<Parameter*> parameters = model.parameters();
  const DType dtype = saved_dtype(model, value);
  std::vector<SafetensorsEntry> entries;
  std::map<std::string, const Parameter*> by_name;
  for (const Parameter* parameter : parameters) {
    entries.push_back(make_entry(parameter->name(), dtype, parameter->whole_shape()));
    by_name.emplace(parameter->name(), parameter);
  }
  for (const auto& [name, of] : copies) {
    const Parameter* parameter = by_name.at(of);
    entries.push_back(make_entry(name, dtype, parameter->whole_shape()));
    by_name.emplace(name, parameter);
  }
  std::vector<float> wide;  // of the last view
  const auto checked = [&](const std::string& name) {
    const Parameter& parameter = *by_name.at(name);
    ConstView view = value(parameter);
    // A frozen parameter has no f32 master.
    if (dtype == DType::f32 && !parameter.trainable() && view.dtype != dtype) {
      const auto widen = [&]<typename T>(const T* values) {
        wide.resize(static_cast<std::size_t>(view.shape.count()));
        std::transform(values, values + wide.size(), wide.begin(),
                       [](T number) { return static_cast<float>(number); });
        view = {wide.data(), view.shape, dtype};
      };
      if (view.dtype == DType::bf16) widen(view.as<bfloat16>());
      if (view.dtype == DType::f16) widen(view.as<float16>());
    }
    SHOAL_CHECK(view.shape == parameter.whole_shape(), "{}: values {} to save, the parameter is {}",
                name, to_string(view.shape), to_string(parameter.whole_shape()));
    SHOAL_CHECK(view.dtype == dtype, "{} is {}, the first parameter {}; a checkpoint has one dtype",
                name, to_string(view.dtype), to_string(dtype));
    return view;
  };
  return write_sharded_safetensors(directory, std::move(entries), checked, max_shard_bytes);
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

}  // namespace shoal::nn
