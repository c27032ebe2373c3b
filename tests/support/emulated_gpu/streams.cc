#include "streams.h"

#include <algorithm>

#include "arena.h"
#include "capture.h"
#include "memory.h"
#include "settings.h"
#include "stream.h"
#include <fmt/format.h>
#include <pthread.h>

namespace shoal::emulated_gpu {
namespace {

bool forked = false;  // a child forked from a process that used the device has no device
thread_local int run_depth = 0;

void finish(Streams& all, Operation& operation) {
  for (const auto& pinned : operation.uses) --pinned->pending;
  if (operation.uses_unknown) --all.unknown_uses;
  if (!operation.record) return;
  operation.record->done = true;
  operation.record->time = Clock::now();
}

void work(Lock& lock, const Operation& operation) {
  if (!operation.work) return;
  lock.unlock();
  try {
    const DeviceWork here;
    operation.work();
  } catch (const std::exception& problem) {
    fail(problem.what());
  }
  lock.lock();
}

// Returns false if the operation may not run yet.
bool run_next(Lock& lock, const std::shared_ptr<CUstream_st>& stream) {
  const Operation& next = stream->queue.front();  // only the stream's runner removes it
  if (const auto after = next.after; after && !after->done)
    if (!advance(lock, after->stream, after->place)) return false;
  if (next.may_run && !next.may_run()) return false;
  Operation operation = std::move(stream->queue.front());
  stream->queue.pop_front();
  work(lock, operation);
  finish(Streams::get(), operation);
  ++stream->done;
  return true;
}

// Poisons a pinned destination until its copy has run, unless queued work may still read it.
void poison_destinations(const Streams& all, const Operation& operation) {
  if (all.unknown_uses > 0) return;
  for (const PinnedRange& range : operation.fills)
    if (range.memory->pending == 0) poison(range.begin, range.bytes, Poison::pending);
}

void queue(Streams& all, const std::shared_ptr<CUstream_st>& stream, Operation operation) {
  poison_destinations(all, operation);
  for (const auto& pinned : operation.uses) ++pinned->pending;
  if (operation.uses_unknown) ++all.unknown_uses;
  operation.number = ++all.queued;
  ++stream->queued;
  if (operation.record) {
    operation.record->stream = stream;
    operation.record->place = stream->queued;
  }
  stream->queue.push_back(std::move(operation));
}

std::shared_ptr<Record> place_in(const std::shared_ptr<CUstream_st>& stream) {
  auto record = std::make_shared<Record>();
  record->stream = stream;
  record->place = stream->queued;
  record->done = stream->done >= stream->queued;
  return record;
}

// Makes the legacy stream and blocking streams wait for each other.
void order_with_legacy(Streams& all, const std::shared_ptr<CUstream_st>& stream) {
  const auto wait_for = [&](const std::shared_ptr<CUstream_st>& other) {
    if (other->done >= other->queued) return;
    Operation wait;
    wait.after = place_in(other);
    queue(all, stream, std::move(wait));
  };
  if (stream->blocking) return wait_for(all.legacy[static_cast<std::size_t>(stream->device)]);
  if (!stream->legacy) return;
  for (const auto& [handle, other] : all.streams)
    if (other->blocking && other->device == stream->device) wait_for(other);
}

cudaError_t enqueue_kernel(cudaStream_t handle, Operation operation) {
  return call("a launch", [&](Lock& lock) {
    const auto stream = stream_of(handle);
    int current = 0;
    (void)cudaGetDevice(&current);
    if (!stream || stream->device != current) return cudaErrorInvalidResourceHandle;
    return submit(lock, stream, std::move(operation));
  });
}

}  // namespace

Streams& Streams::get() {
  static Streams& all = *[] {
    auto* made = new Streams;  // outlives every thread
    for (int device = 0; device < settings().devices; ++device) {
      made->legacy.push_back(std::make_shared<CUstream_st>());
      made->legacy.back()->device = device;
      made->legacy.back()->legacy = true;
    }
    pthread_atfork(nullptr, nullptr, [] { forked = true; });
    return made;
  }();
  return all;
}

cudaError_t call(const char* name, const std::function<cudaError_t(Lock&)>& body) {
  return call_without_context(name, [&](Lock& lock) {
    int device = 0;
    (void)cudaGetDevice(&device);
    make_context(name, device);
    return body(lock);
  });
}

cudaError_t call_without_context(const char* name, const std::function<cudaError_t(Lock&)>& body) {
  if (DeviceWork::here()) fail(fmt::format("{} was called by device work", name));
  if (forked) return failed(cudaErrorInitializationError);
  if (settings().devices == 0) return failed(cudaErrorNoDevice);
  Lock lock(Streams::get().mutex);
  return failed(body(lock));
}

std::shared_ptr<CUstream_st> stream_of(cudaStream_t handle) {
  Streams& all = Streams::get();
  if (!handle) {
    int device = 0;
    (void)cudaGetDevice(&device);
    return all.legacy[static_cast<std::size_t>(device)];
  }
  const auto found = all.streams.find(handle);
  return found == all.streams.end() ? nullptr : found->second;
}

std::shared_ptr<CUevent_st> event_of(cudaEvent_t handle) {
  Streams& all = Streams::get();
  const auto found = all.events.find(handle);
  return found == all.events.end() ? nullptr : found->second;
}

cudaError_t submit(Lock& lock, const std::shared_ptr<CUstream_st>& stream, Operation operation) {
  Streams& all = Streams::get();
  if (stream->capture) return note(*stream->capture, stream->branch, std::move(operation));
  if (stream->legacy)
    if (const cudaError_t refused = refuse_legacy(lock, stream->device)) return refused;
  order_with_legacy(all, stream);
  queue(all, stream, std::move(operation));
  if (settings().eager) (void)advance(lock, stream, stream->queued);
  return cudaSuccess;
}

bool advance(Lock& lock, const std::shared_ptr<CUstream_st>& stream, std::uint64_t place) {
  Streams& all = Streams::get();
  const auto self = std::this_thread::get_id();
  std::optional<Opened> opened;
  bool runs = true;
  while (runs && stream->done < place) {
    if (stream->runner == self)
      fail(fmt::format("operation {} of a stream of device {} waits for itself", stream->done + 1,
                       stream->device));
    if (stream->runner) {  // another thread runs it, and reaches `place` or leaves the stream to us
      all.progress.wait(lock);
      continue;
    }
    stream->runner = self;
    if (run_depth++ == 0) opened.emplace();
    while (runs && stream->done < place) runs = run_next(lock, stream);
    --run_depth;
    stream->runner.reset();
    all.progress.notify_all();
  }
  if (opened) check_guards();
  return runs;
}

// A real GPU would wait forever.
void run(Lock& lock, const std::shared_ptr<CUstream_st>& stream, std::uint64_t place) {
  constexpr auto kLook = std::chrono::microseconds(100);
  constexpr auto kPatience = std::chrono::seconds(100);
  std::optional<Clock::time_point> since;
  while (!advance(lock, stream, place)) {
    if (!since) since = Clock::now();
    if (Clock::now() - *since > kPatience)
      fail(fmt::format(
          "operation {} of a stream of device {} waits for the host, which waits for it",
          stream->done + 1, stream->device));
    Streams::get().progress.wait_for(lock, kLook);
  }
}

void run(Lock& lock, const std::shared_ptr<CUstream_st>& stream) {
  run(lock, stream, stream->queued);
}

// Runs the stream whose next operation was queued last first. Where a wait is missing, the
// operation that lacks it was mostly queued after the one it needs.
void run_device(Lock& lock, int device) {
  Streams& all = Streams::get();
  std::vector<std::pair<std::shared_ptr<CUstream_st>, std::uint64_t>> wanted;
  const auto want = [&](const std::shared_ptr<CUstream_st>& stream) {
    if (stream->device == device && stream->done < stream->queued)
      wanted.emplace_back(stream, stream->queued);
  };
  for (const auto& [handle, stream] : all.streams) want(stream);
  want(all.legacy[static_cast<std::size_t>(device)]);
  const auto first = [](const auto& entry) {
    return entry.first->queue.empty() ? 0 : entry.first->queue.front().number;
  };
  std::sort(wanted.begin(), wanted.end(),
            [&](const auto& a, const auto& b) { return first(a) > first(b); });
  for (const auto& [stream, place] : wanted) run(lock, stream, place);
}

cudaError_t enqueue(cudaStream_t stream, std::function<void()> work) {
  Operation operation;
  operation.work = std::move(work);
  operation.uses_unknown = true;
  return enqueue_kernel(stream, std::move(operation));
}

cudaError_t enqueue_wait(cudaStream_t handle, std::function<bool()> over) {
  return call("a launch", [&](Lock& lock) {
    const auto stream = stream_of(handle);
    if (!stream) return cudaErrorInvalidResourceHandle;
    if (const cudaError_t refused = refuse_wait(lock, stream)) return refused;
    Operation wait;
    wait.may_run = std::move(over);
    return submit(lock, stream, std::move(wait));
  });
}

cudaError_t enqueue(cudaStream_t stream, std::function<void()> work, const std::string& what,
                    std::span<const std::uintptr_t> words) {
  Operation operation;
  operation.work = std::move(work);
  {
    const Lock lock(Streams::get().mutex);
    int device = 0;
    (void)cudaGetDevice(&device);
    operation.uses = pinned_among(what, words, device);
  }
  return enqueue_kernel(stream, std::move(operation));
}

}  // namespace shoal::emulated_gpu

using namespace shoal::emulated_gpu;

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int) {
  return call("cudaStreamCreateWithPriority", [&](Lock&) {
    if (!stream || flags > cudaStreamNonBlocking) return cudaErrorInvalidValue;
    auto made = std::make_shared<CUstream_st>();
    (void)cudaGetDevice(&made->device);
    made->blocking = flags == cudaStreamDefault;
    *stream = made.get();
    Streams::get().streams.emplace(*stream, std::move(made));
    return cudaSuccess;
  });
}

cudaError_t cudaStreamDestroy(cudaStream_t handle) {
  return call("cudaStreamDestroy", [&](Lock& lock) {
    const auto stream = handle ? stream_of(handle) : nullptr;
    if (!stream) return cudaErrorInvalidResourceHandle;
    if (stream->capture) invalidate(*stream->capture);
    run(lock, stream);
    Streams::get().streams.erase(handle);
    return cudaSuccess;
  });
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  return call("cudaStreamSynchronize", [&](Lock& lock) {
    const auto stream = stream_of(handle);
    if (!stream) return cudaErrorInvalidResourceHandle;
    if (const cudaError_t refused = refuse_wait(lock, stream)) return refused;
    run(lock, stream);
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceSynchronize() {
  return call("cudaDeviceSynchronize", [&](Lock& lock) {
    int device = 0;
    (void)cudaGetDevice(&device);
    if (const cudaError_t refused = refuse_device_wait(lock, device)) return refused;
    run_device(lock, device);
    return cudaSuccess;
  });
}

cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event_handle, unsigned flags) {
  return call("cudaStreamWaitEvent", [&](Lock& lock) {
    const auto stream = stream_of(handle);
    const auto event = event_of(event_handle);
    if (!stream || !event) return cudaErrorInvalidResourceHandle;
    if (flags != 0) return cudaErrorInvalidValue;
    if (event->capture || stream->capture) return note_wait(stream, *event);
    if (!event->record || event->record->done) return cudaSuccess;
    Operation wait;
    wait.after = event->record;
    return submit(lock, stream, std::move(wait));
  });
}

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return cudaEventCreateWithFlags(event, cudaEventDefault);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  return call("cudaEventCreateWithFlags", [&](Lock&) {
    if (!event || (flags & ~cudaEventDisableTiming) != 0) return cudaErrorInvalidValue;
    auto made = std::make_shared<CUevent_st>();
    (void)cudaGetDevice(&made->device);
    made->timing = flags == cudaEventDefault;
    *event = made.get();
    Streams::get().events.emplace(*event, std::move(made));
    return cudaSuccess;
  });
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  return call("cudaEventDestroy", [&](Lock&) {
    return Streams::get().events.erase(event) ? cudaSuccess : cudaErrorInvalidResourceHandle;
  });
}

cudaError_t cudaEventRecord(cudaEvent_t event_handle, cudaStream_t handle) {
  return call("cudaEventRecord", [&](Lock& lock) {
    const auto stream = stream_of(handle);
    const auto event = event_of(event_handle);
    if (!stream || !event || stream->device != event->device) return cudaErrorInvalidResourceHandle;
    if (stream->capture) return note_record(*stream, *event);
    const auto record = std::make_shared<Record>();
    Operation mark;
    mark.record = record;
    if (const cudaError_t refused = submit(lock, stream, std::move(mark))) return refused;
    event->record = record;
    event->capture.reset();
    event->asked = 0;
    return cudaSuccess;
  });
}

cudaError_t cudaEventQuery(cudaEvent_t handle) {
  return call("cudaEventQuery", [&](Lock& lock) {
    constexpr int kNotReady = 2;  // a query reports unfinished work this often, then completion
    const auto event = event_of(handle);
    if (!event) return cudaErrorInvalidResourceHandle;
    if (event->capture) return refuse_captured(*event);
    const auto record = event->record;
    if (!record || record->done) return cudaSuccess;
    if (const cudaError_t refused = refuse_unordered(lock)) return refused;
    if (event->asked++ < kNotReady) return cudaErrorNotReady;
    return advance(lock, record->stream, record->place) ? cudaSuccess : cudaErrorNotReady;
  });
}

cudaError_t cudaEventSynchronize(cudaEvent_t handle) {
  return call("cudaEventSynchronize", [&](Lock& lock) {
    const auto event = event_of(handle);
    if (!event) return cudaErrorInvalidResourceHandle;
    if (event->capture) return refuse_captured(*event);
    if (const cudaError_t refused = refuse_unordered(lock)) return refused;
    const auto record = event->record;
    if (record) run(lock, record->stream, record->place);
    return cudaSuccess;
  });
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t stop) {
  return call("cudaEventElapsedTime", [&](Lock&) {
    const auto from = event_of(start), to = event_of(stop);
    if (!from || !to || !from->timing || !to->timing || !from->record || !to->record)
      return cudaErrorInvalidResourceHandle;
    if (!milliseconds) return cudaErrorInvalidValue;
    if (!from->record->done || !to->record->done) return cudaErrorNotReady;
    *milliseconds =
        std::chrono::duration<float, std::milli>(to->record->time - from->record->time).count();
    return cudaSuccess;
  });
}
