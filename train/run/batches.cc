#include <utility>

#include "shoal/model.h"
#include "shoal/runtime/base/error.h"
#include "shoal/train/data/loader.h"
#include "shoal/train/data/sampler.h"
#include "shoal/train/run/job_parts.h"

namespace shoal {

struct Batches::Parts {
  Parts(std::shared_ptr<const Dataset> dataset, std::unique_ptr<Sampler> sampler,
        MemoryResource& memory, std::int64_t rows_together, const BatchOptions& options)
      : together(rows_together),
        loader(std::move(dataset), std::make_shared<PaddingCollator>(0, 1, options.labels),
               std::move(sampler), memory, {.batch_size = options.size, .drop_last_batch = true}) {}

  std::int64_t together;  // rows of a step, over all replicas
  Loader loader;
};

Batches::Batches(Model& model, std::shared_ptr<const Dataset> dataset,
                 const BatchOptions& options) {
  const parallel::ProcessMesh& mesh = model.parts().mesh;
  const std::int64_t replicas = mesh.shape().rdp, rows = dataset->size();
  SHOAL_CHECK(options.size > 0, "a batch has {} rows; give at least 1", options.size);
  const std::int64_t together = options.size * replicas;
  if (rows < together)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("the dataset has {} rows, fewer than a batch of {} x {} replicas", rows,
                            options.size, replicas),
                "use smaller batches or blocks, or more data");
  auto sampler = std::make_unique<DistributedSampler>(
      rows, DistributedSamplerOptions{.ranks = replicas,
                                      .rank = mesh.place().rdp,
                                      .seed = options.seed,
                                      .shuffle = options.shuffle,
                                      .drop_last = true});
  parts_ = std::make_unique<Parts>(std::move(dataset), std::move(sampler),
                                   model.parts().job.parts().compute.host(), together, options);
  seek(0);
}
Batches::~Batches() = default;

Batch Batches::next() {
  for (;;) {
    if (auto batch = parts_->loader.next()) return *std::move(batch);
    parts_->loader.seek({parts_->loader.state().epoch + 1, 0});
  }
}

void Batches::seek(std::int64_t step) {
  const std::int64_t steps = parts_->loader.batches();  // per epoch
  parts_->loader.seek({step / steps, step % steps * parts_->together});
}

}  // namespace shoal
