#include "shoal/train/trainer/engine_parts.h"

#include <algorithm>

#include "shoal/collectives/communicator_options.h"
#include "shoal/nn/layers/lora.h"
#include "shoal/parallel/plan/smp_parameters.h"
#include "shoal/runtime/base/error.h"

namespace shoal {
namespace {

// At least one byte, so that 1e-9 MiB is still a bucket.
std::int64_t mebibytes(double mb) {
  return std::max<std::int64_t>(static_cast<std::int64_t>(mb * (1 << 20)), 1);
}

}  // namespace

DType compute_dtype(const TrainingArguments& a) {
  return a.bf16 ? DType::bf16 : a.fp16 ? DType::f16 : DType::f32;
}

std::optional<std::uint64_t> rounding_seed(const TrainingArguments& a) {
  if (!a.stochastic_rounding) return std::nullopt;
  return static_cast<std::uint64_t>(a.seed);
}

std::string carried_by(const collectives::Communicator& communicator) {
  const std::string backend = communicator.backend();
  if (communicator.stream().device.is_cpu() || communicator.size() == 1) return backend;
  const std::string transport = communicator.statistics().transport;
  return transport.empty() || transport == backend ? backend
                                                   : fmt::format("{} over {}", backend, transport);
}

nn::LossScaler make_scaler(const ResolvedRun& a) {
  if (!a.fp16) return nn::LossScaler::none();
  if (a.model_parallel && a.model_parallel->plan.precision.loss_scaling)
    return nn::LossScaler(*a.model_parallel->plan.precision.loss_scaling);
  return nn::LossScaler({.init_scale = a.grad_scaler_init_scale,
                         .factor = a.grad_scaler_growth_factor,
                         .backoff = a.grad_scaler_backoff_factor,
                         .window = a.grad_scaler_growth_interval});
}

namespace {

// A parameter that is neither loaded nor trained would stay random.
void check_new_are_trained(const EngineParts& parts, const nn::LoadReport& report) {
  for (const nn::Parameter* parameter : parts.trainer.task->module().parameters())
    if (const std::string& name = parameter->name();
        !parameter->trainable() && std::ranges::count(report.missing, name) > 0)
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("{} is newly initialised, but only adapters are trained", name),
                  "name its module: --lora_modules_to_save " + name.substr(0, name.rfind('.')));
}

}  // namespace

void note_loaded(const EngineParts& parts, const std::string& directory,
                 const nn::LoadReport& report) {
  const std::string text = nn::describe(report);
  if (text.empty()) return;
  if (!parts.arguments.do_train && !report.missing.empty())
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{} has no weights for {} ({}), and do_train is false", directory,
                            parts.trainer.task->describe(), text),
                "train that head first, or give a model that has it");
  parts.say(fmt::format("{}: {}", directory, text));
  if (!nn::adapted_layers(parts.trainer.task->module()).empty())
    check_new_are_trained(parts, report);
}

parallel::ReducerOptions reducer_options(const EngineParts& parts) {
  const TrainingArguments& a = parts.arguments;
  return {.bucket_bytes = mebibytes(a.ddp_bucket_cap_mb),
          .first_bucket_bytes = mebibytes(a.ddp_first_bucket_cap_mb),
          .buckets_in_flight = static_cast<int>(a.ddp_buckets_in_flight),
          .tracer = parts.trainer.tracer};
}

}  // namespace shoal
