#include "shoal/train/trainer/mp_parameters.h"

#include "shoal/runtime/base/error.h"

namespace shoal {
namespace {

// What was given and what is a default cannot be told apart: a default gives way.
template <typename T>
std::optional<T> unless(const T& value, const T& unset) {
  return value == unset ? std::nullopt : std::optional<T>(value);
}

}  // namespace

parallel::SmpParameters read_mp_parameters(const TrainingArguments& a, int ranks) {
  static const TrainingArguments defaults;
  parallel::RunValues run{.ranks = ranks, .training = a.do_train};
  run.fp16 = unless(a.fp16, false);
  run.bf16 = unless(a.bf16, false);
  run.gradient_checkpointing = unless(a.gradient_checkpointing, false);
  run.max_grad_norm = unless(a.max_grad_norm, defaults.max_grad_norm);
  run.seed = unless(a.seed, defaults.seed);
  run.backend = unless(a.ddp_backend, defaults.ddp_backend);
  return parallel::parse_smp_parameters(a.mp_parameters, run);
}

TrainingArguments with_mp_parameters(TrainingArguments a) {
  if (a.mp_parameters.empty()) return a;
  const parallel::SmpParameters smp = read_mp_parameters(a);
  a.fp16 = smp.fp16.value_or(a.fp16);
  a.bf16 = smp.bf16.value_or(a.bf16);
  a.gradient_checkpointing = smp.checkpoint_group > 0;
  a.max_grad_norm = smp.max_grad_norm.value_or(a.max_grad_norm);
  a.seed = smp.seed.value_or(a.seed);
  a.ddp_backend = smp.backend.value_or(a.ddp_backend);
  if (smp.collectives.empty() || a.collectives.find(smp.collectives) != std::string::npos) return a;
  if (a.collectives.starts_with('@'))
    throw Error(ErrorCode::invalid_argument,
                fmt::format("mp_parameters ask for the rule {}, and collectives is the file {}",
                            smp.collectives, a.collectives),
                "put the rule into the file, or leave the parameter out");
  a.collectives += (a.collectives.empty() ? "" : "#") + smp.collectives;
  return a;
}

parallel::LayoutRequest mesh_layout(const TrainingArguments& a,
                                    const parallel::SmpParameters& parameters, int ranks,
                                    std::int64_t length) {
  parallel::LayoutRequest request =
      parallel::layout_request(parameters, ranks, a.per_device_train_batch_size, length);
  request.accumulated = static_cast<int>(a.gradient_accumulation_steps);
  return request;
}

}  // namespace shoal
