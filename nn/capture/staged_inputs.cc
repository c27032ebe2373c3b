#include "shoal/nn/capture/staged_inputs.h"

#include <cstring>

namespace shoal::nn {

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

const std::vector<Tensor>& StagedInputs::fill(const std::vector<Tensor>& host) {
  if (!same_as_before(host)) {
    device_.clear();
    for (const Tensor& tensor : host)
      device_.push_back(tensor.defined() ? Tensor::empty(tensor.shape(), tensor.dtype(), memory_,
                                                         MemoryTag::data, stream_)
                                         : Tensor());
  }
  DeviceBackend& backend = device_backend(stream_.device.type);
  bool any = false;
  for (std::size_t i = 0; i < host.size(); ++i) {
    if (!host[i].defined() || host[i].bytes() == 0) continue;
    std::byte* const at = staging_.place(host[i].bytes());
    std::memcpy(at, host[i].const_view().data, host[i].bytes());
    backend.copy(device_[i].view().data, at, host[i].bytes(), stream_);
    any = true;
  }
  if (any) staging_.mark(stream_);
  return device_;
}

}  // namespace shoal::nn
