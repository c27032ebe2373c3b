#include "shoal/nn/models/adapter.h"

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <set>

#include <nlohmann/json.hpp>

#include "shoal/kernels/convert.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/shortened.h"
#include "shoal/runtime/io/file_system.h"
#include "shoal/runtime/io/files.h"
#include "shoal/runtime/io/json.h"
#include "shoal/runtime/io/json_fields.h"
#include "shoal/runtime/io/sharded_safetensors.h"

namespace shoal::nn {
namespace {

// Fields that change no number here. PEFT writes all of its fields; any other that is neither read
// below nor empty belongs to a variant of LoRA.
constexpr std::array<std::string_view, 11> kOfNoNumber = {
    "auto_mapping",      "fan_in_fan_out", "inference_mode",     "layers_pattern",
    "megatron_core",     "peft_version",   "revision",           "runtime_config",
    "qalora_group_size", "loftq_config",   "ensure_weight_tying"};
constexpr std::array<std::string_view, 11> kRead = {"base_model_name_or_path",
                                                    "bias",
                                                    "init_lora_weights",
                                                    "lora_alpha",
                                                    "lora_dropout",
                                                    "modules_to_save",
                                                    "peft_type",
                                                    "r",
                                                    "target_modules",
                                                    "task_type",
                                                    "use_rslora"};

bool is_empty(const nlohmann::json& value) {
  return value.is_null() || value == false ||
         ((value.is_object() || value.is_array()) && value.empty());
}

[[noreturn]] void unsupported(const std::string& source, const std::string& field,
                              const nlohmann::json& value) {
  throw Error(ErrorCode::invalid_argument,
              fmt::format("{} has {}: {}, which is not supported", source, shortened(field),
                          shortened(value.dump())),
              "LoRA with r, lora_alpha, lora_dropout, target_modules, modules_to_save and "
              "use_rslora is");
}

std::string adapter_name(const Parameter& parameter) {
  return std::string(kAdapterPrefix) + parameter.name();
}

// PEFT's GPT-2 keeps weights as [in, out].
bool is_transposed(const LinearLike& layer) { return layer.adaptable().transposed; }

nlohmann::json config_of(const Module& model) {
  const std::vector<LinearLike*> layers = adapted_layers(model);
  const auto& made = layers.front()->lora()->config().given;
  SHOAL_CHECK(made, "{} was adapted without add_lora()", layers.front()->path());
  const LoraOptions& given = *made;
  nlohmann::json targets = nlohmann::json::array(), saved;
  for (const LinearLike* layer : layers) targets.push_back(layer->path());
  if (!given.modules_to_save.empty()) saved = given.modules_to_save;
  return {
      {"peft_type", "LORA"},
      {"task_type", given.task_type.empty() ? nlohmann::json() : nlohmann::json(given.task_type)},
      {"base_model_name_or_path", given.base_model_name_or_path},
      {"r", given.r},
      {"lora_alpha", given.lora_alpha},
      {"lora_dropout", given.lora_dropout},
      {"use_rslora", given.use_rslora},
      {"target_modules", targets},
      {"modules_to_save", saved},
      {"bias", "none"},
      {"fan_in_fan_out", !is_transposed(*layers.front())},
      {"init_lora_weights", true},
      {"inference_mode", true}};
}

// A layer's factors in a file.
struct Factors {
  Tensor a, b;
  bool transposed = true;  // the layer's weight is [out, in]
};

Tensor as_f32(const ConstView& from, MemoryResource& memory) {
  Tensor made = Tensor::empty(from.shape, DType::f32, memory, MemoryTag::workspace);
  kernels::convert_elements(from.dtype, from.data, DType::f32, made.view().data,
                            from.shape.count());
  return made;
}

// W + scale·B·A in f32. `transposed`: W is [out, in].
Tensor merged(const ConstView& weight, const ConstView& factor_a, const ConstView& factor_b,
              bool transposed, float scale, MemoryResource& memory) {
  const std::int64_t out = weight.shape[transposed ? 0 : 1], in = weight.shape[transposed ? 1 : 0],
                     r = factor_a.shape[0];
  Tensor sum = as_f32(weight, memory);
  const Tensor a = as_f32(factor_a, memory), b = as_f32(factor_b, memory);
  auto* const w = sum.data<float>();
  std::vector<float> row(static_cast<std::size_t>(in));
  for (std::int64_t o = 0; o < out; ++o) {
    std::ranges::fill(row, 0.0f);
    for (std::int64_t k = 0; k < r; ++k) {
      const float factor = scale * b.const_data<float>()[o * r + k];
      for (std::int64_t i = 0; i < in; ++i)
        row[static_cast<std::size_t>(i)] += factor * a.const_data<float>()[k * in + i];
    }
    for (std::int64_t i = 0; i < in; ++i)
      w[transposed ? o * in + i : i * out + o] += row[static_cast<std::size_t>(i)];
  }
  return sum;
}

void linear_layers(const Module& module, std::vector<const LinearLike*>& layers) {
  for (const Module::Child& child : module.children()) {
    const auto* const layer = dynamic_cast<const LinearLike*>(child.module);
    if (layer && layer->adaptable().weight) layers.push_back(layer);
    linear_layers(*child.module, layers);
  }
}

// The tensors of adapter_model.safetensors, matched with a model.
class AdapterFile {
 public:
  AdapterFile(const std::string& directory, const Module& model)
      : path_(fmt::format("{}/{}.safetensors", directory, kAdapterWeights)),
        file_(SafetensorsFile::open(path_)) {
    for (const LinearLike* layer : adapted_layers(model))
      for (const Parameter* factor : {&layer->lora()->a(), &layer->lora()->b()})
        if (!file_->contains(adapter_name(*factor)))
          throw Error(ErrorCode::not_found,
                      fmt::format("{} lacks {}", path_, shortened(adapter_name(*factor))),
                      kOtherTargets);
    for (Parameter* parameter : model.parameters())
      if (const std::string name = adapter_name(*parameter); file_->contains(name)) {
        whole[parameter] = read(name, parameter->whole_shape());
        used_.insert(name);
      }
    std::vector<const LinearLike*> layers;
    linear_layers(model, layers);
    for (const LinearLike* layer : layers)
      if (!layer->lora()) take_factors(*layer);
    for (const SafetensorsEntry& entry : file_->entries())
      if (!used_.contains(entry.name))
        throw Error(ErrorCode::invalid_argument,
                    fmt::format("{} has {}, for which the model has no place", path_,
                                shortened(entry.name)),
                    kOtherTargets);
  }

  std::map<const Parameter*, Tensor> whole;     // the model's own factors, modules_to_save
  std::map<const Parameter*, Factors> factors;  // to merge, by the weight

 private:
  static constexpr const char* kOtherTargets =
      "the adapter belongs to another model, or adapter_config.json names other layers";

  Tensor read(const std::string& name, const Shape& want) const {
    const Tensor tensor = file_->tensor(name);
    SHOAL_CHECK(is_floating(tensor.dtype()) && tensor.shape() == want,
                "{}: {} is {} {}, the model wants {}", path_, shortened(name),
                to_string(tensor.dtype()), to_string(tensor.shape()), to_string(want));
    return tensor;
  }
  void take_factors(const LinearLike& layer) {
    const std::string a = fmt::format("{}{}.lora_A.weight", kAdapterPrefix, layer.path()),
                      b = fmt::format("{}{}.lora_B.weight", kAdapterPrefix, layer.path());
    if (!file_->contains(a) || !file_->contains(b)) return;
    const auto [weight, transposed, whole_inner] = layer.adaptable();
    const Shape& shape = weight->whole_shape();
    const std::vector<std::int64_t>& sizes = file_->entry(a).sizes;
    const std::int64_t r = sizes.empty() ? 0 : sizes[0];
    factors[weight] = {read(a, {r, shape[transposed ? 1 : 0]}),
                       read(b, {shape[transposed ? 0 : 1], r}), transposed};
    used_.insert(a);
    used_.insert(b);
  }

  std::string path_;
  std::shared_ptr<SafetensorsFile> file_;
  std::set<std::string> used_;
};

}  // namespace

bool is_adapter(const std::string& directory) {
  return path_exists(fmt::format("{}/{}", directory, kAdapterConfigFile));
}

std::string config_name(const Module& model) {
  return adapted_layers(model).empty() ? "config.json" : std::string(kAdaptedConfigFile);
}

LoraOptions read_adapter_config(const std::string& directory) {
  const std::string source = fmt::format("{}/{}", directory, kAdapterConfigFile);
  const nlohmann::json config = read_json_file(source);
  const JsonFields fields(config, source);
  std::string type, bias = "none";
  fields.text("peft_type", type);
  if (type != "LORA") unsupported(source, "peft_type", type);
  fields.text("bias", bias);
  if (bias != "none") unsupported(source, "bias", bias);
  for (const auto& [field, value] : config.items())
    if (std::ranges::count(kOfNoNumber, field) + std::ranges::count(kRead, field) == 0 &&
        !is_empty(value))
      unsupported(source, field, value);
  // The other ways of initialising change the base model's weights too.
  if (const auto* init = fields.find("init_lora_weights"); init && init->is_string())
    if (*init != "gaussian" && *init != "eva" && *init != "orthogonal")
      unsupported(source, "init_lora_weights", *init);
  LoraOptions options;
  fields.integer("r", options.r);
  fields.number("lora_alpha", options.lora_alpha);
  fields.number("lora_dropout", options.lora_dropout);
  fields.boolean("use_rslora", options.use_rslora);
  fields.text("task_type", options.task_type);
  fields.text("base_model_name_or_path", options.base_model_name_or_path);
  const auto* const targets = fields.find("target_modules");
  if (targets && *targets == "all-linear")
    options.target_modules = {"all-linear"};
  else if (targets && targets->is_string())
    unsupported(source, "target_modules", *targets);  // a regular expression
  else if (targets)
    options.target_modules = field_as<std::vector<std::string>>(*targets, "target_modules", source);
  if (const auto* saved = fields.find("modules_to_save"))
    options.modules_to_save = field_as<std::vector<std::string>>(*saved, "modules_to_save", source);
  if (is_directory(options.base_model_name_or_path))
    options.base_directory = options.base_model_name_or_path;
  return options;
}

std::string adapted_directory(const std::string& directory, const Module& model) {
  const std::vector<LinearLike*> layers = adapted_layers(model);
  if (!layers.empty())
    if (const auto& given = layers.front()->lora()->config().given;
        given && !given->base_directory.empty())
      return given->base_directory;
  const LoraOptions options = read_adapter_config(directory);
  if (options.base_directory.empty())
    throw Error(ErrorCode::not_found,
                fmt::format("{} adapts {}, which is no directory", directory,
                            shortened(options.base_model_name_or_path)),
                fmt::format("let base_model_name_or_path in its {} name the base model's directory",
                            kAdapterConfigFile));
  return options.base_directory;
}

LoadReport load_adapter(const std::string& directory, const Module& model, const WeightNames& names,
                        const AssignParameter& assign) {
  const LoraOptions options = read_adapter_config(directory);
  const AdapterFile file(directory, model);
  const std::string base = adapted_directory(directory, model);
  SHOAL_CHECK(!is_adapter(base), "{} adapts {}, which is an adapter too", directory, base);
  const float scale = lora_scale(options);
  const auto host = make_host_memory();
  LoadReport report =
      load_weights(base, model, names, [&](Parameter& parameter, const ConstView& value) {
        if (file.whole.contains(&parameter)) return;
        const auto found = file.factors.find(&parameter);
        if (found == file.factors.end()) return assign(parameter, value);
        const auto& [a, b, transposed] = found->second;
        assign(
            parameter,
            merged(value, a.const_view(), b.const_view(), transposed, scale, *host).const_view());
      });
  for (Parameter* parameter : model.parameters())
    if (const auto found = file.whole.find(parameter); found != file.whole.end()) {
      assign(*parameter, found->second.const_view());
      std::erase(report.missing, parameter->name());
    }
  return report;
}

Tensor merged_weight(const LinearLike& layer, const ConstView& weight, const ConstView& a,
                     const ConstView& b, MemoryResource& memory) {
  return merged(weight, a, b, layer.adaptable().transposed, layer.lora()->config().scale, memory);
}

void save_adapter_config(const std::string& directory, const Module& model) {
  if (!adapted_layers(model).empty())
    write_file_atomically(fmt::format("{}/{}", directory, kAdapterConfigFile),
                          config_of(model).dump(2) + "\n");
}

std::vector<std::string> save_adapter(const std::string& directory, const Module& model,
                                      const ParameterValue& value) {
  std::vector<SafetensorsEntry> entries;
  std::map<std::string, const Parameter*> by_name;
  for (const Parameter* parameter : model.parameters()) {
    if (!parameter->trainable()) continue;
    const std::string name = adapter_name(*parameter);
    entries.push_back(make_entry(name, value(*parameter).dtype, parameter->whole_shape()));
    by_name.emplace(name, parameter);
  }
  save_adapter_config(directory, model);
  std::vector<std::string> written = write_sharded_safetensors(
      directory, std::move(entries),
      [&](const std::string& name) { return value(*by_name.at(name)); },
      std::numeric_limits<std::int64_t>::max(), kAdapterWeights);
  written.emplace_back(kAdapterConfigFile);
  return written;
}

}  // namespace shoal::nn
