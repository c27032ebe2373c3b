#include "shoal/train/command/merge.h"

#include <cmath>
#include <map>
#include <memory>
#include <vector>

#include <fmt/ranges.h>

#include "shoal/kernels/convert.h"
#include "shoal/kernels/kernels.h"
#include "shoal/nn/models/adapter.h"
#include "shoal/nn/models/model_type.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/io/file_system.h"
#include "shoal/runtime/io/json.h"
#include "shoal/runtime/io/sharded_safetensors.h"
#include "shoal/train/checkpoint/checkpoint_directory.h"
#include "shoal/train/command/choose_model.h"
#include "shoal/train/data/tokenizer/load.h"
#include "shoal/train/run/model_config.h"
#include "shoal/train/tasks/make_task.h"
#include "shoal/train/trainer/shard_files.h"

namespace shoal::command {
namespace {

using Values = std::map<std::string, Tensor>;  // by the parameter's name

DType dtype_of(const std::string& directory) {
  const ShardedSafetensors files = ShardedSafetensors::open(directory);
  const std::vector<std::string> names = files.names();
  SHOAL_CHECK(!names.empty(), "{} has no weights", directory);
  return dtype_from_safetensors(files.entry(names.front()).dtype, names.front());
}

// The task of the model; those of an encoder-decoder's language model have the same files.
TaskKind kind_of_config(const nlohmann::json& config, const std::string& source) {
  const std::optional<TaskKind> kind = task_of(config);
  if (!kind && is_encoder_decoder_config(config)) return TaskKind::summarization;
  if (!kind)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{} does not say what the model is for", source),
                "let its architectures name the model's class");
  return *kind;
}

// Reads the adapted model's weights in `dtype` and the factors in f32.
Values load(const std::string& directory, Task& task, DType dtype, MemoryResource& memory) {
  std::map<std::string, DType> dtypes;
  for (const nn::LinearLike* layer : nn::adapted_layers(task.module()))
    for (const nn::Parameter* factor : {&layer->lora()->a(), &layer->lora()->b()})
      dtypes[factor->name()] = DType::f32;
  std::vector<LocalShard> shards;
  Values values;
  for (const nn::Parameter* parameter : task.module().parameters()) {
    const std::string& name = parameter->name();
    const DType own = dtypes.contains(name) ? DType::f32 : dtype;
    values[name] = Tensor::empty(parameter->whole_shape(), own, memory, MemoryTag::parameters);
    shards.push_back({whole_tensor(name, parameter->whole_shape(), own), values[name]});
  }
  const auto kernels = kernels::make_cpu_kernels({.memory = &memory});
  const nn::LoadReport report = read_weights(directory, task, *kernels, shards);
  if (!report.missing.empty())
    throw Error(ErrorCode::not_found,
                fmt::format("neither {} nor the model that it adapts has {}", directory,
                            fmt::join(report.missing, ", ")),
                "merge an adapter that was trained for this model");
  return values;
}

void merge(const nn::LinearLike& layer, Values& values, MemoryResource& memory) {
  const std::string& name = layer.adaptable().weight->name();
  Tensor& weight = values.at(name);
  const Tensor merged = nn::merged_weight(layer, weight.const_view(),
                                          values.at(layer.lora()->a().name()).const_view(),
                                          values.at(layer.lora()->b().name()).const_view(), memory);
  kernels::convert_elements(DType::f32, merged.const_view().data, weight.dtype(),
                            weight.view().data, weight.count());
  if (weight.dtype() == DType::f32) return;
  Tensor back = Tensor::empty(weight.shape(), DType::f32, memory, MemoryTag::workspace);
  kernels::convert_elements(weight.dtype(), weight.const_view().data, DType::f32, back.view().data,
                            weight.count());
  for (std::int64_t i = 0; i < weight.count(); ++i)
    if (const float exact = merged.const_data<float>()[i];
        std::isinf(back.const_data<float>()[i]) && std::isfinite(exact))
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("{}: {:.4g} would become infinite in {}", name, exact,
                              to_string(weight.dtype())),
                  "give --dtype bf16 or f32");
}

}  // namespace

Conversion merge_adapter(const MergeOptions& options) {
  check_is_new(options.to);
  const ModelPlace place = place_of(options.from);
  if (!place.lora)
    throw Error(ErrorCode::invalid_argument, fmt::format("{} is no adapter", options.from),
                "leave --merge out");
  const nlohmann::json config =
      nn::with_model_type(read_json_file(place.config, JsonIntegers::exact), place.config);
  const TaskKind kind = kind_of_config(config, place.config);
  const std::shared_ptr<const Tokenizer> tokenizer =
      has_tokenizer(place.tokenizer) ? load_tokenizer(place.tokenizer) : nullptr;
  const auto make = [&] { return make_task(kind, config, place.config, tokenizer, {}); };
  const std::unique_ptr<Task> adapted = make(), plain = make();
  nn::add_lora(adapted->module(), *place.lora);
  const auto memory = make_host_memory();
  Values values =
      load(options.from, *adapted, options.dtype.value_or(dtype_of(place.whole())), *memory);
  for (const nn::LinearLike* layer : nn::adapted_layers(adapted->module()))
    merge(*layer, values, *memory);
  plain->keep_files_of(place.files);
  Conversion done;
  for (const nn::Parameter* parameter : plain->module().parameters()) {
    ++done.tensors;
    done.bytes += values.at(parameter->name()).bytes();
  }
  CheckpointTransaction transaction(options.to, 0);
  plain->save(transaction.directory(), [&](const nn::Parameter& parameter) {
    return values.at(parameter.name()).const_view();
  });
  check_is_new(options.to);  // commit() would move aside a directory created meanwhile
  transaction.commit();
  return done;
}

}  // namespace shoal::command
