#include "shoal/model.h"

#include <algorithm>
#include <utility>

#include <nlohmann/json.hpp>

#include "shoal/nn/models/model_type.h"
#include "shoal/parallel/plan/legality.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/io/file_system.h"
#include "shoal/runtime/io/json.h"
#include "shoal/train/data/tokenizer/tokenizer.h"
#include "shoal/train/run/job_parts.h"
#include "shoal/train/run/model_config.h"
#include "shoal/train/run/own_task.h"
#include "shoal/train/tasks/make_task.h"
#include "shoal/train/trainer/local_state.h"
#include "shoal/train/trainer/microbatches.h"

namespace shoal {
namespace {

parallel::MeshShape checked_shape(const ParallelPlan& plan, const nn::Chain& chain, int ranks) {
  // cut() checks the number of rows of each batch.
  const std::int64_t parts = plan.tensor.prescaled_batch ? 1 : plan.mesh.tensor;
  parallel::check_layout(plan, {.ranks = ranks, .batch = plan.pipeline.microbatches * parts},
                         parallel::layout_model(chain));
  return parallel::mesh_shape(ranks, plan.mesh.pipeline, plan.mesh.tensor);
}

nn::Chain& chain_of(Task& task) {
  if (task.chain() == nullptr)
    throw Error(ErrorCode::unavailable, task.describe() + " is no chain of units",
                "derive the model from nn::Chain");
  return *task.chain();
}

}  // namespace

std::shared_ptr<Task> causal_lm(const std::string& type_or_directory, const std::string& overrides,
                                std::shared_ptr<const Tokenizer> tokenizer) {
  if (is_directory(type_or_directory)) {
    SHOAL_CHECK(overrides.empty(), "overrides change a new model; {} has its configuration",
                type_or_directory);
    const std::string source = type_or_directory + "/config.json";
    const nlohmann::json config =
        nn::with_model_type(read_json_file(source, JsonIntegers::exact), source);
    check_model_type(config, source);
    return make_task(TaskKind::causal_lm, config, source, std::move(tokenizer));
  }
  const std::string source = "model_type " + type_or_directory;
  nlohmann::json config = completed_config(config_of_type(type_or_directory), source);
  if (tokenizer) config["vocab_size"] = tokenizer->max_id() + 1;
  config = overridden_config(std::move(config), overrides, source);
  return make_task(TaskKind::causal_lm, config, source, std::move(tokenizer));
}

Model::Parts::Parts(Job& of_job, std::shared_ptr<Task> of_task, const ParallelPlan& plan,
                    std::uint64_t seed)
    : job(of_job),
      task(std::move(of_task)),
      context(*job.parts().compute.kernels, job.parts().compute.memory, dispatcher),
      state(*job.parts().compute.kernels, job.parts().compute.memory),
      mesh(job.communicator(), checked_shape(plan, chain_of(*task), job.ranks()),
           plan.mesh.placement) {
  context.kernels().check_computes(plan.precision.dtype);
  context.random.seed = seed;
  context.random.state = state.pointer();
  context.random.sample_stride = static_cast<std::uint32_t>(mesh.shape().rdp);
  mesh.guarded([&] {
    model = std::make_unique<parallel::ParallelModel>(
        context, *task->chain(), mesh,
        parallel::ParallelOptions{.plan = plan, .pinned = job.parts().compute.pinned.get()});
  });
}

std::vector<parallel::Microbatch> Model::Parts::cut(const Batch& batch,
                                                    const nn::LossOptions& loss) const {
  const std::int64_t pieces = model->plan().pipeline.microbatches, parts = model->batch_parts();
  if (batch.rows == 0 || batch.rows % (pieces * parts) != 0)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("a batch of {} rows does not divide into {} microbatches x {} ranks",
                            batch.rows, pieces, parts),
                fmt::format("use a multiple of {}", pieces * parts));
  // Number of replica 0's first row, from which the step's samples are counted.
  const std::int64_t first = batch.ordinals.first - mesh.place().rdp;
  auto all = cut_batches(
      *task, {&batch, 1}, first, loss,
      {.pieces = pieces, .parts = parts, .part = model->batch_part(), .stride = mesh.shape().rdp},
      job.parts().compute.host());
  for (parallel::Microbatch& microbatch : all)
    for (Tensor* tensor : microbatch.input.tensors())
      if (tensor->defined()) *tensor = context.to_device(*tensor);
  return all;
}

double Model::Parts::targets(const Batch& batch) const {
  const bool counts = mesh.place().pp == 0 && mesh.place().tp == 0;
  auto sum = static_cast<double>(counts ? task->count_targets(batch) : 0);
  mesh.world().host().all_reduce(&sum, &sum, 1, DType::f64, collectives::ReduceOp::sum)->wait();
  SHOAL_CHECK(sum > 0, "no row of the batch has a target");
  return sum;
}

Model::Model(Job& job, std::shared_ptr<Task> task, const ParallelPlan& plan, std::uint64_t seed)
    : parts_(std::make_unique<Parts>(job, std::move(task), plan, seed)) {}
Model::Model(Job& job, std::unique_ptr<nn::Chain> chain, const ParallelPlan& plan,
             std::uint64_t seed)
    : Model(job, own_task(std::move(chain)), plan, seed) {}
Model::~Model() = default;

double Model::train(const Batch& batch) {
  return parts_->mesh.guarded([&] {
    const double targets = parts_->targets(batch);
    const double scale = parts_->optimizer == nullptr ? 1 : parts_->optimizer->loss_scale();
    const auto microbatches =
        parts_->cut(batch, {.loss_scale = static_cast<float>(scale / targets)});
    return parts_->model->train(microbatches).sum / targets;
  });
}

double Model::evaluate(const Batch& batch) {
  return parts_->mesh.guarded([&] {
    const parallel::StageLoss loss = parts_->model->evaluate(parts_->cut(batch, {}));
    return loss.sum / static_cast<double>(loss.targets);
  });
}

std::string Model::describe() const {
  return parallel::placement_table(parts_->mesh.shape(), parts_->mesh.placement()) +
         parts_->model->describe();
}

void Model::load_pretrained(const std::string& directory) {
  parts_->mesh.guarded([&] {
    // Pending gathers still read the values that are overwritten here.
    parts_->model->wait_for_values();
    read_weights(directory, *parts_->task, parts_->context.kernels(),
                 local_weights(*parts_->model, Which::all));
    parts_->model->refresh();
  });
}

void Model::save_pretrained(const std::string& directory) {
  parts_->mesh.guarded([&] {
    parts_->model->wait_for_values();
    save_whole_model(*parts_->model, *parts_->task, directory, parts_->job.parts().compute.host(),
                     parts_->context.stream);
  });
}

}  // namespace shoal
