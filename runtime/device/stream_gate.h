// A gate in a stream that the host opens. The stream waits at the gate; no thread does.
//
// CUDA's stream memory operations implement it (driver API, "Stream Memory Operations"): the stream
// polls a word of pinned memory. CUDA does not know about this dependency, so the thread that opens
// a gate must follow three rules until the gate is open. It must not depend on work queued after a
// gate. It must not call anything that waits for the whole device (cudaFree, a kernel's first
// launch). It must queue its own work on streams of another priority than the waiting streams,
// since streams of one priority may share a hardware queue.
#pragma once

#include <memory>
#include <string>

#include "shoal/runtime/device/device.h"

namespace shoal {

// A gate starts closed; once open, it stays open. Thread-safe. Destroying it opens it for all
// waiting streams.
class StreamGate {
 public:
  // Opens the gate. Streams that reach it later pass too, since its word exists until the process
  // ends.
  virtual ~StreamGate() = default;
  // Later work on `stream`, which may be on any device of the gate's kind, waits for open(). Does
  // not block, except for a host stream, where the caller runs the work. Throws internal if
  // `stream` is being captured (a graph would keep this one gate) or the driver refuses.
  virtual void block_stream(Stream stream) = 0;
  // Does not block and calls no driver. Work after the gate sees all memory writes that the calling
  // thread made or has observed.
  virtual void open() noexcept = 0;
};

// Reuses the word of an earlier gate. If no word is free, allocates pinned memory, which may block
// until the whole device is idle. So do not call it while holding a lock that another thread needs
// to open a gate. Throws out_of_memory, and unavailable if why_no_stream_gates() gives a reason.
std::unique_ptr<StreamGate> make_stream_gate(Device device);

// Empty if streams of `device` can wait at gates (driver of CUDA 12 or newer); otherwise the
// reason. Until a trial has succeeded, each call tries a wait on a new stream and blocks until it
// is done. Throws if that stream cannot be created.
std::string why_no_stream_gates(Device device);

// CUDA's implementations of the two functions above.
std::unique_ptr<StreamGate> make_cuda_stream_gate(Device device);
std::string why_no_cuda_stream_gates(Device device);

}  // namespace shoal
