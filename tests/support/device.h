// Chooses the device that the tests' kernels run on. With SHOAL_TEST_DEVICE=cuda in the
// environment, tests that take their kernels from here run on CUDA device 0. Otherwise they run on
// the CPU. Link shoal_test_device.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "support/little_time.h"
#include <gtest/gtest.h>

#include "shoal/kernels/kernels.h"

namespace shoal::testing {

bool on_cuda();
// Makes the calling thread rank `rank`. With CUDA, its kernels and memory then belong to device
// rank % devices. Call it before the thread asks for any of them.
void use_device_of(int rank);
// True with SHOAL_TEST_SANITIZE=1 (for compute-sanitizer), and on the emulated GPU under
// AddressSanitizer. Allocations then have exactly the requested size, no padding follows a tensor,
// and each kernel runs once, without a comparison.
bool sanitizing();

// Skips a test that applies only to the CPU. Use it at the top of the test.
#define SHOAL_CPU_ONLY(why) \
  if (::shoal::testing::on_cuda()) GTEST_SKIP() << "CPU only: " << why

// Returns CPU kernels with `threads` threads, or a handle on the calling thread's CUDA kernels,
// which are created on first use.
std::unique_ptr<kernels::Kernels> make_test_kernels(int threads = 2);

// Memory that the test and the kernels can both read. On the CPU it is plain host memory. With CUDA
// it is pinned host memory, and the test may read a tensor there after synchronise().
std::unique_ptr<MemoryResource> make_test_memory();

// Memory of the kind that training uses: plain host memory on the CPU, or device memory, which a
// test reads through on_host().
std::unique_ptr<MemoryResource> make_test_device_memory();

// Waits for the queued work of this thread's test kernels and throws the errors they report.
void synchronise();
Stream test_stream();  // the stream of this thread's kernels

// Copy a tensor's elements on either device, after the queued work of this thread's test kernels.
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

// Returns a host tensor as it is. Copies a device tensor to the host after all queued work.
Tensor on_host(const Tensor& tensor);

// A value in make_test_memory(), which the test and the kernels can both read.
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

// Host bytes of a kernel test with a mirror on the device. They are uploaded before the device uses
// them and brought back before the host does. Both bases are aligned to 256 bytes.
class Mirrored {
 public:
  Mirrored(std::size_t bytes, std::byte fill);
  Mirrored(const Mirrored& other);
  Mirrored& operator=(const Mirrored& other);
  Mirrored(Mirrored&&) = default;
  Mirrored& operator=(Mirrored&&) = default;

  std::size_t size() const { return bytes_; }
  std::byte* host() const;    // for writing: the host copy is then the newer one
  std::byte* device() const;  // for writing: the device copy is then the newer one
  std::byte* here() const;    // device() on CUDA unless an AtHost lives; else host()

 private:
  enum class Newer { host, device };
  std::size_t bytes_;
  std::vector<std::byte> host_;
  mutable Buffer device_;
  mutable Newer newer_ = Newer::host;
};

// While it lives, the tests' arguments are placed where `kernels` (or the host's) can use them.
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
Device here();  // the device of the next call

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
