// A point in a stream that the host opens. Streams wait there; no thread does.
//
// It uses CUDA's stream memory operations (driver API, "Stream Memory Operations"): the stream
// polls a word of pinned memory. CUDA does not know about this order, so the thread that opens a
// gate must follow three rules until the gate is open. It must not depend on work queued behind a
// gate. It must not call anything that waits for the whole device (cudaFree, a kernel's first
// launch). It must queue its own work on streams of another priority than the waiting ones, since
// streams of one priority may share a hardware queue.
#pragma once

#include <memory>
#include <string>

#include "shoal/runtime/device/device.h"

namespace shoal {

// Closed at first; once open, it stays open. Thread-safe. The holder owns it; waiting streams do
// not, and continue when it is destroyed.
class StreamGate {
 public:
  // Opens the gate. Streams that reach it later pass, since its word lives as long as the process.
  virtual ~StreamGate() = default;
  // Later work on `stream`, of any device of the gate's kind, waits for open(); the caller
  // continues. On a host stream the caller blocks, since it runs the work. Throws internal if
  // `stream` is being captured (a graph would keep this one gate) or the driver refuses.
  virtual void block_stream(Stream stream) = 0;
  // Does not block and calls no driver. Streams that pass see the calling thread's writes, and
  // everything it has seen complete.
  virtual void open() noexcept = 0;
};

// Reuses a word of an earlier gate. If none is free, it asks the driver for pinned memory, which
// may block until the whole device is idle. So do not call it with a lock that a thread which opens
// a gate needs. Throws out_of_memory, and unavailable if why_no_stream_gates() gives a reason.
std::unique_ptr<StreamGate> make_stream_gate(Device device);

// Empty if streams of `device` can wait at gates (driver of CUDA 12 or newer); otherwise the
// reason. Until a trial succeeds, each call tries a wait on a new stream and blocks for it. Throws
// what making that stream throws. A failed trial is not remembered.
std::string why_no_stream_gates(Device device);

// CUDA's implementations of the two functions above.
std::unique_ptr<StreamGate> make_cuda_stream_gate(Device device);
std::string why_no_cuda_stream_gates(Device device);

}  // namespace shoal
