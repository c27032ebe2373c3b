#include "shoal/train/command/auto_layout.h"

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "shoal/parallel/plan/smp_parameters.h"
#include "shoal/parallel/predict/search.h"
#include "shoal/runtime/base/error.h"
#include "shoal/train/trainer/log_format.h"
#include "shoal/train/trainer/optimizers.h"
#include "shoal/train/trainer/resolved_run.h"

namespace shoal::command {
namespace {

struct Subject {
  parallel::Machine machine;
  parallel::ModelShape shape;
  DType dtype;
};

Subject subject_of(const RunArguments& arguments, const RunSetup& setup, int ranks) {
  const ResolvedRun& a = arguments.training;
  const std::string& machine = arguments.layout.machine;
  SHOAL_CHECK(setup.task->chain() != nullptr,
              "machine: {} is no chain of units, so that its step "
              "cannot be predicted",
              setup.task->describe());
  Subject subject{parallel::find_machine(machine),
                  parallel::model_shape(*setup.task->chain(), make_rule(a).get()), DType::f32};
  SHOAL_CHECK(ranks <= subject.machine.devices || subject.machine.network.bandwidth > 1,
              "machine {} has {} devices and no network, and {} ranks train; calibrate it with as "
              "many ranks, or name another",
              machine, subject.machine.devices, ranks);
  const auto& rates = subject.machine.products.flops;
  if (a.fp16) subject.dtype = DType::f16;
  if (a.bf16_auto ? rates.contains(DType::bf16) : a.bf16) subject.dtype = DType::bf16;
  SHOAL_CHECK(rates.contains(subject.dtype), "machine {} has no rate for {}", machine,
              to_string(subject.dtype));
  return subject;
}

// Rank 0 is the first of its pipeline.
Forecast forecast_of(const parallel::Prediction& p, const std::string& machine) {
  const parallel::RankPrediction& rank = p.ranks.front();
  const double bytes = rank.state.parameters + rank.state.gradients + rank.state.optimizer;
  Forecast forecast;
  forecast.line = fmt::format(
      "a step should take {:.1f} ms on {}, and rank 0 {} for its state and {} for activations; "
      "beside products, most of the time is {}",
      p.seconds * 1e3, machine, format_bytes(static_cast<std::int64_t>(bytes)),
      format_bytes(static_cast<std::int64_t>(rank.activations)), p.limit);
  if (p.dollars_per_step > 0)
    forecast.line += fmt::format("; 1000 steps cost {:.2f} dollars", 1e3 * p.dollars_per_step);
  forecast.record = {{"machine", machine},
                     {"step_seconds", p.seconds},
                     {"forward_seconds", rank.forward},
                     {"backward_seconds", rank.backward},
                     {"communication_seconds", p.parts.gradients},
                     {"pipeline_wait_seconds", rank.waits},
                     {"optimizer_seconds", p.parts.optimizer},
                     {"memory_peak_by_tag",
                      {{"parameters", rank.state.parameters},
                       {"gradients", rank.state.gradients},
                       {"optimizer", rank.state.optimizer},
                       {"activations", rank.activations}}}};
  if (p.dollars_per_step > 0) forecast.record["dollars_per_step"] = p.dollars_per_step;
  return forecast;
}

}  // namespace

Forecast predicted_step(const RunArguments& arguments, const RunSetup& setup, const World& world) {
  const ResolvedRun& a = arguments.training;
  const Subject subject = subject_of(arguments, setup, world.size);
  parallel::ParallelPlan plan;
  plan.pipeline.schedule = parallel::ScheduleKind::one_f_one_b;
  if (a.model_parallel) plan = a.model_parallel->plan;
  plan.precision.dtype = subject.dtype;
  if (a.gradient_checkpointing && plan.activations.checkpoint_group == 0)
    plan.activations.checkpoint_group = 1;
  return forecast_of(parallel::predict({.model = subject.shape,
                                        .machine = subject.machine,
                                        .plan = plan,
                                        .run = run_shape(a, world.size, setup.block_size)}),
                     arguments.layout.machine);
}

Forecast take_fastest_layout(RunArguments& arguments, const RunSetup& setup, const World& world) {
  ResolvedRun& a = arguments.training;
  const std::string& machine = arguments.layout.machine;
  if (!a.mp_parameters.empty())
    throw Error(ErrorCode::invalid_argument,
                fmt::format("auto chooses the layout, but {} is given", a.mp_parameters.dump()),
                "leave one of them out");
  SHOAL_CHECK(!machine.empty(), "auto needs a machine: a file of `shoal plan calibrate`, or {}",
              fmt::join(parallel::machine_names(), ", "));
  const Subject subject = subject_of(arguments, setup, world.size);
  const std::int64_t batch =
      a.per_device_train_batch_size * a.gradient_accumulation_steps * world.size;
  const parallel::SearchResult found = parallel::search({.model = subject.shape,
                                                         .machine = subject.machine,
                                                         .ranks = world.size,
                                                         .batch = batch,
                                                         .length = setup.block_size,
                                                         .dtype = subject.dtype,
                                                         .keep = 1});
  SHOAL_CHECK(!found.fastest.empty(),
              "auto: no layout fits {} ranks of {}; the smallest needs {:.1f} GB a rank",
              world.size, machine, found.least_memory * 1e-9);
  const parallel::Candidate& best = found.fastest.front();
  a.mp_parameters = parallel::plan_json(best.plan);
  a.per_device_train_batch_size = best.run.batch;
  a.gradient_accumulation_steps = 1;
  a.gradient_checkpointing = best.plan.activations.checkpoint_group > 0;
  a.given.erase("gradient_checkpointing");
  a = resolve_arguments(static_cast<const TrainingArguments&>(a));
  Forecast forecast = forecast_of(best.prediction, machine);
  forecast.line = fmt::format("auto: {} with {} samples a rank; {}", a.mp_parameters.dump(),
                              best.run.batch, forecast.line);
  return forecast;
}

}  // namespace shoal::command
