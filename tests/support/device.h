// Which device the tests' kernels run on. With SHOAL_TEST_DEVICE=cuda in the environment every test
// that asks here for its kernels uses CUDA's, on device 0; otherwise the CPU's. Link
// shoal_test_device.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "support/little_time.h"
#include <gtest/gtest.h>

#include "shoal/kernels/kernels.h"

namespace shoal::testing {

bool on_cuda();
// The calling thread is rank `rank`: with CUDA, its kernels and memory are from here on those of
// device rank % devices. Before it asks for any.
void use_device_of(int rank);
// SHOAL_TEST_SANITIZE=1, for compute-sanitizer, and on the emulated GPU under AddressSanitizer:
// allocations of exactly the bytes asked for, nothing behind tensors, each kernel once and compared
// with nothing.
bool sanitizing();

// At the top of a test that says something about the CPU only.
#define SHOAL_CPU_ONLY(why) \
  if (::shoal::testing::on_cuda()) GTEST_SKIP() << "CPU only: " << why

// CPU kernels of `threads`; or a handle on the calling thread's CUDA kernels, made at its first
// use.
std::unique_ptr<kernels::Kernels> make_test_kernels(int threads = 2);

// What both the test and the kernels can read: plain host memory; or pinned host memory, whose
// tensors a test may read once synchronise() has returned.
std::unique_ptr<MemoryResource> make_test_memory();

// Where the kernels' tensors are in earnest: plain host memory, or device memory, which a test
// reads by way of on_host().
std::unique_ptr<MemoryResource> make_test_device_memory();

// Waits for what this thread's test kernels have queued, and throws what they report.
void synchronise();
Stream test_stream();  // of this thread's kernels

// A tensor's elements, wherever it lies, after what this thread's kernels have queued.
void copy_to_test(void* values, const Tensor& tensor);
void copy_from_test(const Tensor& tensor, const void* values);
template <class T>
std::vector<T> values_of(const Tensor& tensor) {
  detail::check_dtype(tensor.dtype(), dtype_of<T>());
  std::vector<T> values(static_cast<std::size_t>(tensor.count()));
  copy_to_test(values.data(), tensor);
  return values;
}
template <class T>
void set_values(const Tensor& tensor, const std::vector<T>& values) {
  detail::check_dtype(tensor.dtype(), dtype_of<T>());
  ASSERT_EQ(static_cast<std::int64_t>(values.size()), tensor.count());
  copy_from_test(tensor, values.data());
}

// The tensor itself; of one in device memory a copy, when all that is queued has been done.
Tensor on_host(const Tensor& tensor);

// A value that both the test and the kernels read where it lies: in memory of make_test_memory().
template <class T>
class Reachable {
 public:
  explicit Reachable(const T& value = {})
      : memory_(make_test_memory()), bytes_(*memory_, sizeof(T), MemoryTag::workspace) {
    new (bytes_.data()) T(value);
  }
  T& operator*() const { return *static_cast<T*>(bytes_.data()); }

 private:
  std::unique_ptr<MemoryResource> memory_;
  Buffer bytes_;
};

// Bytes of a kernel test with a mirror on the device: uploaded when the device is about to use
// them, and brought back when the host is. The base is aligned to 256 bytes on both sides.
class Mirrored {
 public:
  Mirrored(std::size_t bytes, std::byte fill);
  Mirrored(const Mirrored& other);
  Mirrored& operator=(const Mirrored& other);
  Mirrored(Mirrored&&) = default;
  Mirrored& operator=(Mirrored&&) = default;

  std::size_t size() const { return bytes_; }
  std::byte* host() const;    // taken to be written there
  std::byte* device() const;  // taken to be written there
  std::byte* here() const;    // where the next call runs: device() on CUDA, but for AtHost

 private:
  enum class Newer { host, device };
  std::size_t bytes_;
  std::vector<std::byte> host_;
  mutable Buffer device_;
  mutable Newer newer_ = Newer::host;
};

// While it lives, what tests hand over lies where `kernels` (or the host's) can use it.
class At {
 public:
  explicit At(Device device);
  explicit At(const kernels::Kernels& kernels) : At(kernels.device()) {}
  ~At();
  At(const At&) = delete;
  At& operator=(const At&) = delete;

 private:
  Device previous_;
};
Device here();  // where the next call runs

// A plain value that kernels read through a pointer.
template <class T>
class Placed {
 public:
  explicit Placed(const T& value = {}) : bytes_(sizeof(T), std::byte{0}) { set(value); }
  void set(const T& value) { new (bytes_.host()) T(value); }
  T value() const { return *reinterpret_cast<const T*>(bytes_.host()); }
  T* get() const { return reinterpret_cast<T*>(bytes_.here()); }

 private:
  Mirrored bytes_;
};

}  // namespace shoal::testing
