// Gates for CUDA streams: cuStreamWaitValue32 on words of pinned memory.
#include <atomic>
#include <cstdint>
#include <mutex>
#include <new>
#include <set>
#include <vector>

#include "shoal/runtime/device/cuda_check.h"
#include "shoal/runtime/device/cuda_driver.h"
#include "shoal/runtime/device/current_cuda_device.h"
#include "shoal/runtime/device/stream_gate.h"

namespace shoal {
namespace {

// CUresult (CUstream, CUdeviceptr, cuuint32_t value, unsigned flags). The default condition is
// *address >= value, in cyclic arithmetic.
using WaitValue = int (*)(cudaStream_t, unsigned long long, std::uint32_t, unsigned);
constexpr unsigned kGreaterOrEqual = 0;

// A word is reused as soon as its gate is open, even if streams have not reached the gate yet. Its
// value only grows, so the next gate cannot block those streams.
struct Word {
  std::atomic<std::uint32_t>* value = nullptr;
  std::uint32_t last = 0;  // value that opens the newest gate
};
static_assert(std::atomic<std::uint32_t>::is_always_lock_free &&
              sizeof(std::atomic<std::uint32_t>) == 4);

// The words of all devices. They live until the process ends, since streams may read them until
// then.
class Words {
 public:
  static Words& get() {
    static Words& all = *new Words;
    return all;
  }

  std::string why_none(Device device) {
    if (!wait_value_) return "this driver has no cuStreamWaitValue32 of CUDA 12";
    {
      const std::scoped_lock lock(mutex_);
      if (work_on_.contains(device.index)) return {};
    }
    std::string why = try_on(device);
    const std::scoped_lock lock(mutex_);
    if (why.empty()) work_on_.insert(device.index);
    return why;
  }
  // Allocates new words without holding the lock: the driver may wait for the device, and a thread
  // that opens a gate needs the lock to return words.
  Word take(Device device) {
    for (;;) {
      {
        const std::scoped_lock lock(mutex_);
        if (!free_.empty()) {
          Word word = free_.back();
          free_.pop_back();
          ++word.last;
          return word;
        }
      }
      std::vector<Word> more = make_words(device);
      const std::scoped_lock lock(mutex_);
      free_.insert(free_.end(), more.begin(), more.end());
    }
  }
  void give(Word word) {
    const std::scoped_lock lock(mutex_);
    free_.push_back(word);
  }
  void wait(Stream stream, const Word& word) const {
    const CurrentCudaDevice current(stream.device);
    auto* const native = static_cast<cudaStream_t>(stream.handle);
    cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    check_cuda(cudaStreamIsCapturing(native, &capture), "cudaStreamIsCapturing", stream.device);
    if (capture != cudaStreamCaptureStatusNone)
      throw Error(ErrorCode::internal,
                  fmt::format("a stream of {} was to wait for the host while it is being captured",
                              to_string(stream.device)),
                  "capture between collectives, not across them");
    check_cuda(
        static_cast<cudaError_t>(wait_value_(native, address(word), word.last, kGreaterOrEqual)),
        "cuStreamWaitValue32", stream.device);
  }

 private:
  Words() : wait_value_(reinterpret_cast<WaitValue>(cuda_driver_function("cuStreamWaitValue32"))) {}
  static unsigned long long address(const Word& word) {
    return reinterpret_cast<std::uintptr_t>(
        word.value);  // equal to the device's address (unified addressing)
  }

  static std::vector<Word> make_words(Device device) {
    constexpr std::size_t kBytes = 1 << 16, kStride = 64;
    const CurrentCudaDevice current(device);
    void* const page = device_backend(DeviceType::cuda).allocate_pinned(kBytes);
    std::vector<Word> words;
    for (std::size_t at = kBytes; at > 0; at -= kStride)
      words.push_back(
          {new (static_cast<std::byte*>(page) + at - kStride) std::atomic<std::uint32_t>(0)});
    return words;
  }

  // Tries a wait whose condition already holds, since no device attribute reports whether version 2
  // of these calls works.
  std::string try_on(Device device) {
    const CurrentCudaDevice current(device);
    const OwnedStream stream(device);
    Word word = take(device);
    word.value->store(word.last, std::memory_order_release);
    const int status = wait_value_(static_cast<cudaStream_t>(stream.view().handle), address(word),
                                   word.last, kGreaterOrEqual);
    device_backend(DeviceType::cuda).synchronize(stream.view());
    give(word);
    return status == 0 ? std::string()
                       : fmt::format("cuStreamWaitValue32 says CUDA error {}", status);
  }

  const WaitValue wait_value_;
  std::mutex mutex_;  // never held during a driver call
  std::vector<Word> free_;
  std::set<int> work_on_;  // devices where a trial succeeded; failed trials are not stored
};

class CudaGate final : public StreamGate {
 public:
  explicit CudaGate(Device device) : word_(Words::get().take(device)) {}
  ~CudaGate() override {
    CudaGate::open();
    Words::get().give(word_);
  }
  CudaGate(const CudaGate&) = delete;
  CudaGate& operator=(const CudaGate&) = delete;
  void block_stream(Stream stream) override { Words::get().wait(stream, word_); }
  void open() noexcept override { word_.value->store(word_.last, std::memory_order_release); }

 private:
  const Word word_;
};

}  // namespace

std::unique_ptr<StreamGate> make_cuda_stream_gate(Device device) {
  if (const std::string why = why_no_cuda_stream_gates(device); !why.empty())
    throw_error(ErrorCode::unavailable, "streams of {} cannot wait for the host: {}",
                to_string(device), why);
  return std::make_unique<CudaGate>(device);
}

std::string why_no_cuda_stream_gates(Device device) { return Words::get().why_none(device); }

}  // namespace shoal
