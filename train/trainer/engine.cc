#include "shoal/train/trainer/engine.h"

#include <algorithm>

#include "shoal/runtime/base/error.h"
#include "shoal/train/trainer/data_parallel_engine.h"
#include "shoal/train/trainer/held_numbers.h"
#include "shoal/train/trainer/mesh_engine.h"

namespace shoal {
namespace {

// At least one byte, so that 1e-9 MiB is still a bucket.
std::int64_t mebibytes(double mb) {
  return std::max<std::int64_t>(static_cast<std::int64_t>(mb * (1 << 20)), 1);
}

}  // namespace

void Engine::try_step(const Batch&) {
  throw Error(ErrorCode::unavailable, "a rank that has part of a model cannot try a step alone",
              "leave auto_find_batch_size out");
}

std::function<std::vector<std::uint64_t>(std::span<const std::uint64_t>)> exchange_over(
    collectives::Communicator& all) {
  return [&all](std::span<const std::uint64_t> own) {
    std::vector<std::uint64_t> told(own.size() * static_cast<std::size_t>(all.size()));
    all.host().all_gather(own.data(), told.data(), std::ssize(own), DType::i64)->wait();
    return told;
  };
}

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

nn::LossScalerOptions loss_scaling(const TrainingArguments& a) {
  return {.init_scale = a.grad_scaler_init_scale,
          .factor = a.grad_scaler_growth_factor,
          .backoff = a.grad_scaler_backoff_factor,
          .window = a.grad_scaler_growth_interval};
}

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
}

Tensor scores_on_host(const nn::Context& context, const Tensor& logits, MemoryResource& host) {
  Tensor scores = logits;
  if (logits.dtype() != DType::f32) {
    scores = context.empty(logits.shape(), DType::f32);
    context.kernels().elementwise().cast(logits, scores.view(), context.stream);
  }
  return on_host(scores, host, context.stream);
}

std::unique_ptr<nn::Optimizer> make_optimizer(const EngineParts& parts,
                                              std::vector<nn::Segment> segments,
                                              MemoryResource* states) {
  const TrainingArguments& a = parts.arguments;
  kernels::Kernels& kernels = *parts.trainer.kernels;
  MemoryResource& memory = *parts.trainer.memory;
  const nn::AdamWOptions adam{.beta1 = a.adam_beta1,
                              .beta2 = a.adam_beta2,
                              .epsilon = a.adam_epsilon,
                              .weight_decay = a.weight_decay};
  switch (a.optim) {
    case Optim::adamw:
      return nn::make_adamw(kernels, memory, std::move(segments), adam, states);
    case Optim::lamb:
      return nn::make_lamb(kernels, memory, std::move(segments), {.adam = adam}, states);
    case Optim::sgd:
      return nn::make_sgd(kernels, memory, std::move(segments),
                          {.momentum = a.sgd_momentum, .weight_decay = a.weight_decay}, states);
  }
  throw_error(ErrorCode::internal, "optimizer {} is not in make_optimizer",
              static_cast<int>(a.optim));
}

parallel::ReducerOptions reducer_options(const EngineParts& parts) {
  const TrainingArguments& a = parts.arguments;
  return {.bucket_bytes = mebibytes(a.ddp_bucket_cap_mb),
          .first_bucket_bytes = mebibytes(a.ddp_first_bucket_cap_mb),
          .buckets_in_flight = static_cast<int>(a.ddp_buckets_in_flight),
          .tracer = parts.trainer.tracer};
}

std::unique_ptr<Engine> make_engine(const EngineParts& parts) {
  parts.trainer.kernels->check_computes(compute_dtype(parts.arguments));
  if (!parts.arguments.model_parallel) return std::make_unique<DataParallelEngine>(parts);
  return std::make_unique<MeshEngine>(parts);
}

}  // namespace shoal
