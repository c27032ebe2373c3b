#include "shoal/nn/capture/staged_inputs.h"

#include <cstring>

#include "shoal/runtime/base/error.h"

namespace shoal::nn {
namespace {

constexpr std::size_t kAlignment = 256;

std::size_t aligned(std::size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

StagedInputs::StagedInputs(kernels::Kernels& kernels, MemoryResource& memory)
    : memory_(memory), stream_(kernels.stream()) {
  pinned_ = stream_.device.is_cpu() ? make_host_memory() : make_pinned_memory();
}

StagedInputs::~StagedInputs() {
  for (const Staging& staging : staging_) try {
      if (staging.copied) staging.copied->synchronize();
    } catch (...) {  // NOLINT(bugprone-empty-catch): the device is lost, and its copies with it
    }
}

bool StagedInputs::same_as_before(const std::vector<Tensor>& host) const {
  if (host.size() != device_.size()) return false;
  for (std::size_t i = 0; i < host.size(); ++i) {
    if (host[i].defined() != device_[i].defined()) return false;
    if (host[i].defined() &&
        (host[i].shape() != device_[i].shape() || host[i].dtype() != device_[i].dtype()))
      return false;
  }
  return true;
}

StagedInputs::Staging& StagedInputs::free_staging() {
  const bool is_free = !staging_.empty() && staging_.front().copied->query();
  if (!is_free && staging_.size() < kAhead) {
    staging_.emplace_back().copied.emplace(stream_.device);
    return staging_.back();
  }
  if (!is_free) staging_.front().copied->synchronize();
  staging_.push_back(std::move(staging_.front()));
  staging_.pop_front();
  return staging_.back();
}

const std::vector<Tensor>& StagedInputs::fill(const std::vector<Tensor>& host) {
  if (!same_as_before(host)) {
    device_.clear();
    for (const Tensor& tensor : host)
      device_.push_back(tensor.defined() ? Tensor::empty(tensor.shape(), tensor.dtype(), memory_,
                                                         MemoryTag::data, stream_)
                                         : Tensor());
  }
  std::size_t total = 0;
  for (const Tensor& tensor : host)
    if (tensor.defined()) total += aligned(tensor.bytes());
  if (total == 0) return device_;

  Staging& staging = free_staging();
  if (staging.bytes.size() < total) staging.bytes = Buffer(*pinned_, total, MemoryTag::data);
  DeviceBackend& backend = device_backend(stream_.device.type);
  auto* at = static_cast<std::byte*>(staging.bytes.data());
  for (std::size_t i = 0; i < host.size(); ++i) {
    if (!host[i].defined() || host[i].bytes() == 0) continue;
    std::memcpy(at, host[i].const_view().data, host[i].bytes());
    backend.copy(device_[i].view().data, at, host[i].bytes(), stream_);
    at += aligned(host[i].bytes());
  }
  staging.copied->record(stream_);
  return device_;
}

}  // namespace shoal::nn
