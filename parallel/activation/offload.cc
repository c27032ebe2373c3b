#include "shoal/parallel/activation/offload.h"

#include <utility>
#include <vector>

#include "shoal/parallel/activation/offload_place.h"
#include "shoal/runtime/base/error.h"

namespace shoal::parallel {

class Offloader::Batch {
 public:
  std::vector<std::weak_ptr<OffloadedTensor>> tensors;  // in the order of saving
};

Offloader::Offloader(MemoryResource& memory, const OffloadOptions& options, Stream compute)
    : min_bytes_(options.min_bytes),
      place_(memory.device().is_cpu() ? make_file_place(memory, options)
                                      : make_pinned_place(memory, options, compute)) {}
Offloader::~Offloader() = default;

std::shared_ptr<Offloader::Batch> Offloader::begin_batch() { return std::make_shared<Batch>(); }

nn::SavedTensorHooks Offloader::hooks(std::shared_ptr<Batch> batch) {
  const auto pack = [place = place_, min_bytes = min_bytes_,
                     batch = std::move(batch)](const Tensor& tensor) -> std::function<Tensor()> {
    if (static_cast<std::int64_t>(tensor.bytes()) < min_bytes) return {};
    const std::shared_ptr<OffloadedTensor> saved = place->save(tensor);
    // Runs when the tape drops the tensor.
    const std::shared_ptr<void> guard(nullptr, [place, saved](void*) { place->forget(saved); });
    batch->tensors.push_back(saved);
    return [place, saved, guard] { return place->load(saved); };
  };
  return {pack};
}

void Offloader::expect(Batch& batch) {
  std::vector<std::shared_ptr<OffloadedTensor>> next;
  for (auto tensor = batch.tensors.rbegin(); tensor != batch.tensors.rend(); ++tensor) {
    auto saved = tensor->lock();
    if (!saved || std::exchange(saved->expected, true)) continue;
    next.push_back(std::move(saved));
  }
  place_->expect(next);
}

OffloadStatistics Offloader::statistics() const { return place_->statistics(); }

}  // namespace shoal::parallel
