#include "shoal/parallel/activation/offload.h"

#include <utility>
#include <vector>

#include "shoal/parallel/activation/offload_place.h"
#include "shoal/runtime/base/error.h"

namespace shoal::parallel {

namespace {

// A tensor that is away. Forgotten once all that saved it have dropped it.
class Away {
 public:
  Away(std::shared_ptr<OffloadPlace> place, const Tensor& tensor)
      : place_(std::move(place)),
        storage_(tensor.storage()),
        version_(tensor.storage()->version()),
        data_(tensor.const_view().data),
        shape_(tensor.shape()),
        saved_(place_->save(tensor)) {}
  ~Away() { place_->forget(saved_); }
  Away(const Away&) = delete;
  Away& operator=(const Away&) = delete;
  Tensor load() const { return place_->load(saved_); }
  const std::shared_ptr<OffloadedTensor>& saved() const { return saved_; }
  // True if `tensor` is the one that was saved. Its storage is alive if others still hold it.
  bool is(const Tensor& tensor) const {
    return storage_.lock() == tensor.storage() && version_ == tensor.storage()->version() &&
           data_ == tensor.const_view().data && shape_ == tensor.shape();
  }

 private:
  std::shared_ptr<OffloadPlace> place_;
  std::weak_ptr<Storage> storage_;
  std::uint64_t version_;
  const void* data_;
  Shape shape_;
  std::shared_ptr<OffloadedTensor> saved_;
};

}  // namespace

class Offloader::Batch {
 public:
  std::vector<std::weak_ptr<OffloadedTensor>> tensors;  // in the order of saving
  std::vector<std::weak_ptr<Away>> away;                // each once
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
    // An encoder's hidden states are saved by every checkpoint of the decoder.
    std::shared_ptr<Away> away;
    for (const std::weak_ptr<Away>& other : batch->away)
      if (const auto one = other.lock(); one && one->is(tensor)) away = one;
    if (!away) {
      away = std::make_shared<Away>(place, tensor);
      batch->away.push_back(away);
    }
    batch->tensors.push_back(away->saved());
    return [away] { return away->load(); };
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
