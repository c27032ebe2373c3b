#include "shoal/train/trainer/stage_cut.h"

#include <vector>

#include "shoal/parallel/pipeline/measure_units.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/io/file_system.h"

namespace shoal {
namespace {

using parallel::ParallelPlan;

// Returns, on every rank, the cut of the checkpoint to resume, such as "3,2,1"; empty: none. A
// resumed run must keep its cut even if the units' costs have changed, because its results depend
// bitwise on the cut.
std::string kept_cut(const EngineParts& parts, const ParallelPlan& plan, const nn::Chain& chain,
                     const parallel::ProcessMesh& mesh) {
  const auto stages =
      static_cast<std::size_t>(plan.mesh.pipeline) * static_cast<std::size_t>(plan.pipeline.chunks);
  std::vector<std::int64_t> counts(stages, 0);
  const std::string path = parts.continues + "/" + kPartitionFile;
  if (!parts.continues.empty() && path_exists(path)) try {
      ParallelPlan from_file = plan;
      from_file.pipeline.partition.file = path;
      from_file.pipeline.partition.load = true;
      const auto cut = parallel::choose_partition(from_file, parallel::count_units(chain));
      for (std::size_t stage = 0; stage < stages; ++stage)
        counts[stage] = cut.stages[stage].last - cut.stages[stage].first;
    } catch (const Error& other) {
      if (other.code() == ErrorCode::io) throw;
      parts.say(fmt::format("the model is cut anew: {}", other.what()));
    }
  if (mesh.world().size() > 1)
    mesh.world()
        .host()
        .broadcast(counts.data(), static_cast<std::int64_t>(stages), DType::i64, 0)
        ->wait();
  return counts[0] == 0 ? std::string() : fmt::format("{}", fmt::join(counts, ","));
}

// A microbatch of the training set, to measure units with; nullopt: the run does not train.
std::optional<parallel::Microbatch> trace(const EngineParts& parts, std::int64_t rows,
                                          std::int64_t first) {
  const auto& dataset = parts.trainer.train_dataset;
  if (!parts.arguments.do_train || !dataset || dataset->size() == 0) return std::nullopt;
  std::vector<Sample> samples;
  for (std::int64_t i = 0; i < rows; ++i) samples.push_back(dataset->get(i % dataset->size()));
  MemoryResource& memory = parts.trainer.host();
  return parallel::Microbatch{
      parts.trainer.task->chain_input(parts.trainer.collator->collate(samples, memory), memory),
      static_cast<std::uint32_t>(first)};
}

}  // namespace

std::string choose_cut(const EngineParts& parts, const nn::Chain& chain,
                       const parallel::ProcessMesh& mesh, std::int64_t sample_stride,
                       parallel::ParallelOptions& options) {
  ParallelPlan& plan = options.plan;
  parallel::PartitionChoice& choice = plan.pipeline.partition;
  if (!choice.is_automatic()) {
    choice.measured = false;  // costs do not matter
    return choice.load ? "as " + choice.file + " says" : "as mp_parameters say";
  }
  if (plan.mesh.pipeline * plan.pipeline.chunks == 1) return {};
  const std::string weighs = fmt::format("memory_weight {}", choice.memory_weight);
  const std::string counted = fmt::format("by numbers of parameters, {}: ", weighs);
  if (!choice.measured) return counted + "skip_tracing is true";
  if (const std::string counts = kept_cut(parts, plan, chain, mesh); !counts.empty()) {
    choice.counts = counts;
    choice.measured = false;
    return "as in the checkpoint that is continued";
  }
  const std::int64_t rows =
      parts.arguments.per_device_train_batch_size / plan.pipeline.microbatches;
  // The last argument is the offset of this rank's rows, if each tensor-parallel rank has its own.
  options.trace = trace(parts, rows, mesh.place().tp * rows * sample_stride);
  return options.trace ? fmt::format("by measured memory and time, {}", weighs)
                       : counted + "nothing is trained";
}

}  // namespace shoal
