// A point that a stream does not pass before the host says so, and at which no thread waits.
//
// CUDA's stream memory operations (driver API, "Stream Memory Operations"): the stream looks at a
// word of pinned memory. CUDA does not see that order, so whoever is to open a gate may not depend
// on what is queued behind one, nor call what waits for the whole device (cudaFree, a kernel's
// first launch) before it has opened; and what it queues itself belongs on streams of another
// priority than those that wait, since streams of one priority may share a hardware queue.
#pragma once

#include <memory>
#include <string>

#include "shoal/runtime/device/device.h"

namespace shoal {

// Closed when made; once open, it stays so. Thread-safe.
class StreamGate {
 public:
  // Opens it. Streams that come to it later pass: what they look at outlives the gate.
  virtual ~StreamGate() = default;
  // Later work on `stream`, of any device of the gate's kind, waits for open(); the caller goes on.
  // On host streams, whose work is the caller's, the caller waits. Throws internal where `stream`
  // is being captured: a graph would keep this one gate.
  virtual void block_stream(Stream stream) = 0;
  // What the calling thread has written or seen done is there for the streams that pass.
  virtual void open() noexcept = 0;
};

// Takes a word that other gates have used before; asks the driver for memory when none is left.
// Throws unavailable where why_no_stream_gates() says something.
std::unique_ptr<StreamGate> make_stream_gate(Device device);

// Empty where streams of `device` can wait at gates (CUDA 12's driver or newer); otherwise why not.
// The first call for a device tries it.
std::string why_no_stream_gates(Device device);

// Behind the two, for CUDA.
std::unique_ptr<StreamGate> make_cuda_stream_gate(Device device);
std::string why_no_cuda_stream_gates(Device device);

}  // namespace shoal
