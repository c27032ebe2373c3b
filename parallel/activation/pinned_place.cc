// Device tensors are offloaded to pinned host memory. One stream copies tensors out, another copies
// them in. Events order the copies, and the host never waits. The order of the calls, not their
// timing, decides which tensors leave and return. So every run uses the same memory, and a step can
// be captured.
//
// - A copy out waits for the work queued on the computing stream when the tensor was saved. The
//   computing stream waits for the copy before it gets the tensor's memory back.
// - A copy in waits for the work queued on the computing stream when its memory was allocated,
//   because that work may still use the memory. The computing stream waits for the copy when
//   backward asks for the tensor.
// - So the computing stream waits for every copy before its place or memory is reused. A captured
//   step leaves no copy unjoined.
#include <algorithm>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "shoal/parallel/activation/offload_place.h"
#include "shoal/runtime/base/error.h"

namespace shoal::parallel {
namespace {

struct PinnedItem final : OffloadedTensor {
  Tensor tensor;  // defined while the item takes memory of the device
  Shape shape;
  DType dtype = DType::f32;
  Buffer place;
  std::unique_ptr<Event> moved;  // recorded after its copy; null once waited for
  bool leaving = false;          // in PinnedPlace::leaving_
  bool ahead = false;            // brought back, or kept, before backward asked for it
};

class PinnedPlace final : public OffloadPlace {
 public:
  PinnedPlace(MemoryResource& memory, const OffloadOptions& options, Stream compute)
      : memory_(memory),
        options_(options),
        compute_(compute),
        backend_(device_backend(compute.device.type)),
        own_(options.pinned != nullptr ? nullptr : make_pinned_memory()),
        pinned_(own_ ? *own_ : *options.pinned),
        out_(compute.device),
        in_(compute.device),
        computed_(compute.device) {}

  std::shared_ptr<OffloadedTensor> save(const Tensor& tensor) override {
    auto item = std::make_shared<PinnedItem>();
    item->tensor = tensor;
    item->shape = tensor.shape();
    item->dtype = tensor.dtype();
    item->place = Buffer(pinned_, tensor.bytes(), MemoryTag::activations, compute_);
    move(*item, item->place.data(), tensor.const_view().data, out_.view());
    item->leaving = true;
    leaving_.push_back(item);
    ++statistics_.tensors;
    statistics_.bytes += static_cast<std::int64_t>(tensor.bytes());
    current_bytes_ += static_cast<std::int64_t>(tensor.bytes());
    statistics_.peak_bytes = std::max(statistics_.peak_bytes, current_bytes_);
    let_leave(options_.max_leaving);
    return item;
  }

  Tensor load(const std::shared_ptr<OffloadedTensor>& tensor) override {
    const auto item = std::static_pointer_cast<PinnedItem>(tensor);
    stays(item);
    if (std::exchange(item->ahead, false)) {
      --ahead_;
      ++statistics_.early;
    }
    if (!item->tensor.defined()) bring_back(*item);
    // If the tensor has not left, its copy out reads the memory that backward reads.
    wait(*item);
    advance();
    // Limits the device memory of leaving and returning tensors together.
    let_leave(std::max(options_.max_leaving, options_.max_returning) - ahead_);
    return item->tensor;
  }

  void forget(const std::shared_ptr<OffloadedTensor>& tensor) noexcept override {
    const auto item = std::static_pointer_cast<PinnedItem>(tensor);
    stays(item);
    if (std::exchange(item->ahead, false)) --ahead_;
    current_bytes_ -= static_cast<std::int64_t>(item->place.size());
    try {
      wait(*item);
    } catch (const Error&) {  // NOLINT(bugprone-empty-catch): lost device or failed capture
    }
    item->tensor = {};
    item->place = {};
  }

  void expect(std::span<const std::shared_ptr<OffloadedTensor>> tensors) override {
    for (const auto& tensor : tensors)
      expected_.push_back(std::static_pointer_cast<PinnedItem>(tensor));
    advance();
  }

  OffloadStatistics statistics() const override { return statistics_; }

 private:
  // Queues the copy on `stream`, after the work now queued on the computing stream.
  void move(PinnedItem& item, void* to, const void* from, Stream stream) {
    computed_.record(compute_);
    computed_.block_stream(stream);
    backend_.copy(to, from, item.place.size(), stream);
    if (events_.empty()) events_.push_back(std::make_unique<Event>(compute_.device));
    item.moved = std::move(events_.back());
    events_.pop_back();
    item.moved->record(stream);
  }
  // Makes the computing stream wait for the item's copy.
  void wait(PinnedItem& item) {
    if (!item.moved) return;
    item.moved->block_stream(compute_);
    events_.push_back(std::move(item.moved));
  }
  void bring_back(PinnedItem& item) {
    item.tensor = Tensor::empty(item.shape, item.dtype, memory_, MemoryTag::activations, compute_);
    move(item, item.tensor.view().data, item.place.data(), in_.view());
  }
  void stays(const std::shared_ptr<PinnedItem>& item) {
    if (std::exchange(item->leaving, false)) std::erase(leaving_, item);
  }
  // Frees the memory of the oldest leaving tensors until at most `most` of them remain.
  void let_leave(int most) {
    while (static_cast<int>(leaving_.size()) > std::max(most, 0)) {
      PinnedItem& oldest = *leaving_.front();
      wait(oldest);
      oldest.tensor = {};
      oldest.leaving = false;
      leaving_.pop_front();
    }
  }
  void advance() {
    while (!expected_.empty() && ahead_ < options_.max_returning) {
      if (const auto item = expected_.front().lock()) {
        stays(item);
        if (!item->tensor.defined()) bring_back(*item);
        item->ahead = true;
        ++ahead_;
      }
      expected_.pop_front();
    }
  }

  MemoryResource& memory_;
  const OffloadOptions options_;
  const Stream compute_;
  DeviceBackend& backend_;
  // Declared before the streams, so that the streams are destroyed first, which ends running
  // copies.
  std::unique_ptr<MemoryResource> own_;
  PoolMemory pinned_;
  std::deque<std::shared_ptr<PinnedItem>> leaving_;
  std::deque<std::weak_ptr<PinnedItem>> expected_;
  int ahead_ = 0;  // items whose `ahead` is true
  std::int64_t current_bytes_ = 0;
  OffloadStatistics statistics_;
  OwnedStream out_, in_;
  Event computed_;
  std::vector<std::unique_ptr<Event>> events_;  // unused
};

}  // namespace

std::unique_ptr<OffloadPlace> make_pinned_place(MemoryResource& memory,
                                                const OffloadOptions& options, Stream compute) {
  SHOAL_CHECK(compute.device == memory.device() && compute.handle != nullptr,
              "activations of {} are offloaded from a stream of {}", to_string(memory.device()),
              to_string(compute.device));
  return std::make_unique<PinnedPlace>(memory, options, compute);
}

}  // namespace shoal::parallel
