// Streams as queues that run as late as possible, and the events that order them.
//
// An operation runs when the host waits for it, or when another operation that must follow it runs,
// in the thread that waits. An operation waits only for operations queued before it, so threads
// that run each other's streams cannot deadlock. An operation may also wait for a word that the
// host sets. A thread that needs it then polls the word, and does not block threads that run other
// streams.
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

// Memory allocated by cudaHostAlloc.
struct Pinned {
  std::byte* begin = nullptr;
  std::size_t bytes = 0;
  int pending = 0;  // queued operations that may use it
};
struct PinnedRange {
  std::shared_ptr<Pinned> memory;
  std::byte* begin = nullptr;
  std::size_t bytes = 0;
};

// A position in a stream. It is done when all operations up to it have run.
struct Record {
  std::shared_ptr<CUstream_st> stream;
  std::uint64_t place = 0;
  bool done = false;
  Clock::time_point time;
};

struct Operation {
  std::function<void()> work;      // empty: only orders
  bool is_mark = false;            // for AddressSanitizer only; a real GPU would not see it
  std::shared_ptr<Record> after;   // must run before this operation
  std::function<bool()> may_run;   // empty: it always may
  std::shared_ptr<Record> record;  // is done with this operation
  std::vector<std::shared_ptr<Pinned>> uses;
  bool uses_unknown = false;       // may use any pinned memory
  std::vector<PinnedRange> fills;  // pinned memory that it overwrites
  std::uint64_t number = 0;        // index among all operations, in call order
};

struct Streams {
  std::mutex mutex;  // protects everything but the arena; not held while work runs
  std::condition_variable progress;
  std::map<cudaStream_t, std::shared_ptr<CUstream_st>> streams;
  std::vector<std::shared_ptr<CUstream_st>> legacy;  // one for each device
  std::map<cudaEvent_t, std::shared_ptr<CUevent_st>> events;
  std::uint64_t queued = 0;
  int unknown_uses = 0;  // queued operations that may use any pinned memory
  static Streams& get();
};

// Resolves a handle: null gives the current device's legacy stream, and an unknown handle gives
// null.
std::shared_ptr<CUstream_st> stream_of(cudaStream_t handle);
std::shared_ptr<CUevent_st> event_of(cudaEvent_t handle);

// Queues an operation, or records it if the stream is captured.
cudaError_t submit(Lock& lock, const std::shared_ptr<CUstream_st>& stream, Operation operation);

// Runs the stream up to a position as far as possible now. False if it waits for the host.
bool advance(Lock& lock, const std::shared_ptr<CUstream_st>& stream, std::uint64_t place);
// Run the stream up to a position, all operations queued on a stream now, or all queued on a
// device. They release the lock while work runs.
void run(Lock& lock, const std::shared_ptr<CUstream_st>& stream, std::uint64_t place);
void run(Lock& lock, const std::shared_ptr<CUstream_st>& stream);
void run_device(Lock& lock, int device);

// Return why the host may not wait for this stream (or an event on it), or for a whole device: a
// capture.
cudaError_t refuse_wait(Lock& lock, const std::shared_ptr<CUstream_st>& stream);
cudaError_t refuse_device_wait(Lock& lock, int device);
// Returns why a call without stream order, such as cudaMalloc, may not be made now.
cudaError_t refuse_unordered(Lock& lock);

// Runs a CUDA call and remembers its failure. It refuses calls in a forked child, in device work
// and without a device. It makes a context on the current device; call_without_context makes none.
cudaError_t call(const char* name, const std::function<cudaError_t(Lock&)>& body);
cudaError_t call_without_context(const char* name, const std::function<cudaError_t(Lock&)>& body);
// Records that the call `name` made a context on `device`. Needs the lock.
void make_context(const char* name, int device);
bool has_context(int device);

}  // namespace shoal::emulated_gpu

struct CUstream_st {
  int device = 0;
  bool legacy = false;
  bool blocking = false;  // ordered with the legacy stream
  std::deque<shoal::emulated_gpu::Operation> queue;
  std::uint64_t queued = 0, done = 0;
  std::optional<std::thread::id> runner;
  std::shared_ptr<shoal::emulated_gpu::Capture> capture;
  std::size_t branch = 0;  // index in the capture
};

struct CUevent_st {
  int device = 0;
  bool timing = false;
  int asked = 0;  // queries since it was recorded
  std::shared_ptr<shoal::emulated_gpu::Record> record;
  std::shared_ptr<shoal::emulated_gpu::Capture> capture;  // the capture it was recorded in
  std::size_t branch = 0, place = 0;
};
