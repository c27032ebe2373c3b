#include "shoal/train/trainer/mesh_check.h"

#include <filesystem>

#include "shoal/parallel/pipeline/measure_units.h"
#include "shoal/parallel/plan/smp_parameters.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/io/file_system.h"
#include "shoal/train/trainer/resolved_run.h"

namespace shoal {

void check_mesh(const ResolvedRun& run, const nn::Chain& chain, int ranks, std::int64_t length) {
  SHOAL_ASSERT(run.model_parallel);
  const parallel::ParallelPlan& plan = run.model_parallel->plan;
  parallel::check_layout(plan, run_shape(run, ranks, length), parallel::layout_model(chain));
  // Checks a partition given by hand. Numbers of parameters serve as costs, which do not matter for
  // that.
  parallel::choose_partition(plan, parallel::count_units(chain));
  const parallel::PartitionChoice& partition = plan.pipeline.partition;
  const std::filesystem::path file = partition.file;
  if (!partition.load && is_directory(file))
    throw Error(ErrorCode::invalid_argument,
                fmt::format("partition_file is {}, which is a directory", file.string()),
                "name a file in it, or leave partition_file out: nothing needs the file");
  if (!partition.load && file.has_parent_path() && !is_directory(file.parent_path()))
    throw Error(ErrorCode::not_found,
                fmt::format("partition_file is {}, and there is no directory {}", file.string(),
                            file.parent_path().string()),
                "make the directory, or leave partition_file out: nothing needs the file");
}

}  // namespace shoal
