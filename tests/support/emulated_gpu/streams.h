// Streams as queues that run as late as possible, and the events that order them.
//
// An operation runs when the host waits for it, or when another one that must come after it does:
// in the thread that waits. Whatever waits was queued later than what it waits for, so threads that
// run each other's streams cannot wait in a circle. An operation may also wait for a word that the
// host sets: who waits for it then looks at the word, and holds up nobody who runs other streams.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "cuda_runtime_api.h"

namespace shoal::emulated_gpu {

using Lock = std::unique_lock<std::mutex>;
using Clock = std::chrono::steady_clock;
struct Capture;

// Memory of cudaHostAlloc.
struct Pinned {
  std::byte* begin = nullptr;
  std::size_t bytes = 0;
  int pending = 0;  // queued operations that may touch it
};
struct PinnedRange {
  std::shared_ptr<Pinned> memory;
  std::byte* begin = nullptr;
  std::size_t bytes = 0;
};

// A place in a stream: done when all up to it has run.
struct Record {
  std::shared_ptr<CUstream_st> stream;
  std::uint64_t place = 0;
  bool done = false;
  Clock::time_point time;
};

struct Operation {
  std::function<void()> work;      // empty: orders only
  bool is_mark = false;            // for AddressSanitizer alone: a GPU would know nothing of it
  std::shared_ptr<Record> after;   // runs first
  std::function<bool()> may_run;   // empty: it may
  std::shared_ptr<Record> record;  // done with this operation
  std::vector<std::shared_ptr<Pinned>> uses;
  bool uses_unknown = false;       // may touch any pinned memory
  std::vector<PinnedRange> fills;  // pinned memory that it writes over
  std::uint64_t number = 0;        // of all operations, in the order of their calls
};

struct Streams {
  std::mutex mutex;  // of everything but the arena; not held while work runs
  std::condition_variable progress;
  std::map<cudaStream_t, std::shared_ptr<CUstream_st>> streams;
  std::vector<std::shared_ptr<CUstream_st>> legacy;  // by device
  std::map<cudaEvent_t, std::shared_ptr<CUevent_st>> events;
  std::uint64_t queued = 0;
  int unknown_uses = 0;  // queued operations that may touch any pinned memory
  static Streams& get();
};

// The stream behind a handle: the current device's legacy stream for null; null where it is
// unknown.
std::shared_ptr<CUstream_st> stream_of(cudaStream_t handle);
std::shared_ptr<CUevent_st> event_of(cudaEvent_t handle);

// Queues an operation, or notes it where the stream is captured.
cudaError_t submit(Lock& lock, const std::shared_ptr<CUstream_st>& stream, Operation operation);

// Runs the stream up to a place as far as it may now; false where it waits for the host.
bool advance(Lock& lock, const std::shared_ptr<CUstream_st>& stream, std::uint64_t place);
// Runs the stream up to a place; all that is queued on it now; and all that is queued on a device.
// Gives up the lock meanwhile.
void run(Lock& lock, const std::shared_ptr<CUstream_st>& stream, std::uint64_t place);
void run(Lock& lock, const std::shared_ptr<CUstream_st>& stream);
void run_device(Lock& lock, int device);

// Why the host may not wait for this stream, an event of it, or a whole device: a capture.
cudaError_t refuse_wait(Lock& lock, const std::shared_ptr<CUstream_st>& stream);
cudaError_t refuse_device_wait(Lock& lock, int device);
// Why a call that is not of a stream's order, such as cudaMalloc, may not be made now.
cudaError_t refuse_unordered(Lock& lock);

// A call of CUDA's: refused in a forked child, in device work and without a device, its failure
// remembered. It makes a context on the current device, unless it is one without.
cudaError_t call(const char* name, const std::function<cudaError_t(Lock&)>& body);
cudaError_t call_without_context(const char* name, const std::function<cudaError_t(Lock&)>& body);
// With the lock: this process has one there from now on, by the call `name`.
void make_context(const char* name, int device);
bool has_context(int device);

}  // namespace shoal::emulated_gpu

struct CUstream_st {
  int device = 0;
  bool legacy = false;
  bool blocking = false;  // in order with the legacy stream
  std::deque<shoal::emulated_gpu::Operation> queue;
  std::uint64_t queued = 0, done = 0;
  std::optional<std::thread::id> runner;
  std::shared_ptr<shoal::emulated_gpu::Capture> capture;
  std::size_t branch = 0;  // of the capture
};

struct CUevent_st {
  int device = 0;
  bool timing = false;
  int asked = 0;  // queries since it was recorded
  std::shared_ptr<shoal::emulated_gpu::Record> record;
  std::shared_ptr<shoal::emulated_gpu::Capture> capture;  // recorded in it, at
  std::size_t branch = 0, place = 0;
};
