// Owned cuDNN backend descriptors, and cuDNN's errors as exceptions.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <utility>

#include <cuda_runtime_api.h>
#include <cudnn.h>
#include <cudnn_graph.h>
#include <fmt/format.h>

namespace shoal::kernels::cudnn {

// Thrown when cuDNN refuses an operation. Caught where a plan is made or run.
struct Refusal {
  std::string why;
  bool memory = false;  // out of memory, so a later attempt may succeed
};

inline void accept(cudnnStatus_t status, const char* what) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  (void)cudaGetLastError();  // clears the error, so that the next caller does not see it
  std::array<char, 1024> text{};
  cudnnGetLastErrorString(text.data(), text.size());
  throw Refusal{fmt::format("{}: {} ({})", what, cudnnGetErrorString(status), text.data()),
                status == CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED ||
                    status == CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED};
}

// Owns one backend descriptor.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(cudnnBackendDescriptorType_t type) {
    accept(cudnnBackendCreateDescriptor(type, &handle_), "creating a descriptor");
  }
  ~Descriptor() {
    if (handle_) (void)cudnnBackendDestroyDescriptor(handle_);
  }
  Descriptor(Descriptor&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }

  cudnnBackendDescriptor_t get() const { return handle_; }
  explicit operator bool() const { return handle_ != nullptr; }

  template <typename T>
  void set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, std::int64_t count,
           const T* values) {
    accept(cudnnBackendSetAttribute(handle_, name, type, count, static_cast<const void*>(values)),
           "setting an attribute");
  }
  void set(cudnnBackendAttributeName_t name, const Descriptor& other) {
    set(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &other.handle_);
  }
  void set(cudnnBackendAttributeName_t name, std::int64_t value) {
    set(name, CUDNN_TYPE_INT64, 1, &value);
  }
  void set(cudnnBackendAttributeName_t name, bool value) {
    set(name, CUDNN_TYPE_BOOLEAN, 1, &value);
  }
  void set(cudnnBackendAttributeName_t name, cudnnDataType_t value) {
    set(name, CUDNN_TYPE_DATA_TYPE, 1, &value);
  }
  void finalize(const char* what) { accept(cudnnBackendFinalize(handle_), what); }

 private:
  cudnnBackendDescriptor_t handle_ = nullptr;
};

}  // namespace shoal::kernels::cudnn
